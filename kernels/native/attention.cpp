// Paged attention of a ragged batch: decode, verify and prefill rows of many sequences at once.
//
// For one item (rows of one sequence) and one KV head, query rows x group stand as *lines*:
//
//      keys of a span (256), in tiles of 16              values of the same tiles
//      +----+----+----+ ... +----+
// line | S = q k^T, tile by tile | -> p = 2^(S - max) -> O = p V, key by key
//      +----+----+----+ ... +----+
//
// Spans and tiles lie at fixed positions of the sequence (multiples of 256 and of 16). Each span
// gives (O, max, sum), and spans are folded from the first to the last, either here, one after the
// other, or from partial results that other items left (split over KV). So a line's bits depend on
// its query, its visible keys and values and their positions: not on its neighbours, the number of
// rows in the step, the number of splits, the page size, or which pages hold the rows.
//
// Rows outside a line's visible range are never multiplied into it, so what an unwritten or reused
// slot holds (NaN included) cannot reach a result.

#include <algorithm>
#include <cmath>
#include <limits>

#include "pool.h"
#include "product.h"

namespace pt {

struct Slab {
    const void* base;  // of this layer
    int64_t page_stride, token_stride, head_stride, width;  // in elements
};

struct Attention {
    const float* q;  // [rows, q_heads, sum of key widths], row stride ldq
    int64_t ldq, rows, q_heads, kv_heads;
    Slab keys[2];
    Slab values;
    int64_t key_slabs, storage, page_tokens;
    const int32_t *q_indptr, *kv_len, *kv_base, *page_indptr, *page_ids, *items, *merge_indptr;
    int64_t item_count;
    int64_t window;  // 0: every earlier key is visible
    float* out;      // [rows, q_heads, values.width], row stride ldo
    int64_t ldo;
    float* lse;      // [rows, q_heads] or null
    float* partial;  // [slots, q_heads, values.width padded + 2] or null
    float scale;
};

namespace {

constexpr int64_t SPAN = 256, TILE = 16, TILES_AT_ONCE = 4, WIDEN_AT_ONCE = 16, ITEM_FIELDS = 6;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();

inline int64_t padded(int64_t n) { return (n + PANEL - 1) / PANEL * PANEL; }

// Running result of a line over the spans seen so far: O[width], max, sum.
void fold(float* o, float* top, float* sum, const float* span_o, float span_top, float span_sum,
          int64_t width) {
    const float highest = *top > span_top ? *top : span_top;
    const v8 exponents{*top - highest, span_top - highest, 0, 0, 0, 0, 0, 0};
    const v8 factors = exp2_8(exponents);
    const v8 old = set1(factors[0]), fresh = set1(factors[1]);
    for (int64_t i = 0; i < width; i += LANES)
        store8(o + i, fma8(load8(o + i), old, load8(span_o + i) * fresh));
    *sum = *sum * factors[0] + span_sum * factors[1];
    *top = highest;
}

void write_out(const Attention& a, int64_t row, int64_t head, const float* o, float top, float sum) {
    float* out = a.out + row * a.ldo + head * a.values.width;
    const v8 divisor = set1(sum);
    for (int64_t i = 0; i < a.values.width; i += LANES) {
        const v8 value = sum > 0.0f || sum != sum ? load8(o + i) / divisor : set1(0.0f);
        store_first(out + i, value, std::min<int64_t>(LANES, a.values.width - i));
    }
    if (a.lse)
        a.lse[row * a.q_heads + head] = sum == 0.0f ? MINUS_INFINITY : top + std::log2(sum);
}

template <class S>
class ItemRun {
    typedef typename S::T T;

