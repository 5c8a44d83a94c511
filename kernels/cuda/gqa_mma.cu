// gqa_mma_*: grouped-query attention on tensor cores (paged_attention.cuh), fp16 or bf16 pages.
//
// HEAD_DIM is given by the build. One module holds, for each kind of pages, a kernel for few lines
// (decode, verify) and one for many (prefill); both give the same bits.
#include "attention_kernel.cuh"

// Two sets of sums stand in registers, so wide heads take fewer lines at a time.
constexpr i32 kPrefillTiles = HEAD_DIM <= 128 ? 4 : 2;

#define PT_JOIN(name, dim) name##_d##dim
#define PT_NAME(name, dim) PT_JOIN(name, dim)
using Tiles = PlainTiles<GqaLayout<HEAD_DIM>>;

DEFINE_ATTENTION(PT_NAME(gqa_mma_f16, HEAD_DIM), F16, Tiles, 1)
DEFINE_ATTENTION(PT_NAME(gqa_mma_bf16, HEAD_DIM), BF16, Tiles, 1)
DEFINE_ATTENTION(PT_NAME(gqa_prefill_mma_f16, HEAD_DIM), F16, Tiles, kPrefillTiles)
DEFINE_ATTENTION(PT_NAME(gqa_prefill_mma_bf16, HEAD_DIM), BF16, Tiles, kPrefillTiles)
