// One item of an attention call: rows of one sequence against one KV head, or several.
//
// Few lines read the pages as they lie: all heads of a token, which lie side by side, before the next.
// For many, keys and values of a span are laid out for the arithmetic, and then some lines at a time
// go over them from scores to values, so that their scores stay in the nearest cache.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "calls.h"
#include "lines.h"
#include "product.h"

namespace pt {

constexpr int64_t SPAN = 256;
constexpr int64_t DIRECT_LINES = 8;  // as many lines read half types from the pages without a copy
constexpr int64_t NEAR_LINES = 24;   // whose scores of a span are 24 KB
constexpr float LOG2E = 1.4426950408889634f;
constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();

inline int64_t padded(int64_t n) { return (n + PANEL - 1) / PANEL * PANEL; }

// Running result of a line over the spans seen so far: O[width], max, sum.
inline void fold(float* o, float* top, float* sum, const float* span_o, float span_top,
                 float span_sum, int64_t width) {
    const float highest = *top > span_top ? *top : span_top;
    const v8 exponents{*top - highest, span_top - highest, 0, 0, 0, 0, 0, 0};
    const v8 factors = exp2_8(exponents);
    const Wide old = wide_set1(factors[0]), fresh = wide_set1(factors[1]);
    for (int64_t i = 0; i < width; i += PANEL)
        wide_store(o + i, wide_fma(wide_load(o + i), old, wide_mul(wide_load(span_o + i), fresh)));
    *sum = *sum * factors[0] + span_sum * factors[1];
    *top = highest;
}

inline void write_out(const Attention& a, int64_t row, int64_t head, const float* o, float top,
                      float sum) {
    float* out = a.out + row * a.ldo + head * a.values.width;
    const Wide divisor = wide_set1(sum);
    for (int64_t i = 0; i < a.values.width; i += PANEL) {
        const Wide value =
            sum > 0.0f || sum != sum ? wide_div(wide_load(o + i), divisor) : wide_set1(0.0f);
        wide_store_first(out + i, value, a.values.width - i);
    }
    if (a.lse)
        a.lse[row * a.q_heads + head] = sum == 0.0f ? MINUS_INFINITY : top + std::log2(sum);
}

template <class S>
class ItemRun {
    typedef typename S::T T;
    typedef typename Steps<S>::Weight Weight;
    typedef typename ValuePanels<S>::Product Product;
    static constexpr int64_t TOKENS = TOKENS_AT_ONCE<S>, VALUES = VALUES_AT_ONCE<S>;
    static constexpr int64_t TOGETHER = Steps<S>::TOGETHER;
    static constexpr int64_t WEIGHTS = SPAN * int64_t(sizeof(float) / sizeof(Weight));

  public:
    // The item's rows against KV heads [head, head + heads); more than one only of few lines.
    ItemRun(const Attention& a, const int32_t* item, int64_t head, int64_t heads,
            std::vector<float>& scratch)
        : a_(a), head_(head), heads_(heads), group_(a.q_heads / a.kv_heads), row0_(item[1]),
          rows_(item[2]), lo_(item[3]), hi_(item[4]), slot_(item[5]) {
        const int64_t seq = item[0];
        while (int64_t(1) << page_shift_ < a.page_tokens) page_shift_++;
        kv_len_ = a.kv_len[seq];
        base_ = a.kv_base[seq];
        pages_ = a.page_ids + a.page_indptr[seq] - (base_ >> page_shift_);
        first_position_ = kv_len_ - a.q_indptr[seq + 1] + row0_;
        of_head_ = rows_ * group_;
        depth_ = first_width() + second_width();
        // The wider keys are, the more lines share one reading of them.
        near_ = direct() ? of_head_ : std::min(of_head_, std::max(NEAR_LINES, depth_ / 8));
        query_ = query_floats<S>(first_width(), second_width());
        width_ = padded(a.values.width);
        panel_ = key_floats<S>(first_width(), second_width());
        const int64_t lines = heads_ * of_head_, near = heads_ * near_;
        const int64_t laid_keys = SPAN / PANEL * panel_ + PANEL * PANEL;  // more than lay_keys writes
        const int64_t laid = direct() ? 0 : laid_keys + SPAN * width_;
        const int64_t need =
            lines * (query_ + width_ + 2) + near * (SPAN + width_ + 2) + width_ + laid;
        if (int64_t(scratch.size()) < need) scratch.resize(size_t(need));
        float* at = scratch.data();
        q_ = at, at += lines * query_;
        o_ = at, at += lines * width_;
        tops_ = at, at += lines;
        sums_ = at, at += lines;
        scores_ = at, at += near * SPAN;
        span_o_ = at, at += near * width_;
        span_tops_ = at, at += near;
        span_sums_ = at, at += near;
        zeros_ = at, at += width_;
        if (direct()) return;
        keys_ = at, at += laid_keys;
        values_ = reinterpret_cast<typename Product::T*>(at);
    }