  public:
    ItemRun(const Attention& a, const int32_t* item, int64_t kv_head, std::vector<float>& scratch)
        : a_(a), kv_head_(kv_head), group_(a.q_heads / a.kv_heads), row0_(item[1]),
          rows_(item[2]), lo_(item[3]), hi_(item[4]), slot_(item[5]) {
        const int64_t seq = item[0];
        while (int64_t(1) << page_shift_ < a.page_tokens) page_shift_++;
        kv_len_ = a.kv_len[seq];
        base_ = a.kv_base[seq];
        pages_ = a.page_ids + a.page_indptr[seq] - (base_ >> page_shift_);
        first_position_ = kv_len_ - a.q_indptr[seq + 1] + row0_;
        lines_ = rows_ * group_;
        depth_ = a.keys[0].width + (a.key_slabs > 1 ? a.keys[1].width : 0);
        width_ = padded(a.values.width);
        const int64_t need = lines_ * (depth_ + SPAN + 2 * width_ + 4) +
                             std::max(TILES_AT_ONCE * TILE * depth_, SPAN * width_);
        if (int64_t(scratch.size()) < need) scratch.resize(size_t(need));
        float* at = scratch.data();
        q_ = at, at += lines_ * depth_;
        scores_ = at, at += lines_ * SPAN;
        span_o_ = at, at += lines_ * width_;
        o_ = at, at += lines_ * width_;
        tops_ = at, at += lines_;
        sums_ = at, at += lines_;
        span_tops_ = at, at += lines_;
        span_sums_ = at, at += lines_;
        widened_ = at;
    }

    void run() {
        const v8 factor = set1(a_.scale * LOG2E);
        for (int64_t line = 0; line < lines_; line++) {
            const float* q = a_.q + row_of(line) * a_.ldq + head_of(line) * depth_;
            for (int64_t i = 0; i < depth_; i += LANES) {
                const int64_t n = std::min<int64_t>(LANES, depth_ - i);
                store_first(q_ + line * depth_ + i, load_first(q + i, n) * factor, n);
            }
            tops_[line] = MINUS_INFINITY;
            sums_[line] = 0.0f;
        }
        std::fill(o_, o_ + lines_ * width_, 0.0f);
        for (int64_t span = lo_ / SPAN * SPAN; span < hi_; span += SPAN) run_span(span);
        for (int64_t line = 0; line < lines_; line++) {
            const float* o = o_ + line * width_;
            if (slot_ < 0) {
                write_out(a_, row_of(line), head_of(line), o, tops_[line], sums_[line]);
                continue;
            }
            float* to = a_.partial + (slot_ * a_.q_heads + head_of(line)) * (width_ + 2);
            std::copy(o, o + width_, to);
            to[width_] = tops_[line];
            to[width_ + 1] = sums_[line];
        }
    }

  private:
    int64_t row_of(int64_t line) const { return row0_ + line / group_; }
    int64_t head_of(int64_t line) const { return kv_head_ * group_ + line % group_; }
    // Keys [low, high) that a row of the item sees: causal, inside its window, retained.
    int64_t high(int64_t row) const { return first_position_ + row + 1; }
    int64_t low(int64_t row) const {
        return std::max(base_, a_.window > 0 ? high(row) - a_.window : int64_t(0));
    }
    const T* row_at(const Slab& slab, int64_t position) const {
        const int64_t offset = position & (a_.page_tokens - 1);
        return static_cast<const T*>(slab.base) +
               int64_t(pages_[position >> page_shift_]) * slab.page_stride +
               offset * slab.token_stride + kv_head_ * slab.head_stride;
    }

    void run_span(int64_t span) {
        const int64_t from = std::max(lo_, span), to = std::min(hi_, span + SPAN);
        if (from >= to) return;
        for (int64_t tile = from / TILE * TILE; tile < to; tile += TILES_AT_ONCE * TILE)
            score_tiles(span, tile, std::min(TILES_AT_ONCE, (to - tile + TILE - 1) / TILE));
        for (int64_t row = 0; row < rows_; row++)
            for (int64_t g = 0; g < group_; g++) soften(span, from, to, row, row * group_ + g);
        std::fill(span_o_, span_o_ + lines_ * width_, 0.0f);
        weigh_span(span, from, to);
        for (int64_t line = 0; line < lines_; line++)
            if (span_sums_[line] != 0.0f)
                fold(o_ + line * width_, tops_ + line, sums_ + line, span_o_ + line * width_,
                     span_tops_[line], span_sums_[line], width_);
    }

