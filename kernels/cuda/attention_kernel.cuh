// The parameters every tensor-core attention kernel takes, in one place: DEFINE_ATTENTION makes a
// kernel of an element type, tiles of two slabs (first and second) and a number of row tiles.
// Scales are null where pages hold plain numbers.
#pragma once

#include "paged_attention.cuh"

#define DEFINE_ATTENTION(kernel, Elem, Tiles, RowTiles)                                           \
  PT_KERNEL(kernel, kThreads)(                                                                    \
      const void* q, const void* first_pool, const void* second_pool, const float* first_scales,  \
      const float* second_scales, const i32* q_indptr, const i32* kv_len, const i32* kv_base,     \
      const i32* page_indptr, const i32* page_ids, const i32* items, void* out, float* lse,       \
      float* partial_o, float* partial_lse, i64 q_row_stride, i64 out_row_stride, i64 first_page, \
      i64 first_token, i64 first_head, i64 second_page, i64 second_token, i64 second_head,        \
      i32 page_shift, i32 q_storage, i32 out_storage, i32 n_heads, i32 n_kv_heads, i32 window,    \
      float scale_log2) {                                                                         \
    PT_SHARED(shared);                                                                            \
    const AttentionArguments arguments{                                                           \
        {q_indptr, kv_len, kv_base, page_indptr, page_ids, items, page_shift},                    \
        q, out, lse, partial_o, partial_lse, q_row_stride, out_row_stride,                        \
        static_cast<Storage>(q_storage), static_cast<Storage>(out_storage), n_heads, n_kv_heads,  \
        window, scale_log2};                                                                      \
    const Tiles tiles{                                                                            \
        {first_pool, first_scales, {first_page, first_token, first_head}, n_kv_heads},            \
        {second_pool, second_scales, {second_page, second_token, second_head}, n_kv_heads}};      \
    Attend<Elem, Tiles, RowTiles>(arguments, tiles, shared).run();                                \
  }                                                                                               \
  PT_EXPORT(kernel)
