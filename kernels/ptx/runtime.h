// What translated PTX calls: registers as bits, typed reads and writes, memory with checks.
//
// A register is an unsigned integer of its width. An instruction reads it as the type it names and
// writes it back; narrower results are extended as the instruction's type says. Shared-space
// addresses count from the start of the block's shared memory, as on a device.
#pragma once

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

template <class T, class Register>
T read(Register bits) {
  if constexpr (std::is_same_v<T, f32>) {
    return emulator::float_of_bits(static_cast<u32>(bits));
  } else {
    return static_cast<T>(bits);
  }
}

template <class Register, class T>
void write(Register& target, T value) {
  if constexpr (std::is_same_v<T, f32>) {
    target = static_cast<Register>(emulator::bits_of_float(value));
  } else {
    target = static_cast<Register>(value);
  }
}

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

template <class T>
T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
void store(void* to, T value) {
  std::memcpy(to, &value, sizeof(T));
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
T multiply_low(T a, T b) {
  using U = std::make_unsigned_t<T>;
  return static_cast<T>(static_cast<u64>(static_cast<U>(a)) * static_cast<U>(b));
}

template <class T>
T multiply_high(T a, T b) {
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return static_cast<T>((static_cast<Wide>(a) * b) >> (sizeof(T) * 8));
}

template <class Wide, class T>
Wide multiply_wide(T a, T b) {
  return static_cast<Wide>(a) * static_cast<Wide>(b);
}

template <class T>
T add(T a, T b) {
  if constexpr (std::is_same_v<T, f32>) return a + b;
  else return static_cast<T>(static_cast<u64>(a) + static_cast<u64>(b));
}
template <class T>
T subtract(T a, T b) {
  if constexpr (std::is_same_v<T, f32>) return a - b;
  else return static_cast<T>(static_cast<u64>(a) - static_cast<u64>(b));
}
template <class T>
T divide(T a, T b, int line) {
  if constexpr (std::is_integral_v<T>)
    if (b == 0) emulator::block().fault("integer division by zero", line);
  return static_cast<T>(a / b);
}
template <class T>
T remainder(T a, T b, int line) {
  if (b == 0) emulator::block().fault("integer division by zero", line);
  return static_cast<T>(a % b);
}
template <class T>
T minimum(T a, T b) {
  if constexpr (std::is_same_v<T, f32>) return std::fmin(a, b);
  else return a < b ? a : b;
}
template <class T>
T maximum(T a, T b) {
  if constexpr (std::is_same_v<T, f32>) return std::fmax(a, b);
  else return a > b ? a : b;
}

// Puts the low `count` bits of `field` into `base` from bit `first` on.
inline u32 insert_bits(u32 field, u32 base, u32 first, u32 count) {
  const u32 ones = count >= 32 ? ~0u : (1u << count) - 1;
  const u32 mask = shift_left(ones, first);
  return (shift_left(field, first) & mask) | (base & ~mask);
}

template <bool Bf16>
u32 pack_pair(f32 high, f32 low) {
  const auto narrow = Bf16 ? emulator::narrow_bf16 : emulator::narrow_f16;
  return u32{narrow(low)} | u32{narrow(high)} << 16;
}

}  // namespace ptx
