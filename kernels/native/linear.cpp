// Linear layers over packed weights: y[m, n] = sum over k of x[m, k] w[n, k].
//
// Packing turns w[n, k] into panels of sixteen outputs, `panel[k][16]`, zero-filled past n, so the
// inner loop reads memory in order. Each output is summed over k from 0 up, whatever the number of
// rows or threads: its bits are a function of its row of x and its row of w alone.

#include <algorithm>
#include <type_traits>

#include "calls.h"
#include "pool.h"
#include "product.h"

namespace pt {
namespace {

constexpr int64_t BLOCK_BYTES = 192 * 1024;  // rows of x kept near while the panels stream by
constexpr int64_t DEPTH_NEAR = 256;          // of a panel: 16 KiB in the nearest cache

template <class B>
void pack(const float* w, int64_t n, int64_t k, typename B::T* out, Pool* pool) {
    const int64_t panels = (n + PANEL - 1) / PANEL;
    pool->run(panels, [&](int64_t p, int) {
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < PANEL; j++) {
                const int64_t row = p * PANEL + j;
                out[(p * k + i) * PANEL + j] = B::narrow(row < n ? w[row * k + i] : 0.0f);
            }
    });
}

template <class B>
void unpack_rows(const typename B::T* w, int64_t k, const int32_t* rows, int64_t count, float* out) {
    for (int64_t r = 0; r < count; r++) {
        const typename B::T* from = w + (rows[r] / PANEL) * k * PANEL + rows[r] % PANEL;
        for (int64_t i = 0; i < k; i++) out[r * k + i] = B::load(from[i * PANEL]);
    }
}

void finish(const LinearCall& l, const float* block, int64_t ldb, int64_t row, int64_t rows,
            int64_t panel, int64_t panels) {
    for (int64_t m = 0; m < rows; m++)
        for (int64_t p = 0; p < panels; p++) {
            const int64_t column = (panel + p) * PANEL;
            float* y = l.y + (row + m) * l.ldy + column;
            for (int64_t h = 0; h < PANEL; h += LANES) {
                const int64_t n = std::min<int64_t>(LANES, l.outputs - column - h);
                if (n <= 0) break;
                v8 value = load8(block + m * ldb + p * PANEL + h);
                if (l.bias) value = value + load_first(l.bias + column + h, n);
                if (l.add) value = load_first(y + h, n) + value;
                store_first(y + h, value, n);
            }
        }
}

// Few rows, each panel read once: several panels side by side for one or two rows, so that enough
// sums are in flight to hide their latency; two even halves of more rows than a block has.
template <class B, int MR, int NP>
void few(const LinearCall& l, const typename B::T* w, int64_t row, int64_t first, int64_t last) {
    alignas(32) float c[MR * NP * PANEL];
    const int64_t step = l.depth * PANEL;
    int64_t panel = first;
    for (; panel + NP <= last; panel += NP) {
        product<B, MR, NP>(l.x + row * l.ldx, l.ldx, w + panel * step, PANEL, step, l.depth, c,
                           NP * PANEL, true);
        finish(l, c, NP * PANEL, row, MR, panel, NP);
    }
    for (; panel < last; panel++) {
        product<B, MR, 1>(l.x + row * l.ldx, l.ldx, w + panel * step, PANEL, step, l.depth, c,
                          PANEL, true);
        finish(l, c, PANEL, row, MR, panel, 1);
    }
}

template <class B>
void few_rows(const LinearCall& l, const typename B::T* w, int64_t row, int64_t rows, int64_t first,
              int64_t last) {
    switch (rows) {
        case 1: return few<B, 1, 4>(l, w, row, first, last);
        case 2: return few<B, 2, 2>(l, w, row, first, last);
        case 3: return few<B, 3, 2>(l, w, row, first, last);
        case 4: return few<B, 4, 1>(l, w, row, first, last);
        case 5: return few<B, 5, 1>(l, w, row, first, last);
        case 6: return few<B, 6, 1>(l, w, row, first, last);
        default: break;
    }
    for (int64_t panel = first; panel < last; panel++) {
        few_rows<B>(l, w, row, (rows + 1) / 2, panel, panel + 1);
        few_rows<B>(l, w, row + (rows + 1) / 2, rows / 2, panel, panel + 1);
    }
}

// Many rows: a stretch of a panel's depth, made fp32, stays in the nearest cache while all rows go
// over it; the sums so far wait in c, as they are.
template <class B>
void many_rows(const LinearCall& l, const typename B::T* w, int64_t row, int64_t rows,
               int64_t first, int64_t last, std::vector<float>& scratch) {
    const size_t need = size_t((rows + DEPTH_NEAR) * PANEL);
    if (scratch.size() < need) scratch.resize(need);
    float *c = scratch.data(), *near = c + rows * PANEL;
    for (int64_t panel = first; panel < last; panel++) {
        for (int64_t k = 0; k < l.depth; k += DEPTH_NEAR) {
            const int64_t n = std::min(DEPTH_NEAR, l.depth - k);
            const typename B::T* from = w + (panel * l.depth + k) * PANEL;
            const float* panel_near = near;
            if constexpr (std::is_same_v<B, F32>)
                panel_near = from;
            else
                for (int64_t i = 0; i < n * PANEL; i += LANES) store8(near + i, B::load8(from + i));
            product_panels<F32>(l.x + row * l.ldx + k, l.ldx, panel_near, PANEL, 0, 1, n, c, PANEL,
                                rows, k == 0);
        }
        finish(l, c, PANEL, row, rows, panel, 1);
    }
}

template <class B>
void linear(const LinearCall& l, const typename B::T* w, Pool* pool) {
    const int64_t panels = (l.outputs + PANEL - 1) / PANEL;
    int64_t near = BLOCK_BYTES / int64_t(sizeof(float)) / std::max<int64_t>(l.depth, 1);
    near = std::max<int64_t>(ROWS, near / ROWS * ROWS);
    const int64_t row_blocks = (l.rows + near - 1) / near;
    // Enough tasks to even out, few enough that taking one costs nothing beside its work.
    const int64_t wanted = pool->threads() == 1 ? 1 : int64_t(pool->threads()) * 4;
    const int64_t cuts = std::min<int64_t>(std::max<int64_t>(1, panels / 4), wanted);
    pool->run(row_blocks * cuts, [&](int64_t task, int thread) {
        const int64_t row = task / cuts * near, cut = task % cuts;
        const int64_t rows = std::min(near, l.rows - row);
        const int64_t first = panels * cut / cuts, last = panels * (cut + 1) / cuts;
        if (rows <= 2 * ROWS)
            few_rows<B>(l, w, row, rows, first, last);
        else
            many_rows<B>(l, w, row, rows, first, last, pool->scratch(thread));
    });
}

}  // namespace
}  // namespace pt

