// The few machine instructions the kernels need beyond plain CUDA C++, one function each.
//
// This file is the only one that knows what executes the kernels. On a device the functions are
// PTX; on a host the emulator gives functions of the same names and contracts (emulator/*.h).
// Everything else in this folder is the same text in both worlds. No CUDA header is needed, so
// NVRTC compiles these files without an include path of the toolkit.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using i64 = long long;

#ifdef PAGETRAIL_EMULATOR
#include "emulator.h"
#else

// A kernel of at most `threads` threads a block, found by its plain name.
#define PT_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
#define PT_EXPORT(name)  // a host needs an entry of its own here; a device finds the symbol
// Start of the block's dynamic shared memory, 16-byte aligned.
#define PT_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

// ---- conversions, round to nearest even ----

__device__ __forceinline__ u16 f16_from_f32(float x) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

__device__ __forceinline__ float f32_from_f16(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

__device__ __forceinline__ u16 bf16_from_f32(float x) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

// Two e4m3 codes, the first in the low byte; exact. Byte 0x7f is no code here (codes.cuh).
__device__ __forceinline__ void f32_from_e4m3_pair(float& first, float& second, u16 codes) {
#if __CUDA_ARCH__ >= 890
  u32 halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  first = f32_from_f16(static_cast<u16>(halves));
  second = f32_from_f16(static_cast<u16>(halves >> 16));
#else
  // The code's bits in a float's places are the number times 2^-120, subnormals included.
  const u32 low = codes, high = static_cast<u32>(codes) >> 8;
  first = __fmul_rn(__int_as_float(static_cast<i32>((low & 0x80u) << 24 | (low & 0x7fu) << 20)),
                    0x1p120f);
  second = __fmul_rn(__int_as_float(static_cast<i32>((high & 0x80u) << 24 | (high & 0x7fu) << 20)),
                     0x1p120f);
#endif
}

// ---- base-2 exponential and logarithm ----

// 2^x within 2 ulp; exactly 1 at 0 and exactly 0 at -inf.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x) for x > 0; exactly 0 at 1.
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- asynchronous copies from global to shared memory ----

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Begins a copy of 16 or 4 bytes; with `valid` false they become zero and `from` is not read. Both
// addresses are aligned to the size. The bytes are there for this thread after the wait that covers
// the commit, and for other threads after a barrier that follows the wait.
template <int Bytes>
__device__ __forceinline__ void async_copy(void* to, const void* from, bool valid) {
  static_assert(Bytes == 16 || Bytes == 4, "sizes the kernels use");
  const i32 read = valid ? Bytes : 0;
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(read)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(read)
                 : "memory");
}

// Closes the group of copies begun since the last commit; a group may be empty.
__device__ __forceinline__ void async_copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `Pending` of this thread's newest groups are still under way.
template <int Pending>
__device__ __forceinline__ void async_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---- tensor cores ----

// Four 8x8 tiles of 16-bit elements. Lane 8i + r hands in the address of row r of tile i; lane l
// receives, of each tile, the two elements of row l/4 at columns 2(l%4) and 2(l%4)+1.
__device__ __forceinline__ void load_tiles(u32 (&tiles)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(shared_address(row))
               : "memory");
}

// As load_tiles, each tile transposed on the way.
__device__ __forceinline__ void load_tiles_transposed(u32 (&tiles)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(shared_address(row))
               : "memory");
}

// c[16x8] += a[16x16] * b[16x8], fp32 sums. Fragments as the PTX manual draws them for m16n8k16.
__device__ __forceinline__ void multiply_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
