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

constexpr int64_t SPAN = 256, TILE = 16, ITEM_FIELDS = 6;
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
        kv_len_ = a.kv_len[seq];
        base_ = a.kv_base[seq];
        pages_ = a.page_ids + a.page_indptr[seq] - base_ / a.page_tokens;
        first_position_ = kv_len_ - a.q_indptr[seq + 1] + row0_;
        lines_ = rows_ * group_;
        depth_ = a.keys[0].width + (a.key_slabs > 1 ? a.keys[1].width : 0);
        width_ = padded(a.values.width);
        const int64_t need = lines_ * (depth_ + SPAN + 2 * width_ + 4) + TILE * (depth_ + width_) + 64;
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
        tile_ = at, at += TILE * std::max(depth_, width_);
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
        return static_cast<const T*>(slab.base) +
               int64_t(pages_[position / a_.page_tokens]) * slab.page_stride +
               position % a_.page_tokens * slab.token_stride + kv_head_ * slab.head_stride;
    }

    void run_span(int64_t span) {
        const int64_t from = std::max(lo_, span), to = std::min(hi_, span + SPAN);
        if (from >= to) return;
        for (int64_t tile = from / TILE * TILE; tile < to; tile += TILE) score_tile(span, tile);
        for (int64_t row = 0; row < rows_; row++)
            for (int64_t g = 0; g < group_; g++) soften(span, from, to, row, row * group_ + g);
        std::fill(span_o_, span_o_ + lines_ * width_, 0.0f);
        for (int64_t tile = from / TILE * TILE; tile < to; tile += TILE)
            weigh_tile(span, tile, from, to);
        for (int64_t line = 0; line < lines_; line++)
            if (span_sums_[line] != 0.0f)
                fold(o_ + line * width_, tops_ + line, sums_ + line, span_o_ + line * width_,
                     span_tops_[line], span_sums_[line], width_);
    }

    void score_tile(int64_t span, int64_t tile) {
        const int64_t from = std::max(tile, base_), to = std::min(tile + TILE, kv_len_);
        int64_t done = 0;
        for (int64_t s = 0; s < a_.key_slabs; s++) {
            const Slab& slab = a_.keys[s];
            pack_keys(slab, tile, from, to, tile_ + done * TILE);
            done += slab.width;
        }
        product_rows<F32>(q_, depth_, tile_, TILE, depth_, scores_ + (tile - span), SPAN, lines_,
                          true);
    }

    // out[element][key of the tile], zero where the tile reaches past the retained rows.
    void pack_keys(const Slab& slab, int64_t tile, int64_t from, int64_t to, float* out) {
        const T* rows[TILE];
        for (int64_t j = 0; j < TILE; j++)
            rows[j] = tile + j >= from && tile + j < to ? row_at(slab, tile + j) : nullptr;
        int64_t i = 0;
        for (; i + LANES <= slab.width; i += LANES)
            for (int64_t half = 0; half < TILE; half += LANES) {
                v8 block[LANES];
                for (int64_t j = 0; j < LANES; j++)
                    block[j] = rows[half + j] ? S::load8(rows[half + j] + i) : set1(0.0f);
                transpose8(block);
                for (int64_t j = 0; j < LANES; j++) store8(out + (i + j) * TILE + half, block[j]);
            }
        for (; i < slab.width; i++)
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

    void weigh_tile(int64_t span, int64_t tile, int64_t from, int64_t to) {
        // Rows that see the whole tile are neighbours: both bounds rise with the row.
        int64_t row = 0;
        while (row < rows_) {
            const int64_t a = std::max({tile, from, low(row)});
            const int64_t b = std::min({tile + TILE, to, high(row)});
            if (a >= b) {
                row++;
                continue;
            }
            int64_t end = row + 1;
            while (end < rows_ && std::max({tile, from, low(end)}) == a &&
                   std::min({tile + TILE, to, high(end)}) == b)
                end++;
            weigh(span, a, b, row * group_, (end - row) * group_);
            row = end;
        }
    }

    // O[line] += sum over keys [a, b), which lie in one tile, of p[line][key] V[key].
    void weigh(int64_t span, int64_t a, int64_t b, int64_t line, int64_t lines) {
        const float* p = scores_ + line * SPAN + (a - span);
        float* o = span_o_ + line * width_;
        const bool in_one_page = a / a_.page_tokens == (b - 1) / a_.page_tokens;
        if (in_one_page && width_ == a_.values.width && (sizeof(T) == 4 || lines <= ROWS)) {
            const T* v = row_at(a_.values, a);
            for (int64_t i = 0; i < width_; i += PANEL)
                product_rows<S>(p, SPAN, v + i, a_.values.token_stride, b - a, o + i, width_, lines,
                                false);
            return;
        }
        for (int64_t j = a; j < b; j++) {
            const T* v = row_at(a_.values, j);
            float* to = tile_ + (j - a) * width_;
            int64_t i = 0;
            for (; i + LANES <= a_.values.width; i += LANES) store8(to + i, S::load8(v + i));
            for (; i < a_.values.width; i++) to[i] = S::load(v[i]);
            for (; i < width_; i++) to[i] = 0.0f;
        }
        for (int64_t i = 0; i < width_; i += PANEL)
            product_rows<F32>(p, SPAN, tile_ + i, width_, b - a, o + i, width_, lines, false);
    }

    const Attention& a_;
    const int64_t kv_head_, group_, row0_, rows_, lo_, hi_, slot_;
    int64_t kv_len_, base_, first_position_, lines_, depth_, width_;
    const int32_t* pages_;
    float *q_, *scores_, *span_o_, *o_, *tops_, *sums_, *span_tops_, *span_sums_, *tile_;
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
