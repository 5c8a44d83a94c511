// One block of CUDA threads on one host thread: who runs, who waits, and what is a mistake.
//
// Theory of operation. Every CUDA thread is a fiber. A thread runs until it waits: at a block
// barrier, or at a warp operation. The scheduler lets warps and lanes run in an order that the
// seed decides, so that a result which depends on the order differs between seeds. A warp
// operation takes place when every lane of its mask has come to it; the scheduler carries it out
// for all of them at once. A block barrier opens when every thread of the block has come to it.
//
// The thread sanitizer must see what the kernel touches and not how the scheduler keeps its books:
// whatever reads or writes the books is PT_UNSANITIZED.
//
// Mistakes that a device may forgive, or hang on, end the launch with a message here: lanes of
// one mask at different operations, a lane outside its own mask, a thread that left while others
// wait for it, threads at different barriers, a misaligned access, a write past the dynamic shared
// memory.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "fiber.h"

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace emulator {

constexpr int kWarp = 32;

enum class State { runnable, at_warp_operation, at_barrier, finished, faulted };

struct AsyncCopy {
  void* to;
  const void* from;
  unsigned bytes;
  bool valid;
};

// The copies a thread has begun: groups it has committed, oldest first, and the one still open.
struct AsyncCopies {
  std::vector<AsyncCopy> open;
  std::vector<std::vector<AsyncCopy>> groups;
};

// Carries out a warp operation. operands[l] is what lane l handed in, null outside the mask.
using WarpOperation = void (*)(void* const* operands);

struct Thread {
  Fiber fiber;
  dim3 index;
  int linear = 0, lane = 0, warp = 0;
  State state = State::runnable;
  const char* operation = "";
  int line = 0;
  unsigned mask = 0;
  void* operand = nullptr;
  WarpOperation run = nullptr;
  AsyncCopies copies;
};

// Numbers that only the seed decides.
class Shuffle {
 public:
  explicit Shuffle(unsigned seed) : seed_(seed), state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  // Below n; always 0 with seed 0, which is the plain order.
  unsigned below(unsigned n) {
    if (seed_ == 0) return 0;
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<unsigned>(state_ >> 33) % n;
  }
  bool reversed() const { return seed_ & 1; }

 private:
  unsigned seed_;
  std::uint64_t state_;
};

class Block {
 public:
  Block(dim3 grid, dim3 block, std::size_t shared_bytes, unsigned seed)
      : grid_(grid), size_(block), shared_bytes_(shared_bytes), shuffle_(seed),
        n_threads_(block.x * block.y * block.z), stacks_(n_threads_), threads_(n_threads_),
        warp_tokens_((n_threads_ + kWarp - 1) / kWarp) {
    void* shared = nullptr;
    if (posix_memalign(&shared, 16, allocated_bytes()) != 0) throw std::bad_alloc();
    shared_ = static_cast<unsigned char*>(shared);
    scheduler_.adopt_current();
  }
  ~Block() { std::free(shared_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Runs the kernel body for every thread of block `index`. False: see message().
  PT_UNSANITIZED bool run(dim3 index, void (*body)(void*), void* argument) {
    index_ = index;
    body_ = body;
    argument_ = argument;
    std::memset(shared_, 0xff, allocated_bytes());  // a NaN in every type
    for (int i = 0; i < n_threads_; i++) begin_thread(i);
    while (step()) {
    }
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(&end_token_);
#endif
    if (message_.empty()) check_guard();
    return message_.empty();
  }

  const std::string& message() const { return message_; }
  PT_UNSANITIZED const dim3& index() const { return index_; }
  PT_UNSANITIZED const dim3& size() const { return size_; }
  PT_UNSANITIZED const dim3& grid() const { return grid_; }
  PT_UNSANITIZED unsigned char* shared() const { return shared_; }
  PT_UNSANITIZED std::size_t shared_bytes() const { return shared_bytes_; }
  PT_UNSANITIZED Thread& thread() { return *running_; }

  PT_UNSANITIZED void barrier(int line) {
    wait(State::at_barrier, "__syncthreads", line, &barrier_token_);
  }

  PT_UNSANITIZED void warp_operation(unsigned mask, const char* name, int line, void* operand,
                                     WarpOperation run) {
    Thread& me = *running_;
    me.mask = mask;
    me.operand = operand;
    me.run = run;
    wait(State::at_warp_operation, name, line, &warp_tokens_[me.warp]);
  }

  // Ends the launch because of what the running thread did; never returns to it.
  [[noreturn]] PT_UNSANITIZED void fault(const char* what, int line) {
    Thread& me = *running_;
    me.state = State::faulted;
    me.operation = what;
    me.line = line;
    me.mask = 0;
    char text[160];
    std::snprintf(text, sizeof text, "%s; thread %d line %d", what, me.linear, line);
    fail(text);
    for (;;) me.fiber.switch_to(scheduler_);
  }

  // Body of the fibers; defined once the current block is known (launch.h).
  static void thread_entry();

 private:
  static constexpr std::size_t kGuardBytes = 64;

  // Under the address sanitizer the allocation ends where the launch said it does.
  std::size_t allocated_bytes() const {
#if defined(__SANITIZE_ADDRESS__)
    return shared_bytes_ ? shared_bytes_ : 16;
#else
    return (shared_bytes_ + kGuardBytes + 15) / 16 * 16;
#endif
  }

  PT_UNSANITIZED void check_guard() {
    for (std::size_t i = shared_bytes_; i < allocated_bytes(); i++)
      if (shared_[i] != 0xff && shared_bytes_ > 0)
        return fail("a write past the end of dynamic shared memory");
  }

  PT_UNSANITIZED void begin_thread(int i) {
    Thread& t = threads_[i];
    t.linear = i;
    t.lane = i % kWarp;
    t.warp = i / kWarp;
    const unsigned u = static_cast<unsigned>(i);
    t.index = {u % size_.x, u / size_.x % size_.y, u / (size_.x * size_.y)};
    t.state = State::runnable;
    t.copies = AsyncCopies{};
    t.fiber.start(stacks_.stack(i), &Block::thread_entry);
  }

  PT_UNSANITIZED void wait(State state, const char* name, int line, char* token) {
    Thread& me = *running_;
    me.state = state;
    me.operation = name;
    me.line = line;
#if defined(__SANITIZE_THREAD__)
    __tsan_release(token);
#endif
    me.fiber.switch_to(scheduler_);
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(token);
#endif
    (void)token;
  }

  // One round over the warps. False when the block has finished or failed.
  PT_UNSANITIZED bool step() {
    bool progress = false;
    const int n_warps = static_cast<int>(warp_tokens_.size());
    const int first = static_cast<int>(shuffle_.below(n_warps));
    for (int k = 0; k < n_warps; k++) {
      const int warp = (first + k) % n_warps;
      while (run_lanes(warp)) {
        progress = true;
        if (!message_.empty() || !release_operations(warp)) return false;
      }
    }
    return open_barrier() || (message_.empty() && !all_finished() && progress_or_deadlock(progress));
  }

  // Lets every runnable lane of the warp run until it waits. False when none was runnable.
  PT_UNSANITIZED bool run_lanes(int warp) {
    const int first = warp * kWarp, n = std::min(kWarp, n_threads_ - first);
    const int start = static_cast<int>(shuffle_.below(n));
    bool ran = false;
    for (int k = 0; k < n; k++) {
      const int lane = ((shuffle_.reversed() ? n - 1 - k : k) + start) % n;
      Thread& t = threads_[first + lane];
      if (t.state != State::runnable) continue;
      running_ = &t;
      scheduler_.switch_to(t.fiber);
      ran = true;
      if (!message_.empty()) break;
    }
    return ran;
  }

  // Carries out each operation whose whole mask has come. False on a mistake.
  PT_UNSANITIZED bool release_operations(int warp) {
    const int first = warp * kWarp, n = std::min(kWarp, n_threads_ - first);
    for (int lane = 0; lane < n; lane++) {
      const Thread& t = threads_[first + lane];
      if (t.state != State::at_warp_operation) continue;
      if (!(t.mask >> lane & 1)) return fail("a lane is not in its own mask"), false;
      void* operands[kWarp] = {};
      const Ready ready = gather_mask(t, first, n, operands);
      if (ready == Ready::mistake) return false;
      if (ready == Ready::not_yet) continue;
      if (t.run) t.run(operands);
      const unsigned mask = t.mask;
      for (int i = 0; i < n; i++)
        if (mask >> i & 1) threads_[first + i].state = State::runnable;
    }
    return true;
  }

  enum class Ready { yes, not_yet, mistake };

  PT_UNSANITIZED Ready gather_mask(const Thread& t, int first, int n, void** operands) {
    for (int i = 0; i < kWarp; i++) {
      if (!(t.mask >> i & 1)) continue;
      if (i >= n) return fail("a mask names lanes past the end of the block"), Ready::mistake;
      const Thread& other = threads_[first + i];
      if (other.state == State::finished)
        return fail("a lane left before a warp operation that names it"), Ready::mistake;
      if (other.state != State::at_warp_operation || other.mask != t.mask) return Ready::not_yet;
      if (other.line != t.line || other.run != t.run)
        return fail("lanes of one mask are at different warp operations"), Ready::mistake;
      operands[i] = other.operand;
    }
    return Ready::yes;
  }

  PT_UNSANITIZED bool all_finished() const {
    for (const Thread& t : threads_)
      if (t.state != State::finished) return false;
    return true;
  }

  // Opens the block barrier if every thread waits there. True when threads can run again.
  PT_UNSANITIZED bool open_barrier() {
    const Thread* waiting = nullptr;
    bool someone_left = false;
    for (const Thread& t : threads_) {
      if (t.state == State::finished) {
        someone_left = true;
        continue;
      }
      if (t.state != State::at_barrier) return false;
      if (waiting && waiting->line != t.line)
        return fail("threads of a block are at different barriers"), false;
      waiting = &t;
    }
    if (!waiting) return false;
    if (someone_left) return fail("a thread left before a barrier that others wait at"), false;
    for (Thread& t : threads_) t.state = State::runnable;
    return true;
  }

  PT_UNSANITIZED bool progress_or_deadlock(bool progress) {
    if (progress) return true;
    fail("deadlock: no thread can go on");
    return false;
  }

  PT_UNSANITIZED void fail(const char* what) {
    if (!message_.empty()) return;
    char text[160];
    std::snprintf(text, sizeof text, "%s; block (%u,%u,%u):", what, index_.x, index_.y, index_.z);
    message_ = text;
    int named = 0;
    for (const Thread& t : threads_) {
      if (t.state == State::finished || named == 4) continue;
      std::snprintf(text, sizeof text, " thread %d at %s line %d mask %08x;", t.linear, t.operation,
                    t.line, t.mask);
      message_ += text;
      named++;
    }
  }

  dim3 grid_, size_, index_;
  std::size_t shared_bytes_;
  Shuffle shuffle_;
  int n_threads_;
  Stacks stacks_;
  std::vector<Thread> threads_;
  std::vector<char> warp_tokens_;
  char barrier_token_ = 0, end_token_ = 0;
  Fiber scheduler_;
  Thread* running_ = nullptr;
  unsigned char* shared_ = nullptr;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::string message_;
};

inline Block* current = nullptr;  // the block this process is running; launches do not nest

PT_UNSANITIZED inline Block& block() { return *current; }
PT_UNSANITIZED inline Thread& thread() { return current->thread(); }

PT_UNSANITIZED inline void Block::thread_entry() {
  Block& block = *current;
  Thread& me = block.thread();
  me.fiber.entered_from(block.scheduler_);
  block.body_(block.argument_);
  me.state = State::finished;
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&block.end_token_);
#endif
  me.fiber.switch_to(block.scheduler_, true);
  std::abort();  // a finished fiber was entered
}

}  // namespace emulator
