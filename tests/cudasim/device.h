// What CUDA C of TVM needs to be compiled by g++ and run by driver.cc, one fiber a thread: qualifiers,
// vectors, halves, shuffles, and tensor cores by wmma and by the PTX of mma programs. Products of
// halves are exact, sums float32 and rounded once.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

struct dim3 { unsigned x, y, z; };
struct SimThread { dim3 threadIdx, blockIdx; };
using SimOp = void (*)(void** lanes);
extern "C" {
SimThread sim_thread();
int sim_lane();
char* sim_dynamic_shared();
void sim_barrier(int line);
unsigned sim_active();
// All lanes of a warp meet, then `operation` runs once with what each has given (null: it is gone).
void sim_meet(void* given, SimOp operation, unsigned mask);
bool sim_touch(const void* p, unsigned bytes, bool write);  // by a warp; false: leave it alone
void sim_cp_async(void* to, const void* from, unsigned bytes);
void sim_cp_commit();
void sim_cp_wait(unsigned left);
}

inline void sim_copy(void* to, const void* from, unsigned bytes, bool is_wanted = true) {
  if (is_wanted) return sim_cp_async(to, from, bytes);
  for (unsigned i = 0; i < bytes / 4; ++i) ((uint32_t*)to)[i] = 0;
}

// Inlined even by -O0: gcc's thread sanitizer does not see the store of an aggregate that a call
// returns, so `*(float4*)p = make_float4(...)` would go unseen, its races with it, and what reads it
// would look unwritten.
#define SIM_INLINE inline __attribute__((always_inline))
#define __device__ __attribute__((always_inline))
#define __global__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define alignas(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("sim_shared")))
#define __syncthreads() sim_barrier(__LINE__)
#define __syncwarp(...) sim_meet((void*)1, [](void**) {}, SIM_ALL)
#define __activemask() sim_active()
#define __cvta_generic_to_shared(p) ((uintptr_t)(p))
#define __ldg(p) (*(p))
constexpr unsigned SIM_ALL = 0xffffffffu;

struct half {
  _Float16 v;
  half() = default;
  half(float x) : v((_Float16)x) {}
  half(double x) : v((_Float16)x) {}
  half(int x) : v((_Float16)(float)x) {}
  operator float() const { return (float)v; }
};
using __half = half;
#define SIM_ARITHMETIC(o) SIM_INLINE half operator o(half a, half b) { return half((float)a o (float)b); }
#define SIM_COMPARISON(o) SIM_INLINE bool operator o(half a, half b) { return (float)a o (float)b; }
#define SIM_OF_HALF(name, f) SIM_INLINE half name(half x) { return half(f); }
SIM_ARITHMETIC(+) SIM_ARITHMETIC(-) SIM_ARITHMETIC(*) SIM_ARITHMETIC(/)
SIM_COMPARISON(<) SIM_COMPARISON(>) SIM_COMPARISON(<=) SIM_COMPARISON(>=) SIM_COMPARISON(==) SIM_COMPARISON(!=)
SIM_OF_HALF(operator-, -(float)x) SIM_OF_HALF(hexp, expf(x)) SIM_OF_HALF(hlog, logf(x)) SIM_OF_HALF(htanh, tanhf(x))
SIM_OF_HALF(hsqrt, sqrtf(x)) SIM_OF_HALF(hrsqrt, 1.0f / sqrtf(x))
SIM_INLINE bool __hgt(half a, half b) { return a > b; }
SIM_INLINE bool __hlt(half a, half b) { return a < b; }
SIM_INLINE float __half2float(half x) { return x; }
SIM_INLINE half __float2half(float x) { return x; }
SIM_INLINE half __float2half_rn(float x) { return x; }

#define SIM_VECTORS(T, N)                                                                     \
  struct __attribute__((aligned(sizeof(T) * 2))) N##2 { T x, y; };                            \
  struct N##3 { T x, y, z; };                                                                 \
  struct __attribute__((aligned(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4))) N##4 { T x, y, z, w; }; \
  SIM_INLINE N##2 make_##N##2(T x, T y) { return {x, y}; }                                    \
  SIM_INLINE N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }                            \
  SIM_INLINE N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIM_VECTORS(float, float) SIM_VECTORS(int, int) SIM_VECTORS(unsigned, uint) SIM_VECTORS(unsigned short, ushort)
SIM_VECTORS(short, short) SIM_VECTORS(signed char, char) SIM_VECTORS(unsigned char, uchar)
SIM_VECTORS(double, double) SIM_VECTORS(long long, longlong)
struct __attribute__((aligned(4))) half2 { half x, y; };
using __half2 = half2;
SIM_INLINE half2 make_half2(half x, half y) { return {x, y}; }
SIM_INLINE half2 __halves2half2(half x, half y) { return {x, y}; }

