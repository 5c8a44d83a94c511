// Lines against keys and values with registers of sixteen floats: the operations of lines.h, with
// its orders of addition and so its bits.
//
// A score is eight sums side by side, so a register holds those of two keys, one in each half. A
// weighted sum is one lane for every column, so there a register is sixteen columns.

#pragma once

#include <algorithm>

#include "ahead.h"
#include "steps.h"

namespace pt {

constexpr int QUERIES = 4;  // lines of a group

// Lane sums of eight registers, in the tree of sum_lanes: s[0..3] are one line's scores of keys
// (0, 1), (2, 3), (4, 5), (6, 7), s[4..7] another line's. Result: eight scores of the first line,
// then eight of the second.
inline v16 sum_lanes_of_16(const v16 s[8]) {
    v16 quarters[4], pairs[2];
    for (int i = 0; i < 4; i++)  // each 128 bits: one key's (i, i + 4); keys 4 i .. 4 i + 3
        quarters[i] = v16(_mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0x88)) +
                      v16(_mm512_shuffle_f32x4(s[2 * i], s[2 * i + 1], 0xdd));
    for (int i = 0; i < 2; i++)
        pairs[i] = v16(_mm512_shuffle_ps(quarters[2 * i], quarters[2 * i + 1], 0x44)) +
                   v16(_mm512_shuffle_ps(quarters[2 * i], quarters[2 * i + 1], 0xee));
    // Now 128 bits number j are line 0's keys j and j + 4, then line 1's.
    const v16 sums = v16(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88)) +
                     v16(_mm512_shuffle_ps(pairs[0], pairs[1], 0xdd));
    const __m512i order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_ps(order, sums);
}

// One step of the sums of two keys: their elements, and what they do to the sums.
template <class S>
struct Step16 {
    typedef v16 Key, Query;
    static Key two(const typename S::T* a, const typename S::T* b) { return S::load_two(a, b); }
    static Key two_first(const typename S::T* a, const typename S::T* b, int64_t n) {
        return S::load_two_first(a, b, n);
    }
    static Query query(const float* q) { return twice8(q); }
    static v16 add(Query x, Key k, v16 sum) { return fma16(x, k, sum); }
};

template <>
struct Step16<BF16> {
    static __m512i halves(__m256i a, __m256i b) {
        return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    }
#ifdef __AVX512BF16__
    typedef __m512i Key, Query;
    static Key of(__m512i raw) { return raw; }
    static Query query(const float* q) {
        return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(q)));
    }
    static v16 add(Query x, Key k, v16 sum) {
        return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(k));
    }
#else
    struct Key {
        v16 odd, even;
    };
    typedef Key Query;
    static Key of(__m512i raw) {
        const __m512i upper = _mm512_set1_epi32(int32_t(0xffff0000));
        return {_mm512_castsi512_ps(_mm512_and_si512(raw, upper)),
                _mm512_castsi512_ps(_mm512_slli_epi32(raw, 16))};
    }
    static Query query(const float* q) { return {twice8(q), twice8(q + LANES)}; }
    static v16 add(const Query& x, const Key& k, v16 sum) {
        return fma16(x.even, k.even, fma16(x.odd, k.odd, sum));
    }
#endif
    static Key two(const uint16_t* a, const uint16_t* b) { return of(halves(raw16(a), raw16(b))); }
    static Key two_first(const uint16_t* a, const uint16_t* b, int64_t n) {
        return of(halves(raw16_first(a, n), raw16_first(b, n)));
    }
};

// Queries lie in groups of four lines, in a group one step of every line, then the next step: so a
// loop over them has one address to keep.
template <class S>
inline void lay_lines(const float* q, int64_t first_width, int64_t second_width, v8 factor,
                      int64_t line, int64_t lines, float* to) {
    const int64_t group = line / QUERIES * QUERIES;
    const int64_t together = std::min<int64_t>(QUERIES, lines - group);
    lay_query<S>(q, first_width, second_width, factor, together * Steps<S>::QUERY,
                 to + group * query_floats<S>(first_width, second_width) +
                     (line - group) * Steps<S>::QUERY);
}

