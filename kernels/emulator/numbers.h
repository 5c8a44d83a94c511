// Scalar arithmetic as a device does it: conversions, single-rounding operations, exp2 and log2.
//
// The host is compiled without contraction, so a product and a sum round twice here, as the
// *_rn operations promise on a device.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace emulator {

inline float float_of_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline std::uint32_t bits_of_float(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float widen_f16(std::uint16_t bits) {
#ifdef __F16C__
  return _cvtsh_ss(bits);
#else
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u;
  const std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000u | fraction << 13);
  const float magnitude = exponent ? std::ldexp(1.f + fraction / 1024.f, int(exponent) - 15)
                                   : std::ldexp(float(fraction), -24);
  return sign ? -magnitude : magnitude;
#endif
}

// Every NaN becomes 0x7fff, as cvt.rn.f16.f32 does.
inline std::uint16_t narrow_f16(float x) {
  if (x != x) return 0x7fff;
#ifdef __F16C__
  return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const float magnitude = std::fabs(x);
  if (magnitude >= 65520.f) return sign | 0x7c00;
  if (magnitude < 0x1p-14f) return sign | std::uint16_t(std::nearbyint(magnitude * 0x1p24f));
  int exponent;
  const float fraction = std::frexp(magnitude, &exponent);  // in [1/2, 1)
  const auto units = std::uint32_t(std::nearbyint(fraction * 2048.f));  // 1024 .. 2048
  return sign | std::uint16_t(((exponent + 13) << 10) + units);  // a carry raises the exponent
#endif
}

inline std::uint16_t narrow_bf16(float x) {
  if (x != x) return 0x7fff;
  const std::uint32_t bits = bits_of_float(x);
  return std::uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

inline float widen_bf16(std::uint16_t bits) { return float_of_bits(std::uint32_t{bits} << 16); }

// 1 sign, 4 exponent with bias 7, 3 fraction; no infinity, all ones is NaN.
inline float widen_e4m3(std::uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if (exponent == 15 && fraction == 7) return float_of_bits(0x7fc00000u);
  const float magnitude =
      exponent ? std::ldexp(8.f + fraction, exponent - 10) : std::ldexp(float(fraction), -9);
  return code & 0x80 ? -magnitude : magnitude;
}

inline float flush_subnormal(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.f, x) : x; }

}  // namespace emulator

inline std::uint16_t f16_from_f32(float x) { return emulator::narrow_f16(x); }
inline float f32_from_f16(std::uint16_t bits) { return emulator::widen_f16(bits); }
inline std::uint16_t bf16_from_f32(float x) { return emulator::narrow_bf16(x); }
inline void f32_from_e4m3_pair(float& first, float& second, std::uint16_t codes) {
  first = emulator::widen_e4m3(static_cast<std::uint8_t>(codes));
  second = emulator::widen_e4m3(static_cast<std::uint8_t>(codes >> 8));
}
inline float exp2_approx(float x) { return emulator::flush_subnormal(exp2f(x)); }
inline float log2_approx(float x) { return log2f(x); }

inline float __int_as_float(int bits) { return emulator::float_of_bits(std::uint32_t(bits)); }
inline int __float_as_int(float x) { return int(emulator::bits_of_float(x)); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