    void run() {
        const v8 factor = set1(a_.scale * LOG2E);
        each_line([&](int64_t line, int64_t row, int64_t head) {
            const float* q = a_.q + (row0_ + row) * a_.ldq + head * depth_;
            const int64_t first = (head / group_ - head_) * of_head_;
            (direct() ? lay_lines<S> : lay_tile<S>)(q, first_width(), second_width(), factor,
                                                    line - first, of_head_, q_ + first * query_);
        });
        const int64_t lines = heads_ * of_head_;
        std::fill(tops_, tops_ + lines, MINUS_INFINITY);
        std::fill(sums_, sums_ + lines, 0.0f);
        std::fill(o_, o_ + lines * width_, 0.0f);
        std::fill(zeros_, zeros_ + width_, 0.0f);
        for (int64_t span = lo_ / SPAN * SPAN; span < hi_; span += SPAN) run_span(span);
        each_line([&](int64_t line, int64_t row, int64_t head) {
            const float* o = o_ + line * width_;
            if (slot_ < 0) return write_out(a_, row0_ + row, head, o, tops_[line], sums_[line]);
            float* to = a_.partial + (slot_ * a_.q_heads + head) * (width_ + 2);
            std::copy(o, o + width_, to);
            to[width_] = tops_[line];
            to[width_ + 1] = sums_[line];
        });
    }

  private:
    int64_t first_width() const { return a_.keys[0].width; }
    int64_t second_width() const { return a_.key_slabs > 1 ? a_.keys[1].width : 0; }
    bool direct() const { return of_head_ <= DIRECT_LINES; }
    // Lines stand by KV head, then row, then query head of the group. body(line, row of the item,
    // query head).
    template <class Body>
    void each_line(Body body) const {
        int64_t line = 0;
        for (int64_t h = head_; h < head_ + heads_; h++)
            for (int64_t row = 0; row < rows_; row++)
                for (int64_t g = 0; g < group_; g++) body(line++, row, h * group_ + g);
    }
    // Keys [low, high) that a row of the item sees: causal, inside its window, retained. Both rise
    // with the row.
    int64_t high(int64_t row) const { return first_position_ + row + 1; }
    int64_t low(int64_t row) const {
        return std::max(base_, a_.window > 0 ? high(row) - a_.window : int64_t(0));
    }
    const T* row_at(const Slab& slab, int64_t position) const {
        const int64_t offset = position & (a_.page_tokens - 1);
        return static_cast<const T*>(slab.base) +
               int64_t(pages_[position >> page_shift_]) * slab.page_stride +
               offset * slab.token_stride + head_ * slab.head_stride;
    }

    void run_span(int64_t span) {
        const int64_t from = std::max(lo_, span), to = std::min(hi_, span + SPAN);
        if (from >= to) return;
        if (!direct()) lay_span(from, to);
        for (first_ = 0; first_ < of_head_; first_ += near_)
            run_lines(span, from, to, std::min(near_, of_head_ - first_));
    }

