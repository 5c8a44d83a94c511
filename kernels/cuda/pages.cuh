// Where a token's row lies in a pool of pages.
//
// A pool is [pages, page_size, heads, width]; strides count elements and are 64-bit, because
// page * page_stride passes 2^31 in pools of a few gigabytes. The page size is a power of two.
#pragma once

#include "intrinsics.cuh"

struct PoolStrides {
  i64 page;
  i64 token;
  i64 head;
};

// A slot is page * page_size + offset.
__device__ __forceinline__ i64 slot_offset(const PoolStrides& strides, i64 slot, i32 page_shift,
                                           i32 head) {
  const i64 page = slot >> page_shift;
  const i64 row = slot & ((i64{1} << page_shift) - 1);
  return page * strides.page + row * strides.token + head * strides.head;
}

// The pages of one sequence: entry 0 holds token `base`, the first token still retained.
struct PageTable {
  const i32* ids;
  i32 base;
  i32 page_shift;

  __device__ __forceinline__ i64 row_offset(const PoolStrides& strides, i32 token,
                                            i32 head) const {
    return page(token) * strides.page + row(token) * strides.token + head * strides.head;
  }

  __device__ __forceinline__ i64 slot(i32 token) const {
    return i64{page(token)} << page_shift | row(token);
  }

 private:
  __device__ __forceinline__ i32 page(i32 token) const {
    return ids[(token >> page_shift) - (base >> page_shift)];
  }
  __device__ __forceinline__ i32 row(i32 token) const { return token & ((1 << page_shift) - 1); }
};
