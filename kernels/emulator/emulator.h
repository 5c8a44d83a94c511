// CUDA C++ on a host: the words of the language that the kernels use, for a C++17 compiler.
//
// intrinsics.cuh includes this file in place of its PTX. The parts: fiber.h (a CUDA thread's
// stack), block.h (scheduling and mistakes), warp.h (shuffles and tensor cores), async_copy.h,
// numbers.h (arithmetic), launch.h (entries). What is not here is not emulated: caches, time,
// memory order weaker than a barrier, and the tensor core's own order of summation.
#pragma once

#include "async_copy.h"
#include "block.h"
#include "launch.h"
#include "numbers.h"
#include "warp.h"

#define __device__
#define __forceinline__ inline
#define __restrict__

#define PT_KERNEL(name, threads) static void name
#define PT_EXPORT(name)                                                                      \
  extern "C" int name##_launch(const emulator::LaunchShape* shape, void* const* arguments,   \
                               char* message, std::size_t message_bytes) {                   \
    return emulator::launch(&name, shape, arguments, message, message_bytes);                \
  }
#define PT_SHARED(name) unsigned char* name = emulator::block().shared()

#define threadIdx (emulator::thread().index)
#define blockIdx (emulator::block().index())
#define blockDim (emulator::block().size())
#define gridDim (emulator::block().grid())

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

inline int atomicOr(int* target, int bits) {
  return __atomic_fetch_or(target, bits, __ATOMIC_RELAXED);
}
