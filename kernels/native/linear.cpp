// Linear layers over packed weights: y[m, n] = sum over k of x[m, k] w[n, k].
//
// Packing turns w[n, k] into panels of sixteen outputs, `panel[k][16]`, zero-filled past n, so the
// inner loop reads memory in order; bf16 in pairs, `panel[k / 2][16][2]`, zero-filled past k. Each
// output is summed in one order over k, whatever the number of rows or threads: its bits are a
// function of its row of x and its row of w alone. A bf16 weight multiplies rows rounded to bf16.

#include <algorithm>
#include <type_traits>

#include "calls.h"
#include "pairs.h"
#include "pool.h"

namespace pt {
namespace {

constexpr int64_t BLOCK_BYTES = 192 * 1024;  // rows of x kept near while the panels stream by
constexpr int64_t DEPTH_NEAR = 768;          // steps of a panel that go over all rows at a time

// What packed panels of one storage are to the product.
template <class B>
struct Panels {
    const typename B::T* data;
    int64_t steps;  // of the depth
    static constexpr int64_t STRIDE = PANEL * B::GROUP;

    Panels(const void* weight, int64_t depth)
        : data(static_cast<const typename B::T*>(weight)), steps((depth + B::GROUP - 1) / B::GROUP) {}
    const typename B::T* at(int64_t panel) const { return data + panel * step(); }
    int64_t step() const { return steps * STRIDE; }  // from a panel to the next
    // Where in a panel the weight of one output (a row of w) and one k lies.
    static int64_t place(int64_t row, int64_t k) {
        return (k / B::GROUP * PANEL + row % PANEL) * B::GROUP + k % B::GROUP;
    }
};

template <class B, class S>
void pack(const float* w, int64_t n, int64_t k, void* packed, Pool* pool) {
    const Panels<B> panels(packed, k);
    typename B::T* out = static_cast<typename B::T*>(packed);
    pool->run((n + PANEL - 1) / PANEL, [&](int64_t p, int) {
        for (int64_t i = 0; i < panels.steps * B::GROUP; i++)
            for (int64_t row = p * PANEL; row < (p + 1) * PANEL; row++)
                out[p * panels.step() + panels.place(row, i)] =
                    S::narrow(row < n && i < k ? w[row * k + i] : 0.0f);
    });
}

template <class B, class S>
void unpack_rows(const void* packed, int64_t k, const int32_t* rows, int64_t count, float* out) {
    const Panels<B> panels(packed, k);
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < k; i++)
            out[r * k + i] = S::load(panels.at(rows[r] / PANEL)[panels.place(rows[r], i)]);
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

// Rows of x as the product reads them.
template <class B>
struct Rows {
    const typename B::Row* data;
    int64_t stride;
};

inline int64_t whole_lanes(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

// Where they lie, or rounded into `room`, which holds a float for each.
template <class B>
Rows<B> read_rows(const LinearCall& l, int64_t row, int64_t rows, float* room) {
    const float* x = l.x + row * l.ldx;
    if constexpr (std::is_same_v<B, Pairs>) {
        Pairs::Row* rounded = reinterpret_cast<Pairs::Row*>(room);
        round_rows(x, l.ldx, rows, l.depth, whole_lanes(l.depth), rounded);
        return {rounded, whole_lanes(l.depth)};
    } else {
        return {x, l.ldx};
    }
}

// At most FEW rows: panels straight through, as many side by side as sums fit registers.
template <class B, int MR = B::FEW>
void few_rows(const LinearCall& l, const Panels<B>& w, Rows<B> x, int64_t row, int64_t rows,
              int64_t first, int64_t last) {
    if (rows != MR) {
        if constexpr (MR > 1) few_rows<B, MR - 1>(l, w, x, row, rows, first, last);
        return;
    }
    constexpr int NP = panels_beside<B>(MR);
    alignas(64) float c[MR * NP * PANEL];
    for (int64_t panel = first; panel < last; panel += NP) {
        const int64_t panels = std::min<int64_t>(NP, last - panel);
        panels_of<B, MR, NP>(x.data, x.stride, w.at(panel), w.STRIDE, w.step(), panels, w.steps, c,
                             NP * PANEL, Into::FRESH, w.at(panel));
        finish(l, c, NP * PANEL, row, MR, panel, panels);
    }
}

// Many rows: a stretch of the depth of some panels stays near while all rows go over it; the sums
// so far wait, as they are, in y where they may, else in c. A sum that goes straight to y is written
// while the next is under way; a whole block of them at the end would be waited for.
template <class B>
void many_rows(const LinearCall& l, const Panels<B>& w, Rows<B> x, int64_t row, int64_t rows,
               int64_t first, int64_t last, float* c) {
    constexpr int NP = panels_beside<B>(B::ROWS);
    for (int64_t panel = first; panel < last; panel += NP) {
        const int64_t panels = std::min<int64_t>(NP, last - panel);
        const bool straight = !l.bias && (!l.add || w.steps <= DEPTH_NEAR) &&
                              (panel + panels) * PANEL <= l.outputs;
        float* sums = straight ? l.y + row * l.ldy + panel * PANEL : c;
        const int64_t lds = straight ? l.ldy : NP * PANEL;
        for (int64_t k = 0; k < w.steps; k += DEPTH_NEAR) {
            const typename B::T* here = w.at(panel) + k * w.STRIDE;
            const typename B::T* next = k + DEPTH_NEAR < w.steps ? here + DEPTH_NEAR * w.STRIDE
                                        : panel + NP < last      ? w.at(panel + NP)
                                                                 : nullptr;
            const Into into = k > 0                ? Into::GO_ON
                              : straight && l.add ? Into::ADD
                                                  : Into::FRESH;
            blocks_of<B>(x.data + k * B::GROUP, x.stride, here, w.STRIDE, w.step(), panels,
                         std::min(DEPTH_NEAR, w.steps - k), sums, lds, rows, into, next);
        }
        if (!straight) finish(l, c, NP * PANEL, row, rows, panel, panels);
    }
}

template <class B>
void linear(const LinearCall& l, Pool* pool) {
    const Panels<B> w(l.weight, l.depth);
    const int64_t panels = (l.outputs + PANEL - 1) / PANEL;
    int64_t near = BLOCK_BYTES / int64_t(sizeof(typename B::Row)) / std::max<int64_t>(l.depth, 1);
    near = std::max<int64_t>(B::FEW, near / B::ROWS * B::ROWS);
    const int64_t row_blocks = (l.rows + near - 1) / near;
    const int64_t groups = (l.rows + B::ROWS - 1) / B::ROWS;  // cut nowhere
    // Enough tasks to even out, few enough that taking one costs nothing beside its work.
    const int64_t wanted = pool->threads() == 1 ? 1 : int64_t(pool->threads()) * 4;
    const int64_t cuts = std::min<int64_t>(std::max<int64_t>(1, panels / 4), wanted);
    // Of many rows whole sets of panels: one panel alone would wait for its rows.
    const int64_t beside = l.rows > B::FEW ? panels_beside<B>(B::ROWS) : 1;
    const int64_t sets = (panels + beside - 1) / beside;
    pool->run(row_blocks * cuts, [&](int64_t task, int thread) {
        const int64_t block = task % row_blocks, cut = task / row_blocks;
        const int64_t row = groups * block / row_blocks * B::ROWS;
        const int64_t end = groups * (block + 1) / row_blocks * B::ROWS;
        const int64_t rows = std::min(l.rows, end) - row;
        const int64_t first = sets * cut / cuts * beside;
        const int64_t last = std::min(panels, sets * (cut + 1) / cuts * beside);
        const int64_t sums = rows > B::FEW ? rows * beside * PANEL : 0;
        std::vector<float>& scratch = pool->scratch(thread);
        const size_t room = size_t(sums + rows * whole_lanes(l.depth));
        if (scratch.size() < room) scratch.resize(room);
        float* c = scratch.data();
        const Rows<B> x = read_rows<B>(l, row, rows, c + sums);
        if (rows <= B::FEW)
            few_rows<B>(l, w, x, row, rows, first, last);
        else
            many_rows<B>(l, w, x, row, rows, first, last, c);
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
    if (storage == STORE_F32) return pack<Plain<F32>, F32>(w, n, k, out, p);
    if (storage == STORE_F16) return pack<Plain<F16>, F16>(w, n, k, out, p);
    pack<Pairs, BF16>(w, n, k, out, p);
}

void pt_unpack_rows(const void* w, int64_t k, int32_t storage, const int32_t* rows, int64_t count,
                    float* out) {
    if (storage == STORE_F32) return unpack_rows<Plain<F32>, F32>(w, k, rows, count, out);
    if (storage == STORE_F16) return unpack_rows<Plain<F16>, F16>(w, k, rows, count, out);
    unpack_rows<Pairs, BF16>(w, k, rows, count, out);
}

int32_t pt_linear(void* pool, const void* arguments) {
    const LinearCall& l = *static_cast<const LinearCall*>(arguments);
    Pool* p = static_cast<Pool*>(pool);
    if (l.storage == STORE_F32)
        linear<Plain<F32>>(l, p);
    else if (l.storage == STORE_F16)
        linear<Plain<F16>>(l, p);
    else
        linear<Pairs>(l, p);
    return 0;
}
}
