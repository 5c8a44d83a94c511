// Vectors of eight floats in GCC's vector extension: one source for every instruction set.
//
// Owns the elementary operations whose rounding the whole core depends on. Compiled with
// -ffp-contract=off: a product and a sum become one fused operation only where fma8 is written, so
// the bits of a result are a function of this text and of the instruction set it is built for.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__FMA__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace pt {

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef float v8_unaligned __attribute__((vector_size(32), aligned(4), may_alias));

constexpr int LANES = 8;

inline v8 set1(float x) { return v8{x, x, x, x, x, x, x, x}; }
inline v8i set1i(int32_t x) { return v8i{x, x, x, x, x, x, x, x}; }
inline v8 load8(const float* p) { return *reinterpret_cast<const v8_unaligned*>(p); }
inline void store8(float* p, v8 x) { *reinterpret_cast<v8_unaligned*>(p) = x; }

// The first n of eight floats, zeros after them. All of them are the usual case.
inline v8 load_first(const float* p, int64_t n) {
    if (n >= LANES) return load8(p);
    v8 x = set1(0.0f);
    std::memcpy(&x, p, size_t(n) * sizeof(float));
    return x;
}
inline void store_first(float* p, v8 x, int64_t n) {
    if (n >= LANES) return store8(p, x);
    std::memcpy(p, &x, size_t(n) * sizeof(float));
}

inline v8 fma8(v8 a, v8 b, v8 c) {
#ifdef __FMA__
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

#ifdef __AVX512F__
// Registers of sixteen floats. What is computed with them keeps the orders of eight lanes.
typedef float v16 __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));

