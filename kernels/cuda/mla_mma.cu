// mla_mma_*: absorbed multi-head latent attention of fp16 or bf16 pages (paged_attention.cuh).
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

template <i32 Latent, i32 Rotary>
struct MlaTiles {
  static constexpr i32 kKeyDim = Latent + Rotary;
  static constexpr i32 kValueDim = Latent;
  static constexpr i32 kKeyStride = kKeyDim + kRowPad;
  static constexpr i32 kValueStride = kKeyStride;
  static constexpr i32 kStageElements = kTileTokens * kKeyStride;

  SlabView first;   // latent
  SlabView second;  // rotary

  static __device__ __forceinline__ const u16* keys(const u16* stage) { return stage; }
  static __device__ __forceinline__ const u16* values(const u16* stage) { return stage; }
  __device__ __forceinline__ void load(u16* stage, const Item& item, i32 first_token,
                                       i32 kv_head) const {
    load_rows<Latent>(stage, kKeyStride, first, item, first_token, kv_head);
    load_rows<Rotary>(stage + Latent, kKeyStride, second, item, first_token, kv_head);
  }
};

#define PT_JOIN(name, latent, rotary) name##_d##latent##_##rotary
#define PT_NAME(name, latent, rotary) PT_JOIN(name, latent, rotary)
using Tiles = MlaTiles<LATENT, ROTARY>;

DEFINE_ATTENTION(PT_NAME(mla_mma_f16, LATENT, ROTARY), F16, Tiles, 1)
DEFINE_ATTENTION(PT_NAME(mla_mma_bf16, LATENT, ROTARY), BF16, Tiles, 1)
