// gqa_mma_{e4m3,i8}_*: grouped-query attention on tensor cores (paged_attention.cuh), 8-bit pages.
//
// HEAD_DIM is given by the build. A tile becomes fp16 on its way through shared memory (tiles.cuh),
// so the bits are those of an fp16 pool that holds code * scale, and a step reads half its bytes.
#include "attention_kernel.cuh"

#define PT_JOIN(name, dim) name##_d##dim
#define PT_NAME(name, dim) PT_JOIN(name, dim)
template <class Code>
using Tiles = CodedTiles<GqaLayout<HEAD_DIM>, Code>;

DEFINE_ATTENTION(PT_NAME(gqa_mma_e4m3, HEAD_DIM), F16, Tiles<E4M3>, 1)
DEFINE_ATTENTION(PT_NAME(gqa_mma_i8, HEAD_DIM), F16, Tiles<I8>, 1)
DEFINE_ATTENTION(PT_NAME(gqa_prefill_mma_e4m3, HEAD_DIM), F16, Tiles<E4M3>, 2)
DEFINE_ATTENTION(PT_NAME(gqa_prefill_mma_i8, HEAD_DIM), F16, Tiles<I8>, 2)
