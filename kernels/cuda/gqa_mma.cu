// gqa_mma_*: grouped-query attention of fp16 or bf16 pages on tensor cores (paged_attention.cuh).
//
// HEAD_DIM is given by the build. One module holds, for each element type, a kernel for few lines
// (decode, verify) and one for many (prefill); both give the same bits.
#include "attention_kernel.cuh"

// Keys and values each have a slab of their own: keys first in a stage, then values.
template <i32 HeadDim>
struct GqaTiles {
  static constexpr i32 kKeyDim = HeadDim;
  static constexpr i32 kValueDim = HeadDim;
  static constexpr i32 kKeyStride = HeadDim + kRowPad;
  static constexpr i32 kValueStride = HeadDim + kRowPad;
  static constexpr i32 kStageElements = kTileTokens * (kKeyStride + kValueStride);

  SlabView first;   // keys
  SlabView second;  // values

  static __device__ __forceinline__ const u16* keys(const u16* stage) { return stage; }
  static __device__ __forceinline__ const u16* values(const u16* stage) {
    return stage + kTileTokens * kKeyStride;
  }
  __device__ __forceinline__ void load(u16* stage, const Item& item, i32 first_token,
                                       i32 kv_head) const {
    load_rows<HeadDim>(stage, kKeyStride, first, item, first_token, kv_head);
    load_rows<HeadDim>(stage + kTileTokens * kKeyStride, kValueStride, second, item, first_token,
                       kv_head);
  }
};

// Two sets of sums stand in registers, so wide heads take fewer lines at a time.
constexpr i32 kPrefillTiles = HEAD_DIM <= 128 ? 4 : 2;

#define PT_JOIN(name, dim) name##_d##dim
#define PT_NAME(name, dim) PT_JOIN(name, dim)

DEFINE_ATTENTION(PT_NAME(gqa_mma_f16, HEAD_DIM), F16, GqaTiles<HEAD_DIM>, 1)
DEFINE_ATTENTION(PT_NAME(gqa_mma_bf16, HEAD_DIM), BF16, GqaTiles<HEAD_DIM>, 1)
DEFINE_ATTENTION(PT_NAME(gqa_prefill_mma_f16, HEAD_DIM), F16, GqaTiles<HEAD_DIM>, kPrefillTiles)
DEFINE_ATTENTION(PT_NAME(gqa_prefill_mma_bf16, HEAD_DIM), BF16, GqaTiles<HEAD_DIM>, kPrefillTiles)