    // Lines [first_, first_ + count) of every head over the keys [from, to) of a span.
    void run_lines(int64_t span, int64_t from, int64_t to, int64_t count) {
        const int64_t last = (first_ + count - 1) / group_;  // row
        const int64_t begin = std::max(from, low(first_ / group_)), end = std::min(to, high(last));
        if (begin >= end) return;
        direct() ? score(span, begin, end, count) : score_tile(span, from, begin, end, count);
        const int64_t near = heads_ * near_;
        for (int64_t i = 0; i < heads_; i++)
            for (int64_t line = 0; line < count; line++)
                soften(span, from, to, (first_ + line) / group_, i * near_ + line);
        std::fill(span_o_, span_o_ + near * width_, 0.0f);
        weigh_span(span, from, to, count);
        for (int64_t i = 0; i < heads_; i++)
            for (int64_t line = 0; line < count; line++) {
                const int64_t here = i * near_ + line, of_item = i * of_head_ + first_ + line;
                if (span_sums_[here] != 0.0f)
                    fold(o_ + of_item * width_, tops_ + of_item, sums_ + of_item,
                         span_o_ + here * width_, span_tops_[here], span_sums_[here], width_);
            }
    }

    // A line's weights take its scores' place. A weight lies no further on than its score, so those
    // still to be read are not written over.
    Weight* weights_of(int64_t here) { return reinterpret_cast<Weight*>(scores_ + here * SPAN); }

    // Where the block of tokens from `from` on lies, for the arithmetic to ask for.
    Ahead ahead_of(const Slab* slabs, int64_t count, int64_t from) {
        int64_t n = 0;
        for (const Slab* slab = slabs; slab < slabs + count; slab++)
            for (int64_t j = from; j < std::min(from + TOKENS, hi_); j++)
                stretches_[n++] = {row_at(*slab, j), heads_ * slab->width * int64_t(sizeof(T))};
        return Ahead(stretches_, n);
    }

    // Where the keys of a block of n tokens from j on lie; past the last, the last one again.
    template <int64_t N>
    void key_rows(int64_t j, int64_t n, const T** first, const T** second) const {
        for (int64_t k = 0; k < N; k++) {
            first[k] = k < n ? row_at(a_.keys[0], j + k) : first[k - 1];
            if (a_.key_slabs > 1) second[k] = k < n ? row_at(a_.keys[1], j + k) : second[k - 1];
        }
    }

    void score(int64_t span, int64_t from, int64_t to, int64_t count) {
        const T *first[TOKENS], *second[TOKENS];
        for (int64_t j = from; j < to; j += TOKENS) {
            const int64_t n = std::min(TOKENS, to - j);
            const int64_t next = j + TOKENS;
            Ahead ahead = next < to ? ahead_of(a_.keys, a_.key_slabs, next)
                                    : ahead_of(&a_.values, 1, from);
            key_rows<TOKENS>(j, n, first, second);
            for (int64_t h = 0; h < heads_; h++) {
                score_lines(Keys<S>{first, second, first_width(), second_width()}, n,
                            q_ + h * of_head_ * query_, count,
                            scores_ + h * near_ * SPAN + (j - span), SPAN, ahead);
                for (int64_t k = 0; k < TOKENS; k++) {
                    first[k] += a_.keys[0].head_stride;
                    if (a_.key_slabs > 1) second[k] += a_.keys[1].head_stride;
                }
            }
        }
    }

    // The same from the panels of keys that lay_span left; those that hold [begin, end).
    void score_tile(int64_t span, int64_t from, int64_t begin, int64_t end, int64_t count) {
        for (int64_t j = from + (begin - from) / PANEL * PANEL; j < end; j += PANEL)
            score_laid<S>(keys_ + (j - from) / PANEL * panel_, first_width(), second_width(),
                          std::min<int64_t>(PANEL, end - j), q_ + first_ * query_, count,
                          scores_ + (j - span), SPAN);
    }

