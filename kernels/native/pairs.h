// Products of bf16 by bf16, two elements of depth a step.
//
//   sum = x[2k] w[2k] + (x[2k+1] w[2k+1] + sum)    one rounding each; a product of two is exact
//
// This is what the processor's own instruction for pairs computes, and elsewhere it is computed so,
// with one difference: the instruction takes subnormal numbers for zero. Rows are rounded to bf16
// first, to nearest even.

#pragma once

#include "product.h"

namespace pt {

#ifdef __AVX512BF16__

struct Pairs {
    typedef uint16_t Row, T;
    typedef __m512i Value, Column;
    static constexpr int GROUP = 2, SUMS = 28, FEW = 14, ROWS = 6;
    static Value value(const uint16_t* a) {
        int32_t pair;
        std::memcpy(&pair, a, sizeof pair);
        return _mm512_set1_epi32(pair);
    }
    static Column column(const uint16_t* b) { return _mm512_loadu_si512(b); }
    static Wide step(Value x, Column w, Wide sum) {
        return {_mm512_dpbf16_ps(sum.all, reinterpret_cast<__m512bh>(x),
                                 reinterpret_cast<__m512bh>(w))};
    }
    static void round8(v8 x, Row* out) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                         reinterpret_cast<__m128i>(_mm256_cvtneps_pbh(x)));
    }
};

#else

struct Pairs {
    typedef float Row;  // rounded to bf16
    typedef uint16_t T;
    struct Value {
        Wide even, odd;
    };
    typedef Value Column;
    static constexpr int GROUP = 2;
    static constexpr int SUMS = WIDE_REGISTERS >= 32 ? 20 : 4;
    static constexpr int FEW = WIDE_REGISTERS >= 32 ? 10 : 4;
    static constexpr int ROWS = WIDE_REGISTERS >= 32 ? 5 : 4;
    static Value value(const float* a) { return {wide_set1(a[0]), wide_set1(a[1])}; }
    static Column column(const uint16_t* b) { return {low_halves(b), high_halves(b)}; }
    static Wide step(const Value& x, const Column& w, Wide sum) {
        return wide_fma(x.even, w.even, wide_fma(x.odd, w.odd, sum));
    }
    static void round8(v8 x, Row* out) {
        const v8i bits = reinterpret_cast<v8i>(x), one = (bits >> 16) & set1i(1);
        const v8 near = reinterpret_cast<v8>((bits + set1i(0x7fff) + one) & set1i(~0xffff));
        store8(out, select(x == x, near, x));  // a NaN stays one
    }

  private:
#ifdef __AVX512F__
    static Wide low_halves(const uint16_t* b) {
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(b), 16))};
    }
    static Wide high_halves(const uint16_t* b) {
        return {_mm512_castsi512_ps(
            _mm512_and_si512(_mm512_loadu_si512(b), _mm512_set1_epi32(int32_t(0xffff0000))))};
    }
#else
    static v8i words(const uint16_t* b) {
        v8i x;
        std::memcpy(&x, b, sizeof x);
        return x;
    }
    static Wide low_halves(const uint16_t* b) {
        return {reinterpret_cast<v8>(words(b) << 16),
                reinterpret_cast<v8>(words(b + 2 * LANES) << 16)};
    }
    static Wide high_halves(const uint16_t* b) {
        const v8i mask = set1i(int32_t(0xffff0000));
        return {reinterpret_cast<v8>(words(b) & mask),
                reinterpret_cast<v8>(words(b + 2 * LANES) & mask)};
    }
#endif
};

#endif

// Rows of x rounded, side by side, each padded with zeros to `stride`.
inline void round_rows(const float* x, int64_t ldx, int64_t rows, int64_t depth, int64_t stride,
                       Pairs::Row* out) {
    for (int64_t m = 0; m < rows; m++)
        for (int64_t i = 0; i < stride; i += LANES) {
            const float* from = x + m * ldx + i;
            Pairs::round8(i + LANES <= depth ? load8(from) : load_first(from, depth - i),
                          out + m * stride + i);
        }
}

}  // namespace pt
