// One vector of W floats per instruction set, on GCC/Clang vector extensions: + - * / comparisons, ?: and shifts work
// on vf (float), vi (int32) and vu (uint32) directly. Included inside the namespace of the instruction set.
#if defined(DX_AVX512)
constexpr int W = 16;
#elif defined(DX_AVX2)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));

DX_INLINE vf load(const float *p) { vf v; __builtin_memcpy(&v, p, sizeof v); return v; }
DX_INLINE vu load_u32(const void *p) { vu v; __builtin_memcpy(&v, p, sizeof v); return v; }
DX_INLINE void store(float *p, vf v) { __builtin_memcpy(p, &v, sizeof v); }
DX_INLINE vf splat(float x) { return x - vf{}; }
DX_INLINE vi splat_i(int32_t x) { return x - vi{}; }
DX_INLINE vf select(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }  // mask lanes are 0 or -1

#if defined(DX_AVX512)
DX_INLINE vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
DX_INLINE vf vsqrt(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }
DX_INLINE vf to_float(vi a) { return (vf)_mm512_cvtepi32_ps((__m512i)a); }
DX_INLINE vf load_f16(const void *p) { return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
DX_INLINE vf load_i8(const void *p) {
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
#elif defined(DX_AVX2)
DX_INLINE vf fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
DX_INLINE vf vsqrt(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
DX_INLINE vf to_float(vi a) { return (vf)_mm256_cvtepi32_ps((__m256i)a); }
DX_INLINE vf load_f16(const void *p) { return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
DX_INLINE vf load_i8(const void *p) {
  return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
#else
DX_INLINE vf fma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
DX_INLINE vf vsqrt(vf a) { return (vf)vsqrtq_f32((float32x4_t)a); }
DX_INLINE vf to_float(vi a) { return (vf)vcvtq_f32_s32((int32x4_t)a); }
DX_INLINE vf load_f16(const void *p) { return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p))); }
DX_INLINE vf load_i8(const void *p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(word)));
  return (vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
#endif

// Lanes added pairwise by halves: a fixed order.
DX_INLINE float hsum(vf v) {
  float lane[W];
  store(lane, v);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}
DX_INLINE float hmax(vf v) {
  float best = v[0];
  for (int i = 1; i < W; ++i) best = v[i] > best ? v[i] : best;
  return best;
}
DX_INLINE vf vmax(vf a, vf b) { return select(a > b, a, b); }

// First n (0..W) floats, zero beyond / only those written.
DX_INLINE vf load_part(const float *p, int64_t n) {
  float lane[W] = {};
  for (int64_t i = 0; i < n; ++i) lane[i] = p[i];
  return load(lane);
}
DX_INLINE void store_part(float *p, vf v, int64_t n) {
  float lane[W];
  store(lane, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lane[i];
}

// e^x, relative error below 2e-7 (Cody-Waite reduction, degree-6 polynomial); 0 below -87.3, about 2.4e38 above 88.37;
// NaN stays NaN. The same operations in every lane, so a tail handled through load_part gives the same bits.
DX_INLINE vf vexp(vf x) {
  const vi low = x < -87.33654f;
  x = select(x > 88.37f, splat(88.37f), x);
  x = select(low, splat(-87.33654f), x);
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: the sum's low bits are round(x / ln 2)
  const vf shifted = fma(x, splat(1.44269504088896341f), magic);
  const vf n = shifted - magic;
  vf r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  vf p = splat(1.0f / 720);
  p = fma(p, r, splat(1.0f / 120));
  p = fma(p, r, splat(1.0f / 24));
  p = fma(p, r, splat(1.0f / 6));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  const vf scale = (vf)(((vi)shifted + 127) << 23);
  return select(low, vf{}, p * scale);
}

// Cheap work on T rows of `width` floats each, cut into items of at least 8192 floats: one item stays with the caller.
template <typename F> DX_INLINE void for_rows(int64_t T, int64_t width, int num_threads, const F &row) {
  const int64_t grain = 8192 / (width > 0 ? width : 1) + 1;
  parallel_for((T + grain - 1) / grain, num_threads, [&](int64_t item, int) {
    const int64_t end = (item + 1) * grain < T ? (item + 1) * grain : T;
    for (int64_t t = item * grain; t < end; ++t) row(t);
  });
}
