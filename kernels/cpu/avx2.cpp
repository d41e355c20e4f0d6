#include "common.h"
#ifdef DX_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
namespace dx_avx2 {
#define DX_AVX2 1
#include "bodies.inc"
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
