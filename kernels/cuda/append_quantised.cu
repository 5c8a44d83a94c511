// kv_append_{e4m3,i8}: routed append into 8-bit pools with one fp32 scale per row and head.
//
//   scale = max |x| / 448 (e4m3) or / 127 (i8)        scales fp32 [pages, page_size, heads]
//   code  = round to nearest even of x / scale         pool   8-bit [pages, page_size, heads, width]
//
// A reader gets code * scale. One warp takes one (row, head): it finds the maximum by shuffles and
// then writes the codes, four neighbours a lane where the width allows it. A row of zeros has
// scale 0 and codes 0. A row with a NaN or an infinity has a NaN scale, so a reader meets NaN and
// never a plausible number. Without a second pool there is one slab.
#include "codes.cuh"
#include "elements.cuh"
#include "pages.cuh"

struct QuantisedSlab {
  const float* rows;
  i64 row_stride;
  unsigned char* pool;
  float* scales;  // [slots, heads]
  i32 width;
};

// Largest magnitude of the row over the warp; NaN if a value is not finite.
__device__ __forceinline__ float largest_of_warp(const float* row, i32 width, i32 lane) {
  u32 largest = 0;  // magnitudes order as their bits do, infinity and NaN above all numbers
  for (i32 i = lane; i < width; i += 32) {
    const u32 magnitude = static_cast<u32>(__float_as_int(row[i])) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
#pragma unroll
  for (i32 flip = 16; flip > 0; flip /= 2) {
    const u32 other = __shfl_xor_sync(0xffffffffu, largest, flip);
    largest = other > largest ? other : largest;
  }
  return __int_as_float(static_cast<i32>(largest < 0x7f800000u ? largest : 0x7fc00000u));
}

template <class Code>
__device__ __forceinline__ u32 code_of(float x, float scale) {
  // The quotient may round past the end of the range by one part in 2^24.
  const float scaled = scale > 0.f ? __fdiv_rn(x, scale) : 0.f;
  return Code::code(fminf(fmaxf(scaled, -Code::highest()), Code::highest()));
}

template <class Code>
__device__ __forceinline__ void write_codes(unsigned char* to, const float* from, float scale,
                                            i32 width, i32 lane) {
  const bool by_four = aligned_16(from) && (reinterpret_cast<i64>(to) & 3) == 0 && width % 4 == 0;
  if (!by_four) {
    for (i32 i = lane; i < width; i += 32)
      to[i] = static_cast<unsigned char>(code_of<Code>(from[i], scale));
    return;
  }
  for (i32 i = lane; i < width / 4; i += 32) {
    const float4 x = reinterpret_cast<const float4*>(from)[i];
    reinterpret_cast<u32*>(to)[i] = code_of<Code>(x.x, scale) | code_of<Code>(x.y, scale) << 8 |
                                    code_of<Code>(x.z, scale) << 16 |
                                    code_of<Code>(x.w, scale) << 24;
  }
}

template <class Code>
__device__ __forceinline__ void append_quantised(const QuantisedSlab& slab, const i64* slots,
                                                 i64 n_slots, i32 n_rows, i32 n_heads,
                                                 i32* error) {
  const i32 lane = threadIdx.x & 31, warps = blockDim.x / 32;
  const u32 heads = n_heads, n_units = n_rows * heads;  // below 2^31: the launcher checks it
  for (u32 unit = blockIdx.x * warps + threadIdx.x / 32; unit < n_units;
       unit += gridDim.x * warps) {
    const u32 row = unit / heads, head = unit % heads;
    const i64 slot = slots[row];
    if (slot < 0) continue;
    if (slot >= n_slots) {
      if (lane == 0) atomicOr(error, 1);
      continue;
    }
    const float* from = slab.rows + i64{row} * slab.row_stride + i64{head} * slab.width;
    const float scale =
        __fdiv_rn(largest_of_warp(from, slab.width, lane), Code::highest());
    unsigned char* to = slab.pool + (slot * n_heads + head) * slab.width;
    write_codes<Code>(to, from, scale, slab.width, lane);
    if (lane == 0) slab.scales[slot * n_heads + head] = scale;
  }
}

#define DEFINE_APPEND(kernel, Code)                                                               \
  PT_KERNEL(kernel, 128)(const float* first_rows, const float* second_rows, const i64* slots,     \
                         unsigned char* first_pool, unsigned char* second_pool,                   \
                         float* first_scales, float* second_scales, i32* error, i64 n_slots,      \
                         i64 first_row_stride, i64 second_row_stride, i32 n_rows, i32 n_heads,    \
                         i32 first_width, i32 second_width) {                                     \
    const QuantisedSlab first{first_rows, first_row_stride, first_pool, first_scales,             \
                              first_width};                                                       \
    const QuantisedSlab second{second_rows, second_row_stride, second_pool, second_scales,        \
                               second_width};                                                     \
    append_quantised<Code>(first, slots, n_slots, n_rows, n_heads, error);                        \
    if (second_pool != nullptr)                                                                   \
      append_quantised<Code>(second, slots, n_slots, n_rows, n_heads, error);                     \
  }                                                                                               \
  PT_EXPORT(kernel)

DEFINE_APPEND(kv_append_e4m3, E4M3)
DEFINE_APPEND(kv_append_i8, I8)
