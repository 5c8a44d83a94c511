// How a stored element becomes a float and back: fp32, fp16 and bf16, round to nearest even.

#pragma once

#include "vec.h"

namespace pt {

enum Storage : int32_t { STORE_F32 = 0, STORE_F16 = 1, STORE_BF16 = 2 };

inline float bits_to_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline uint32_t float_to_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 31u, mantissa = h & 1023u;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in fp32
        const float value = float(mantissa) * 5.9604644775390625e-08f;
        return sign ? -value : value;
    }
    return bits_to_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

inline uint16_t float_to_half(float x) {
    const uint32_t bits = float_to_bits(x), sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds to infinity
    if (magnitude < 0x38800000u) {  // subnormal: the sum's rounding is the rounding we want
        const float shifted = bits_to_float(magnitude) + 0.5f;
        return uint16_t(sign | (float_to_bits(shifted) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u;
    return uint16_t(sign | (rounded >> 13));
}

inline uint16_t float_to_bfloat(float x) {
    const uint32_t bits = float_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);  // stays NaN
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#ifdef __AVX512F__
// Sixteen 16-bit elements: in a row, the first n of a row, or eight of each of two rows.
inline __m256i raw16(const uint16_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m256i raw16_first(const uint16_t* p, int64_t n) {
    return _mm256_maskz_loadu_epi16(first16(n), p);
}
inline __m256i raw_two(const uint16_t* a, const uint16_t* b) {
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
}
inline __m256i raw_two_first(const uint16_t* a, const uint16_t* b, int64_t n) {
    const __mmask8 some = __mmask8(first16(n));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_maskz_loadu_epi16(some, a)),
                                   _mm_maskz_loadu_epi16(some, b), 1);
}
#endif

// One struct per storage type: `T` is the stored type, load8 widens and store8 narrows eight; with
// registers of sixteen, load16 widens sixteen of one row and load_two eight of each of two rows
// (bf16 goes by pairs there: lines_16.h).
struct F32 {
    typedef float T;
    static v8 load8(const float* p) { return pt::load8(p); }
    static void store8(float* p, v8 x) { pt::store8(p, x); }
    static float load(float x) { return x; }
    static float narrow(float x) { return x; }
#ifdef __AVX512F__
    static v16 load16(const float* p) { return pt::load16(p); }
    static v16 load16_first(const float* p, int64_t n) { return pt::load16_first(p, n); }
    static v16 load_two(const float* a, const float* b) {
        return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(a)), _mm256_loadu_ps(b), 1);
    }
    static v16 load_two_first(const float* a, const float* b, int64_t n) {
        const __mmask8 some = __mmask8(first16(n));
        return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_maskz_loadu_ps(some, a)),
                                  _mm256_maskz_loadu_ps(some, b), 1);
    }
#endif
};

struct F16 {
    typedef uint16_t T;
    static v8 load8(const uint16_t* p) {
#ifdef __F16C__
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
        v8 x;
        for (int i = 0; i < LANES; i++) x[i] = half_to_float(p[i]);
        return x;
#endif
    }
    static void store8(uint16_t* p, v8 x) {
#ifdef __F16C__
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                         _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
        for (int i = 0; i < LANES; i++) p[i] = float_to_half(x[i]);
#endif
    }
    static float load(uint16_t x) { return half_to_float(x); }
#ifdef __AVX512F__
    static v16 widen16(__m256i raw) { return _mm512_cvtph_ps(raw); }
    static v16 load16(const uint16_t* p) { return widen16(raw16(p)); }
    static v16 load16_first(const uint16_t* p, int64_t n) { return widen16(raw16_first(p, n)); }
    static v16 load_two(const uint16_t* a, const uint16_t* b) { return widen16(raw_two(a, b)); }
    static v16 load_two_first(const uint16_t* a, const uint16_t* b, int64_t n) {
        return widen16(raw_two_first(a, b, n));
    }
#endif
    static uint16_t narrow(float x) { return float_to_half(x); }
};

struct BF16 {
    typedef uint16_t T;
    static v8 load8(const uint16_t* p) {
#ifdef __AVX2__
        const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
#else
        v8 x;
        for (int i = 0; i < LANES; i++) x[i] = bits_to_float(uint32_t(p[i]) << 16);
        return x;
#endif
    }
    static void store8(uint16_t* p, v8 x) {
        for (int i = 0; i < LANES; i++) p[i] = float_to_bfloat(x[i]);
    }
    static float load(uint16_t x) { return bits_to_float(uint32_t(x) << 16); }
#ifdef __AVX512F__
    static v16 widen16(__m256i raw) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
    }
    static v16 load16(const uint16_t* p) { return widen16(raw16(p)); }
    static v16 load16_first(const uint16_t* p, int64_t n) { return widen16(raw16_first(p, n)); }
#endif
    static uint16_t narrow(float x) { return float_to_bfloat(x); }
};

}  // namespace pt