// L lines times 2 P keys, L * P <= 16.
template <class S, int L, int P>
[[gnu::noinline, gnu::flatten]] void score_pairs(const Keys<S>& keys, int64_t key, int64_t count,
                                                 const float* q, float* out, int64_t ldo,
                                                 Ahead& shared) {
    typedef typename S::T T;
    constexpr int64_t STEP = Steps<S>::STEP;
    Ahead ahead = shared;
    v16 sums[L * P];
#pragma GCC unroll 16
    for (int i = 0; i < L * P; i++) sums[i] = set16(0.0f);
    const auto slab = [&](const T* const* all, int64_t width) {
        const T* rows[2 * P];
#pragma GCC unroll 16
        for (int n = 0; n < 2 * P; n++) rows[n] = all[key + n];
        const auto step = [&](auto load) {
            typename Step16<S>::Key k[P];
#pragma GCC unroll 8
            for (int p = 0; p < P; p++) k[p] = load(rows[2 * p], rows[2 * p + 1]);
#pragma GCC unroll 8
            for (int l = 0; l < L; l++) {
                const typename Step16<S>::Query x = Step16<S>::query(q + l * Steps<S>::QUERY);
#pragma GCC unroll 8
                for (int p = 0; p < P; p++)
                    sums[l * P + p] = Step16<S>::add(x, k[p], sums[l * P + p]);
            }
            q += L * Steps<S>::QUERY;
        };
        const int64_t whole = width / STEP * STEP;
        for (int64_t i = 0; i < whole; i += STEP) {
            ahead.template step<2 * P * STEP * int64_t(sizeof(T))>();
            step([&](const T* a, const T* b) { return Step16<S>::two(a + i, b + i); });
        }
        if (whole < width)
            step([&](const T* a, const T* b) {
                return Step16<S>::two_first(a + whole, b + whole, width - whole);
            });
    };
    slab(keys.first, keys.first_width);
    if (keys.second_width) slab(keys.second, keys.second_width);
    shared = ahead;
    // Eight registers at a time: two lines' eight keys, or one line's sixteen.
    constexpr int EIGHTS = P / 4;  // of keys
    const auto eight = [&](int at, v8 scores) {
        const int64_t wanted = std::min<int64_t>(count - at % EIGHTS * 8, 8);
        if (at < L * EIGHTS && wanted > 0)
            _mm256_mask_storeu_ps(out + at / EIGHTS * ldo + key + at % EIGHTS * 8,
                                  __mmask8(first16(wanted)), scores);
    };
#pragma GCC unroll 8
    for (int g = 0; g < (L * EIGHTS + 1) / 2; g++) {
        v16 parts[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) parts[i] = 8 * g + i < L * P ? sums[8 * g + i] : set16(0.0f);
        const v16 scores = sum_lanes_of_16(parts);
        eight(2 * g, low8(scores));
        eight(2 * g + 1, high8(scores));
    }
}

template <class S, int L, int P>
inline void score_keys_16(const Keys<S>& keys, int64_t count, const float* q, float* out,
                          int64_t ldo, Ahead& ahead) {
    for (int64_t key = 0; key < count; key += 2 * P)
        score_pairs<S, L, P>(keys, key, std::min<int64_t>(2 * P, count - key), q, out, ldo, ahead);
}

// out[line][key] for `count` keys; q as lay_lines leaves it.
template <class S>
inline void score_lines(const Keys<S>& keys, int64_t count, const float* q, int64_t lines,
                        float* out, int64_t ldo, Ahead& ahead) {
    const int64_t group = QUERIES * query_floats<S>(keys.first_width, keys.second_width);
    for (; lines >= QUERIES; lines -= QUERIES, q += group, out += QUERIES * ldo)
        score_keys_16<S, QUERIES, 4>(keys, count, q, out, ldo, ahead);
    if (lines == 3) return score_keys_16<S, 3, 4>(keys, count, q, out, ldo, ahead);
    if (lines == 2) return score_keys_16<S, 2, 8>(keys, count, q, out, ldo, ahead);
    if (lines == 1) score_keys_16<S, 1, 8>(keys, count, q, out, ldo, ahead);
}

// One step of a weighted sum: values of the keys that go together, and what they do to the sums.
template <class S>
struct Weigh16 {
    typedef v16 Value, Factor;
    template <int C>
    static void columns(const typename S::T* const* rows, int64_t column, Value v[C]) {
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) v[c] = S::load16(rows[0] + column + 16 * c);
    }
    static Value first(const typename S::T* const* rows, int64_t column, int64_t n) {
        return S::load16_first(rows[0] + column, n);
    }
    static Factor factor(const float* p) { return set16(*p); }
    static v16 add(Factor p, Value v, v16 sum) { return fma16(p, v, sum); }
    static constexpr int KEYS = 1;
};

