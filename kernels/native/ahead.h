// What will be read soon, and so far nobody has asked the memory for.
//
// Pages lie anywhere, so no hardware foresees them. Asking for many lines at once would stop the
// arithmetic until the memory has taken every one of them; so the arithmetic asks as it goes, in
// each step for as many bytes as that step uses up, in the order in which they lie. Lines go to the
// second level: the first holds less than what is under way.

#pragma once

#include <cstdint>

namespace pt {

class Ahead {
  public:
    struct Stretch {
        const void* at;
        int64_t bytes;
    };
    Ahead() = default;  // asks for nothing
    // The stretches stay where they are until the last step.
    Ahead(const Stretch* first, int64_t count) : next_(first), left_(count) { advance(); }

    template <int BYTES>
    inline void step() {
        if (at_ >= end_) return;
        for (int i = 0; i < BYTES; i += LINE) __builtin_prefetch(at_ + i, 0, SECOND_LEVEL);
        at_ += BYTES;
        if (at_ >= end_) advance();
    }

  private:
    static constexpr int LINE = 64, SECOND_LEVEL = 2;

    void advance() {
        if (left_ == 0) return;
        at_ = static_cast<const char*>(next_->at);
        end_ = at_ + next_->bytes;
        next_++, left_--;
    }

    const char *at_ = nullptr, *end_ = nullptr;
    const Stretch* next_ = nullptr;
    int64_t left_ = 0;
};

}  // namespace pt
