// mla_mma_{e4m3,i8}_*: absorbed latent attention (mla_mma.cu) of 8-bit pages, which become fp16 on
// their way through shared memory (tiles.cuh). LATENT and ROTARY are given by the build.
#include "attention_kernel.cuh"

#define PT_JOIN(name, latent, rotary) name##_d##latent##_##rotary
#define PT_NAME(name, latent, rotary) PT_JOIN(name, latent, rotary)
template <class Code>
using Tiles = CodedTiles<MlaLayout<LATENT, ROTARY>, Code>;

DEFINE_ATTENTION(PT_NAME(mla_mma_e4m3, LATENT, ROTARY), F16, Tiles<E4M3>, 1)
DEFINE_ATTENTION(PT_NAME(mla_mma_i8, LATENT, ROTARY), F16, Tiles<I8>, 1)
