// Paged attention of a ragged batch: decode, verify and prefill rows of many sequences at once.
//
// For one item (rows of one sequence) and one KV head, query rows x group stand as *lines*:
//
//   S = q k^T over the keys of a span (256)  ->  p = 2^(S - max)  ->  O = p V, key by key (lines.h)
//
// Spans lie at fixed positions of the sequence (multiples of 256). Each span gives (O, max, sum),
// and spans are folded from the first to the last, either here, one after the other, or from
// partial results that other items left (split over KV). So a line's bits depend on its query, its
// visible keys and values and their positions: not on its neighbours, the number of rows in the
// step, the number of splits, the page size, or which pages hold the rows.
//
// Rows outside a line's visible range are never multiplied into it, so what an unwritten or reused
// slot holds (NaN included) cannot reach a result.

#include <algorithm>
#include <cmath>
#include <limits>

#include "calls.h"
#include "lines.h"
#include "pool.h"
#include "product.h"

namespace pt {

namespace {

constexpr int64_t SPAN = 256, ITEM_FIELDS = 6;
constexpr int64_t DIRECT_LINES = 8;  // as many lines read half types from the pages without a copy
constexpr float LOG2E = 1.4426950408889634f;
constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();

inline int64_t padded(int64_t n) { return (n + PANEL - 1) / PANEL * PANEL; }

// Running result of a line over the spans seen so far: O[width], max, sum.
void fold(float* o, float* top, float* sum, const float* span_o, float span_top, float span_sum,
          int64_t width) {
    const float highest = *top > span_top ? *top : span_top;
    const v8 exponents{*top - highest, span_top - highest, 0, 0, 0, 0, 0, 0};
    const v8 factors = exp2_8(exponents);
    const Wide old = wide_set1(factors[0]), fresh = wide_set1(factors[1]);
    for (int64_t i = 0; i < width; i += PANEL)
        wide_store(o + i, wide_fma(wide_load(o + i), old, wide_mul(wide_load(span_o + i), fresh)));
    *sum = *sum * factors[0] + span_sum * factors[1];
    *top = highest;
}

void write_out(const Attention& a, int64_t row, int64_t head, const float* o, float top, float sum) {
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
    static constexpr int64_t TOKENS = TOKENS_AT_ONCE<S>, VALUES = VALUES_AT_ONCE<S>;
    static constexpr int64_t TOGETHER = Steps<S>::TOGETHER;
    static constexpr int64_t WEIGHTS = SPAN * int64_t(sizeof(float) / sizeof(Weight));

  public:
    // The item's rows against KV heads [head, head + heads).
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
        lines_ = heads_ * of_head_;
        depth_ = first_width() + second_width();
        query_ = query_floats<S>(first_width(), second_width());
        width_ = padded(a.values.width);
        const int64_t need =
            lines_ * (query_ + SPAN + 2 * width_ + 4) + width_ +
            std::max(tile_floats<S>(first_width(), second_width()), SPAN * width_);
        if (int64_t(scratch.size()) < need) scratch.resize(size_t(need));
        float* at = scratch.data();
        q_ = at, at += lines_ * query_;
        scores_ = at, at += lines_ * SPAN;
        span_o_ = at, at += lines_ * width_;
        o_ = at, at += lines_ * width_;
        tops_ = at, at += lines_;
        sums_ = at, at += lines_;
        span_tops_ = at, at += lines_;
        span_sums_ = at, at += lines_;
        zeros_ = at, at += width_;
        tile_ = at;
    }

