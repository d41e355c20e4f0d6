// How the CPU library is put together (one source, three instruction sets):
//   ops.def      one line per op: OP(name, (C++ parameters)). Pointers arrive from Python as ints (0 = absent),
//                integers as int64_t or int, reals as float or double. A function returns an int64_t status (0 = fine).
//   x.inc        the bodies of an op, plain functions `int64_t name(parameters)`, written against simd.h.
//   bodies.inc   the list of .inc files; avx2.cpp, avx512.cpp and neon.cpp compile it, each in a namespace of its own.
//                On AMX the ops are those of avx512 but for products of bf16 weights: has_tiles says so.
//   module.cpp   the Python method table of each instruction set; the best one the CPU supports is picked at import.
// To add an op: write x.inc, add one line to bodies.inc and one to ops.def. The GIL is released around every call.
// Rules: standard headers only here (never inside .inc: they would be compiled for the wrong CPU); no std templates
// in hot code; the library is built with -ffp-contract=off, so a fused multiply-add is written fma(a, b, c) and
// everything else rounds each step; a row's arithmetic never depends on how many rows there are or on num_threads.
// Parallel work goes through parallel_for (pool.h) or for_rows (simd.h), with num_threads from the caller.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define DX_X86 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#define DX_ARM 1
#endif

// AMX: from GCC 11 and Clang 12 on; whether this machine has it is asked at import.
#if defined(DX_X86) && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define DX_TILES 1
#define DX_TILE_TARGETS ",amx-tile,amx-bf16"
#else
#define DX_TILE_TARGETS ""
#endif

#define DX_INLINE static inline __attribute__((always_inline))

#define OP(name, params) int64_t name params;
#ifdef DX_X86
namespace dx_avx2 {
#include "ops.def"
}
namespace dx_avx512 {
#include "ops.def"
extern bool has_tiles;  // products of bf16 weights run on AMX tiles
}
#endif
#ifdef DX_ARM
namespace dx_neon {
#include "ops.def"
}
#endif
#undef OP
