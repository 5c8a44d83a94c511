// Asynchronous copies that arrive as late as the program allows.
//
// The target is filled with NaN when a copy begins, and the bytes come only when the thread waits
// for their group: a kernel that forgets to wait, or waits for too few groups, computes with NaN.
#pragma once

#include "block.h"

template <int Bytes>
inline void async_copy(void* to, const void* from, bool valid, int line = __builtin_LINE()) {
  const auto misaligned = [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % Bytes != 0;
  };
  if (misaligned(to) || (valid && misaligned(from)))
    emulator::block().fault("cp.async address is not aligned to its size", line);
  std::memset(to, 0xff, Bytes);
  emulator::thread().copies.open.push_back({to, from, Bytes, valid});
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
        std::memcpy(copy.to, copy.from, copy.bytes);
      else
        std::memset(copy.to, 0, copy.bytes);
    }
    groups.erase(groups.begin());
  }
}
