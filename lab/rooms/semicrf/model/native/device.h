// What both CUDA C sources begin with. Given by the compiler's command line: CP (labels, padded to 32, 64 or 128), USED (labels,
// padded to a multiple of 8), THREADS (a multiple of CP, at least twice as many), N (frames in a block, a multiple of 4 and of
// THREADS / CP).

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned char u8;
template <typename Value> using In = const Value* __restrict__;
template <typename Value> using Out = Value* __restrict__;
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define INSIDE static __device__ __forceinline__
#define UNROLLED(i, begin, stop) _Pragma("unroll") for (int i = begin; i < (stop); ++i)
#define SLICES (THREADS / CP)
#define ROUND 16 /* threads that are left by the first of two rounds over a block */
#ifndef LABELS_SYNC // a barrier of the first CP threads alone: of one warp it costs next to nothing
#if CP == 32
#define LABELS_SYNC() __syncwarp()
#else
#define LABELS_SYNC() asm volatile("bar.sync 1, %0;" ::"n"(CP) : "memory")
#endif
#endif

INSIDE int smaller(int a, int b) { return a < b ? a : b; }
INSIDE int higher(int a, int b) { return a > b ? a : b; }
INSIDE double larger(double a, double b) { return a > b ? a : b; } // fmax is no instruction of double, and minds NaN
INSIDE double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }

// 2^exponent; 0 or the largest power where the type has none.
INSIDE double power_of_two_64(int exponent) {
    const int raw = exponent < -1023 ? 0 : exponent > 1023 ? 2046 : exponent + 1023;
    return __longlong_as_double((i64)raw << 52);
}

INSIDE int length_of(const i64* lengths, int b, int frames) {
    const i64 given = lengths[b];
    return given < 0 ? 0 : given > frames ? frames : (int)given;
}
