// Vectors of sixteen floats, the width of a panel: one register of 512 bits, or two of 256.
//
// A lane is computed by the same operations either way, so its bits are the same.

#pragma once

#include "storage.h"

namespace pt {

#ifdef __AVX512F__

struct Wide {
    v16 all;
};

inline Wide wide_set1(float x) { return {set16(x)}; }
inline Wide wide_load(const float* p) { return {load16(p)}; }
inline void wide_store(float* p, Wide x) { store16(p, x.all); }
// The first n of sixteen floats.
inline void wide_store_first(float* p, Wide x, int64_t n) {
    n >= 2 * LANES ? store16(p, x.all) : store16_first(p, x.all, n);
}
inline Wide wide_add(Wide a, Wide b) { return {a.all + b.all}; }
inline Wide wide_mul(Wide a, Wide b) { return {a.all * b.all}; }
inline Wide wide_div(Wide a, Wide b) { return {a.all / b.all}; }
inline Wide wide_fma(Wide a, Wide b, Wide c) { return {fma16(a.all, b.all, c.all)}; }

template <class S>
inline Wide wide_widen(const typename S::T* p) {
    return {S::load16(p)};
}

constexpr int WIDE_REGISTERS = 32;

#else

struct Wide {
    v8 low, high;
};

inline Wide wide_set1(float x) { return {set1(x), set1(x)}; }
inline Wide wide_load(const float* p) { return {load8(p), load8(p + LANES)}; }
inline void wide_store(float* p, Wide x) {
    store8(p, x.low);
    store8(p + LANES, x.high);
}
inline void wide_store_first(float* p, Wide x, int64_t n) {
    store_first(p, x.low, n < LANES ? n : LANES);
    if (n > LANES) store_first(p + LANES, x.high, n - LANES);
}
inline Wide wide_add(Wide a, Wide b) { return {a.low + b.low, a.high + b.high}; }
inline Wide wide_mul(Wide a, Wide b) { return {a.low * b.low, a.high * b.high}; }
inline Wide wide_div(Wide a, Wide b) { return {a.low / b.low, a.high / b.high}; }
inline Wide wide_fma(Wide a, Wide b, Wide c) {
    return {fma8(a.low, b.low, c.low), fma8(a.high, b.high, c.high)};
}

template <class S>
inline Wide wide_widen(const typename S::T* p) {
    return {S::load8(p), S::load8(p + LANES)};
}

constexpr int WIDE_REGISTERS = 8;  // pairs of the sixteen

#endif

}  // namespace pt
