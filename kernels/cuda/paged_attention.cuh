// Paged attention on tensor cores: one body for decode, verify and prefill, GQA and MLA.
//
// A block takes one item (rows of one sequence over a range of keys), one KV head, and up to
// 16 * RowTiles *lines*. A line is one (query row, query head of the group): the heads of a group
// share keys, so they fill the 16 rows of a tensor-core tile that one query alone would waste.
//
//   keys of a tile [64, KeyDim]                     values of the tile [64, ValueDim]
//   +---------+ tokens  0-15 -> warp 0              +------+------+------+------+
//   |         | tokens 16-31 -> warp 1              | warp | warp | warp | warp |
//   |         | tokens 32-47 -> warp 2              |  0   |  1   |  2   |  3   |
//   +---------+ tokens 48-63 -> warp 3              +------+------+------+------+
//   scores: each warp 16 tokens, all lines          outputs: each warp a quarter of the columns,
//                                                   all lines, all 64 tokens
//
//   per tile:  tile landed | scores -> max of the warp | max of the tile, p = 2^(s - max) -> P | P V
//              barrier A ----------------------- barrier B ------------------------- barrier C
//
// Tiles come through a ring of stages in shared memory, filled by 16-byte asynchronous copies that
// run while earlier tiles are computed. tiles.cuh says how a stage becomes a tile; where it takes
// work (8-bit pages), a barrier of its own parts that work from the scores.
//
// Why bits do not depend on the shape of the step: tiles of 64 and spans of 256 tokens lie at fixed
// positions of the sequence. Every span starts from nothing and is folded into what came before it
// (merge.cuh), here or by merge_states; a tile in which a line sees nothing changes no bit of it;
// a line's arithmetic is the same in every row of a tile and for every RowTiles. All roundings are
// spelled out (__fmul_rn and the like), so that no instantiation contracts them differently.
#pragma once

#include "merge.cuh"
#include "tiles.cuh"

constexpr i32 kSpanTiles = kSpanTokens / kTileTokens;
constexpr u32 kAll = 0xffffffffu;

// The block's shared memory. Mirrored by attention_shared_bytes of tensor_cores.py.
template <class Tiles, i32 RowTiles>
struct Shared {
  static constexpr i32 kLines = 16 * RowTiles;
  static constexpr i32 kQueryStride = Tiles::Layout::kKeyDim + kRowPad;
  static constexpr i32 kWeightStride = kTileTokens + kRowPad;

  unsigned char* ring;  // [kStages, kStageBytes]
  u16* landed;          // a tile, where stages are not tiles themselves
  u16* queries;         // [kLines, kQueryStride]
  u16* weights;         // [kLines, kWeightStride]
  float* maxima;        // [kWarps, kLines]
  float* sums;          // [kWarps, kLines]

  __device__ __forceinline__ explicit Shared(unsigned char* base) {
    ring = base;
    landed = reinterpret_cast<u16*>(ring + Tiles::kStages * Tiles::kStageBytes);
    queries = landed + (Tiles::kLands ? Tiles::Layout::kElements : 0);
    weights = queries + kLines * kQueryStride;
    maxima = reinterpret_cast<float*>(weights + kLines * kWeightStride);
    sums = maxima + kWarps * kLines;
  }
};

// A query row and head of the block. Keys [low, high) are visible.
struct Line {
  i32 row;  // query row of the step, or -1 for none
  i32 head;
  i32 low;
  i32 high;
};

template <class Elem, class Tiles, i32 RowTiles>
struct Attend {
  using Memory = Shared<Tiles, RowTiles>;
  using Layout = typename Tiles::Layout;
  static constexpr i32 kKeyDim = Layout::kKeyDim;
  static constexpr i32 kValueDim = Layout::kValueDim;
  static constexpr i32 kLines = Memory::kLines;
  static constexpr i32 kStages = Tiles::kStages;
  static constexpr i32 kColumnTiles = kValueDim / (8 * kWarps);  // of one warp
  // How far the loops below are unrolled decides whether the compiler spills; see budget.json.
  static constexpr i32 kScoreSteps = kKeyDim <= 128 ? 4 : kKeyDim <= 192 ? 2 : 1;
  static_assert(kKeyDim % 16 == 0 && kValueDim % (8 * kWarps) == 0, "widths must divide");

  using Output = float[RowTiles][kColumnTiles][4];

  const AttentionArguments& a;
  const Tiles& tiles;
  const Item item;
  const Memory memory;
  const i32 kv_head, lane, warp;
  const i32 first_line;