    // Asks for rows that will be read soon: pages lie anywhere, so no hardware foresees them.
    void prefetch(const Slab& slab, int64_t from, int64_t to) const {
        constexpr int64_t line = 64 / int64_t(sizeof(T));
        for (int64_t j = std::max(from, base_); j < std::min(to, hi_); j++) {
            const T* row = row_at(slab, j);
            for (int64_t i = 0; i < slab.width; i += line) __builtin_prefetch(row + i);
        }
    }

    void score_tiles(int64_t span, int64_t tile, int64_t tiles) {
        const int64_t from = std::max(tile, base_), to = std::min(tile + tiles * TILE, kv_len_);
        for (int64_t t = 0; t < tiles; t++) {
            int64_t done = 0;
            for (int64_t s = 0; s < a_.key_slabs; s++) {
                const Slab& slab = a_.keys[s];
                prefetch(slab, tile + (t + 1) * TILE, tile + (t + 2) * TILE);
                pack_keys(slab, tile + t * TILE, from, to, widened_ + (t * depth_ + done) * TILE);
                done += slab.width;
            }
        }
        product_panels<F32>(q_, depth_, widened_, TILE, depth_ * TILE, tiles, depth_,
                            scores_ + (tile - span), SPAN, lines_);
    }

    // out[element][key of the tile], zero where the tile reaches past the retained rows.
    void pack_keys(const Slab& slab, int64_t tile, int64_t from, int64_t to, float* out) {
        const T* rows[TILE];
        for (int64_t j = 0; j < TILE; j++)
            rows[j] = tile + j >= from && tile + j < to ? row_at(slab, tile + j) : nullptr;
        // Eight rows at a time, each from end to end: rows of other keys often lie a power of two
        // apart, and more of them at once would push each other out of the nearest cache.
        const int64_t whole = slab.width / LANES * LANES;
        for (int64_t half = 0; half < TILE; half += LANES)
            for (int64_t i = 0; i < whole; i += LANES) {
                v8 block[LANES];
                for (int64_t j = 0; j < LANES; j++)
                    block[j] = rows[half + j] ? S::load8(rows[half + j] + i) : set1(0.0f);
                transpose8(block);
                for (int64_t j = 0; j < LANES; j++) store8(out + (i + j) * TILE + half, block[j]);
            }
        for (int64_t i = whole; i < slab.width; i++)
            for (int64_t j = 0; j < TILE; j++)
                out[i * TILE + j] = rows[j] ? S::load(rows[j][i]) : 0.0f;
    }

    // Scores of a line in this span -> weights 2^(s - max), their max and sum. A lane of the sum
    // is a key's position modulo eight, so keys outside [low, high) add exact zeros.
    void soften(int64_t span, int64_t from, int64_t to, int64_t row, int64_t line) {
        const int64_t a = std::max(from, low(row)) - span, b = std::min(to, high(row)) - span;
        span_tops_[line] = MINUS_INFINITY;
        span_sums_[line] = 0.0f;
        if (a >= b) return;
        float* s = scores_ + line * SPAN;
        const v8i lane{0, 1, 2, 3, 4, 5, 6, 7};
        const int64_t first = a / LANES * LANES;
        v8 top = set1(MINUS_INFINITY);
        for (int64_t i = first; i < b; i += LANES) {
            v8 x = load8(s + i);
            if (i < a || i + LANES > b) {
                const v8i at = lane + set1i(int32_t(i));
                x = select((at >= set1i(int32_t(a))) & (at < set1i(int32_t(b))), x,
                           set1(MINUS_INFINITY));
                store8(s + i, x);
            }
            top = max8(top, x);
        }
        const float highest = max_lanes(top);
        v8 sum = set1(0.0f);
        for (int64_t i = first; i < b; i += LANES) {
            const v8 p = exp2_8(load8(s + i) - set1(highest));
            store8(s + i, p);
            sum = sum + p;
        }
        span_tops_[line] = highest;
        span_sums_[line] = sum_lanes(sum);
    }

