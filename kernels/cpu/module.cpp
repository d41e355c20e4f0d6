// The CPython face of the library (limited API 3.11, METH_FASTCALL): `isa` and one function per line of ops.def.
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "common.h"
#ifdef DX_TILES
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

template <typename T> struct From {  // pointers
  static T get(PyObject *o) { return static_cast<T>(PyLong_AsVoidPtr(o)); }
};
template <> struct From<int64_t> {
  static int64_t get(PyObject *o) { return PyLong_AsLongLong(o); }
};
template <> struct From<int> {
  static int get(PyObject *o) { return static_cast<int>(PyLong_AsLong(o)); }
};
template <> struct From<float> {
  static float get(PyObject *o) { return static_cast<float>(PyFloat_AsDouble(o)); }
};
template <> struct From<double> {
  static double get(PyObject *o) { return PyFloat_AsDouble(o); }
};

template <size_t... I> struct Indices {};
template <size_t N, size_t... I> struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <size_t... I> struct MakeIndices<0, I...> { using type = Indices<I...>; };

template <typename F> struct Call;
template <typename... A> struct Call<int64_t (*)(A...)> {
  static constexpr Py_ssize_t count = sizeof...(A);
  template <int64_t (*function)(A...), size_t... I>
  static PyObject *run(PyObject *const *args, Indices<I...>) {
    return invoke<function>(From<A>::get(args[I])...);
  }
  template <int64_t (*function)(A...)> static PyObject *invoke(A... values) {
    if (PyErr_Occurred()) return nullptr;
    int64_t status;
    Py_BEGIN_ALLOW_THREADS
    status = function(values...);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(status);
  }
};

template <auto function> PyObject *method(PyObject *, PyObject *const *args, Py_ssize_t num_args) {
  using C = Call<decltype(function)>;
  if (num_args != C::count) {
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", C::count, num_args);
    return nullptr;
  }
  return C::template run<function>(args, typename MakeIndices<C::count>::type{});
}

#define OP(name, params) {#name, (PyCFunction)(void (*)())method<&DX_ISA::name>, METH_FASTCALL, nullptr},
#ifdef DX_X86
#define DX_ISA dx_avx2
PyMethodDef avx2_methods[] = {
#include "ops.def"
    {nullptr, nullptr, 0, nullptr}};
#undef DX_ISA
#define DX_ISA dx_avx512
PyMethodDef avx512_methods[] = {
#include "ops.def"
    {nullptr, nullptr, 0, nullptr}};
#undef DX_ISA
#endif
#ifdef DX_ARM
#define DX_ISA dx_neon
PyMethodDef neon_methods[] = {
#include "ops.def"
    {nullptr, nullptr, 0, nullptr}};
#undef DX_ISA
#endif
#undef OP

// Whether the processor has tiles for bf16, and Linux lets this process use them.
bool allow_tiles() {
#ifdef DX_TILES
  constexpr unsigned BF16_TILES = 1u << 22 | 1u << 24;
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & BF16_TILES) == BF16_TILES &&
         syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
#else
  return false;
#endif
}

// DECODEX_CPU_ISA=avx2 or avx512 pins a narrower set (to compare or to replay elsewhere).
PyMethodDef *pick(const char **isa) {
#ifdef DX_X86
  const char *set = getenv("DECODEX_CPU_ISA"), *pinned = set ? set : "";
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && strcmp(pinned, "avx2") != 0) {
    dx_avx512::has_tiles = strcmp(pinned, "avx512") != 0 && allow_tiles();
    return *isa = dx_avx512::has_tiles ? "amx" : "avx512", avx512_methods;
  }
  if (avx2) return *isa = "avx2", avx2_methods;
#endif
#ifdef DX_ARM
  return *isa = "neon", neon_methods;
#endif
  return nullptr;
}

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__C() {
  const char *isa = nullptr;
  definition.m_methods = pick(&isa);
  if (!definition.m_methods) {
    PyErr_SetString(PyExc_ImportError, "this CPU has none of AVX2+FMA+F16C, AVX-512, NEON");
    return nullptr;
  }
  PyObject *module = PyModule_Create(&definition);
  if (module && PyModule_AddStringConstant(module, "isa", isa) < 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