  i32 lows[RowTiles][2], highs[RowTiles][2];  // keys this lane's lines see
  float maxima[RowTiles][2];  // running, of the span; the same in every warp
  float sums[RowTiles][2];    // of this lane's tokens
  float totals[RowTiles][2];  // lse of the spans folded so far
  Output span_o, total_o;

  __device__ __forceinline__ Attend(const AttentionArguments& arguments, const Tiles& the_tiles,
                                    unsigned char* shared)
      : a(arguments),
        tiles(the_tiles),
        item(arguments.batch, blockIdx.x),
        memory(shared),
        kv_head(blockIdx.y),
        lane(threadIdx.x & 31),
        warp(threadIdx.x >> 5),
        first_line(blockIdx.z * kLines) {}

  __device__ __forceinline__ Line line_at(i32 index) const {
    const i32 group = a.n_heads / a.n_kv_heads;
    const i32 line = first_line + index;
    if (line >= item.n_rows * group) return Line{-1, 0, 0, 0};
    const i32 row = item.first_row + line / group;
    const i32 position = item.first_position + line / group;
    const i32 in_window = a.window > 0 ? max(0, position - a.window + 1) : 0;
    return Line{row, kv_head * group + line % group, max(item.kv_lo, in_window),
                min(item.kv_hi, position + 1)};
  }

  // Line index of half `half` (0: upper, 1: lower eight) of row tile `tile` in this lane.
  __device__ __forceinline__ i32 line_index(i32 tile, i32 half) const {
    return tile * 16 + half * 8 + lane / 4;
  }

  __device__ __forceinline__ void load_queries() {
    for (i32 i = threadIdx.x; i < kLines * kKeyDim; i += kThreads) {
      const i32 index = i / kKeyDim, column = i % kKeyDim;
      const Line line = line_at(index);
      float x = 0.f;
      if (line.row >= 0)
        x = load_as_f32(a.q, line.row * a.q_row_stride + i64{line.head} * kKeyDim + column,
                        a.q_storage);
      memory.queries[index * Memory::kQueryStride + column] = Elem::narrow(x);
    }
  }

  __device__ __forceinline__ unsigned char* stage(i32 tile) const {
    return memory.ring + tile % kStages * Tiles::kStageBytes;
  }

  // Elements of a tile that has landed.
  __device__ __forceinline__ const u16* elements(i32 tile) const {
    return Tiles::kLands ? memory.landed : reinterpret_cast<const u16*>(stage(tile));
  }

  // Begins the copies of a tile; past the end an empty group keeps the count of groups right.
  __device__ __forceinline__ void load(i32 tile, i32 end_tile) const {
    if (tile < end_tile) tiles.load(stage(tile), item, tile * kTileTokens, kv_head);
    async_copy_commit();
  }

