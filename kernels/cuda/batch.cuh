// The ragged batch as the device reads it (abi.py says what each array holds), and one item of it.
#pragma once

#include "elements.cuh"
#include "pages.cuh"

constexpr i32 kSpanTokens = 256;  // KV_SPAN_TOKENS of abi.py
constexpr i32 kItemFields = 6;

struct Batch {
  const i32* q_indptr;
  const i32* kv_len;
  const i32* kv_base;
  const i32* page_indptr;
  const i32* page_ids;
  const i32* items;
  i32 page_shift;

  __device__ __forceinline__ PageTable table(i32 sequence) const {
    return PageTable{page_ids + page_indptr[sequence], kv_base[sequence], page_shift};
  }
};

// One layer of one slab's pool.
struct SlabView {
  const void* base;
  const float* scales;  // [pages, page_size, heads] beside 8-bit codes, else null
  PoolStrides strides;  // in elements
  i32 heads;
};

struct AttentionArguments {
  Batch batch;
  const void* q;  // [rows, n_heads, key width]
  void* out;      // [rows, n_heads, value width]
  float* lse;     // [rows, n_heads], or null
  float* partial_o;
  float* partial_lse;
  i64 q_row_stride;
  i64 out_row_stride;
  Storage q_storage;
  Storage out_storage;
  i32 n_heads;
  i32 n_kv_heads;
  i32 window;  // 0: every earlier key is visible
  float scale_log2;
};

// Rows [first_row, first_row + n_rows) of one sequence over keys [kv_lo, kv_hi).
// A padding item has no rows.
struct Item {
  i32 first_row;
  i32 n_rows;
  i32 first_position;  // of first_row in its sequence
  i32 kv_lo;
  i32 kv_hi;
  i32 slot;  // -1: results go to out; else the slot of the first row's partial result
  PageTable pages;

  __device__ __forceinline__ Item(const Batch& batch, i32 index) {
    const i32* fields = batch.items + i64{index} * kItemFields;
    const i32 sequence = fields[0];
    n_rows = sequence < 0 ? 0 : fields[2];
    if (n_rows == 0) return;
    first_row = fields[1];
    kv_lo = fields[3];
    kv_hi = fields[4];
    slot = fields[5];
    first_position = batch.kv_len[sequence] - batch.q_indptr[sequence + 1] + first_row;
    pages = batch.table(sequence);
  }

  // kv_lo <= token < kv_hi in one comparison, which keeps a register free where none is to spare.
  __device__ __forceinline__ bool reads(i32 token) const {
    return static_cast<u32>(token - kv_lo) < static_cast<u32>(max(kv_hi - kv_lo, 0));
  }
};
