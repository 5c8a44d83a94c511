// Page pools: routed append, page copy, and the gather and scatter of token rows.
//
// A slab's pool is [layers, pages, page_tokens, width]. Slots are page * page_tokens + offset.
// Nothing here reads or writes a row that it was not pointed at.

#include <algorithm>

#include "calls.h"
#include "pool.h"
#include "storage.h"

namespace pt {
namespace {

template <class S>
void narrow_row(const float* from, int64_t n, typename S::T* to) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) S::store8(to + i, load8(from + i));
    for (; i < n; i++) to[i] = S::narrow(from[i]);
}

template <class S>
int32_t append(Pool* pool, const AppendCall& c) {
    typename S::T* layer = static_cast<typename S::T*>(c.layer);
    std::atomic<int32_t> outside{0};
    constexpr int64_t rows_a_task = 64;
    pool->run((c.count + rows_a_task - 1) / rows_a_task, [&](int64_t task, int) {
        const int64_t end = std::min(c.count, (task + 1) * rows_a_task);
        for (int64_t r = task * rows_a_task; r < end; r++) {
            if (c.slots[r] < 0) continue;
            if (c.slots[r] >= c.slots_max) {
                outside.store(1, std::memory_order_relaxed);
                continue;
            }
            narrow_row<S>(c.rows + r * c.ldr, c.width, layer + c.slots[r] * c.width);
        }
    });
    return outside.load();
}

// Calls body(pool bytes, packed offset, length) for every run of rows inside one page.
template <class Body>
void each_run(char* base, int64_t layers, int64_t layer_bytes, int64_t page_bytes,
              int64_t row_bytes, int64_t page_tokens, const int32_t* pages, int64_t start,
              int64_t end, Body body) {
    int64_t packed = 0;
    for (int64_t layer = 0; layer < layers; layer++)
        for (int64_t row = start; row < end;) {
            const int64_t offset = row % page_tokens;
            const int64_t n = std::min(page_tokens - offset, end - row);
            body(base + layer * layer_bytes + int64_t(pages[row / page_tokens]) * page_bytes +
                     offset * row_bytes,
                 packed, n * row_bytes);
            packed += n * row_bytes;
            row += n;
        }
}

}  // namespace
}  // namespace pt

using namespace pt;

extern "C" {

// Returns 1 when some slot lay past the pool (that row is skipped), else 0.
int32_t pt_append(void* pool, const void* arguments) {
    const AppendCall& c = *static_cast<const AppendCall*>(arguments);
    Pool* p = static_cast<Pool*>(pool);
    if (c.storage == STORE_F32) return append<F32>(p, c);
    return c.storage == STORE_F16 ? append<F16>(p, c) : append<BF16>(p, c);
}

// The copies below use no pool of threads, so they may run beside a step, in any thread.

void pt_page_copy(void* base, int64_t layers, int64_t layer_bytes, int64_t page_bytes,
                  int64_t source, int64_t target) {
    for (int64_t layer = 0; layer < layers; layer++) {
        char* at = static_cast<char*>(base) + layer * layer_bytes;
        std::memcpy(at + target * page_bytes, at + source * page_bytes, size_t(page_bytes));
    }
}

// Rows [start, end) of a page table, layer by layer, into packed bytes.
void pt_gather(void* base, int64_t layers, int64_t layer_bytes, int64_t page_bytes,
               int64_t row_bytes, int64_t page_tokens, const int32_t* pages, int64_t start,
               int64_t end, void* packed) {
    each_run(static_cast<char*>(base), layers, layer_bytes, page_bytes, row_bytes, page_tokens,
             pages, start, end, [&](char* at, int64_t offset, int64_t n) {
                 std::memcpy(static_cast<char*>(packed) + offset, at, size_t(n));
             });
}

void pt_scatter(void* base, int64_t layers, int64_t layer_bytes, int64_t page_bytes,
                int64_t row_bytes, int64_t page_tokens, const int32_t* pages, int64_t start,
                int64_t end, const void* packed) {
    each_run(static_cast<char*>(base), layers, layer_bytes, page_bytes, row_bytes, page_tokens,
             pages, start, end, [&](char* at, int64_t offset, int64_t n) {
                 std::memcpy(at, static_cast<const char*>(packed) + offset, size_t(n));
             });
}
}
