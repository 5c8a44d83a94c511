// The one inner product of the core: MR rows times NP panels of sixteen columns.
//
//   c[m][n] += a[m][0] b[0][n] + a[m][1] b[1][n] + ...    strictly in this order, one rounding a step
//
// An output is one lane of one register for the whole sum, so its bits depend neither on MR nor on
// NP nor on what the other lanes hold. Cutting the sum and storing c in between changes nothing
// either: c is kept in fp32 as the register is. Linear layers, attention scores and the weighted
// sum of values are all this loop, with other strides.

#pragma once

#include "storage.h"

namespace pt {

constexpr int PANEL = 16;  // columns of a panel: two vectors
constexpr int ROWS = 6;    // rows of the largest block: 12 accumulators of 16 registers

// a: row m at a + m * lda, contiguous in k.  b: panel p, row k at b + p * panel_step + k * ldb.
// c: row m at c + m * ldc; panel p at c + p * PANEL. `fresh` starts from zero instead of from c.
template <class B, int MR, int NP>
inline void product(const float* a, int64_t lda, const typename B::T* b, int64_t ldb,
                    int64_t panel_step, int64_t depth, float* c, int64_t ldc, bool fresh) {
    v8 acc[MR][NP][2];
    for (int m = 0; m < MR; m++)
        for (int p = 0; p < NP; p++)
            for (int h = 0; h < 2; h++)
                acc[m][p][h] = fresh ? set1(0.0f) : load8(c + m * ldc + p * PANEL + h * LANES);
    for (int64_t k = 0; k < depth; k++) {
        for (int p = 0; p < NP; p++) {
            const typename B::T* row = b + p * panel_step + k * ldb;
            const v8 b0 = B::load8(row), b1 = B::load8(row + LANES);
            for (int m = 0; m < MR; m++) {
                const v8 x = set1(a[m * lda + k]);
                acc[m][p][0] = fma8(x, b0, acc[m][p][0]);
                acc[m][p][1] = fma8(x, b1, acc[m][p][1]);
            }
        }
    }
    for (int m = 0; m < MR; m++)
        for (int p = 0; p < NP; p++)
            for (int h = 0; h < 2; h++) store8(c + m * ldc + p * PANEL + h * LANES, acc[m][p][h]);
}

// Rows against panels, in blocks that keep enough sums in flight to hide their latency.
template <class B, int MR, int NP>
inline void panels_of(const float* a, int64_t lda, const typename B::T* b, int64_t ldb,
                      int64_t panel_step, int64_t panels, int64_t depth, float* c, int64_t ldc,
                      bool fresh) {
    int64_t p = 0;
    for (; p + NP <= panels; p += NP)
        product<B, MR, NP>(a, lda, b + p * panel_step, ldb, panel_step, depth, c + p * PANEL, ldc,
                           fresh);
    for (; p < panels; p++)
        product<B, MR, 1>(a, lda, b + p * panel_step, ldb, panel_step, depth, c + p * PANEL, ldc,
                          fresh);
}

template <class B>
inline void product_panels(const float* a, int64_t lda, const typename B::T* b, int64_t ldb,
                           int64_t panel_step, int64_t panels, int64_t depth, float* c,
                           int64_t ldc, int64_t rows, bool fresh = true) {
    for (; rows >= ROWS; rows -= ROWS, a += ROWS * lda, c += ROWS * ldc)
        panels_of<B, ROWS, 1>(a, lda, b, ldb, panel_step, panels, depth, c, ldc, fresh);
    switch (rows) {
        case 5: return panels_of<B, 5, 1>(a, lda, b, ldb, panel_step, panels, depth, c, ldc, fresh);
        case 4: return panels_of<B, 4, 1>(a, lda, b, ldb, panel_step, panels, depth, c, ldc, fresh);
        case 3: return panels_of<B, 3, 2>(a, lda, b, ldb, panel_step, panels, depth, c, ldc, fresh);
        case 2: return panels_of<B, 2, 2>(a, lda, b, ldb, panel_step, panels, depth, c, ldc, fresh);
        case 1: return panels_of<B, 1, 4>(a, lda, b, ldb, panel_step, panels, depth, c, ldc, fresh);
        default: return;
    }
}

}  // namespace pt