template <class T> using SimNumber = std::enable_if_t<std::is_arithmetic_v<T>, T>;
template <class T> SIM_INLINE SimNumber<T> max(T a, T b) { return a > b ? a : b; }
template <class T> SIM_INLINE SimNumber<T> min(T a, T b) { return a < b ? a : b; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }

struct SimShuffle { char in[16], out[16]; int from; };
template <class T> T sim_shuffle(unsigned mask, T value, int from) {
  SimShuffle own;
  memcpy(own.in, &value, sizeof value), own.from = from;
  sim_meet(&own, [](void** lanes) {
    for (int l = 0; l < 32; ++l) {
      auto* to = (SimShuffle*)lanes[l];
      if (!to) continue;
      auto* from = (SimShuffle*)lanes[to->from];
      if (from) memcpy(to->out, from->in, 16);
      else memset(to->out, 0xff, 16);  // undefined: here NaN
    }
  }, mask);
  memcpy(&value, own.out, sizeof value);
  return value;
}
template <class T> T __shfl_sync(unsigned mask, T v, int from, int width = 32) { return sim_shuffle(mask, v, sim_lane() / width * width + from % width); }
template <class T> T __shfl_xor_sync(unsigned mask, T v, int lanes, int = 32) { return sim_shuffle(mask, v, sim_lane() ^ lanes); }
template <class T> T __shfl_down_sync(unsigned mask, T v, int by, int width = 32) {
  int lane = sim_lane(), from = lane + by;
  return sim_shuffle(mask, v, from / width == lane / width ? from : lane);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, int by, int width = 32) {
  int lane = sim_lane(), from = lane - by;
  return sim_shuffle(mask, v, from >= lane / width * width ? from : lane);
}

namespace nvcuda::wmma {
struct matrix_a; struct matrix_b; struct accumulator; struct row_major; struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class L = void> struct fragment {
  static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M, columns = std::is_same_v<Use, matrix_a> ? K : N;
  static constexpr int num_elements = rows * columns / 32;
  T x[num_elements];  // CUDA leaves open which; here element i of lane l is number 32 i + l by rows
};
template <class F> void fill_fragment(F& f, float v) { for (auto& x : f.x) x = v; }

template <class F, class P> struct SimMove { F* fragment; P* memory; unsigned stride; bool by_columns; };
template <bool STORE, class F, class P> void sim_move(F& f, P* p, unsigned stride, bool by_columns) {
  SimMove<F, P> own{&f, p, stride, by_columns};
  sim_meet(&own, [](void** lanes) {
    for (int l = 0; l < 32; ++l) {
      auto& lane = *(SimMove<F, P>*)lanes[l];
      for (int i = 0; i < F::num_elements; ++i) {
        int row = (32 * i + l) / F::columns, column = (32 * i + l) % F::columns;
        P* at = lane.memory + (lane.by_columns ? column * lane.stride + row : row * lane.stride + column);
        if (!sim_touch(at, sizeof *at, STORE)) return;
        if constexpr (STORE) *at = (P)lane.fragment->x[i];
        else lane.fragment->x[i] = *at;
      }
    }
  }, SIM_ALL);
}
template <class U, int M, int N, int K, class T, class L, class P>
void load_matrix_sync(fragment<U, M, N, K, T, L>& f, P* p, unsigned stride) { sim_move<false>(f, p, stride, std::is_same_v<L, col_major>); }
template <class F, class P> void store_matrix_sync(P* p, F& f, unsigned stride, layout_t layout) { sim_move<true>(f, p, stride, layout == mem_col_major); }

template <class D, class A, class B, class C> struct SimProduct { D* d; A* a; B* b; C* c; };
template <class D, class A, class B, class C> void mma_sync(D& d, A& a, B& b, C& c) {
  using Own = SimProduct<D, A, B, C>;
  Own own{&d, &a, &b, &c};
  sim_meet(&own, [](void** lanes) {
    constexpr int M = A::rows, K = A::columns, N = B::columns;
    float fa[M * K], fb[K * N], fc[M * N];
    for (int l = 0; l < 32; ++l) {
      auto& lane = *(Own*)lanes[l];
      for (int i = 0; i < A::num_elements; ++i) fa[32 * i + l] = lane.a->x[i];
      for (int i = 0; i < B::num_elements; ++i) fb[32 * i + l] = lane.b->x[i];
      for (int i = 0; i < C::num_elements; ++i) fc[32 * i + l] = lane.c->x[i];
    }
    for (int m = 0; m < M; ++m)
      for (int k = 0; k < K; ++k)
        for (int n = 0; n < N; ++n) fc[m * N + n] += fa[m * K + k] * fb[k * N + n];
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < D::num_elements; ++i) ((Own*)lanes[l])->d->x[i] = fc[32 * i + l];
  }, SIM_ALL);
}
}  // namespace nvcuda::wmma

