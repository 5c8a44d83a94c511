// Lines (query rows of heads that share a KV head) against keys and values as they lie in pages.
//
//   score  s[line][key] = sum over i of q[line][i] k[key][i]: eight sums side by side, lane l over
//          i = l, l + 8, ... in rising order, then the lanes in the fixed tree of sum_lanes
//   weigh  o[line] += p[line][key] v[key], key by key in rising order, one rounding a step
//
// With pages that are multiplied by pairs (steps.h) an i is a pair of elements, and a key the pair at
// positions 2 j and 2 j + 1, of which one that a line doesn't see counts as zeros.
//
// Blocks of lines and keys only decide what is held in registers; no order of a sum depends on
// them, so a line has the same bits beside any other lines and any other keys.

#pragma once

#include <algorithm>

#include "ahead.h"
#include "product.h"
#include "steps.h"

#ifdef __AVX512F__
#include "lines_16.h"
#include "tile_16.h"
#endif

namespace pt {

// Tokens of a block: what is read while the next block is asked for. Values of VALUES_AT_ONCE
// tokens are summed up before the sums go back to memory.
#ifdef __AVX512F__
template <class S>
constexpr int64_t TOKENS_AT_ONCE = 64 / int64_t(sizeof(typename S::T));
template <class S>
constexpr int64_t VALUES_AT_ONCE = TOKENS_AT_ONCE<S>;
#else
template <class S>
constexpr int64_t TOKENS_AT_ONCE = 16;
template <class S>
constexpr int64_t VALUES_AT_ONCE = 4;
#endif

// Values of many lines' keys as panels of sixteen columns, and the product that they go into.
template <class S>
struct ValuePanels {
    typedef Plain<F32> Product;
    // n columns from column i on of the rows that go together, zeros after them.
    static void lay(const typename S::T* const* rows, int64_t i, int64_t n, float* to) {
        const typename S::T* from = rows[0] + i;
        if (n == PANEL) return wide_store(to, wide_widen<S>(from));
        for (int64_t c = 0; c < PANEL; c++) to[c] = c < n ? S::load(from[c]) : 0.0f;
    }
};

#ifdef __AVX512BF16__
template <>
struct ValuePanels<BF16> {
    typedef Pairs Product;
    static void lay(const uint16_t* const* rows, int64_t i, int64_t n, uint16_t* to) {
        _mm512_storeu_si512(to, Weigh16<BF16>::first(rows, i, n));
    }
};
#endif

#ifndef __AVX512F__

// One step of eight sums: a key's elements, and what they do to the sum.
template <class S>
struct Step8 {
    typedef v8 Key;
    static Key load(const typename S::T* p) { return S::load8(p); }
    static v8 add(const float* q, Key k, v8 sum) { return fma8(load8(q), k, sum); }
};

template <>
struct Step8<BF16> {
    struct Key {
        v8 odd, even;
    };
    static Key load(const uint16_t* p) {
        v8i words;
        std::memcpy(&words, p, sizeof words);
        return {reinterpret_cast<v8>(words & set1i(int32_t(0xffff0000))),
                reinterpret_cast<v8>(words << 16)};
    }
    static v8 add(const float* q, Key k, v8 sum) {
        return fma8(load8(q + LANES), k.even, fma8(load8(q), k.odd, sum));
    }
};

// sum_lanes of eight vectors at once; result lane i is that of r[i].
inline v8 sum_lanes_of_8(const v8 r[8]) {
    v8 quarters[4], pairs[2];
    for (int i = 0; i < 4; i++)
        quarters[i] = __builtin_shufflevector(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
                      __builtin_shufflevector(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    for (int i = 0; i < 2; i++)
        pairs[i] = __builtin_shufflevector(quarters[i], quarters[i + 2], 0, 1, 8, 9, 4, 5, 12, 13) +
                   __builtin_shufflevector(quarters[i], quarters[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(pairs[0], pairs[1], 0, 8, 2, 10, 4, 12, 6, 14) +
           __builtin_shufflevector(pairs[0], pairs[1], 1, 9, 3, 11, 5, 13, 7, 15);
}

// L lines times N keys, L * N <= 8. Not inlined: alone, everything it needs stays in registers.
template <class S, int L, int N>
[[gnu::noinline, gnu::flatten]] void score_block(const Keys<S>& keys, int64_t key, const float* q,
                                                 int64_t ldq, float* out, int64_t ldo,
                                                 Ahead& shared) {
    typedef typename S::T T;
    constexpr int64_t STEP = Steps<S>::STEP;
    Ahead ahead = shared;
    v8 sums[L * N];
#pragma GCC unroll 8
    for (int i = 0; i < L * N; i++) sums[i] = set1(0.0f);
    const auto slab = [&](const T* const* all, int64_t width) {
        const T* rows[N];
        for (int n = 0; n < N; n++) rows[n] = all[key + n];
        for (int64_t i = 0; i + STEP <= width; i += STEP, q += Steps<S>::QUERY) {
            ahead.template step<N * STEP * int64_t(sizeof(T))>();
            typename Step8<S>::Key k[N];
            for (int n = 0; n < N; n++) k[n] = Step8<S>::load(rows[n] + i);
            for (int l = 0; l < L; l++)
                for (int n = 0; n < N; n++)
                    sums[l * N + n] = Step8<S>::add(q + l * ldq, k[n], sums[l * N + n]);
        }
        const int64_t whole = width / STEP * STEP;
        if (whole == width) return;
        for (int n = 0; n < N; n++) {
            T last[STEP] = {};
            std::copy(rows[n] + whole, rows[n] + width, last);
            for (int l = 0; l < L; l++)
                sums[l * N + n] =
                    Step8<S>::add(q + l * ldq, Step8<S>::load(last), sums[l * N + n]);
        }
        q += Steps<S>::QUERY;
    };
    slab(keys.first, keys.first_width);
    if (keys.second_width) slab(keys.second, keys.second_width);
    shared = ahead;
    v8 padded[8];
    for (int i = 0; i < 8; i++) padded[i] = i < L * N ? sums[i] : set1(0.0f);
    const v8 scores = sum_lanes_of_8(padded);
    float flat[8];
    store8(flat, scores);
    for (int l = 0; l < L; l++) std::memcpy(out + l * ldo + key, flat + l * N, N * sizeof(float));
}

template <class S, int L>
inline void score_keys(const Keys<S>& keys, int64_t count, const float* q, int64_t ldq, float* out,
                       int64_t ldo, Ahead& ahead) {
    constexpr int N = 8 / L;
    int64_t key = 0;
    for (; key + N <= count; key += N) score_block<S, L, N>(keys, key, q, ldq, out, ldo, ahead);
    for (; key < count; key++) score_block<S, L, 1>(keys, key, q, ldq, out, ldo, ahead);
}

// Queries lie one line after the other.
template <class S>
inline void lay_lines(const float* q, int64_t first_width, int64_t second_width, v8 factor,
                      int64_t line, int64_t, float* to) {
    lay_query<S>(q, first_width, second_width, factor, Steps<S>::QUERY,
                 to + line * query_floats<S>(first_width, second_width));
}

// out[line][key] for `count` keys; q as lay_lines leaves it.
template <class S>
inline void score_lines(const Keys<S>& keys, int64_t count, const float* q, int64_t lines,
                        float* out, int64_t ldo, Ahead& ahead) {
    const int64_t ldq = query_floats<S>(keys.first_width, keys.second_width);
    for (; lines >= 4; lines -= 4, q += 4 * ldq, out += 4 * ldo)
        score_keys<S, 4>(keys, count, q, ldq, out, ldo, ahead);
    if (lines == 3) return score_keys<S, 3>(keys, count, q, ldq, out, ldo, ahead);
    if (lines == 2) return score_keys<S, 2>(keys, count, q, ldq, out, ldo, ahead);
    if (lines == 1) score_keys<S, 1>(keys, count, q, ldq, out, ldo, ahead);
}

// Many lines: sixteen keys are made fp32 and laid side by side first; then they are as few lines are.
template <class S>
inline int64_t key_floats(int64_t first_width, int64_t second_width) {
    return (steps_of<S>(first_width) + steps_of<S>(second_width)) * Steps<S>::STEP * PANEL;
}
template <class S>
inline void lay_tile(const float* q, int64_t first_width, int64_t second_width, v8 factor,
                     int64_t line, int64_t lines, float* to) {
    lay_lines<S>(q, first_width, second_width, factor, line, lines, to);
}
template <class S>
inline void lay_keys(const Keys<S>& keys, int64_t count, float* to) {
    constexpr int64_t STEP = Steps<S>::STEP;
    for (int64_t k = 0; k < count; k++)
        for (int64_t slab = 0; slab < 2; slab++) {
            const int64_t width = slab ? keys.second_width : keys.first_width;
            for (int64_t i = 0; i < width; i += STEP, to += STEP)
                Steps<S>::widen((slab ? keys.second : keys.first)[k] + i,
                                std::min(STEP, width - i), to);
        }
}
template <class S>
inline void score_laid(const float* laid, int64_t first_width, int64_t second_width, int64_t count,
                       const float* q, int64_t lines, float* out, int64_t ldo) {
    const int64_t first_floats = steps_of<S>(first_width) * Steps<S>::STEP;
    const int64_t second_floats = steps_of<S>(second_width) * Steps<S>::STEP;
    const float *first[PANEL], *second[PANEL];
    for (int64_t k = 0; k < PANEL; k++) {
        first[k] = laid + std::min(k, count - 1) * (first_floats + second_floats);
        second[k] = first[k] + first_floats;
    }
    Ahead nothing;
    score_lines(Keys<F32>{first, second, first_floats, second_floats}, count, q, lines, out, ldo,
                nothing);
}

// The first n of eight elements, zeros after them.
template <class S>
inline v8 widen_first(const typename S::T* p, int64_t n) {
    v8 x = set1(0.0f);
    for (int64_t i = 0; i < n; i++) x[i] = S::load(p[i]);
    return x;
}

template <class S, int L, int N>
inline void weigh_block(const typename S::T* const* rows, int64_t width, const float* p,
                        int64_t ldp, float* o, int64_t ldo, Ahead& ahead) {
    v8 weights[L][N];
    for (int l = 0; l < L; l++)
        for (int n = 0; n < N; n++) weights[l][n] = set1(p[l * ldp + n]);
    const auto columns = [&](int64_t i, const v8* v) {
        for (int l = 0; l < L; l++) {
            v8 sum = load8(o + l * ldo + i);
            for (int n = 0; n < N; n++) sum = fma8(weights[l][n], v[n], sum);
            store8(o + l * ldo + i, sum);
        }
    };
    const int64_t whole = width / LANES * LANES;
    v8 v[N];
    for (int64_t i = 0; i < whole; i += LANES) {
        ahead.template step<N * LANES * int(sizeof(typename S::T))>();
        for (int n = 0; n < N; n++) v[n] = S::load8(rows[n] + i);
        columns(i, v);
    }
    if (whole == width) return;
    for (int n = 0; n < N; n++) v[n] = widen_first<S>(rows[n] + whole, width - whole);
    columns(whole, v);
}

// `count` keys, at most VALUES_AT_ONCE<S>. o is padded to whole vectors; what lies past `width` stays.
template <class S>
inline void weigh_lines(const typename S::T* const* rows, int64_t count, int64_t width,
                        const typename Steps<S>::Weight* p, int64_t ldp, float* o, int64_t ldo,
                        int64_t lines, Ahead& ahead) {
    for (int64_t line = 0; line < lines; line += 2) {
        const float* weights = p + line * ldp;
        float* out = o + line * ldo;
        const bool pair = line + 1 < lines;
        if (count == VALUES_AT_ONCE<S>) {
            if (pair)
                weigh_block<S, 2, VALUES_AT_ONCE<S>>(rows, width, weights, ldp, out, ldo, ahead);
            else
                weigh_block<S, 1, VALUES_AT_ONCE<S>>(rows, width, weights, ldp, out, ldo, ahead);
            continue;
        }
        for (int64_t n = 0; n < count; n++)
            if (pair)
                weigh_block<S, 2, 1>(rows + n, width, weights + n, ldp, out, ldo, ahead);
            else
                weigh_block<S, 1, 1>(rows + n, width, weights + n, ldp, out, ldo, ahead);
    }
}

#endif
}  // namespace pt