using namespace pt;

extern "C" {

void* pt_pool_new(int32_t threads) { return new Pool(threads); }
void pt_pool_free(void* pool) { delete static_cast<Pool*>(pool); }

void pt_pack(void* pool, const float* w, int64_t n, int64_t k, int32_t storage, void* out) {
    Pool* p = static_cast<Pool*>(pool);
    if (storage == STORE_F32) return pack<F32>(w, n, k, static_cast<float*>(out), p);
    if (storage == STORE_F16) return pack<F16>(w, n, k, static_cast<uint16_t*>(out), p);
    return pack<BF16>(w, n, k, static_cast<uint16_t*>(out), p);
}

void pt_unpack_rows(const void* w, int64_t k, int32_t storage, const int32_t* rows, int64_t count,
                    float* out) {
    if (storage == STORE_F32)
        return unpack_rows<F32>(static_cast<const float*>(w), k, rows, count, out);
    if (storage == STORE_F16)
        return unpack_rows<F16>(static_cast<const uint16_t*>(w), k, rows, count, out);
    unpack_rows<BF16>(static_cast<const uint16_t*>(w), k, rows, count, out);
}

int32_t pt_linear(void* pool, const void* arguments) {
    const LinearCall& l = *static_cast<const LinearCall*>(arguments);
    Pool* p = static_cast<Pool*>(pool);
    if (l.storage == STORE_F32)
        linear<F32>(l, static_cast<const float*>(l.weight), p);
    else if (l.storage == STORE_F16)
        linear<F16>(l, static_cast<const uint16_t*>(l.weight), p);
    else
        linear<BF16>(l, static_cast<const uint16_t*>(l.weight), p);
    return 0;
}
}