    void run() {
        const v8 factor = set1(a_.scale * LOG2E);
        each_line([&](int64_t line, int64_t row, int64_t head) {
            const float* q = a_.q + (row0_ + row) * a_.ldq + head * depth_;
            const int64_t first = (head / group_ - head_) * of_head_;
            (direct() ? lay_lines<S> : lay_tile<S>)(q, first_width(), second_width(), factor,
                                                    line - first, of_head_, q_ + first * query_);
        });
        std::fill(tops_, tops_ + lines_, MINUS_INFINITY);
        std::fill(sums_, sums_ + lines_, 0.0f);
        std::fill(o_, o_ + lines_ * width_, 0.0f);
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
    // Lines stand by KV head, then row, then query head of the group. body(line, row of the item,
    // query head).
    template <class Body>
    void each_line(Body body) const {
        int64_t line = 0;
        for (int64_t h = head_; h < head_ + heads_; h++)
            for (int64_t row = 0; row < rows_; row++)
                for (int64_t g = 0; g < group_; g++) body(line++, row, h * group_ + g);
    }
    // Keys [low, high) that a row of the item sees: causal, inside its window, retained.
    int64_t high(int64_t row) const { return first_position_ + row + 1; }
    int64_t low(int64_t row) const {
        return std::max(base_, a_.window > 0 ? high(row) - a_.window : int64_t(0));
    }
    const T* row_at(const Slab& slab, int64_t position, int64_t head = 0) const {
        const int64_t offset = position & (a_.page_tokens - 1);
        return static_cast<const T*>(slab.base) +
               int64_t(pages_[position >> page_shift_]) * slab.page_stride +
               offset * slab.token_stride + (head_ + head) * slab.head_stride;
    }

    void run_span(int64_t span) {
        const int64_t from = std::max(lo_, span), to = std::min(hi_, span + SPAN);
        if (from >= to) return;
        direct() ? score(span, from, to) : score_tiles(span, from, to);
        each_line([&](int64_t line, int64_t row, int64_t) { soften(span, from, to, row, line); });
        std::fill(span_o_, span_o_ + lines_ * width_, 0.0f);
        weigh_span(span, from, to);
        for (int64_t line = 0; line < lines_; line++)
            if (span_sums_[line] != 0.0f)
                fold(o_ + line * width_, tops_ + line, sums_ + line, span_o_ + line * width_,
                     span_tops_[line], span_sums_[line], width_);
    }

    // A line's weights take its scores' place. A weight lies no further on than its score, so those
    // still to be read are not written over.
    Weight* weights_of(int64_t line) {
        return reinterpret_cast<Weight*>(scores_ + line * SPAN);
    }

    // Few lines a head read the pages as they lie: all heads of a token, which lie side by side,
    // before the next. For many, a tile of keys or values is laid out for the arithmetic first.
    bool direct() const { return of_head_ <= DIRECT_LINES; }

    // Where the block of tokens from `from` on lies, for the arithmetic to ask for.
    Ahead ahead_of(const Slab* slabs, int64_t count, int64_t from) {
        int64_t n = 0;
        for (const Slab* slab = slabs; slab < slabs + count; slab++)
            for (int64_t j = from; j < std::min(from + TOKENS, hi_); j++)
                stretches_[n++] = {row_at(*slab, j), heads_ * slab->width * int64_t(sizeof(T))};
        return Ahead(stretches_, n);
    }

    void score(int64_t span, int64_t from, int64_t to) {
        const T *first[TOKENS], *second[TOKENS];
        for (int64_t j = from; j < to; j += TOKENS) {
            const int64_t n = std::min(TOKENS, to - j);
            const int64_t next = j + TOKENS;
            Ahead ahead = next < to ? ahead_of(a_.keys, a_.key_slabs, next)
                                    : ahead_of(&a_.values, 1, from);
            key_rows(j, n, first, second);
            for (int64_t h = 0; h < heads_; h++) {
                score_lines(Keys<S>{first, second, first_width(), second_width()}, n,
                            q_ + h * of_head_ * query_, of_head_,
                            scores_ + h * of_head_ * SPAN + (j - span), SPAN, ahead);
                next_head(first, second);
            }
        }
    }

    // The same for many lines. Rows that see none of a block's keys are left out of it.
    void score_tiles(int64_t span, int64_t from, int64_t to) {
        const T *first[TOKENS], *second[TOKENS];
        for (int64_t j = from; j < to; j += TOKENS) {
            const int64_t n = std::min(TOKENS, to - j);
            int64_t begin = 0, end = rows_;
            while (begin < end && high(begin) <= j) begin++;
            while (begin < end && low(end - 1) >= j + n) end--;
            if (begin == end) continue;
            key_rows(j, n, first, second);
            for (int64_t h = 0; h < heads_; h++) {
                const int64_t line = h * of_head_ + begin * group_;
                score_tile(Keys<S>{first, second, first_width(), second_width()}, n,
                           q_ + line * query_, (end - begin) * group_,
                           scores_ + line * SPAN + (j - span), SPAN, tile_);
                next_head(first, second);
            }
        }
    }

    // Where the keys of a block of n tokens from j on lie; past the last, the last one again.
    void key_rows(int64_t j, int64_t n, const T** first, const T** second) const {
        for (int64_t k = 0; k < TOKENS; k++) {
            first[k] = k < n ? row_at(a_.keys[0], j + k) : first[k - 1];
            if (a_.key_slabs > 1) second[k] = k < n ? row_at(a_.keys[1], j + k) : second[k - 1];
        }
    }
    void next_head(const T** first, const T** second) const {
        for (int64_t k = 0; k < TOKENS; k++) {
            first[k] += a_.keys[0].head_stride;
            if (a_.key_slabs > 1) second[k] += a_.keys[1].head_stride;
        }
    }

    // Scores of a line in this span -> weights 2^(s - max), their max and sum. A lane of the sum
    // is a key's position modulo eight, so keys outside [low, high) add exact zeros. Those of the
    // first and the last eight are written too: zeros, which pairs rely on.
    void soften(int64_t span, int64_t from, int64_t to, int64_t row, int64_t line) {
        const int64_t a = std::max(from, low(row)) - span, b = std::min(to, high(row)) - span;
        span_tops_[line] = MINUS_INFINITY;
        span_sums_[line] = 0.0f;
        if (a >= b) return;
        float* s = scores_ + line * SPAN;
        Weight* weights = weights_of(line);
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
        span_tops_[line] = highest;
        span_sums_[line] = sum_lanes(sum);
    }
    // Of eight scores from i on, those outside [a, b) -> minus infinity.
    static void hide(float* s, int64_t i, int64_t a, int64_t b) {
        const v8i at = v8i{0, 1, 2, 3, 4, 5, 6, 7} + set1i(int32_t(i));
        store8(s + i, select((at >= set1i(int32_t(a))) & (at < set1i(int32_t(b))), load8(s + i),
                             set1(MINUS_INFINITY)));
    }

    // Keys of the span in rising order: first those before the range that all rows share, row by
    // row, then that range for all lines at once, then those after it.
    void weigh_span(int64_t span, int64_t from, int64_t to) {
        int64_t first = from, last = to;  // the shared range
        for (int64_t row = 0; row < rows_; row++) {
            first = std::max(first, low(row));
            last = std::min(last, high(row));
        }
        first = (first + TOGETHER - 1) / TOGETHER * TOGETHER, last = last / TOGETHER * TOGETHER;
        if (first >= last) first = last = to;  // nothing is shared
        for (int64_t row = 0; row < rows_; row++)
            weigh(span, std::max(from, low(row)), std::min(first, high(row)), row, 1);
        if (direct())
            weigh(span, first, last, 0, rows_);
        else if (first < last)
            for (int64_t h = 0; h < heads_; h++) weigh_tile(h, span, first, last);
        if (last < to)
            for (int64_t row = 0; row < rows_; row++)
                weigh(span, last, std::min(to, high(row)), row, 1);
    }

    // O[line] += sum over keys [a, b) of p[line][key] V[key], key by key, for lines of some rows.
    void weigh(int64_t span, int64_t a, int64_t b, int64_t row, int64_t count) {
        if (a >= b) return;  // an empty range inside a pair would take in the weights of that pair
        const T* rows[TOKENS];
        for (int64_t j = a / TOGETHER * TOGETHER; j < b; j += TOKENS) {
            const int64_t n = std::min(TOKENS, (b - j + TOGETHER - 1) / TOGETHER * TOGETHER);
            const int64_t next = j + TOKENS;
            Ahead ahead;
            if (count == rows_)  // else a corner of the range, whose values have been asked for
                ahead = next < b ? ahead_of(&a_.values, 1, next)
                                 : ahead_of(a_.keys, a_.key_slabs, span + SPAN);
            for (int64_t k = 0; k < n; k++)
                rows[Steps<S>::slot(k)] = value_row(j + k, a, b);
            for (int64_t h = 0; h < heads_; h++) {
                const int64_t line = h * of_head_ + row * group_;
                const Weight* weights = weights_of(line) + (j - span);
                for (int64_t k = 0; k < n; k += VALUES)
                    weigh_lines<S>(rows + k, std::min(VALUES, n - k), a_.values.width,
                                   weights + k, WEIGHTS, span_o_ + line * width_, width_,
                                   count * group_, ahead);
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

    // The same for all lines of a head: values as panels of sixteen columns, then a product.
    void weigh_tile(int64_t head, int64_t span, int64_t a, int64_t b) {
        typedef typename ValuePanels<S>::Product B;
        typedef typename B::T Stored;
        const int64_t steps = (b - a) / B::GROUP, panel_step = steps * PANEL * B::GROUP;
        const int64_t line = head * of_head_;
        Stored* panels = reinterpret_cast<Stored*>(tile_);
        for (int64_t j = a; j < b; j += B::GROUP) {
            const T* rows[B::GROUP];
            for (int64_t k = 0; k < B::GROUP; k++) rows[k] = row_at(a_.values, j + k, head);
            Stored* to = panels + (Steps<S>::slot(j - a)) / B::GROUP * PANEL * B::GROUP;
            for (int64_t i = 0; i < width_; i += PANEL, to += panel_step)
                ValuePanels<S>::lay(rows, i, std::min<int64_t>(PANEL, a_.values.width - i), to);
        }
        constexpr int64_t AT_ONCE = panels_beside<B>(B::ROWS);
        for (int64_t panel = 0; panel < width_ / PANEL; panel += AT_ONCE)
            blocks_of<B>(weights_of(line) + (a - span), WEIGHTS, panels + panel * panel_step,
                         PANEL * B::GROUP, panel_step, std::min(AT_ONCE, width_ / PANEL - panel),
                         steps, span_o_ + line * width_ + panel * PANEL, width_, of_head_,
                         Into::GO_ON);
    }

    const Attention& a_;
    const int64_t head_, heads_, group_, row0_, rows_, lo_, hi_, slot_;
    int64_t kv_len_, base_, first_position_, of_head_, lines_, depth_, query_, width_;
    const int32_t* pages_;
    int page_shift_ = 0;
    Ahead::Stretch stretches_[2 * TOKENS];  // of two slabs
    // tile_: keys of a block, then values of a span. Never both at once.
    float *q_, *scores_, *span_o_, *o_, *tops_, *sums_, *span_tops_, *span_sums_, *zeros_, *tile_;
};

void merge_row(const Attention& a, int64_t row, std::vector<float>& scratch) {
    const int64_t first = a.merge_indptr[row], last = a.merge_indptr[row + 1];
    const int64_t width = padded(a.values.width);
    scratch.resize(std::max(scratch.size(), size_t(width)));
    for (int64_t head = 0; head < a.q_heads; head++) {
        float top = MINUS_INFINITY, sum = 0.0f;
        std::fill(scratch.begin(), scratch.begin() + width, 0.0f);
        for (int64_t slot = first; slot < last; slot++) {
            const float* from = a.partial + (slot * a.q_heads + head) * (width + 2);
            if (from[width + 1] != 0.0f)
                fold(scratch.data(), &top, &sum, from, from[width], from[width + 1], width);
        }
        write_out(a, row, head, scratch.data(), top, sum);
    }
}

}  // namespace
}  // namespace pt

using namespace pt;

extern "C" int32_t pt_attention(void* pool, const void* arguments) {
    const Attention& a = *static_cast<const Attention*>(arguments);
    Pool* p = static_cast<Pool*>(pool);
    // Items of few rows take all heads, so that they read the pages from end to end; fewer when
    // there would not be a task for every thread.
    const int64_t group = a.q_heads / a.kv_heads, threads = p->threads();
    int64_t parts = 1;
    while (parts < a.kv_heads && a.item_count * parts < 2 * threads) parts++;
    p->run(a.item_count * a.kv_heads, [&](int64_t task, int thread) {
        const int32_t* item = a.items + task / a.kv_heads * ITEM_FIELDS;
        if (item[0] < 0) return;
        int64_t head = task % a.kv_heads, heads = 1;
        if (item[2] * group <= DIRECT_LINES) {
            if (head >= parts) return;
            const int64_t last = (head + 1) * a.kv_heads / parts;
            head = head * a.kv_heads / parts;
            heads = last - head;
        }
        std::vector<float>& mine = p->scratch(thread);
        if (a.storage == STORE_F32) return ItemRun<F32>(a, item, head, heads, mine).run();
        if (a.storage == STORE_F16) return ItemRun<F16>(a, item, head, heads, mine).run();
        ItemRun<BF16>(a, item, head, heads, mine).run();
    });
    p->run(a.rows, [&](int64_t row, int thread) {
        if (a.merge_indptr[row] < a.merge_indptr[row + 1])
            merge_row(a, row, p->scratch(thread));
    });
    return 0;
}
