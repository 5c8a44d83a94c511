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

#include "calls.h"
#include "item.h"
#include "pool.h"

namespace pt {
namespace {

constexpr int64_t ITEM_FIELDS = 6;

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
