// The element types of pools, queries and outputs, and vectors of eight of them.
//
// An element type is a tag with a storage type and two conversions. Conversions to a narrower type
// round to nearest even; fp32 is the type every sum is kept in.
#pragma once

#include "intrinsics.cuh"

struct F32 {
  using Bits = float;
  static __device__ __forceinline__ float widen(float x) { return x; }
  static __device__ __forceinline__ float narrow(float x) { return x; }
};

struct F16 {
  using Bits = u16;
  static __device__ __forceinline__ float widen(u16 bits) { return f32_from_f16(bits); }
  static __device__ __forceinline__ u16 narrow(float x) { return f16_from_f32(x); }
  static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0,
                                                  u32 b1) {
    multiply_f16(c, a, b0, b1);
  }
};

struct BF16 {
  using Bits = u16;
  static __device__ __forceinline__ float widen(u16 bits) {
    return __int_as_float(static_cast<i32>(bits) << 16);
  }
  static __device__ __forceinline__ u16 narrow(float x) { return bf16_from_f32(x); }
  static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0,
                                                  u32 b1) {
    multiply_bf16(c, a, b0, b1);
  }
};

// Two neighbours in one register, the first in the low half, as tensor cores read them.
template <class Elem>
__device__ __forceinline__ u32 pack_pair(float low, float high) {
  return static_cast<u32>(Elem::narrow(low)) | static_cast<u32>(Elem::narrow(high)) << 16;
}

// How arrays are stored; the values are part of the ABI (abi.py, codes.py). Only pools hold codes.
enum class Storage : i32 { f32 = 0, f16 = 1, bf16 = 2, e4m3 = 3, i8 = 4 };

__device__ __forceinline__ float load_as_f32(const void* array, i64 index, Storage storage) {
  switch (storage) {
    case Storage::f16:
      return F16::widen(static_cast<const u16*>(array)[index]);
    case Storage::bf16:
      return BF16::widen(static_cast<const u16*>(array)[index]);
    default:
      return static_cast<const float*>(array)[index];
  }
}

__device__ __forceinline__ void store_from_f32(void* array, i64 index, Storage storage, float x) {
  switch (storage) {
    case Storage::f16:
      static_cast<u16*>(array)[index] = F16::narrow(x);
      break;
    case Storage::bf16:
      static_cast<u16*>(array)[index] = BF16::narrow(x);
      break;
    default:
      static_cast<float*>(array)[index] = x;
  }
}

__device__ __forceinline__ float minus_infinity() {
  return __int_as_float(static_cast<i32>(0xff800000u));
}

// True where a 16-byte access is allowed.
__device__ __forceinline__ bool aligned_16(const void* pointer) {
  return (reinterpret_cast<i64>(pointer) & 15) == 0;
}
