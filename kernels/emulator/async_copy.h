// Asynchronous copies that arrive as late as the program allows.
//
// The target is filled with NaN when a copy begins, and the bytes come only when the thread waits
// for their group: a kernel that forgets to wait, or waits for too few groups, computes with NaN.
#pragma once

#include "block.h"

namespace emulator {

inline void require_aligned_16(const void* pointer, const char* what) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0) return;
  std::fprintf(stderr, "cp.async %s address is not 16-byte aligned\n", what);
  std::abort();
}

}  // namespace emulator

inline void async_copy_16(void* to, const void* from, bool valid) {
  emulator::require_aligned_16(to, "shared");
  if (valid) emulator::require_aligned_16(from, "global");
  std::memset(to, 0xff, 16);
  emulator::thread().copies.open.push_back({to, from, valid});
}

inline void async_copy_commit() {
  emulator::AsyncCopies& copies = emulator::thread().copies;
  copies.groups.push_back(std::move(copies.open));
  copies.open.clear();
}

template <int Pending>
inline void async_copy_wait() {
  auto& groups = emulator::thread().copies.groups;
  while (groups.size() > Pending) {
    for (const emulator::AsyncCopy& copy : groups.front()) {
      if (copy.valid)
        std::memcpy(copy.to, copy.from, 16);
      else
        std::memset(copy.to, 0, 16);
    }
    groups.erase(groups.begin());
  }
}
