// A fixed set of threads that share out the tasks of one call at a time.
//
// Which thread runs which task is left open; a task writes only what is its own, so results never
// depend on it. The calling thread works too. Idle threads spin briefly, then sleep.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pt {

// One turn of a waiting loop: at first only this thread waits, then it lets others have the processor,
// for the one that it waits for may need it.
inline void wait_a_turn(int turn) {
    constexpr int ALONE = 256;  // a few microseconds
#if defined(__x86_64__)
    if (turn < ALONE) return _mm_pause();
#else
    if (turn < ALONE) return;
#endif
    std::this_thread::yield();
}

class Pool {
  public:
    explicit Pool(int threads) {
        scratch_.resize(size_t(threads));
        for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
    }
    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
            generation_.fetch_add(1);
        }
        wake_.notify_all();
        for (auto& worker : workers_) worker.join();
    }
    int threads() const { return int(workers_.size()) + 1; }
    // Working memory of one thread, kept between calls; it grows to what the largest task needs.
    std::vector<float>& scratch(int thread) { return scratch_[size_t(thread)]; }

    // Run body(task, thread) for task in [0, tasks); returns when all have finished.
    template <class Body>
    void run(int64_t tasks, Body body) {
        if (tasks <= 1 || workers_.empty()) {
            for (int64_t task = 0; task < tasks; task++) body(task, 0);
            return;
        }
        body_ = &body;
        call_ = [](void* self, int64_t task, int thread) {
            (*static_cast<Body*>(self))(task, thread);
        };
        tasks_ = tasks;
        next_.store(0, std::memory_order_relaxed);
        busy_.store(int(workers_.size()), std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        take(0);
        for (int turn = 0; busy_.load(std::memory_order_acquire) != 0; turn++) wait_a_turn(turn);
    }

  private:
    // Some fifty microseconds: what lies between two calls of one step. A thread that has gone to
    // sleep in between is missing for longer than many a call takes.
    static constexpr int TURNS_AWAKE = 384;

    void take(int thread) {
        for (;;) {
            const int64_t task = next_.fetch_add(1, std::memory_order_relaxed);
            if (task >= tasks_) return;
            call_(body_, task, thread);
        }
    }
    void work(int thread) {
        uint64_t seen = 0;
        for (;;) {
            for (int turn = 0;
                 turn < TURNS_AWAKE && generation_.load(std::memory_order_acquire) == seen; turn++)
                wait_a_turn(turn);
            if (generation_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return generation_.load() != seen; });
            }
            seen = generation_.load(std::memory_order_acquire);
            if (stopping_) return;
            take(thread);
            busy_.fetch_sub(1, std::memory_order_release);
        }
    }

    std::vector<std::thread> workers_;
    std::vector<std::vector<float>> scratch_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint64_t> generation_{0};
    std::atomic<int64_t> next_{0};
    std::atomic<int> busy_{0};
    std::atomic<bool> stopping_{false};
    int64_t tasks_ = 0;
    void* body_ = nullptr;
    void (*call_)(void*, int64_t, int) = nullptr;
};

}  // namespace pt