    // Keys of the span in rising order: first those before the range that all rows share, row by
    // row, then that range for all lines at once, then those after it.
    void weigh_span(int64_t span, int64_t from, int64_t to) {
        int64_t first = from, last = to;  // the shared range
        for (int64_t row = 0; row < rows_; row++) {
            first = std::max(first, low(row));
            last = std::min(last, high(row));
        }
        const bool widened = lines_ > ROWS;  // once for the span, as several blocks read it
        if (widened) widen_values(std::max(from, base_), std::min(to, kv_len_), span);
        if (first >= last) first = last = to;  // nothing is shared
        for (int64_t row = 0; row < rows_; row++)
            weigh(span, std::max(from, low(row)), std::min(first, high(row)), row * group_, group_,
                  widened);
        weigh(span, first, last, 0, lines_, widened);
        if (last < to)
            for (int64_t row = 0; row < rows_; row++)
                weigh(span, last, std::min(to, high(row)), row * group_, group_, widened);
    }

    // Values of keys [from, to) as fp32, side by side, at widened_ + (key - origin) * width_.
    void widen_values(int64_t from, int64_t to, int64_t origin) {
        for (int64_t j = from; j < to; j++) {
            prefetch(a_.values, j + TILE, j + TILE + 1);
            const T* v = row_at(a_.values, j);
            float* out = widened_ + (j - origin) * width_;
            int64_t i = 0;
            for (; i + LANES <= a_.values.width; i += LANES) store8(out + i, S::load8(v + i));
            for (; i < a_.values.width; i++) out[i] = S::load(v[i]);
            for (; i < width_; i++) out[i] = 0.0f;
        }
    }

    // O[line] += sum over keys [a, b) of p[line][key] V[key], key by key.
    void weigh(int64_t span, int64_t a, int64_t b, int64_t line, int64_t lines, bool widened) {
        const float* p = scores_ + line * SPAN - span;
        float* o = span_o_ + line * width_;
        while (a < b) {
            const int64_t end = widened ? b : std::min(b, a + WIDEN_AT_ONCE);
            const int64_t origin = widened ? span : a;
            if (!widened) widen_values(a, end, origin);
            product_panels<F32>(p + a, SPAN, widened_ + (a - origin) * width_, width_, PANEL,
                                width_ / PANEL, end - a, o, width_, lines, false);
            a = end;
        }
    }

    const Attention& a_;
    const int64_t kv_head_, group_, row0_, rows_, lo_, hi_, slot_;
    int64_t kv_len_, base_, first_position_, lines_, depth_, width_;
    const int32_t* pages_;
    int page_shift_ = 0;
    // widened_: keys of a few tiles, transposed; then values of a span. Never both at once.
    float *q_, *scores_, *span_o_, *o_, *tops_, *sums_, *span_tops_, *span_sums_, *widened_;
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

extern "C" void pt_attention(void* pool, const Attention* attention) {
    const Attention& a = *attention;
    Pool* p = static_cast<Pool*>(pool);
    p->run(a.item_count * a.kv_heads, [&](int64_t task, int thread) {
        const int32_t* item = a.items + task / a.kv_heads * ITEM_FIELDS;
        if (item[0] < 0) return;
        const int64_t head = task % a.kv_heads;
        std::vector<float>& mine = p->scratch(thread);
        if (a.storage == STORE_F32) return ItemRun<F32>(a, item, head, mine).run();
        if (a.storage == STORE_F16) return ItemRun<F16>(a, item, head, mine).run();
        ItemRun<BF16>(a, item, head, mine).run();
    });
    p->run(a.rows, [&](int64_t row, int thread) {
        if (a.merge_indptr[row] < a.merge_indptr[row + 1])
            merge_row(a, row, p->scratch(thread));
    });
}
