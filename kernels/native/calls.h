// The arguments of every operation of a step, one struct each, as the caller lays them out.
//
// All such operations have one shape: `int32_t name(void* pool, const void* arguments)`; 0 says that
// it was done. So a step can be written down as a list of them and run again in one call.

#pragma once

#include <cstdint>

namespace pt {

// y[m, n] = sum over k of x[m, k] w[n, k] + bias[n], or added to y.
struct LinearCall {
    const float* x;
    int64_t ldx, rows, depth;
    const void* weight;  // packed
    int64_t storage, outputs;
    const float* bias;  // or null
    float* y;
    int64_t ldy, add;
};

// Norms `groups` stretches of n values in every row (heads of a projection, or the row itself). The
// weight is w + plus (Gemma stores its weights around zero).
struct NormCall {
    const float* x;
    int64_t ldx, rows, groups, n;
    const float* weight;
    float* y;
    int64_t ldy;
    float plus, eps;
};

// Rotates the first `rotary` values of every head in place by the angles of the row's position.
// Tables are [positions, rotary / 2]. Halves pair (i, i + rotary/2); interleaved pairs (2i, 2i+1)
// and leaves the pair's results in halves order, as the reference model does.
struct RopeCall {
    float* x;
    int64_t ldx, rows, heads, head_stride, rotary;
    const int32_t* positions;
    const float *cosines, *sines;
    int64_t interleaved;
};

// y[r, i] = activation(x[r, i]) * x[r, n + i]: gate and up stand side by side.
struct GatedCall {
    const float* x;
    int64_t ldx, rows, n, kind;
    float* y;
    int64_t ldy;
};

// rows[r] to slot slots[r] of one layer; slot -1 is skipped, one past the pool answers 1.
struct AppendCall {
    const float* rows;
    int64_t ldr, count, width;
    const int64_t* slots;
    int64_t slots_max;
    void* layer;
    int64_t storage;
};

struct Slab {
    const void* base;  // of this layer
    int64_t page_stride, token_stride, head_stride, width;  // in elements
};

// See attention.cpp.
struct Attention {
    const float* q;  // [rows, q_heads, sum of key widths], row stride ldq
    int64_t ldq, rows, q_heads, kv_heads;
    Slab keys[2];
    Slab values;
    int64_t key_slabs, storage, page_tokens;
    const int32_t *q_indptr, *kv_len, *kv_base, *page_indptr, *page_ids, *items, *merge_indptr;
    int64_t item_count;
    int64_t window;  // 0: every earlier key is visible
    float* out;      // [rows, q_heads, values.width], row stride ldo
    int64_t ldo;
    float* lse;      // [rows, q_heads] or null
    float* partial;  // [slots, q_heads, values.width padded + 2] or null
    float scale;
};

}  // namespace pt
