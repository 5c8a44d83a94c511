// Operations that the lanes of a warp do together: shuffles, tile loads, tensor-core products.
//
// Each lane hands in a struct on its own stack and waits; when all lanes of the mask are there,
// one function reads and fills all the structs. Line numbers are those of the calling source.
#pragma once

#include "block.h"
#include "numbers.h"

namespace emulator {

constexpr unsigned kAllLanes = 0xffffffffu;

template <class T>
struct Exchange {
  T value;
  int source;
  T result;

  // A lane whose source takes no part receives all ones: a NaN, or an index that is far off.
  PT_UNSANITIZED static void run(void* const* operands) {
    for (int lane = 0; lane < kWarp; lane++) {
      auto* mine = static_cast<Exchange*>(operands[lane]);
      if (!mine) continue;
      const auto* other = static_cast<const Exchange*>(operands[mine->source & (kWarp - 1)]);
      if (other)
        mine->result = other->value;
      else
        std::memset(&mine->result, 0xff, sizeof(T));
    }
  }
};

template <class T>
PT_UNSANITIZED T exchange(unsigned mask, T value, int source, const char* name, int line) {
  Exchange<T> operand{value, source, value};
  block().warp_operation(mask, name, line, &operand, &Exchange<T>::run);
  return operand.result;
}

struct TileLoad {
  const void* row;
  std::uint32_t* tiles;

  template <bool Transposed>
  PT_UNSANITIZED static void run(void* const* operands) {
    for (int tile = 0; tile < 4; tile++) {
      std::uint16_t elements[8][8];
      for (int row = 0; row < 8; row++)
        copy(elements[row], static_cast<TileLoad*>(operands[tile * 8 + row])->row);
      for (int lane = 0; lane < kWarp; lane++) {
        const int row = lane / 4, column = lane % 4 * 2;
        const std::uint32_t low = Transposed ? elements[column][row] : elements[row][column];
        const std::uint32_t high =
            Transposed ? elements[column + 1][row] : elements[row][column + 1];
        static_cast<TileLoad*>(operands[lane])->tiles[tile] = low | high << 16;
      }
    }
  }

 private:
  PT_UNSANITIZED static void copy(std::uint16_t (&to)[8], const void* from) {
    const auto* elements = static_cast<const std::uint16_t*>(from);
    for (int i = 0; i < 8; i++) to[i] = elements[i];
  }
};

// Reads the row in the lane itself first, so that the sanitizers see the access where it is made.
template <bool Transposed>
inline void load_tiles_of_warp(std::uint32_t (&tiles)[4], const void* row, int line) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
    block().fault("ldmatrix row is not 16-byte aligned", line);
  alignas(16) unsigned char copied[16];
  std::memcpy(copied, row, 16);
  TileLoad operand{copied, tiles};
  block().warp_operation(kAllLanes, Transposed ? "ldmatrix.trans" : "ldmatrix", line, &operand,
                         &TileLoad::run<Transposed>);
}

// c += a * b of the m16n8k16 shape. Sums run over k upward in fp32; products are exact in fp32.
// A tensor core may add in another order and with fewer guard bits.
struct Product {
  float* c;
  const std::uint32_t* a;
  std::uint32_t b0, b1;

  template <float (*Widen)(std::uint16_t)>
  PT_UNSANITIZED static void run(void* const* operands) {
    float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < kWarp; lane++) {
      const auto& mine = *static_cast<const Product*>(operands[lane]);
      const int group = lane / 4, pair = lane % 4 * 2;
      for (int i = 0; i < 4; i++) {
        const int row = group + (i & 1) * 8, column = pair + (i >> 1) * 8;
        a[row][column] = Widen(std::uint16_t(mine.a[i]));
        a[row][column + 1] = Widen(std::uint16_t(mine.a[i] >> 16));
        c[group + (i >> 1) * 8][pair + (i & 1)] = mine.c[i];
      }
      b[pair][group] = Widen(std::uint16_t(mine.b0));
      b[pair + 1][group] = Widen(std::uint16_t(mine.b0 >> 16));
      b[pair + 8][group] = Widen(std::uint16_t(mine.b1));
      b[pair + 9][group] = Widen(std::uint16_t(mine.b1 >> 16));
    }
    for (int row = 0; row < 16; row++)
      for (int k = 0; k < 16; k++)
        for (int column = 0; column < 8; column++) c[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < kWarp; lane++) {
      const auto& mine = *static_cast<const Product*>(operands[lane]);
      for (int i = 0; i < 4; i++)
        mine.c[i] = c[lane / 4 + (i >> 1) * 8][lane % 4 * 2 + (i & 1)];
    }
  }
};

template <float (*Widen)(std::uint16_t)>
PT_UNSANITIZED void multiply_in_warp(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                     std::uint32_t b1, int line) {
  Product operand{c, a, b0, b1};
  block().warp_operation(kAllLanes, "mma", line, &operand, &Product::run<Widen>);
}

}  // namespace emulator

inline void load_tiles(std::uint32_t (&tiles)[4], const void* row, int line = __builtin_LINE()) {
  emulator::load_tiles_of_warp<false>(tiles, row, line);
}
inline void load_tiles_transposed(std::uint32_t (&tiles)[4], const void* row,
                                  int line = __builtin_LINE()) {
  emulator::load_tiles_of_warp<true>(tiles, row, line);
}
inline void multiply_f16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1, int line = __builtin_LINE()) {
  emulator::multiply_in_warp<emulator::widen_f16>(c, a, b0, b1, line);
}
inline void multiply_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                          std::uint32_t b1, int line = __builtin_LINE()) {
  emulator::multiply_in_warp<emulator::widen_bf16>(c, a, b0, b1, line);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flip, int line = __builtin_LINE()) {
  const int source = emulator::thread().lane ^ flip;
  return emulator::exchange(mask, value, source, "__shfl_xor_sync", line);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int line = __builtin_LINE()) {
  return emulator::exchange(mask, value, source, "__shfl_sync", line);
}
inline void __syncwarp(unsigned mask = emulator::kAllLanes, int line = __builtin_LINE()) {
  emulator::block().warp_operation(mask, "__syncwarp", line, nullptr, nullptr);
}
inline void __syncthreads(int line = __builtin_LINE()) { emulator::block().barrier(line); }