inline v16 set16(float x) { return _mm512_set1_ps(x); }
inline v16 load16(const float* p) { return _mm512_loadu_ps(p); }
inline void store16(float* p, v16 x) { _mm512_storeu_ps(p, x); }
inline __mmask16 first16(int64_t n) { return __mmask16((1u << n) - 1u); }
inline v16 load16_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first16(n), p); }
inline void store16_first(float* p, v16 x, int64_t n) { _mm512_mask_storeu_ps(p, first16(n), x); }
inline v16 fma16(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
inline v16 twice8(const float* p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }
inline v8 low8(v16 x) { return _mm512_castps512_ps256(x); }
inline v8 high8(v16 x) { return _mm512_extractf32x8_ps(x, 1); }
#endif

inline v8 select(v8i mask, v8 yes, v8 no) {
    return reinterpret_cast<v8>((mask & reinterpret_cast<v8i>(yes)) |
                                (~mask & reinterpret_cast<v8i>(no)));
}
inline v8 max8(v8 a, v8 b) { return select(a > b, a, b); }

// Lane sums and maxima in one fixed tree: (i, i+4), then (i, i+2), then (i, i+1).
inline float sum_lanes(v8 x) {
    float a = x[0] + x[4], b = x[1] + x[5], c = x[2] + x[6], d = x[3] + x[7];
    return (a + c) + (b + d);
}
inline float max_lanes(v8 x) {
    float m = x[0];
    for (int i = 1; i < LANES; i++) m = x[i] > m ? x[i] : m;
    return m;
}
// The greatest of n numbers, n a multiple of eight; any of them when one is NaN.
inline float max_of(const float* p, int64_t n) {
    v8 top = load8(p);
    int64_t i = LANES;
#ifdef __AVX512F__
    if (n >= 2 * LANES) {
        v16 tops = load16(p);
        for (i = 2 * LANES; i + 2 * LANES <= n; i += 2 * LANES) tops = _mm512_max_ps(tops, load16(p + i));
        top = max8(low8(tops), high8(tops));
    }
#endif
    for (; i < n; i += LANES) top = max8(top, load8(p + i));
    return max_lanes(top);
}

// 2^x. Round to the nearest integer n by the usual shift into the low mantissa bits, Taylor series
// of 2^f on |f| <= 1/2 (relative error below 1e-8), then n added to the exponent. Below -126 and
// for -inf the result is 0; NaN stays NaN. Exact for integers, so 2^0 is 1.
constexpr float EXP2_TERMS[8] = {1.5252734e-05f, 1.5403530e-04f, 1.3333558e-03f, 9.6181291e-03f,
                                 5.5504109e-02f, 2.4022651e-01f, 6.9314718e-01f, 1.0f};
inline v8 exp2_8(v8 x) {
    const v8 shift = set1(12582912.0f), zero = set1(0.0f);
    const v8i tiny = x < set1(-126.0f);
    v8 inside = select(tiny, zero, x);
    inside = select(inside > set1(127.0f), set1(127.0f), inside);
    const v8 biased = inside + shift;
    const v8 f = inside - (biased - shift);
    v8 p = set1(EXP2_TERMS[0]);
    for (int i = 1; i < 8; i++) p = fma8(p, f, set1(EXP2_TERMS[i]));
    const v8 scaled =
        reinterpret_cast<v8>(reinterpret_cast<v8i>(p) + (reinterpret_cast<v8i>(biased) << 23));
    return select(x == x, select(tiny, zero, scaled), x);
}
#ifdef __AVX512F__
// The same of an x that is not above 0 (or NaN): nothing to clamp, and 2^n is put in by one operation.
inline v16 exp2_16(v16 x) {
    const __mmask16 some = ~_mm512_cmp_ps_mask(x, set16(-126.0f), _CMP_LT_OQ);
    const v16 shift = set16(12582912.0f), n = (x + shift) - shift, f = x - n;
    v16 p = set16(EXP2_TERMS[0]);
#pragma GCC unroll 8
    for (int i = 1; i < 8; i++) p = fma16(p, f, set16(EXP2_TERMS[i]));
    return _mm512_maskz_scalef_ps(some, p, n);
}
#endif

// e^x by Cody and Waite's reduction: x = n ln 2 + r, |r| <= ln 2 / 2. Below -87 it is 0, above 88 what
// it is there; NaN stays NaN.
constexpr float EXP_LOG2E = 1.4426950408889634f, EXP_LN2_HIGH = 0.693359375f,
                EXP_LN2_LOW = -2.12194440e-4f;
constexpr float EXP_TERMS[8] = {1.9841270e-04f, 1.3888889e-03f, 8.3333333e-03f, 4.1666667e-02f,
                                1.6666667e-01f, 0.5f,           1.0f,           1.0f};
inline v8 exp_8(v8 x) {
    const v8 shift = set1(12582912.0f);
    const v8i tiny = x < set1(-87.0f);
    v8 inside = select(tiny, set1(0.0f), x);
    inside = select(inside > set1(88.0f), set1(88.0f), inside);
    const v8 biased = inside * set1(EXP_LOG2E) + shift;
    const v8 n = biased - shift;
    v8 r = inside - n * set1(EXP_LN2_HIGH);
    r = r - n * set1(EXP_LN2_LOW);
    v8 p = set1(EXP_TERMS[0]);
    for (int i = 1; i < 8; i++) p = fma8(p, r, set1(EXP_TERMS[i]));
    const v8i bits = reinterpret_cast<v8i>(biased) << 23;
    const v8 scaled = reinterpret_cast<v8>(reinterpret_cast<v8i>(p) + bits);
    const v8 finite = select(tiny, set1(0.0f), scaled);
    return select(x == x, finite, x);
}
#ifdef __AVX512F__
// The same of sixteen, by the same operations.
inline v16 exp_16(v16 x) {
    const v16 shift = set16(12582912.0f);
    const __mmask16 some = ~_mm512_cmp_ps_mask(x, set16(-87.0f), _CMP_LT_OQ);
    // Of two equal or unordered operands min gives the second.
    const v16 inside = _mm512_min_ps(set16(88.0f), _mm512_maskz_mov_ps(some, x));
    const v16 biased = inside * set16(EXP_LOG2E) + shift, n = biased - shift;
    v16 r = inside - n * set16(EXP_LN2_HIGH);
    r = r - n * set16(EXP_LN2_LOW);
    v16 p = set16(EXP_TERMS[0]);
#pragma GCC unroll 8
    for (int i = 1; i < 8; i++) p = fma16(p, r, set16(EXP_TERMS[i]));
    const v16i bits = reinterpret_cast<v16i>(biased) << 23;
    const __m512i scaled = reinterpret_cast<__m512i>(reinterpret_cast<v16i>(p) + bits);
    const v16 finite = _mm512_castsi512_ps(_mm512_maskz_mov_epi32(some, scaled));
    return _mm512_mask_mov_ps(finite, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}
#endif

}  // namespace pt
