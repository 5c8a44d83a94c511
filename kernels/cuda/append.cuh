// Routed append: fp32 rows are rounded to the pool's type and written at the slots given.
//
// One work unit is eight neighbouring elements of one row and head: 32 bytes read, 16 written.
// Units are strided over the grid, so any grid is right and a fixed grid can be captured.
//
//   rows [n, heads, width] fp32 (the row stride is free)   pool [pages, page_size, heads, width]
//   +--------+--------+--                  slot = slots[row]
//   | unit 0 | unit 1 |      ---------->   page = slot >> page_shift, row in page = the rest
//   +--------+--------+--
//
// Slot -1 (any negative) leaves the pool as it is: padding of a captured step. A slot past the
// pool is skipped too and sets *error to 1.
#pragma once

#include "elements.cuh"
#include "pages.cuh"

struct Slab {
  const float* rows;
  i64 row_stride;
  void* pool;
  PoolStrides strides;
  i32 width;
};

struct Route {
  const i64* slots;
  i64 n_slots;
  i32 page_shift;
  i32 n_rows;
  i32 n_heads;
  i32* error;
};

constexpr i32 kUnit = 8;

// True where every unit of the slab can be read and written in 16-byte pieces.
__device__ __forceinline__ bool units_are_aligned(const Slab& slab) {
  const i64 strides = slab.strides.page | slab.strides.token | slab.strides.head | slab.width |
                      slab.row_stride;
  return strides % kUnit == 0 && aligned_16(slab.rows) && aligned_16(slab.pool);
}

__device__ __forceinline__ void write_unit(F32, const float* from, float* to) {
  reinterpret_cast<float4*>(to)[0] = reinterpret_cast<const float4*>(from)[0];
  reinterpret_cast<float4*>(to)[1] = reinterpret_cast<const float4*>(from)[1];
}

template <class Elem>
__device__ __forceinline__ void write_unit(Elem, const float* from, u16* to) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  uint4 packed;
  packed.x = pack_pair<Elem>(a.x, a.y);
  packed.y = pack_pair<Elem>(a.z, a.w);
  packed.z = pack_pair<Elem>(b.x, b.y);
  packed.w = pack_pair<Elem>(b.z, b.w);
  *reinterpret_cast<uint4*>(to) = packed;
}

template <class Elem>
__device__ __forceinline__ void append_slab(const Slab& slab, const Route& route) {
  const i32 units_per_head = (slab.width + kUnit - 1) / kUnit;
  const u32 units_per_row = units_per_head * route.n_heads;
  const u32 n_units = units_per_row * route.n_rows;  // below 2^31: the launcher checks it
  const u32 step = gridDim.x * blockDim.x;
  const bool aligned = units_are_aligned(slab);
  auto* pool = static_cast<typename Elem::Bits*>(slab.pool);
  for (u32 unit = blockIdx.x * blockDim.x + threadIdx.x; unit < n_units; unit += step) {
    const u32 row = unit / units_per_row;
    const i64 slot = route.slots[row];
    if (slot < 0) continue;
    if (slot >= route.n_slots) {
      atomicOr(route.error, 1);
      continue;
    }
    const i32 unit_of_row = static_cast<i32>(unit - row * units_per_row);
    const i32 head = unit_of_row / units_per_head;
    const i32 first = (unit_of_row - head * units_per_head) * kUnit;
    const float* from = slab.rows + i64{row} * slab.row_stride + i64{head} * slab.width + first;
    auto* to = pool + slot_offset(slab.strides, slot, route.page_shift, head) + first;
    if (aligned) {
      write_unit(Elem{}, from, to);
    } else {
      for (i32 i = 0; i < kUnit && first + i < slab.width; i++) to[i] = Elem::narrow(from[i]);
    }
  }
}
