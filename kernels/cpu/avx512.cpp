#include "common.h"
#ifdef DX_X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c" DX_TILE_TARGETS))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,prefer-vector-width=512")
#ifdef DX_TILES
#pragma GCC target("amx-tile,amx-bf16")
#endif
#endif
namespace dx_avx512 {
#define DX_AVX512 1
#include "bodies.inc"
}
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
