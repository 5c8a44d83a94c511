// kv_append_*: the two slabs of a step into their pages by one list of slots (append.cuh): keys and
// values of n_kv heads, or latent and rotary rows, which have one head each. Without a second pool
// there is one slab.
#include "append.cuh"

#define DEFINE_APPEND(kernel, Elem)                                                               \
  PT_KERNEL(kernel, 256)(const float* first_rows, const float* second_rows, const i64* slots,     \
                         void* first_pool, void* second_pool, i32* error, i64 n_slots,            \
                         i64 first_row_stride, i64 second_row_stride, i64 first_page_stride,      \
                         i64 first_token_stride, i64 first_head_stride, i64 second_page_stride,   \
                         i64 second_token_stride, i64 second_head_stride, i32 n_rows,             \
                         i32 n_heads, i32 first_width, i32 second_width, i32 page_shift) {        \
    const Route route{slots, n_slots, page_shift, n_rows, n_heads, error};                        \
    const Slab first{first_rows, first_row_stride, first_pool,                                    \
                     {first_page_stride, first_token_stride, first_head_stride}, first_width};    \
    const Slab second{second_rows, second_row_stride, second_pool,                                \
                      {second_page_stride, second_token_stride, second_head_stride},              \
                      second_width};                                                              \
    append_slab<Elem>(first, route);                                                              \
    if (second_pool != nullptr) append_slab<Elem>(second, route);                                 \
  }                                                                                               \
  PT_EXPORT(kernel)

DEFINE_APPEND(kv_append_f16, F16)
DEFINE_APPEND(kv_append_bf16, BF16)
DEFINE_APPEND(kv_append_f32, F32)
