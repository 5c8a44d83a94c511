// Whole-byte movement of pages and token rows: copy-on-write, capture, restore.
//
// A slab's pool is [layers, pages, page_tokens, row bytes]. Nothing here knows an element type:
// sizes are bytes, and a row or page moves in pieces of 16 where addresses and sizes allow it,
// else byte by byte. Every kernel strides its grid over the work, so a fixed grid can be captured.
#include "elements.cuh"

// Copies n units of one row by the threads of a block.
template <class Unit>
__device__ __forceinline__ void copy_units(void* to, const void* from, i64 n) {
  for (i64 i = threadIdx.x; i < n; i += blockDim.x)
    static_cast<Unit*>(to)[i] = static_cast<const Unit*>(from)[i];
}

__device__ __forceinline__ void copy_bytes(unsigned char* to, const unsigned char* from,
                                           i64 bytes) {
  if (aligned_16(to) && aligned_16(from) && bytes % 16 == 0)
    copy_units<uint4>(to, from, bytes / 16);
  else
    copy_units<unsigned char>(to, from, bytes);
}

// In every layer, page targets[i] = page sources[i] for i < n. No page is both source and target;
// a negative target is padding.
PT_KERNEL(page_copy, 256)(unsigned char* pool, const i32* sources, const i32* targets, i32 n,
                          i32 n_layers, i64 layer_bytes, i64 page_bytes) {
  const i64 n_pages = i64{n} * n_layers;
  for (i64 unit = blockIdx.x; unit < n_pages; unit += gridDim.x) {
    const i64 layer = unit / n, i = unit % n;
    if (targets[i] < 0) continue;
    unsigned char* at = pool + layer * layer_bytes;
    copy_bytes(at + targets[i] * page_bytes, at + sources[i] * page_bytes, page_bytes);
  }
}
PT_EXPORT(page_copy)

// Rows first_row .. first_row + n of a page table, of every layer; packed is [layers, n, row].
struct RowRange {
  const i32* page_ids;
  i32 first_row;
  i32 n;
  i32 n_layers;
  i32 page_shift;
  i64 layer_bytes;
  i64 page_bytes;
  i64 row_bytes;

  // Byte offset in the pool of unit u = layer * n + row.
  __device__ __forceinline__ i64 pool_offset(i64 unit) const {
    const i32 row = first_row + static_cast<i32>(unit % n);
    return unit / n * layer_bytes + page_ids[row >> page_shift] * page_bytes +
           (row & ((1 << page_shift) - 1)) * row_bytes;
  }
};

PT_KERNEL(page_gather, 256)(const unsigned char* pool, unsigned char* packed, const i32* page_ids,
                            i32 first_row, i32 n, i32 n_layers, i32 page_shift, i64 layer_bytes,
                            i64 page_bytes, i64 row_bytes) {
  const RowRange range{page_ids, first_row, n, n_layers, page_shift, layer_bytes, page_bytes,
                       row_bytes};
  for (i64 unit = blockIdx.x; unit < i64{n} * n_layers; unit += gridDim.x)
    copy_bytes(packed + unit * row_bytes, pool + range.pool_offset(unit), row_bytes);
}
PT_EXPORT(page_gather)

PT_KERNEL(page_scatter, 256)(unsigned char* pool, const unsigned char* packed, const i32* page_ids,
                             i32 first_row, i32 n, i32 n_layers, i32 page_shift, i64 layer_bytes,
                             i64 page_bytes, i64 row_bytes) {
  const RowRange range{page_ids, first_row, n, n_layers, page_shift, layer_bytes, page_bytes,
                       row_bytes};
  for (i64 unit = blockIdx.x; unit < i64{n} * n_layers; unit += gridDim.x)
    copy_bytes(pool + range.pool_offset(unit), packed + unit * row_bytes, row_bytes);
}
PT_EXPORT(page_scatter)
