// gqa_ref: attention as plainly as a device can do it, and the oracle of the faster kernels there.
//
// One warp takes one (row, query head) and walks the visible keys one by one: lanes share the
// columns (column c belongs to lane c % 32), a butterfly of shuffles sums the products, and every
// lane keeps the same running maximum and sum. All arithmetic is fp32. Any width, any storage, one
// or two key slabs (latent, then rotary); no items, no split. It is also what serves a pool or a
// width that the tensor-core kernels do not take.
#include "batch.cuh"
#include "codes.cuh"

struct RefSlab {
  const void* base;
  const float* scales;  // null: plain numbers
  PoolStrides strides;
  i32 width;
};

// One token's row of one head: element c is number(c).
struct RefRow {
  const void* base;
  i64 start;
  float scale;
  Storage storage;

  __device__ __forceinline__ RefRow(const RefSlab& slab, const PageTable& pages, i32 token,
                                    i32 head, i32 n_heads, Storage the_storage)
      : base(slab.base),
        start(pages.row_offset(slab.strides, token, head)),
        scale(slab.scales == nullptr ? 1.f : slab.scales[pages.slot(token) * n_heads + head]),
        storage(the_storage) {}

  __device__ __forceinline__ float number(i32 column) const {
    if (storage != Storage::e4m3 && storage != Storage::i8)
      return load_as_f32(base, start + column, storage);
    const u32 code = static_cast<const unsigned char*>(base)[start + column];
    float numbers[4];
    if (storage == Storage::e4m3)
      E4M3::numbers(numbers, code);
    else
      I8::numbers(numbers, code);
    return numbers[0] * scale;
  }
};

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (i32 flip = 16; flip > 0; flip /= 2) x += __shfl_xor_sync(0xffffffffu, x, flip);
  return x;
}

// Dot product of one key row with q, this lane's columns only.
__device__ __forceinline__ float partial_dot(const float* q, const RefRow& key, i32 width,
                                             i32 lane) {
  float dot = 0.f;
  for (i32 column = lane; column < width; column += 32) dot += q[column] * key.number(column);
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
                       const void* value_pool, const float* first_scales,
                       const float* second_scales, const float* value_scales,
                       const i32* q_indptr, const i32* kv_len, const i32* kv_base,
                       const i32* page_indptr, const i32* page_ids, void* out, float* lse,
                       i64 q_row_stride, i64 out_row_stride, i64 first_page, i64 first_token,
                       i64 first_head, i64 second_page, i64 second_token, i64 second_head,
                       i64 value_page, i64 value_token, i64 value_head, i32 n_sequences,
                       i32 page_shift, i32 q_storage, i32 pool_storage, i32 out_storage,
                       i32 n_heads, i32 n_kv_heads, i32 first_width, i32 second_width,
                       i32 value_width, i32 window, float scale_log2) {
  PT_SHARED(shared);
  const RefSlab first{first_pool, first_scales, {first_page, first_token, first_head},
                      first_width};
  const RefSlab second{second_pool, second_scales, {second_page, second_token, second_head},
                       second_width};
  const RefSlab value{value_pool, value_scales, {value_page, value_token, value_head},
                      value_width};
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
    float dot = partial_dot(query, {first, pages, token, kv_head, n_kv_heads, storage},
                            first_width, lane);
    if (second_width > 0)
      dot += partial_dot(query + first_width,
                         {second, pages, token, kv_head, n_kv_heads, storage}, second_width, lane);
    const float score = sum_of_warp(dot) * scale_log2;
    const float highest = fmaxf(maximum, score);
    const float shrink = exp2_approx(maximum - highest), weight = exp2_approx(score - highest);
    maximum = highest;
    sum = sum * shrink + weight;
    const RefRow row_of_value{value, pages, token, kv_head, n_kv_heads, storage};
    for (i32 column = lane; column < value_width; column += 32)
      o[column] = o[column] * shrink + weight * row_of_value.number(column);
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