#ifdef __AVX512BF16__
template <>
struct Weigh16<BF16> {
    typedef __m512i Value, Factor;
    static constexpr int KEYS = 2;
    static Value pairs(__m256i even, __m256i odd) {
        return _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                               _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    }
    // 0, 32, 1, 33, ...: the first sixteen columns of two rows of thirty-two in turn; then the others.
    static __m512i turns(int from) {
        const __m512i columns = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512i even = _mm512_add_epi32(columns, _mm512_set1_epi32(from));
        return _mm512_or_si512(
            even, _mm512_slli_epi32(_mm512_add_epi32(even, _mm512_set1_epi32(32)), 16));
    }
    template <int C>
    static void columns(const uint16_t* const* rows, int64_t column, Value v[C]) {
        if constexpr (C % 2 == 0) {
            const __m512i low = turns(0), high = turns(16);
#pragma GCC unroll 8
            for (int c = 0; c < C; c += 2) {
                const __m512i even = _mm512_loadu_si512(rows[0] + column + 16 * c);
                const __m512i odd = _mm512_loadu_si512(rows[1] + column + 16 * c);
                v[c] = _mm512_permutex2var_epi16(even, low, odd);
                v[c + 1] = _mm512_permutex2var_epi16(even, high, odd);
            }
        } else {
#pragma GCC unroll 8
            for (int c = 0; c < C; c++)
                v[c] = pairs(raw16(rows[0] + column + 16 * c), raw16(rows[1] + column + 16 * c));
        }
    }
    static Value first(const uint16_t* const* rows, int64_t column, int64_t n) {
        return pairs(raw16_first(rows[0] + column, n), raw16_first(rows[1] + column, n));
    }
    static Factor factor(const uint16_t* p) { return Pairs::value(p); }
    static v16 add(Factor p, Value v, v16 sum) { return Pairs::step(p, v, {sum}).all; }
};
#endif

// L lines, C registers of columns: the sums stay in registers over all keys.
template <class S, int L, int C>
[[gnu::noinline, gnu::flatten]] void weigh_columns(const typename S::T* const* rows, int64_t count,
                                                   int64_t column,
                                                   const typename Steps<S>::Weight* p, int64_t ldp,
                                                   float* o, int64_t ldo, Ahead& shared) {
    typedef Weigh16<S> W;
    Ahead ahead = shared;
    v16 sums[L][C];
#pragma GCC unroll 8
    for (int l = 0; l < L; l++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) sums[l][c] = load16(o + l * ldo + column + 16 * c);
    for (int64_t n = 0; n < count; n += W::KEYS) {
        ahead.template step<W::KEYS * C * 16 * int(sizeof(typename S::T))>();
        typename W::Value v[C];
        W::template columns<C>(rows + n, column, v);
#pragma GCC unroll 8
        for (int l = 0; l < L; l++) {
            const typename W::Factor weight = W::factor(p + l * ldp + n);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) sums[l][c] = W::add(weight, v[c], sums[l][c]);
        }
    }
    // Forgets where the sums came from: sixteen addresses kept all along would cost more registers
    // than there are.
    asm("" : "+r"(o));
#pragma GCC unroll 8
    for (int l = 0; l < L; l++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) store16(o + l * ldo + column + 16 * c, sums[l][c]);
    shared = ahead;
}

// The last columns, fewer than a register has.
template <class S>
inline void weigh_last(const typename S::T* const* rows, int64_t count, int64_t column, int64_t n,
                       const typename Steps<S>::Weight* p, int64_t ldp, float* o, int64_t ldo,
                       int64_t lines) {
    typedef Weigh16<S> W;
    for (int64_t l = 0; l < lines; l++) {
        v16 sum = load16_first(o + l * ldo + column, n);
        for (int64_t k = 0; k < count; k += W::KEYS)
            sum = W::add(W::factor(p + l * ldp + k), W::first(rows + k, column, n), sum);
        store16_first(o + l * ldo + column, sum, n);
    }
}

template <class S, int L>
inline void weigh_some(const typename S::T* const* rows, int64_t count, int64_t width,
                       const typename Steps<S>::Weight* p, int64_t ldp, float* o, int64_t ldo,
                       Ahead& ahead) {
    int64_t i = 0;
    for (; i + 64 <= width; i += 64) weigh_columns<S, L, 4>(rows, count, i, p, ldp, o, ldo, ahead);
    for (; i + 16 <= width; i += 16) weigh_columns<S, L, 1>(rows, count, i, p, ldp, o, ldo, ahead);
    if (i < width) weigh_last<S>(rows, count, i, width - i, p, ldp, o, ldo, L);
}

// `count` keys, whole pairs where keys go by pairs.
template <class S>
inline void weigh_lines(const typename S::T* const* rows, int64_t count, int64_t width,
                        const typename Steps<S>::Weight* p, int64_t ldp, float* o, int64_t ldo,
                        int64_t lines, Ahead& ahead) {
    for (; lines >= 4; lines -= 4, p += 4 * ldp, o += 4 * ldo)
        weigh_some<S, 4>(rows, count, width, p, ldp, o, ldo, ahead);
    if (lines == 3) return weigh_some<S, 3>(rows, count, width, p, ldp, o, ldo, ahead);
    if (lines == 2) return weigh_some<S, 2>(rows, count, width, p, ldp, o, ldo, ahead);
    if (lines == 1) weigh_some<S, 1>(rows, count, width, p, ldp, o, ldo, ahead);
}

}  // namespace pt
