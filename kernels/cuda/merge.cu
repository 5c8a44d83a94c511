// merge_states: folds the partial results of each (row, head) in the order they stand.
//
//   partial_o [n_partials, n_heads, width], partial_lse [n_partials, n_heads]
//   row r owns partials merge_indptr[r] .. merge_indptr[r+1]; one block folds one (row, head).
//
// A row with no partials was written by the attention kernel itself and is left alone.
#include "merge.cuh"

PT_KERNEL(merge_states, 128)(const float* partial_o, const float* partial_lse,
                             const i32* merge_indptr, void* out, float* lse, i64 out_row_stride,
                             i32 n_heads, i32 width, i32 out_storage) {
  const i64 row = blockIdx.x;
  const i32 head = blockIdx.y;
  const i32 first = merge_indptr[row], end = merge_indptr[row + 1];
  if (first == end) return;
  const i64 target = row * out_row_stride + i64{head} * width;
  for (i32 column = threadIdx.x; column < width; column += blockDim.x) {
    float o = 0.f, total = minus_infinity();
    for (i32 partial = first; partial < end; partial++) {
      const i64 source = i64{partial} * n_heads + head;
      const FoldWeights weights = fold_weights(total, partial_lse[source]);
      o = fold(weights, o, partial_o[source * width + column]);
      total = weights.lse;
    }
    store_from_f32(out, target + column, static_cast<Storage>(out_storage), o);
    if (column == 0 && lse != nullptr) lse[row * n_heads + head] = total;
  }
}
PT_EXPORT(merge_states)
