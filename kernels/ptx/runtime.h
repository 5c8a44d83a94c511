// What translated PTX calls: registers as bits, typed reads and writes, memory with checks.
//
// An f32 register is a float, any other an unsigned integer of its width; the translator writes the
// conversions out. Shared-space addresses count from the start of the block's shared memory, as on
// a device. The file is compiled without optimisation (the bodies are long), so helpers are few.
#pragma once

#include <algorithm>

#include "async_copy.h"
#include "block.h"
#include "launch.h"
#include "numbers.h"
#include "warp.h"

namespace ptx {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using f32 = float;

inline f32 as_float(u32 bits) { return emulator::float_of_bits(bits); }
inline u32 as_bits(f32 x) { return emulator::bits_of_float(x); }

inline unsigned char* shared_pointer(u64 offset, unsigned bytes, int line) {
  emulator::Block& block = emulator::block();
  if (offset + bytes > block.shared_bytes())
    block.fault("access past the end of dynamic shared memory", line);
  return block.shared() + offset;
}

inline u64 shared_base() { return reinterpret_cast<u64>(emulator::block().shared()); }

inline void require_aligned(const void* pointer, unsigned bytes, int line) {
  if (reinterpret_cast<u64>(pointer) % bytes != 0)
    emulator::block().fault("misaligned access", line);
}

inline void require_divisor(bool nonzero, int line) {
  if (!nonzero) emulator::block().fault("integer division by zero", line);
}

inline void require_whole_warp(u32 clamp, int line) {
  if (clamp != 31) emulator::block().fault("a shuffle within segments is not emulated", line);
}

// Shifts: counts past the width clamp, as PTX says.
template <class T>
T shift_left(T value, u32 count) {
  return count >= sizeof(T) * 8 ? T{0} : static_cast<T>(value << count);
}
template <class T>
T shift_right(T value, u32 count) {
  constexpr u32 bits = sizeof(T) * 8;
  if (count >= bits) return std::is_signed_v<T> && value < 0 ? T(-1) : T(0);
  return static_cast<T>(value >> count);
}

template <class T>
T multiply_high(T a, T b) {
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return static_cast<T>((static_cast<Wide>(a) * b) >> (sizeof(T) * 8));
}

// Puts the low `count` bits of `field` into `base` from bit `first` on.
inline u32 insert_bits(u32 field, u32 base, u32 first, u32 count) {
  const u32 ones = count >= 32 ? ~0u : (1u << count) - 1;
  const u32 mask = shift_left(ones, first);
  return (shift_left(field, first) & mask) | (base & ~mask);
}

// Four bytes out of the eight of `low` and `high`, one nibble of `choice` each; a nibble's top bit
// asks for the byte's sign over the whole byte.
inline u32 permute_bytes(u32 low, u32 high, u32 choice) {
  const u64 bytes = u64{high} << 32 | low;
  u32 result = 0;
  for (int i = 0; i < 4; i++) {
    const u32 nibble = choice >> 4 * i & 15u;
    u32 byte = static_cast<u32>(bytes >> 8 * (nibble & 7)) & 0xffu;
    if (nibble & 8) byte = byte & 0x80u ? 0xffu : 0;
    result |= byte << 8 * i;
  }
  return result;
}

template <bool Bf16>
u32 pack_pair(f32 high, f32 low) {
  const auto narrow = Bf16 ? emulator::narrow_bf16 : emulator::narrow_f16;
  return u32{narrow(low)} | u32{narrow(high)} << 16;
}

// Two e4m3 codes as two fp16 numbers, each at its code's place; every e4m3 number is one of fp16.
inline u32 widen_pair(u16 codes) {
  const auto widen = [](u16 code) {
    return u32{emulator::narrow_f16(emulator::widen_e4m3(static_cast<u8>(code)))};
  };
  return widen(codes & 0xff) | widen(codes >> 8) << 16;
}

}  // namespace ptx
