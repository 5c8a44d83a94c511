// gqa_ref: attention as plainly as a device can do it, and the oracle of the faster kernels there.
//
// One warp takes one (row, query head) and walks the visible keys one by one: lanes share the
// columns (column c belongs to lane c % 32), a butterfly of shuffles sums the products, and every
// lane keeps the same running maximum and sum. All arithmetic is fp32. Any width, any storage, one
// or two key slabs (latent, then rotary); no items, no split. It is also what serves a pool or a
// width that the tensor-core kernels do not take.
#include "batch.cuh"

struct RefSlab {
  const void* base;
  PoolStrides strides;
  i32 width;
};

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (i32 flip = 16; flip > 0; flip /= 2) x += __shfl_xor_sync(0xffffffffu, x, flip);
  return x;
}

// Dot product of one key row with q, this lane's columns only.
__device__ __forceinline__ float partial_dot(const float* q, const RefSlab& slab, i64 offset,
                                             Storage storage, i32 lane) {
  float dot = 0.f;
  for (i32 column = lane; column < slab.width; column += 32)
    dot += q[column] * load_as_f32(slab.base, offset + column, storage);
  return dot;
}

// The sequence whose rows hold `row`, or -1 for a row of padding.
__device__ __forceinline__ i32 sequence_of(const i32* q_indptr, i32 n_sequences, i32 row) {
  if (row >= q_indptr[n_sequences]) return -1;
  i32 low = 0, high = n_sequences;
  while (high - low > 1) {
    const i32 middle = (low + high) / 2;
    if (q_indptr[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

PT_KERNEL(gqa_ref, 32)(const void* q, const void* first_pool, const void* second_pool,
                       const void* value_pool, const i32* q_indptr, const i32* kv_len,
                       const i32* kv_base, const i32* page_indptr, const i32* page_ids, void* out,
                       float* lse, i64 q_row_stride, i64 out_row_stride, i64 first_page,
                       i64 first_token, i64 first_head, i64 second_page, i64 second_token,
                       i64 second_head, i64 value_page, i64 value_token, i64 value_head,
                       i32 n_sequences, i32 page_shift, i32 q_storage, i32 pool_storage,
                       i32 out_storage, i32 n_heads, i32 n_kv_heads, i32 first_width,
                       i32 second_width, i32 value_width, i32 window, float scale_log2) {
  PT_SHARED(shared);
  const RefSlab first{first_pool, {first_page, first_token, first_head}, first_width};
  const RefSlab second{second_pool, {second_page, second_token, second_head}, second_width};
  const RefSlab value{value_pool, {value_page, value_token, value_head}, value_width};
  const Storage storage = static_cast<Storage>(pool_storage);
  const Batch batch{q_indptr, kv_len, kv_base, page_indptr, page_ids, nullptr, page_shift};

  const i32 row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x;
  const i32 kv_head = head / (n_heads / n_kv_heads);
  const i32 sequence = sequence_of(q_indptr, n_sequences, row);
  if (sequence < 0) return;

  // A lane reads and writes its own columns of shared memory only, so no barrier is needed.
  const i32 key_width = first_width + second_width;
  float* query = reinterpret_cast<float*>(shared);
  float* o = query + key_width;
  const i64 q_start = row * q_row_stride + i64{head} * key_width;
  for (i32 column = lane; column < first_width; column += 32)
    query[column] = load_as_f32(q, q_start + column, static_cast<Storage>(q_storage));
  for (i32 column = lane; column < second_width; column += 32)
    query[first_width + column] =
        load_as_f32(q, q_start + first_width + column, static_cast<Storage>(q_storage));
  for (i32 column = lane; column < value_width; column += 32) o[column] = 0.f;

  const PageTable pages = batch.table(sequence);
  const i32 position = kv_len[sequence] - q_indptr[sequence + 1] + row;
  const i32 low = max(kv_base[sequence], window > 0 ? position - window + 1 : 0);
  float maximum = minus_infinity(), sum = 0.f;
  for (i32 token = low; token <= position; token++) {
    float dot = partial_dot(query, first, pages.row_offset(first.strides, token, kv_head), storage,
                            lane);
    if (second_width > 0)
      dot += partial_dot(query + first_width, second,
                         pages.row_offset(second.strides, token, kv_head), storage, lane);
    const float score = sum_of_warp(dot) * scale_log2;
    const float highest = fmaxf(maximum, score);
    const float shrink = exp2_approx(maximum - highest), weight = exp2_approx(score - highest);
    maximum = highest;
    sum = sum * shrink + weight;
    const i64 offset = pages.row_offset(value.strides, token, kv_head);
    for (i32 column = lane; column < value_width; column += 32)
      o[column] = o[column] * shrink + weight * load_as_f32(value.base, offset + column, storage);
  }

  const i64 out_start = row * out_row_stride + i64{head} * value_width;
  const bool dead = maximum == minus_infinity();
  for (i32 column = lane; column < value_width; column += 32)
    store_from_f32(out, out_start + column, static_cast<Storage>(out_storage),
                   dead ? 0.f : o[column] / sum);
  if (lse != nullptr && lane == 0)
    lse[i64{row} * n_heads + head] = dead ? maximum : maximum + log2_approx(sum);
}
PT_EXPORT(gqa_ref)
