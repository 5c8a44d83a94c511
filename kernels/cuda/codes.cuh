// Numbers in eight bits, beside a scale in fp32: what a code means and how a number becomes one.
//
// A row of one head has one scale, the row's largest magnitude over the code's highest number, so
// a reader gets code * scale. Codes are made by integer arithmetic that is the same on every
// architecture. The e4m3 pattern that stands for NaN is never made: a row that is not finite has a
// NaN scale instead.
#pragma once

#include "intrinsics.cuh"

// 1 sign, 4 exponent with bias 7, 3 fraction.
struct E4M3 {
  static __device__ __forceinline__ float highest() { return 448.f; }

  // |x| <= 448, nearest even.
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

  // The numbers of four codes, the lowest byte first; exact.
  static __device__ __forceinline__ void numbers(float (&x)[4], u32 codes) {
    f32_from_e4m3_pair(x[0], x[1], static_cast<u16>(codes));
    f32_from_e4m3_pair(x[2], x[3], static_cast<u16>(codes >> 16));
  }
};

// A signed byte.
struct I8 {
  static __device__ __forceinline__ float highest() { return 127.f; }

  // |x| <= 127, nearest even.
  static __device__ __forceinline__ unsigned char code(float x) {
    // Adding 1.5 * 2^23 leaves the rounded integer in the low bits.
    return static_cast<unsigned char>(__float_as_int(__fadd_rn(x, 12582912.f)) & 0xff);
  }

  // The numbers of four codes, the lowest byte first; exact.
  static __device__ __forceinline__ void numbers(float (&x)[4], u32 codes) {
    const u32 biased = codes ^ 0x80808080u;
#pragma unroll
    for (i32 i = 0; i < 4; i++) {
      // 2^23 + (code + 128) as a float.
      const u32 bits = 0x4b000000u | (biased >> 8 * i & 0xffu);
      x[i] = __fsub_rn(__int_as_float(static_cast<i32>(bits)), 8388736.f);
    }
  }
};
