// Operations on one row at a time: RMS norm, rotary embedding, gated activations.
//
// A row's result depends on that row alone; sums run over eight lanes in a fixed order.

#include <cmath>

#include "calls.h"
#include "pool.h"
#include "vec.h"

namespace pt {
namespace {

constexpr int64_t ROWS_A_TASK = 16;

template <class Body>
void each_row(Pool* pool, int64_t rows, Body body) {
    pool->run((rows + ROWS_A_TASK - 1) / ROWS_A_TASK, [&](int64_t task, int) {
        const int64_t end = (task + 1) * ROWS_A_TASK;
        for (int64_t r = task * ROWS_A_TASK; r < (end < rows ? end : rows); r++) body(r);
    });
}

void rms_norm(const NormCall& c, int64_t from, int64_t to) {
    const float *x = c.x + from, *w = c.weight;
    float* y = c.y + to;
    const int64_t n = c.n;
    v8 squares = set1(0.0f);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const v8 v = load8(x + i);
        squares = fma8(v, v, squares);
    }
    if (i < n) {
        const v8 v = load_first(x + i, n - i);
        squares = fma8(v, v, squares);
    }
    const v8 inverse = set1(1.0f / std::sqrt(sum_lanes(squares) / float(n) + c.eps));
    const auto scaled = [&](v8 value, v8 weight) { return value * inverse * (weight + set1(c.plus)); };
    for (i = 0; i + LANES <= n; i += LANES)
        store8(y + i, scaled(load8(x + i), load8(w + i)));
    if (i < n) store_first(y + i, scaled(load_first(x + i, n - i), load_first(w + i, n - i)), n - i);
}

enum Activation : int32_t { SILU = 0, GELU_TANH = 1 };

inline v8 exp_of(v8 x) { return exp_8(x); }
#ifdef __AVX512F__
inline v16 exp_of(v16 x) { return exp_16(x); }
#endif

template <class V>
inline V activate(V x, int32_t kind) {
    const V one = V{} + 1.0f;
    if (kind == SILU) return x / (one + exp_of(-x));
    // 0.5 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), equals x / (1 + e^(-2u)).
    const V u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x / (one + exp_of(-2.0f * u));
}

}  // namespace
}  // namespace pt

using namespace pt;

extern "C" {

int32_t pt_rms_norm(void* pool, const void* arguments) {
    const NormCall& c = *static_cast<const NormCall*>(arguments);
    each_row(static_cast<Pool*>(pool), c.rows, [&](int64_t r) {
        for (int64_t g = 0; g < c.groups; g++) rms_norm(c, r * c.ldx + g * c.n, r * c.ldy + g * c.n);
    });
    return 0;
}

int32_t pt_rope(void* pool, const void* arguments) {
    const RopeCall& call = *static_cast<const RopeCall*>(arguments);
    const int64_t half = call.rotary / 2;
    each_row(static_cast<Pool*>(pool), call.rows, [&](int64_t r) {
        const float* c = call.cosines + int64_t(call.positions[r]) * half;
        const float* s = call.sines + int64_t(call.positions[r]) * half;
        for (int64_t h = 0; h < call.heads; h++) {
            float* v = call.x + r * call.ldx + h * call.head_stride;
            if (call.interleaved) {
                float first[1024], second[1024];
                for (int64_t i = 0; i < half; i++) first[i] = v[2 * i], second[i] = v[2 * i + 1];
                for (int64_t i = 0; i < half; i++) v[i] = first[i], v[half + i] = second[i];
            }
            int64_t i = 0;
            for (; i + LANES <= half; i += LANES) {
                const v8 a = load8(v + i), b = load8(v + half + i);
                const v8 cc = load8(c + i), ss = load8(s + i);
                store8(v + i, a * cc - b * ss);
                store8(v + half + i, b * cc + a * ss);
            }
            if (i < half) {
                const int64_t n = half - i;
                const v8 a = load_first(v + i, n), b = load_first(v + half + i, n);
                const v8 cc = load_first(c + i, n), ss = load_first(s + i, n);
                store_first(v + i, a * cc - b * ss, n);
                store_first(v + half + i, b * cc + a * ss, n);
            }
        }
    });
    return 0;
}

int32_t pt_gated(void* pool, const void* arguments) {
    const GatedCall& c = *static_cast<const GatedCall*>(arguments);
    const int64_t n = c.n;
    const int32_t kind = int32_t(c.kind);
    each_row(static_cast<Pool*>(pool), c.rows, [&](int64_t r) {
        const float *gate = c.x + r * c.ldx, *up = gate + n;
        float* out = c.y + r * c.ldy;
        int64_t i = 0;
#ifdef __AVX512F__
        for (; i + 2 * LANES <= n; i += 2 * LANES)
            store16(out + i, activate(load16(gate + i), kind) * load16(up + i));
#endif
        for (; i + LANES <= n; i += LANES)
            store8(out + i, activate(load8(gate + i), kind) * load8(up + i));
        if (i < n)
            store_first(out + i,
                        activate(load_first(gate + i, n - i), kind) * load_first(up + i, n - i),
                        n - i);
    });
    return 0;
}
}
