// How a kernel is started from outside: one C function per kernel, arguments by address.
#pragma once

#include <type_traits>

#include "block.h"

namespace emulator {

// Mirrored field by field in library.py.
struct LaunchShape {
  unsigned grid[3];
  unsigned block[3];
  unsigned long long shared_bytes;
  unsigned seed;  // 0: plain order; others: an order of blocks, warps and lanes of their own
};

// Runs every block, one after the other. 0, or 1 with a message of at most message_bytes.
inline int run_grid(const LaunchShape& shape, void (*body)(void*), void* argument, char* message,
                    std::size_t message_bytes) {
  const dim3 grid{shape.grid[0], shape.grid[1], shape.grid[2]};
  Block the_block(grid, {shape.block[0], shape.block[1], shape.block[2]}, shape.shared_bytes,
                  shape.seed);
  current = &the_block;
  const unsigned n = grid.x * grid.y * grid.z;
  bool ok = true;
  for (unsigned k = 0; k < n && ok; k++) {
    const unsigned i = shape.seed & 1 ? n - 1 - k : k;
    ok = the_block.run({i % grid.x, i / grid.x % grid.y, i / (grid.x * grid.y)}, body, argument);
  }
  current = nullptr;
  if (!ok) std::snprintf(message, message_bytes, "%s", the_block.message().c_str());
  return ok ? 0 : 1;
}

template <class... Parameters>
struct Call {
  void (*kernel)(Parameters...);
  void* const* arguments;

  static void run(void* self) {
    static_cast<Call*>(self)->apply(std::index_sequence_for<Parameters...>{});
  }

 private:
  template <std::size_t... I>
  void apply(std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<Parameters>*>(arguments[I])...);
  }
};

template <class... Parameters>
int launch(void (*kernel)(Parameters...), const LaunchShape* shape, void* const* arguments,
           char* message, std::size_t message_bytes) {
  Call<Parameters...> call{kernel, arguments};
  return run_grid(*shape, &Call<Parameters...>::run, &call, message, message_bytes);
}

}  // namespace emulator
