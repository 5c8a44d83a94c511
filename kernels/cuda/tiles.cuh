// How a tile of 64 tokens lies in shared memory, and how it comes there.
//
// A layout says where keys and values are among the tile's 16-bit elements. Both layouts are made
// of two slabs: keys and values (gqa_mma.cu), or latent and rotary rows (mla_mma.cu). Rows are
// padded by 16 bytes, which spreads the eight rows of a tensor-core tile over all banks for every
// width, 96 included.
//
//   PlainTiles: 16-bit pages. A stage of the ring is a tile.
//   CodedTiles: 8-bit pages. A stage holds codes and scales as they lie in the pages; `land` makes
//   the tile of it, in a place beside the ring:
//
//     stage  | first codes [64, w1] | second codes [64, w2] | scales 64 | scales 64 |
//     tile   element = fp16(code * scale): the bits a 16-bit pool of those numbers would give
#pragma once

#include "batch.cuh"
#include "codes.cuh"

constexpr i32 kTileTokens = 64;
constexpr i32 kWarps = 4;
constexpr i32 kThreads = 32 * kWarps;
constexpr i32 kRowPad = 8;  // elements; 16 bytes

// Keys and values each have a slab of their own.
template <i32 HeadDim>
struct GqaLayout {
  static constexpr i32 kKeyDim = HeadDim;
  static constexpr i32 kValueDim = HeadDim;
  static constexpr i32 kKeyStride = HeadDim + kRowPad;
  static constexpr i32 kValueStride = HeadDim + kRowPad;
  static constexpr i32 kValueStart = kTileTokens * kKeyStride;
  static constexpr i32 kElements = kValueStart + kTileTokens * kValueStride;

  static constexpr i32 kFirstWidth = HeadDim;
  static constexpr i32 kSecondWidth = HeadDim;
  static constexpr i32 kSecondStart = kValueStart;
  static constexpr i32 kSecondStride = kValueStride;
};

// The key is (latent, rotary) side by side and the value is the latent itself.
template <i32 Latent, i32 Rotary>
struct MlaLayout {
  static constexpr i32 kKeyDim = Latent + Rotary;
  static constexpr i32 kValueDim = Latent;
  static constexpr i32 kKeyStride = kKeyDim + kRowPad;
  static constexpr i32 kValueStride = kKeyStride;
  static constexpr i32 kValueStart = 0;
  static constexpr i32 kElements = kTileTokens * kKeyStride;

  static constexpr i32 kFirstWidth = Latent;
  static constexpr i32 kSecondWidth = Rotary;
  static constexpr i32 kSecondStart = Latent;
  static constexpr i32 kSecondStride = kKeyStride;
};

// Begins the copies of rows [first_token, first_token + 64) of one slab, `Width` elements of
// `Bits` each; zeros where the item reads nothing. `stride` counts elements of `to`.
template <class Bits, i32 Width>
__device__ __forceinline__ void load_rows(Bits* to, i32 stride, const SlabView& slab,
                                          const Item& item, i32 first_token, i32 kv_head) {
  constexpr i32 kPerUnit = 16 / static_cast<i32>(sizeof(Bits));
  constexpr i32 kUnits = Width / kPerUnit;
  static_assert(Width % kPerUnit == 0, "a row must divide into 16-byte units");
#pragma unroll 4
  for (i32 i = threadIdx.x; i < kTileTokens * kUnits; i += kThreads) {
    const i32 row = i / kUnits, unit = i % kUnits;
    const i32 token = first_token + row;
    const bool valid = item.reads(token);
    const i64 offset = valid ? item.pages.row_offset(slab.strides, token, kv_head) : 0;
    async_copy<16>(to + row * stride + unit * kPerUnit,
                   static_cast<const Bits*>(slab.base) + offset + unit * kPerUnit, valid);
  }
}

template <class TheLayout>
struct PlainTiles {
  using Layout = TheLayout;
  static constexpr i32 kStageBytes = 2 * Layout::kElements;
  static constexpr i32 kStages = kStageBytes <= 40960 ? 3 : 2;
  static constexpr bool kLands = false;

