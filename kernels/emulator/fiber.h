// A fiber: one CUDA thread's own stack, entered and left by hand.
//
// Switching costs a few instructions on x86-64 and a library call elsewhere. The sanitizers are
// told of every switch, so that the address sanitizer knows whose stack is in use and the thread
// sanitizer sees each CUDA thread as a thread of its own; a switch by itself orders nothing.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__SANITIZE_THREAD__)
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void __tsan_acquire(void*);
void __tsan_release(void*);
}
#define PT_UNSANITIZED __attribute__((noinline, no_sanitize("thread")))
#else
#define PT_UNSANITIZED
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {

#ifdef __x86_64__
// Saves the registers a call must preserve on the present stack, then continues on another.
extern "C" void pagetrail_switch_stack(void** save, void* to);
asm(R"(
.text
.weak pagetrail_switch_stack
.type pagetrail_switch_stack,@function
pagetrail_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size pagetrail_switch_stack,.-pagetrail_switch_stack
)");
constexpr int kSavedRegisters = 6;
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kStackBytes = 512 * 1024;
#else
constexpr std::size_t kStackBytes = 128 * 1024;
#endif

// Address space for many stacks; a page of it is memory only once it is touched.
class Stacks {
 public:
  explicit Stacks(std::size_t n) : bytes_(n * kStackBytes) {
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(at);
  }
  ~Stacks() { munmap(base_, bytes_); }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  char* stack(std::size_t i) const { return base_ + i * kStackBytes; }

 private:
  char* base_;
  std::size_t bytes_;
};

class Fiber {
 public:
  // Readies the fiber to run `entry` from its start; entry must never return.
  void start(char* stack, void (*entry)()) {
    stack_ = stack;
#ifdef __x86_64__
    auto top = reinterpret_cast<std::uintptr_t>(stack + kStackBytes) & ~std::uintptr_t{15};
    void** slot = reinterpret_cast<void**>(top);
    *--slot = nullptr;  // keeps the stack aligned as after a call
    *--slot = reinterpret_cast<void*>(entry);
    for (int i = 0; i < kSavedRegisters; i++) *--slot = nullptr;
    saved_ = slot;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#endif
#if defined(__SANITIZE_THREAD__)
    if (tsan_) __tsan_destroy_fiber(tsan_);
    tsan_ = __tsan_create_fiber(0);
    owns_tsan_ = true;
#endif
  }

  // The fiber of the code that calls: the scheduler's own.
  void adopt_current() {
#if defined(__SANITIZE_THREAD__)
    tsan_ = __tsan_get_current_fiber();
#endif
  }

  ~Fiber() {
#if defined(__SANITIZE_THREAD__)
    if (owns_tsan_) __tsan_destroy_fiber(tsan_);
#endif
  }

  // Leaves this fiber and runs `next`. `ending` says that this fiber is never entered again.
  PT_UNSANITIZED void switch_to(Fiber& next, bool ending = false) {
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(next.tsan_, 1);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(ending ? nullptr : &asan_, next.stack_, next.stack_bytes_);
#endif
#ifdef __x86_64__
    pagetrail_switch_stack(&saved_, next.saved_);
#else
    swapcontext(&context_, &next.context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(asan_, nullptr, nullptr);
#endif
    (void)ending;
  }

  // First statement of an entry: tells the address sanitizer whose stack was left.
  void entered_from(Fiber& caller) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &caller.stack_, &caller.stack_bytes_);
#endif
    (void)caller;
  }

 private:
  const void* stack_ = nullptr;
  std::size_t stack_bytes_ = kStackBytes;
#ifdef __x86_64__
  void* saved_ = nullptr;
#else
  ucontext_t context_;
#endif
#if defined(__SANITIZE_THREAD__)
  void* tsan_ = nullptr;
  bool owns_tsan_ = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* asan_ = nullptr;
#endif
};

}  // namespace emulator
