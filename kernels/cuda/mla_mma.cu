// mla_mma_*: absorbed multi-head latent attention on tensor cores (paged_attention.cuh).
//
// A token leaves one latent row and one rotary row for all heads. In absorbed form the key of a
// head is (latent, rotary) side by side and its value is the latent itself, so one copy of the tile
// serves as keys and as values:
//
//   +-------- LATENT --------+- ROTARY -+ pad
//   |  values                |          |      64 rows
//   |  keys ............................|
//   +------------------------+----------+
//
// LATENT and ROTARY are given by the build. All query heads share the tile: a line is a head.
#include "attention_kernel.cuh"

#define PT_JOIN(name, latent, rotary) name##_d##latent##_##rotary
#define PT_NAME(name, latent, rotary) PT_JOIN(name, latent, rotary)
using Layout = MlaLayout<LATENT, ROTARY>;

DEFINE_ATTENTION(PT_NAME(mla_mma_f16, LATENT, ROTARY), F16, PlainTiles<Layout>, 1)
DEFINE_ATTENTION(PT_NAME(mla_mma_bf16, LATENT, ROTARY), BF16, PlainTiles<Layout>, 1)