    // Keys [from, to) in panels of sixteen; values in panels of sixteen columns, without what is
    // left of keys that go together.
    void lay_span(int64_t from, int64_t to) {
        const T *first[PANEL], *second[PANEL];
        float* keys = keys_;
        for (int64_t j = from; j < to; j += PANEL, keys += panel_) {
            const int64_t n = std::min<int64_t>(PANEL, to - j);
            key_rows<PANEL>(j, n, first, second);
            lay_keys(Keys<S>{first, second, first_width(), second_width()}, n, keys);
        }
        const int64_t begin = whole(from), end = to / TOGETHER * TOGETHER;
        value_steps_ = (end - begin) / Product::GROUP;
        for (int64_t j = begin; j < end; j += Product::GROUP) {
            const T* rows[Product::GROUP];
            for (int64_t k = 0; k < Product::GROUP; k++) rows[k] = row_at(a_.values, j + k);
            typename Product::T* at = values_ + Steps<S>::slot(j - begin) * PANEL;
            for (int64_t i = 0; i < width_; i += PANEL, at += value_steps_ * PANEL * Product::GROUP)
                ValuePanels<S>::lay(rows, i, std::min<int64_t>(PANEL, a_.values.width - i), at);
        }
    }
    // The next token that does not go with the one before it.
    static int64_t whole(int64_t token) { return (token + TOGETHER - 1) / TOGETHER * TOGETHER; }

    // Scores of a line in this span -> weights 2^(s - max), their max and sum. A lane of the sum
    // is a key's position modulo eight, so keys outside [low, high) add exact zeros. Those of the
    // first and the last eight are written too: zeros, which pairs rely on.
    void soften(int64_t span, int64_t from, int64_t to, int64_t row, int64_t here) {
        const int64_t a = std::max(from, low(row)) - span, b = std::min(to, high(row)) - span;
        span_tops_[here] = MINUS_INFINITY;
        span_sums_[here] = 0.0f;
        if (a >= b) return;
        float* s = scores_ + here * SPAN;
        Weight* weights = weights_of(here);
        const int64_t first = a / LANES * LANES, end = (b + LANES - 1) / LANES * LANES;
        hide(s, first, a, b);
        hide(s, end - LANES, a, b);
        const float highest = max_of(s + first, end - first);
        v8 sum = set1(0.0f);
        int64_t i = first;
#ifdef __AVX512F__
        for (; i + 2 * LANES <= b; i += 2 * LANES) {
            const v16 p = Steps<S>::put16(weights, i, exp2_16(load16(s + i) - set16(highest)));
            sum = (sum + low8(p)) + high8(p);
        }
#endif
        for (; i < b; i += LANES)
            sum = sum + Steps<S>::put(weights, i, exp2_8(load8(s + i) - set1(highest)));
        span_tops_[here] = highest;
        span_sums_[here] = sum_lanes(sum);
    }
    // Of eight scores from i on, those outside [a, b) -> minus infinity.
    static void hide(float* s, int64_t i, int64_t a, int64_t b) {
        const v8i at = v8i{0, 1, 2, 3, 4, 5, 6, 7} + set1i(int32_t(i));
        store8(s + i, select((at >= set1i(int32_t(a))) & (at < set1i(int32_t(b))), load8(s + i),
                             set1(MINUS_INFINITY)));
    }

    // Keys of the span in rising order: first those before the range that all rows share, row by
    // row, then that range for all lines at once, then those after it.
    void weigh_span(int64_t span, int64_t from, int64_t to, int64_t count) {
        const int64_t end = first_ + count;
        int64_t first = whole(std::max(from, low((end - 1) / group_)));
        int64_t last = std::min(to, high(first_ / group_)) / TOGETHER * TOGETHER;
        if (first >= last) first = last = to;  // nothing is shared
        const auto each_row = [&](auto body) {  // body(row, its first line here, its lines)
            for (int64_t line = first_; line < end;) {
                const int64_t row = line / group_, next = std::min(end, (row + 1) * group_);
                body(row, line - first_, next - line);
                line = next;
            }
        };
        each_row([&](int64_t row, int64_t line, int64_t lines) {
            weigh(span, std::max(from, low(row)), std::min(first, high(row)), line, lines);
        });
        if (direct())
            weigh(span, first, last, 0, count);
        else if (first < last)
            weigh_tile(span, whole(from), first, last, count);
        if (last < to)
            each_row([&](int64_t row, int64_t line, int64_t lines) {
                weigh(span, last, std::min(to, high(row)), line, lines);
            });
    }

