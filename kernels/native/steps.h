// What the storage type of pages decides about the arithmetic of attention.
//
//   score  a step takes STEP elements of a key; a query lies ready in QUERY floats' room for each
//   weigh  keys go TOGETHER; a line's weights lie as `Weight`, that of key k at slot(k)
//
// bf16 pages are multiplied by pairs (pairs.h), queries and weights rounded to bf16. Where the
// processor has no instruction for pairs, the odd one of a pair is multiplied before the even one,
// element by element, so both lie in that order: all else is as with the other types.

#pragma once

#include <algorithm>

#include "pairs.h"

namespace pt {

template <class S>
struct Steps {
    static constexpr int64_t STEP = LANES, QUERY = LANES, TOGETHER = 1;
    typedef float Weight;
    static int64_t slot(int64_t key) { return key; }
    // n elements of a query times a factor, zeros after them.
    static void lay(const float* from, int64_t n, v8 factor, float* to) {
        store8(to, load_first(from, n) * factor);
    }
    // n elements of a key as fp32, in the order in which they are multiplied, zeros after them.
    static void widen(const typename S::T* from, int64_t n, float* to) {
        if (n == STEP) return store8(to, S::load8(from));
        for (int64_t i = 0; i < STEP; i++) to[i] = i < n ? S::load(from[i]) : 0.0f;
    }
    // Weights of keys k, k + 1, ..., k + 7, k a multiple of eight; gives what they are worth there.
    static v8 put(Weight* weights, int64_t k, v8 p) {
        store8(weights + k, p);
        return p;
    }
#ifdef __AVX512F__
    static v16 put16(Weight* weights, int64_t k, v16 p) {
        store16(weights + k, p);
        return p;
    }
#endif
};

#ifdef __AVX512BF16__

template <>
struct Steps<BF16> {
    static constexpr int64_t STEP = 2 * LANES, QUERY = LANES, TOGETHER = 2;
    typedef Pairs::Row Weight;
    static int64_t slot(int64_t key) { return key; }
    static void lay(const float* from, int64_t n, v8 factor, float* to) {
        Pairs::Row* at = reinterpret_cast<Pairs::Row*>(to);
        const int64_t low = std::min<int64_t>(n, LANES);
        Pairs::round8(load_first(from, low) * factor, at);
        Pairs::round8(load_first(from + low, n - low) * factor, at + LANES);
    }
    static v8 put(Weight* weights, int64_t k, v8 p) {
        Pairs::round8(p, weights + k);
        return BF16::load8(weights + k);
    }
    static v16 put16(Weight* weights, int64_t k, v16 p) {
        const __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + k), rounded);
        return BF16::widen16(rounded);
    }
};

#else

template <>
struct Steps<BF16> {
    static constexpr int64_t STEP = 2 * LANES, QUERY = 2 * LANES, TOGETHER = 2;
    typedef float Weight;
    static int64_t slot(int64_t key) { return key ^ 1; }
    static void lay(const float* from, int64_t n, v8 factor, float* to) {
        float rounded[STEP];
        const int64_t low = std::min<int64_t>(n, LANES);
        Pairs::round8(load_first(from, low) * factor, rounded);
        Pairs::round8(load_first(from + low, n - low) * factor, rounded + LANES);
        for (int64_t i = 0; i < STEP; i++) to[place(i)] = rounded[i];
    }
    static void widen(const uint16_t* from, int64_t n, float* to) {
        for (int64_t i = 0; i < STEP; i++) to[place(i)] = i < n ? BF16::load(from[i]) : 0.0f;
    }
    static v8 put(Weight* weights, int64_t k, v8 p) {
        float rounded[LANES];
        Pairs::round8(p, rounded);
        const v8 worth = load8(rounded);
        store8(weights + k, __builtin_shufflevector(worth, worth, 1, 0, 3, 2, 5, 4, 7, 6));
        return worth;
    }
#ifdef __AVX512F__
    static v16 put16(Weight* weights, int64_t k, v16 p) {
        const v8 low = put(weights, k, low8(p)), high = put(weights, k + LANES, high8(p));
        return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
    }
#endif

  private:
    // The odd ones of eight pairs, then the even ones.
    static int64_t place(int64_t i) { return i / 2 + (i % 2 ? 0 : LANES); }
};

#endif

template <class S>
inline int64_t steps_of(int64_t width) {
    return (width + Steps<S>::STEP - 1) / Steps<S>::STEP;
}

// Floats' room of a line's query.
template <class S>
inline int64_t query_floats(int64_t first_width, int64_t second_width) {
    return (steps_of<S>(first_width) + steps_of<S>(second_width)) * Steps<S>::QUERY;
}

// A line's query, one step after the other, `step` floats from one to the next.
template <class S>
inline void lay_query(const float* from, int64_t first_width, int64_t second_width, v8 factor,
                      int64_t step, float* to) {
    for (const int64_t width : {first_width, second_width}) {
        for (int64_t i = 0; i < width; i += Steps<S>::STEP, to += step)
            Steps<S>::lay(from + i, std::min<int64_t>(Steps<S>::STEP, width - i), factor, to);
        from += width;
    }
}

// Rows of a block of keys in each of two slabs (past the last key, any row that may be read);
// `second_width` 0 says there is but one slab.
template <class S>
struct Keys {
    const typename S::T *const *first, *const *second;
    int64_t first_width, second_width;
};

}  // namespace pt