  __device__ __forceinline__ void run() {
    // Only the keys that some line of this block sees.
    const i32 n_lines = min(kLines, item.n_rows * (a.n_heads / a.n_kv_heads) - first_line);
    if (n_lines <= 0) return;
    const i32 low = line_at(0).low, high = line_at(n_lines - 1).high;
    const i32 first_tile = low / kTileTokens;
    const i32 end_tile = low < high ? (high + kTileTokens - 1) / kTileTokens : first_tile;

    for (i32 s = 0; s < kStages - 1; s++) load(first_tile + s, end_tile);
    load_queries();
    begin();
    for (i32 tile = first_tile; tile < end_tile; tile++) {
      async_copy_wait<kStages - 2>();
      __syncthreads();  // A: the tile is there for all, and the tile before it is done with
      load(tile + kStages - 1, end_tile);
      if constexpr (Tiles::kLands) {
        Tiles::land(memory.landed, stage(tile));
        __syncthreads();  // the whole tile is made
      }
      attend_tile(tile);
      if ((tile + 1) % kSpanTiles == 0 || tile + 1 == end_tile) close_span();
    }
    async_copy_wait<0>();
    write_out();
  }

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (i32 r = 0; r < RowTiles; r++) {
#pragma unroll
      for (i32 half = 0; half < 2; half++) {
        const Line line = line_at(line_index(r, half));
        lows[r][half] = line.low;
        highs[r][half] = line.high;
        totals[r][half] = minus_infinity();
      }
#pragma unroll
      for (i32 c = 0; c < kColumnTiles; c++)
#pragma unroll
        for (i32 i = 0; i < 4; i++) total_o[r][c][i] = 0.f;
    }
    begin_span();
  }

  __device__ __forceinline__ void begin_span() {
#pragma unroll
    for (i32 r = 0; r < RowTiles; r++) {
#pragma unroll
      for (i32 half = 0; half < 2; half++) {
        maxima[r][half] = minus_infinity();
        sums[r][half] = 0.f;
      }
#pragma unroll
      for (i32 c = 0; c < kColumnTiles; c++)
#pragma unroll
        for (i32 i = 0; i < 4; i++) span_o[r][c][i] = 0.f;
    }
  }

  __device__ __forceinline__ void attend_tile(i32 tile) {
    float scores[RowTiles][2][4];
    score(elements(tile), scores);
    mask_and_reduce(tile * kTileTokens + warp * 16, scores);
    __syncthreads();  // B: the maxima of all warps are there
    weigh(scores);
    __syncthreads();  // C: the weights of all warps are there
    accumulate(elements(tile));
  }

  // scores[r][n][i]: line r * 16 + lane/4 + 8 (i/2), token 16 warp + 8 n + 2 (lane%4) + i%2.
  __device__ __forceinline__ void score(const u16* tile, float (&scores)[RowTiles][2][4]) const {
    const i32 token = warp * 16 + (lane & 7) + (lane >> 4) * 8;
    const u16* keys = tile + token * Layout::kKeyStride + (lane >> 3 & 1) * 8;
    const u16* queries = memory.queries + (lane & 15) * Memory::kQueryStride + (lane >> 4) * 8;
#pragma unroll
    for (i32 r = 0; r < RowTiles; r++)
#pragma unroll
      for (i32 i = 0; i < 4; i++) scores[r][0][i] = scores[r][1][i] = 0.f;
#pragma unroll kScoreSteps
    for (i32 k = 0; k < kKeyDim; k += 16) {
      u32 key[4];
      load_tiles(key, keys + k);
#pragma unroll
      for (i32 r = 0; r < RowTiles; r++) {
        u32 query[4];
        load_tiles(query, queries + r * 16 * Memory::kQueryStride + k);
        Elem::multiply(scores[r][0], query, key[0], key[1]);
        Elem::multiply(scores[r][1], query, key[2], key[3]);
      }
    }
  }

  // Scales, hides what a line does not see, and leaves each line's maximum over the warp's tokens.
  __device__ __forceinline__ void mask_and_reduce(i32 first_token,
                                                  float (&scores)[RowTiles][2][4]) {
#pragma unroll
    for (i32 r = 0; r < RowTiles; r++) {
#pragma unroll
      for (i32 half = 0; half < 2; half++) {
        float highest = minus_infinity();
#pragma unroll
        for (i32 n = 0; n < 2; n++)
#pragma unroll
          for (i32 i = 0; i < 2; i++) {
            const i32 token = first_token + n * 8 + lane % 4 * 2 + i;
            float& s = scores[r][n][half * 2 + i];
            const bool seen = token >= lows[r][half] && token < highs[r][half];
            s = seen ? __fmul_rn(s, a.scale_log2) : minus_infinity();
            highest = fmaxf(highest, s);
          }
        highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 2));
        if (lane % 4 == 0) memory.maxima[warp * kLines + line_index(r, half)] = highest;
      }
    }
  }

  // Scores -> weights relative to the span's running maximum, into shared memory for all warps.
  __device__ __forceinline__ void weigh(float (&scores)[RowTiles][2][4]) {
#pragma unroll
    for (i32 r = 0; r < RowTiles; r++) {
#pragma unroll
      for (i32 half = 0; half < 2; half++) {
        const i32 index = line_index(r, half);
        float highest = maxima[r][half];
#pragma unroll
        for (i32 w = 0; w < kWarps; w++)
          highest = fmaxf(highest, memory.maxima[w * kLines + index]);
        // With nothing seen yet any finite reference gives weights of zero.
        const float reference = highest == minus_infinity() ? 0.f : highest;
        const float shrink = exp2_approx(__fsub_rn(maxima[r][half], reference));
        maxima[r][half] = highest;
        float sum = __fmul_rn(sums[r][half], shrink);
#pragma unroll
        for (i32 n = 0; n < 2; n++) {
          const float first = exp2_approx(__fsub_rn(scores[r][n][half * 2], reference));
          const float second = exp2_approx(__fsub_rn(scores[r][n][half * 2 + 1], reference));
          sum = __fadd_rn(sum, __fadd_rn(first, second));
          const i32 token = warp * 16 + n * 8 + lane % 4 * 2;
          *reinterpret_cast<u32*>(memory.weights + index * Memory::kWeightStride + token) =
              pack_pair<Elem>(first, second);
        }
        sums[r][half] = sum;
#pragma unroll
        for (i32 c = 0; c < kColumnTiles; c++)
#pragma unroll
          for (i32 i = 0; i < 2; i++)
            span_o[r][c][half * 2 + i] = __fmul_rn(span_o[r][c][half * 2 + i], shrink);
      }
    }
  }

  // span_o[r][c][i]: line as in score, column warp * kValueDim/4 + 8 c + 2 (lane%4) + i%2.
  __device__ __forceinline__ void accumulate(const u16* tile) {
    const u16* values =
        tile + Layout::kValueStart + lane * Layout::kValueStride + warp * kColumnTiles * 8;
    const u16* weights = memory.weights + (lane & 15) * Memory::kWeightStride + (lane >> 4) * 8;
#pragma unroll 1
    for (i32 k = 0; k < kTileTokens; k += 32) {
      u32 weight[RowTiles][2][4];
#pragma unroll
      for (i32 r = 0; r < RowTiles; r++) {
        load_tiles(weight[r][0], weights + r * 16 * Memory::kWeightStride + k);
        load_tiles(weight[r][1], weights + r * 16 * Memory::kWeightStride + k + 16);
      }
#pragma unroll
      for (i32 c = 0; c < kColumnTiles; c++) {
        u32 value[4];
        load_tiles_transposed(value, values + k * Layout::kValueStride + c * 8);
#pragma unroll
        for (i32 r = 0; r < RowTiles; r++) {
          Elem::multiply(span_o[r][c], weight[r][0], value[0], value[1]);
          Elem::multiply(span_o[r][c], weight[r][1], value[2], value[3]);
        }
      }
    }
  }

  // Normalises the span, folds it into the total, and begins the next.
  __device__ __forceinline__ void close_span() {
#pragma unroll
    for (i32 r = 0; r < RowTiles; r++)
#pragma unroll
      for (i32 half = 0; half < 2; half++) {
        float sum = sums[r][half];
        sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, 2));
        if (lane % 4 == 0) memory.sums[warp * kLines + line_index(r, half)] = sum;
      }
    __syncthreads();