  SlabView first;
  SlabView second;

  __device__ __forceinline__ void load(unsigned char* stage, const Item& item, i32 first_token,
                                       i32 kv_head) const {
    u16* tile = reinterpret_cast<u16*>(stage);
    load_rows<u16, Layout::kFirstWidth>(tile, Layout::kKeyStride, first, item, first_token,
                                        kv_head);
    load_rows<u16, Layout::kSecondWidth>(tile + Layout::kSecondStart, Layout::kSecondStride,
                                         second, item, first_token, kv_head);
  }
};

template <class TheLayout, class Code>
struct CodedTiles {
  using Layout = TheLayout;
  static constexpr i32 kCodes = Layout::kFirstWidth + Layout::kSecondWidth;  // of a token
  static constexpr i32 kScalesStart = kTileTokens * kCodes;                  // bytes
  static constexpr i32 kStageBytes = kScalesStart + 2 * kTileTokens * 4;
  static constexpr i32 kStages = kStageBytes <= 20480 ? 3 : 2;
  static constexpr bool kLands = true;
  static_assert(kThreads == 2 * kTileTokens, "a thread brings one scale");

  SlabView first;
  SlabView second;

  __device__ __forceinline__ void load(unsigned char* stage, const Item& item, i32 first_token,
                                       i32 kv_head) const {
    load_rows<unsigned char, Layout::kFirstWidth>(stage, Layout::kFirstWidth, first, item,
                                                  first_token, kv_head);
    load_rows<unsigned char, Layout::kSecondWidth>(stage + kTileTokens * Layout::kFirstWidth,
                                                   Layout::kSecondWidth, second, item, first_token,
                                                   kv_head);
    const i32 thread = threadIdx.x, token = first_token + thread % kTileTokens;
    const float* scales = thread < kTileTokens ? first.scales : second.scales;
    const bool valid = item.reads(token);
    const i64 offset = valid ? item.pages.slot(token) * first.heads + kv_head : 0;
    async_copy<4>(stage + kScalesStart + 4 * thread, scales + offset, valid);
  }

  // Makes the tile of a stage that has arrived; the block waits before it reads the tile.
  static __device__ __forceinline__ void land(u16* tile, const unsigned char* stage) {
    const float* scales = reinterpret_cast<const float*>(stage + kScalesStart);
    land_rows<Layout::kFirstWidth>(tile, Layout::kKeyStride, stage, scales);
    land_rows<Layout::kSecondWidth>(tile + Layout::kSecondStart, Layout::kSecondStride,
                                    stage + kTileTokens * Layout::kFirstWidth,
                                    scales + kTileTokens);
  }

 private:
  template <i32 Width>
  static __device__ __forceinline__ void land_rows(u16* to, i32 stride, const unsigned char* from,
                                                   const float* scales) {
    constexpr i32 kUnits = Width / 16;
#pragma unroll 2
    for (i32 i = threadIdx.x; i < kTileTokens * kUnits; i += kThreads) {
      const i32 row = i / kUnits, unit = i % kUnits;
      const uint4 codes = reinterpret_cast<const uint4*>(from + row * Width)[unit];
      uint4* target = reinterpret_cast<uint4*>(to + row * stride + unit * 16);
      target[0] = eight_numbers(codes.x, codes.y, scales[row]);
      target[1] = eight_numbers(codes.z, codes.w, scales[row]);
    }
  }

  static __device__ __forceinline__ uint4 eight_numbers(u32 low, u32 high, float scale) {
    float a[4], b[4];
    Code::numbers(a, low);
    Code::numbers(b, high);
    uint4 packed;
    packed.x = pack_pair<F16>(__fmul_rn(a[0], scale), __fmul_rn(a[1], scale));
    packed.y = pack_pair<F16>(__fmul_rn(a[2], scale), __fmul_rn(a[3], scale));
    packed.z = pack_pair<F16>(__fmul_rn(b[0], scale), __fmul_rn(b[1], scale));
    packed.w = pack_pair<F16>(__fmul_rn(b[2], scale), __fmul_rn(b[3], scale));
    return packed;
  }
};
