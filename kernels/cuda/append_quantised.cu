// kv_append_{e4m3,i8}: routed append into 8-bit pools with one fp32 scale per row and head.
//
//   scale = max |x| / 448 (e4m3) or / 127 (i8)        scales fp32 [pages, page_size, heads]
//   code  = round to nearest even of x / scale         pool   8-bit [pages, page_size, heads, width]
//
// A reader gets code * scale. One warp takes one (row, head): it finds the maximum by shuffles and
// then writes the codes. A row of zeros has scale 0 and codes 0. A row with a NaN or an infinity
// has a NaN scale, so a reader meets NaN and never a plausible number. Codes are made by integer
// arithmetic that is the same on every architecture, also where e4m3 is not native.
#include "elements.cuh"
#include "pages.cuh"

// x with |x| <= 448 to e4m3 (1 sign, 4 exponent with bias 7, 3 fraction), nearest even.
struct E4M3 {
  static __device__ __forceinline__ float highest() { return 448.f; }
  static __device__ __forceinline__ unsigned char code(float x) {
    const u32 bits = static_cast<u32>(__float_as_int(x));
    const u32 sign = bits >> 24 & 0x80u;
    const u32 magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x3c800000u) {
      // Below 2^-6 the step is 2^-9; adding 2^14 leaves the rounded count of steps in the low bits.
      const float steps = __fadd_rn(__int_as_float(static_cast<i32>(magnitude)), 16384.f);
      return static_cast<unsigned char>(sign |
                                        (static_cast<u32>(__float_as_int(steps)) - 0x46800000u));
    }
    const u32 rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
    return static_cast<unsigned char>(sign | ((rounded >> 20) - (120u << 3)));
  }
};

// x with |x| <= 127 to a signed byte, nearest even.
struct I8 {
  static __device__ __forceinline__ float highest() { return 127.f; }
  static __device__ __forceinline__ unsigned char code(float x) {
    // Adding 1.5 * 2^23 leaves the rounded integer in the low bits.
    return static_cast<unsigned char>(__float_as_int(__fadd_rn(x, 12582912.f)) & 0xff);
  }
};

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
__device__ __forceinline__ void append_quantised(const QuantisedSlab& slab, const i64* slots,
                                                 i64 n_slots, i32 n_rows, i32 n_heads,
                                                 i32* error) {
  const i32 lane = threadIdx.x & 31, warps = blockDim.x / 32;
  const i64 n_units = i64{n_rows} * n_heads, step = i64{gridDim.x} * warps;
  for (i64 unit = i64{blockIdx.x} * warps + threadIdx.x / 32; unit < n_units; unit += step) {
    const i64 row = unit / n_heads, head = unit % n_heads, slot = slots[row];
    if (slot < 0) continue;
    if (slot >= n_slots) {
      if (lane == 0) atomicOr(error, 1);
      continue;
    }
    const float* from = slab.rows + row * slab.row_stride + head * slab.width;
    const float scale =
        __fdiv_rn(largest_of_warp(from, slab.width, lane), Code::highest());
    unsigned char* to = slab.pool + (slot * n_heads + head) * slab.width;
    for (i32 i = lane; i < slab.width; i += 32) {
      // The quotient may round past the end of the range by one part in 2^24.
      const float scaled = scale > 0.f ? __fdiv_rn(from[i], scale) : 0.f;
      to[i] = Code::code(fminf(fmaxf(scaled, -Code::highest()), Code::highest()));
    }
    if (lane == 0) slab.scales[slot * n_heads + head] = scale;
  }
}

#define DEFINE_APPEND(kernel, Code)                                                               \
  PT_KERNEL(kernel, 256)(const float* first_rows, const float* second_rows, const i64* slots,     \
                         unsigned char* first_pool, unsigned char* second_pool,                   \
                         float* first_scales, float* second_scales, i32* error, i64 n_slots,      \
                         i64 first_row_stride, i64 second_row_stride, i32 n_rows, i32 n_heads,    \
                         i32 first_width, i32 second_width) {                                     \
    const QuantisedSlab first{first_rows, first_row_stride, first_pool, first_scales,             \
                              first_width};                                                       \
    const QuantisedSlab second{second_rows, second_row_stride, second_pool, second_scales,        \
                               second_width};                                                     \
    append_quantised<Code>(first, slots, n_slots, n_rows, n_heads, error);                        \
    append_quantised<Code>(second, slots, n_slots, n_rows, n_heads, error);                       \
  }                                                                                               \
  PT_EXPORT(kernel)

DEFINE_APPEND(kv_append_e4m3, E4M3)
DEFINE_APPEND(kv_append_i8, I8)