#pragma unroll
    for (i32 r = 0; r < RowTiles; r++)
#pragma unroll
      for (i32 half = 0; half < 2; half++) {
        float sum = 0.f;
#pragma unroll
        for (i32 w = 0; w < kWarps; w++)
          sum = __fadd_rn(sum, memory.sums[w * kLines + line_index(r, half)]);
        const bool empty = maxima[r][half] == minus_infinity() && sum == 0.f;
        const float scale = empty ? 0.f : __fdiv_rn(1.f, sum);
        const float lse = empty ? minus_infinity() : __fadd_rn(maxima[r][half], log2_approx(sum));
        const FoldWeights weights = fold_weights(totals[r][half], lse);
        totals[r][half] = weights.lse;
#pragma unroll
        for (i32 c = 0; c < kColumnTiles; c++)
#pragma unroll
          for (i32 i = half * 2; i < half * 2 + 2; i++)
            total_o[r][c][i] =
                fold(weights, total_o[r][c][i], __fmul_rn(span_o[r][c][i], scale));
      }
    begin_span();
  }

  __device__ __forceinline__ void write_out() const {
    if (item.slot >= 0)
      write_rows<F32>(a.partial_o, a.partial_lse, i64{a.n_heads} * kValueDim,
                      item.slot - item.first_row);
    else if (a.out_storage == Storage::f32)
      write_rows<F32>(a.out, a.lse, a.out_row_stride, 0);
    else if (a.out_storage == Storage::f16)
      write_rows<F16>(a.out, a.lse, a.out_row_stride, 0);
    else
      write_rows<BF16>(a.out, a.lse, a.out_row_stride, 0);
  }

  // Query row r goes to row r + shift of `out` and `lse`.
  template <class Out>
  __device__ __forceinline__ void write_rows(void* out, float* lse, i64 row_stride,
                                             i32 shift) const {
#pragma unroll
    for (i32 r = 0; r < RowTiles; r++)
#pragma unroll
      for (i32 half = 0; half < 2; half++) {
        const Line line = line_at(line_index(r, half));
        if (line.row < 0) continue;
        const i64 row = i64{line.row} + shift;
        if (lse != nullptr && warp == 0 && lane % 4 == 0)
          lse[row * a.n_heads + line.head] = totals[r][half];
        auto* to = static_cast<typename Out::Bits*>(out) + row * row_stride +
                   i64{line.head} * kValueDim + warp * kColumnTiles * 8 + lane % 4 * 2;
#pragma unroll
        for (i32 c = 0; c < kColumnTiles; c++)
#pragma unroll
          for (i32 i = 0; i < 2; i++) to[c * 8 + i] = Out::narrow(total_o[r][c][half * 2 + i]);
      }
  }
};
