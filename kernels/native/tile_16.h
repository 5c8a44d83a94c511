// Many lines against a block of keys with registers of sixteen floats.
//
// Keys are turned first, sixteen of them side by side, so that a lane is a key: the eight sums of a
// score are eight registers, added up in the tree of sum_lanes without moving a lane. The order of
// every sum is that of lines.h, and so are the bits.

#pragma once

#include <algorithm>

#include "product.h"
#include "steps.h"

namespace pt {

// How many lines go over a panel of keys together.
constexpr int TILE_LINES = 8;

// Keys as a panel holds them: sixteen words of a key in a register, a word one step of one lane.
template <class S>
struct Turned {
    typedef Plain<F32> Product;
    static constexpr int64_t ELEMENTS = 16;  // that sixteen words hold
    static v16i words(const typename S::T* p, int64_t n) {
        return reinterpret_cast<v16i>(n >= 16 ? S::load16(p) : S::load16_first(p, n));
    }
};

#ifdef __AVX512BF16__
template <>
struct Turned<BF16> {
    typedef Pairs Product;
    static constexpr int64_t ELEMENTS = 32;
    static v16i words(const uint16_t* p, int64_t n) {
        const __mmask32 some = n >= 32 ? ~__mmask32(0) : (__mmask32(1) << n) - 1;
        return reinterpret_cast<v16i>(_mm512_maskz_loadu_epi16(some, p));
    }
};
#else
template <>
struct Turned<BF16> {
    typedef Plain<F32> Product;
    static constexpr int64_t ELEMENTS = 16;
    static v16i words(const uint16_t* p, int64_t n) {
        alignas(64) float wide[Steps<BF16>::STEP];
        Steps<BF16>::widen(p, std::min<int64_t>(n, Steps<BF16>::STEP), wide);
        return reinterpret_cast<v16i>(load16(wide));
    }
};
#endif

// Sixteen rows of sixteen words -> columns, in place.
inline void turn(__m512i r[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {  // now 128 bits of r[i + j]: word 4 part + j of rows i .. i + 3
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        t[j] = _mm512_shuffle_i32x4(r[j], r[j + 4], 0x88);           // parts 0, 2 of rows 0 .. 7
        t[j + 4] = _mm512_shuffle_i32x4(r[j], r[j + 4], 0xdd);       // parts 1, 3
        t[j + 8] = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0x88);  // of rows 8 .. 15
        t[j + 12] = _mm512_shuffle_i32x4(r[j + 8], r[j + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
        r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
        r[j + 4] = _mm512_shuffle_i32x4(t[j + 4], t[j + 12], 0x88);
        r[j + 12] = _mm512_shuffle_i32x4(t[j + 4], t[j + 12], 0xdd);
    }
}

template <class S>
inline int64_t key_floats(int64_t first_width, int64_t second_width) {
    return query_floats<S>(first_width, second_width) * PANEL;
}

template <class S>
inline void lay_tile(const float* q, int64_t first_width, int64_t second_width, v8 factor,
                     int64_t line, int64_t, float* to) {
    lay_query<S>(q, first_width, second_width, factor, Steps<S>::QUERY,
                 to + line * query_floats<S>(first_width, second_width));
}

// M lines, q as lay_tile leaves it, against a panel of sixteen keys of which the first `count` count.
//
// A score is eight sums. All at once they would leave room for three lines, and so a load for nearly
// every product; so they are taken one after the other, in the order in which the tree adds them:
// at most three of a score are held.
template <class B, int M>
[[gnu::noinline, gnu::flatten]] void score_panel(const float* query, int64_t ldq,
                                                 const float* panel, int64_t steps, float* out,
                                                 int64_t ldo, int64_t count) {
    typedef typename B::Row Row;
    struct Sums {
        v16 of[M];
    };
    const Row* q = reinterpret_cast<const Row*>(query);
    const typename B::T* keys = reinterpret_cast<const typename B::T*>(panel);
    ldq *= int64_t(sizeof(float) / sizeof(Row));
    const auto lane = [&](int l) {
        Sums sums;
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) sums.of[m] = set16(0.0f);
        for (int64_t s = l; s < steps; s += LANES) {
            const typename B::Column k = B::column(keys + s * PANEL * B::GROUP);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++)
                sums.of[m] = B::step(B::value(q + m * ldq + s * B::GROUP), k, {sums.of[m]}).all;
        }
        return sums;
    };
    const auto add = [](const Sums& a, const Sums& b) {
        Sums sums;
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) sums.of[m] = a.of[m] + b.of[m];
        return sums;
    };
    const auto two = [&](int l) {
        const Sums a = lane(l);
        return add(a, lane(l + 4));
    };
    const auto four = [&](int l) {
        const Sums a = two(l);
        return add(a, two(l + 2));
    };
    const Sums even = four(0), all = add(even, four(1));
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) store16_first(out + m * ldo, all.of[m], count);
}

// At most TILE_LINES lines: the block that has just as many.
template <class B, int M = TILE_LINES>
inline void score_some(int64_t lines, const float* q, int64_t ldq, const float* panel, int64_t steps,
                       float* out, int64_t ldo, int64_t count) {
    if (lines == M)
        score_panel<B, M>(q, ldq, panel, steps, out, ldo, count);
    else if constexpr (M > 1)
        score_some<B, M - 1>(lines, q, ldq, panel, steps, out, ldo, count);
}

// Sixteen keys as a panel; past the last, the last one again. Where words are left over, what follows
// the panel is written as well, at most sixteen rows.
template <class S>
inline void lay_keys(const Keys<S>& keys, int64_t count, float* to) {
    const auto slab = [&](const typename S::T* const* rows, int64_t width) {
        for (int64_t i = 0; i < width; i += Turned<S>::ELEMENTS) {
            v16i words[PANEL];
            for (int64_t k = 0; k < PANEL; k++)
                words[k] = Turned<S>::words(rows[std::min(k, count - 1)] + i, width - i);
            turn(reinterpret_cast<__m512i*>(words));
            for (int64_t k = 0; k < PANEL; k++)
                _mm512_storeu_si512(to + (i / Turned<S>::ELEMENTS * PANEL + k) * PANEL,
                                    reinterpret_cast<__m512i>(words[k]));
        }
        to += steps_of<S>(width) * Steps<S>::QUERY * PANEL;
    };
    slab(keys.first, keys.first_width);
    if (keys.second_width) slab(keys.second, keys.second_width);
}

// out[line][key] for `count` keys of a panel that lay_keys left.
template <class S>
inline void score_laid(const float* panel, int64_t first_width, int64_t second_width, int64_t count,
                       const float* q, int64_t lines, float* out, int64_t ldo) {
    const int64_t ldq = query_floats<S>(first_width, second_width);
    for (int64_t line = 0; line < lines; line += TILE_LINES)
        score_some<typename Turned<S>::Product>(std::min<int64_t>(TILE_LINES, lines - line),
                                                q + line * ldq, ldq, panel, ldq, out + line * ldo,
                                                ldo, count);
}

}  // namespace pt