    // O[line] += sum over keys [a, b) of p[line][key] V[key], key by key, for some lines of each
    // head.
    void weigh(int64_t span, int64_t a, int64_t b, int64_t line, int64_t lines) {
        if (a >= b) return;  // an empty range inside a pair would take in the weights of that pair
        const T* rows[TOKENS];
        for (int64_t j = a / TOGETHER * TOGETHER; j < b; j += TOKENS) {
            const int64_t n = std::min(TOKENS, whole(b - j));
            const int64_t next = j + TOKENS;
            Ahead ahead;
            if (lines == of_head_)  // else a corner of the range, whose values have been asked for
                ahead = next < b ? ahead_of(&a_.values, 1, next)
                                 : ahead_of(a_.keys, a_.key_slabs, span + SPAN);
            for (int64_t k = 0; k < n; k++)
                rows[Steps<S>::slot(k)] = value_row(j + k, a, b);
            for (int64_t h = 0; h < heads_; h++) {
                const int64_t here = h * near_ + line;
                const Weight* weights = weights_of(here) + (j - span);
                for (int64_t k = 0; k < n; k += VALUES)
                    weigh_lines<S>(rows + k, std::min(VALUES, n - k), a_.values.width,
                                   weights + k, WEIGHTS, span_o_ + here * width_, width_, lines,
                                   ahead);
                for (int64_t k = 0; k < n; k++)
                    if (rows[k] != zero_row()) rows[k] += a_.values.head_stride;
            }
        }
    }

    // Zeros as the pages hold them, a row of them.
    const T* zero_row() const { return reinterpret_cast<const T*>(zeros_); }
    // Values of keys [a, b); beside them lies the partner of the first or the last, which is not seen.
    const T* value_row(int64_t j, int64_t a, int64_t b) const {
        return j >= a && j < b ? row_at(a_.values, j) : zero_row();
    }

    // The same for many lines from the panels of values that lay_span left, of tokens from `begin`.
    void weigh_tile(int64_t span, int64_t begin, int64_t a, int64_t b, int64_t count) {
        constexpr int64_t AT_ONCE = panels_beside<Product>(Product::ROWS);
        constexpr int64_t STEP = PANEL * Product::GROUP;
        const int64_t panels = width_ / PANEL, panel_step = value_steps_ * STEP;
        for (int64_t panel = 0; panel < panels; panel += AT_ONCE)
            blocks_of<Product>(weights_of(0) + (a - span), WEIGHTS,
                               values_ + panel * panel_step + (a - begin) * PANEL, STEP, panel_step,
                               std::min(AT_ONCE, panels - panel), (b - a) / Product::GROUP,
                               span_o_ + panel * PANEL, width_, count, Into::GO_ON);
    }

    const Attention& a_;
    const int64_t head_, heads_, group_, row0_, rows_, lo_, hi_, slot_;
    int64_t kv_len_, base_, first_position_, of_head_, depth_, query_, width_, panel_;
    int64_t near_;       // lines of a head whose scores are held at a time,
    int64_t first_ = 0;  // from this one on
    int64_t value_steps_ = 0;
    const int32_t* pages_;
    int page_shift_ = 0;
    Ahead::Stretch stretches_[2 * TOKENS];  // of two slabs
    // By line of the item: queries and what the spans so far came to. By line held: one span's.
    float *q_, *o_, *tops_, *sums_, *scores_, *span_o_, *span_tops_, *span_sums_, *zeros_;
    float* keys_ = nullptr;  // laid out, as values_
    typename Product::T* values_ = nullptr;
};

}  // namespace pt
