// The merge of two attention results over disjoint keys, and its order.
//
// A result is (o, lse): o normalised, lse = log2 of the sum of 2^score. The neutral element is
// (0, -inf), and merging with it returns the other argument bit for bit. The merge is not
// associative in floating point, so every kernel folds from the lowest keys upward, with the
// operations below and no other; then the bits do not depend on who folded.
#pragma once

#include "elements.cuh"

struct FoldWeights {
  float keep;
  float add;
  float lse;
};

__device__ __forceinline__ FoldWeights fold_weights(float lse, float next_lse) {
  const float highest = fmaxf(lse, next_lse);
  if (highest == minus_infinity()) return FoldWeights{0.f, 0.f, highest};
  const float kept = exp2_approx(__fsub_rn(lse, highest));
  const float added = exp2_approx(__fsub_rn(next_lse, highest));
  const float sum = __fadd_rn(kept, added);
  return FoldWeights{__fdiv_rn(kept, sum), __fdiv_rn(added, sum),
                     __fadd_rn(highest, log2_approx(sum))};
}

__device__ __forceinline__ float fold(const FoldWeights& weights, float o, float next_o) {
  return __fmaf_rn(next_o, weights.add, __fmul_rn(o, weights.keep));
}
