// The one inner product of the core: rows times panels of sixteen columns.
//
//   c[m][n] += a[m][0] b[0][n] + a[m][1] b[1][n] + ...    strictly in this order, one rounding a step
//
// An output is one lane of one register for the whole sum, so its bits depend neither on how many
// rows and panels go together nor on what the other lanes hold. Cutting the sum and storing c in
// between changes nothing either: c is kept in fp32 as the register is. Linear layers and the
// weighted sum of values are this loop, with other strides. What one step multiplies is a policy:
// an element here, a pair in pairs.h.

#pragma once

#include <algorithm>

#include "wide.h"

namespace pt {

constexpr int PANEL = 16;  // columns of a panel

// One element of a row times one row of a panel.
template <class S>
struct Plain {
    typedef float Row;                // as the product reads rows of a
    typedef typename S::T T;          // as panels are stored
    typedef Wide Value, Column;
    static constexpr int GROUP = 1;   // elements of depth that one step takes
    static constexpr int SUMS = WIDE_REGISTERS >= 32 ? 28 : 6;  // registers left beside operands
    static constexpr int FEW = WIDE_REGISTERS >= 32 ? 14 : 6;   // rows that one block takes alone
    static constexpr int ROWS = 6;                              // rows of a block among many
    static Value value(const float* a) { return wide_set1(*a); }
    static Column column(const T* b) { return wide_widen<S>(b); }
    static Wide step(Value x, Column w, Wide sum) { return wide_fma(x, w, sum); }
};

// Panels that go side by side with so many rows: enough sums in flight to hide their latency.
template <class B>
constexpr int panels_beside(int rows) {
    return std::max(1, std::min(B::SUMS / rows, WIDE_REGISTERS >= 32 ? 8 : 4));
}

// What becomes of c: the sums, the sums going on from it, or it with the sums added.
enum class Into { FRESH, GO_ON, ADD };

// a: row m at a + m * lda, contiguous.  b: panel p, step k at b + p * panel_step + k * ldb.
// c: row m at c + m * ldc; panel p at c + p * PANEL.
// ahead: a panel that will be read soon; each step asks the memory for a step of it.
//
// Flattened, as every kernel of the core: the more a source holds, the less a compiler inlines unasked.
template <class B, int MR, int NP>
[[gnu::flatten]] inline void product(const typename B::Row* a, int64_t lda, const typename B::T* b,
                                     int64_t ldb, int64_t panel_step, int64_t steps, float* c,
                                     int64_t ldc, Into into, const typename B::T* ahead) {
    Wide sum[MR][NP];
    for (int m = 0; m < MR; m++)
        for (int p = 0; p < NP; p++)
            sum[m][p] =
                into == Into::GO_ON ? wide_load(c + m * ldc + p * PANEL) : wide_set1(0.0f);
    for (int64_t k = 0; k < steps; k++) {
        __builtin_prefetch(ahead + k * ldb, 0, 2);
        typename B::Column w[NP];
        for (int p = 0; p < NP; p++) w[p] = B::column(b + p * panel_step + k * ldb);
        for (int m = 0; m < MR; m++) {
            const typename B::Value x = B::value(a + m * lda + k * B::GROUP);
            for (int p = 0; p < NP; p++) sum[m][p] = B::step(x, w[p], sum[m][p]);
        }
    }
    for (int m = 0; m < MR; m++)
        for (int p = 0; p < NP; p++) {
            float* to = c + m * ldc + p * PANEL;
            wide_store(to, into == Into::ADD ? wide_add(wide_load(to), sum[m][p]) : sum[m][p]);
        }
}

// MR rows against any number of panels, NP of them side by side.
template <class B, int MR, int NP>
inline void panels_of(const typename B::Row* a, int64_t lda, const typename B::T* b, int64_t ldb,
                      int64_t panel_step, int64_t panels, int64_t steps, float* c, int64_t ldc,
                      Into into, const typename B::T* ahead) {
    int64_t p = 0;
    for (; p + NP <= panels; p += NP)
        product<B, MR, NP>(a, lda, b + p * panel_step, ldb, panel_step, steps, c + p * PANEL, ldc,
                           into, ahead);
    for (; p < panels; p++)
        product<B, MR, 1>(a, lda, b + p * panel_step, ldb, panel_step, steps, c + p * PANEL, ldc,
                          into, ahead);
}

// At most ROWS rows: the block that has just as many.
template <class B, int MR = B::ROWS>
inline void block_of(int64_t rows, const typename B::Row* a, int64_t lda, const typename B::T* b,
                     int64_t ldb, int64_t panel_step, int64_t panels, int64_t steps, float* c,
                     int64_t ldc, Into into, const typename B::T* ahead) {
    if (rows == MR)
        panels_of<B, MR, panels_beside<B>(B::ROWS)>(a, lda, b, ldb, panel_step, panels, steps, c, ldc,
                                                    into, ahead);
    else if constexpr (MR > 1)
        block_of<B, MR - 1>(rows, a, lda, b, ldb, panel_step, panels, steps, c, ldc, into, ahead);
}

// Any number of rows, in blocks as even as can be. The first block brings b near; the ones after it
// ask for `next`, as many panels as b has, if it is there.
template <class B>
inline void blocks_of(const typename B::Row* a, int64_t lda, const typename B::T* b, int64_t ldb,
                      int64_t panel_step, int64_t panels, int64_t steps, float* c, int64_t ldc,
                      int64_t rows, Into into, const typename B::T* next = nullptr) {
    int64_t blocks = (rows + B::ROWS - 1) / B::ROWS, asked = -1;
    for (int64_t row = 0; blocks > 0; blocks--, asked++) {
        const int64_t now = (rows - row + blocks - 1) / blocks;
        const bool asks = next && asked >= 0 && asked < panels;
        block_of<B>(now, a + row * lda, lda, b, ldb, panel_step, panels, steps, c + row * ldc, ldc,
                    into, asks ? next + asked * panel_step : b);
        row += now;
    }
}

}  // namespace pt
