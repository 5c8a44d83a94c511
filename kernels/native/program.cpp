// A step written down: operations with their arguments, run one after the other in one call.
//
// The arguments point at fixed arrays, so the same list serves every step of one shape: only what
// the arrays hold changes in between.

#include <cstdint>

namespace pt {

struct Launch {
    int32_t (*operation)(void* pool, const void* arguments);
    const void* arguments;
};

}  // namespace pt

// Stops at the first operation that answers something else than 0, and answers that.
extern "C" int32_t pt_run(void* pool, const pt::Launch* launches, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (const int32_t failed = launches[i].operation(pool, launches[i].arguments))
            return failed;
    return 0;
}