// ldmatrix .x4 and mma.m16n8k8 with the fragments of the PTX ISA: a register has two halves, lane l
// the elements 2 (l % 4) and the next of row l / 4.
struct SimRows { const void* row; unsigned* out[4]; };
template <bool TRANSPOSED> void sim_ldmatrix_x4(const void* row, unsigned& a, unsigned& b, unsigned& c, unsigned& d) {
  SimRows own{row, {&a, &b, &c, &d}};
  sim_meet(&own, [](void** lanes) {
    uint16_t m[4][8][8];
    for (int l = 0; l < 32; ++l) {  // lane l names row l % 8 of matrix l / 8
      const void* row = ((SimRows*)lanes[l])->row;
      if (!sim_touch(row, 16, false)) return;
      memcpy(m[l / 8][l % 8], row, 16);
    }
    for (int l = 0; l < 32; ++l)
      for (int i = 0; i < 4; ++i) {
        int row = l / 4, column = l % 4 * 2;
        uint16_t low = TRANSPOSED ? m[i][column][row] : m[i][row][column];
        uint16_t high = TRANSPOSED ? m[i][column + 1][row] : m[i][row][column + 1];
        *((SimRows*)lanes[l])->out[i] = low | (unsigned)high << 16;
      }
  }, SIM_ALL);
}
inline float sim_half_of(unsigned pair, int which) {
  uint16_t bits = pair >> (16 * which);
  half h;
  memcpy(&h, &bits, 2);
  return h;
}
inline unsigned sim_pair(float low, float high) {
  half halves[2] = {low, high};
  unsigned pair;
  memcpy(&pair, halves, 4);
  return pair;
}
struct SimMma { unsigned a[2], b; float c[4]; };
inline void sim_m16n8k8(SimMma& own) {
  sim_meet(&own, [](void** lanes) {
    float a[16][8], b[8][8], c[16][8];
    for (int l = 0; l < 32; ++l) {
      auto& lane = *(SimMma*)lanes[l];
      for (int i = 0, g = l / 4, t = l % 4 * 2; i < 2; ++i) {
        a[g][t + i] = sim_half_of(lane.a[0], i), a[g + 8][t + i] = sim_half_of(lane.a[1], i);
        b[t + i][g] = sim_half_of(lane.b, i);
        c[g][t + i] = lane.c[i], c[g + 8][t + i] = lane.c[2 + i];
      }
    }
    for (int m = 0; m < 16; ++m)
      for (int k = 0; k < 8; ++k)
        for (int n = 0; n < 8; ++n) c[m][n] += a[m][k] * b[k][n];
    for (int l = 0; l < 32; ++l)
      for (int i = 0, g = l / 4, t = l % 4 * 2; i < 2; ++i) ((SimMma*)lanes[l])->c[i] = c[g][t + i], ((SimMma*)lanes[l])->c[2 + i] = c[g + 8][t + i];
  }, SIM_ALL);
}
inline void sim_mma_f16(unsigned& d0, unsigned& d1, unsigned a0, unsigned a1, unsigned b, unsigned c0, unsigned c1) {
  SimMma own{{a0, a1}, b, {sim_half_of(c0, 0), sim_half_of(c0, 1), sim_half_of(c1, 0), sim_half_of(c1, 1)}};
  sim_m16n8k8(own);
  d0 = sim_pair(own.c[0], own.c[1]), d1 = sim_pair(own.c[2], own.c[3]);
}
inline void sim_mma_f32(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned b, float c0, float c1, float c2, float c3) {
  SimMma own{{a0, a1}, b, {c0, c1, c2, c3}};
  sim_m16n8k8(own);
  d0 = own.c[0], d1 = own.c[1], d2 = own.c[2], d3 = own.c[3];
}

// A kernel called with the values that a launch points to; its own hooks do not see these.
template <class... A, std::size_t... I>
__attribute__((noinline, no_sanitize_thread)) void sim_call(void (*kernel)(A...), void** values, std::index_sequence<I...>) {
  kernel(*(std::remove_reference_t<A>*)values[I]...);
}
template <class... A> constexpr unsigned sim_count(void (*)(A...)) { return sizeof...(A); }
template <class... A> void sim_call(void (*kernel)(A...), void** values) { sim_call(kernel, values, std::index_sequence_for<A...>{}); }
