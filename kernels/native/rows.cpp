// Operations on one row at a time: RMS norm, rotary embedding, gated activations.
//
// A row's result depends on that row alone; sums run over eight lanes in a fixed order.

#include <cmath>

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

void rms_norm(const float* x, const float* w, float w_plus, float eps, int64_t n, float* y) {
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
    const v8 inverse = set1(1.0f / std::sqrt(sum_lanes(squares) / float(n) + eps));
    for (i = 0; i + LANES <= n; i += LANES)
        store8(y + i, load8(x + i) * inverse * (load8(w + i) + set1(w_plus)));
    if (i < n)
        store_first(y + i,
                    load_first(x + i, n - i) * inverse * (load_first(w + i, n - i) + set1(w_plus)),
                    n - i);
}

enum Activation : int32_t { SILU = 0, GELU_TANH = 1 };

inline v8 activate(v8 x, int32_t kind) {
    if (kind == SILU) return x / (set1(1.0f) + exp_8(-x));
    // 0.5 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), equals x / (1 + e^(-2u)).
    const v8 u = set1(0.7978845608028654f) * (x + set1(0.044715f) * x * x * x);
    return x / (set1(1.0f) + exp_8(set1(-2.0f) * u));
}

}  // namespace
}  // namespace pt

using namespace pt;

extern "C" {

// Norms `groups` stretches of n values in every row (heads of a projection, or the row itself).
// The weight is w + w_plus (Gemma stores its weights around zero).
void pt_rms_norm(void* pool, const float* x, int64_t ldx, int64_t rows, int64_t groups, int64_t n,
                 const float* w, float w_plus, float eps, float* y, int64_t ldy) {
    each_row(static_cast<Pool*>(pool), rows, [&](int64_t r) {
        for (int64_t g = 0; g < groups; g++)
            rms_norm(x + r * ldx + g * n, w, w_plus, eps, n, y + r * ldy + g * n);
    });
}

// Rotates the first `rotary` values of every head in place by the angles of the row's position.
// Tables are [positions, rotary / 2]. Halves pair (i, i + rotary/2); interleaved pairs (2i, 2i+1)
// and leaves the pair's results in halves order, as the reference model does.
void pt_rope(void* pool, float* x, int64_t ldx, int64_t rows, int64_t heads, int64_t head_stride,
             int64_t rotary, const int32_t* positions, const float* cosines, const float* sines,
             int32_t interleaved) {
    const int64_t half = rotary / 2;
    each_row(static_cast<Pool*>(pool), rows, [&](int64_t r) {
        const float* c = cosines + int64_t(positions[r]) * half;
        const float* s = sines + int64_t(positions[r]) * half;
        for (int64_t h = 0; h < heads; h++) {
            float* v = x + r * ldx + h * head_stride;
            if (interleaved) {
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
}

// y[r, i] = activation(x[r, i]) * x[r, n + i]: gate and up stand side by side.
void pt_gated(void* pool, const float* x, int64_t ldx, int64_t rows, int64_t n, int32_t kind,
              float* y, int64_t ldy) {
    each_row(static_cast<Pool*>(pool), rows, [&](int64_t r) {
        const float *gate = x + r * ldx, *up = gate + n;
        float* out = y + r * ldy;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES)
            store8(out + i, activate(load8(gate + i), kind) * load8(up + i));
        if (i < n)
            store_first(out + i,
                        activate(load_first(gate + i, n - i), kind) * load_first(up + i, n - i),
                        n - i);
    });
}
}
