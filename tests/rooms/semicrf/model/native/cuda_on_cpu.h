// CUDA C compiled as C++: every thread of a block is a fiber, a barrier hands over to the next one.
//
// Enough of the language for lab/rooms/semicrf/model/native/semicrf.cu. Blocks run one after the other; `order` says in which
// order threads run between barriers (0 by number, 1 backwards, else shuffled), so that a missing barrier moves bits.
// Shared memory is filled with NaN before each block.

#include <cmath>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

using std::exp;
using std::fma;
using std::fmax;
using std::fmaxf;
using std::log;

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("shared_memory")))
#define __syncthreads() wait_for(0, running_block->threads)
#define LABELS_SYNC() wait_for(1, CP)

struct Index {
    int x, y, z;
};
static Index threadIdx, blockIdx, gridDim;
extern "C" char __start_shared_memory[], __stop_shared_memory[];

template <typename To, typename From> static To bits(From value) {
    To to;
    memcpy(&to, &value, sizeof to);
    return to;
}
static inline long long __double_as_longlong(double value) { return bits<long long>(value); }
static inline double __longlong_as_double(long long value) { return bits<double>(value); }
static inline int __float_as_int(float value) { return bits<int>(value); }
static inline float __int_as_float(int value) { return bits<float>(value); }

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    int waits = -1; // for which barrier
    bool done = false;
};

struct Block {
    int threads;
    void (*call)(void**);
    void** args;
    std::vector<Fiber> fibers;
    ucontext_t back;
    int current = 0;
};
static Block* running_block;

static void wait_for(int barrier, int threads) {
    Block& block = *running_block;
    int here = 1;
    for (Fiber& fiber : block.fibers) here += fiber.waits == barrier;
    if (here == threads) {
        for (Fiber& fiber : block.fibers)
            if (fiber.waits == barrier) fiber.waits = -1;
        return;
    }
    Fiber& own = block.fibers[block.current];
    own.waits = barrier;
    swapcontext(&own.context, &block.back);
}

static void enter() {
    Block& block = *running_block;
    block.call(block.args);
    block.fibers[block.current].done = true;
    swapcontext(&block.fibers[block.current].context, &block.back);
}

// One block, to its end; false where threads wait for a barrier that never comes.
static bool run_block(Block& block, int order) {
    static unsigned random = 1;
    running_block = &block;
    memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);
    for (Fiber& fiber : block.fibers) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.waits = -1;
        fiber.done = false;
        makecontext(&fiber.context, enter, 0);
    }
    for (;;) {
        bool left = false, moved = false;
        const int begin = order > 1 ? (random = random * 1664525u + 1013904223u) % block.threads : 0;
        for (int i = 0; i < block.threads; ++i) {
            const int tid = order == 0 ? i : order == 1 ? block.threads - 1 - i : (begin + i * 7) % block.threads;
            Fiber& fiber = block.fibers[tid];
            left |= !fiber.done;
            if (fiber.done || fiber.waits >= 0) continue;
            moved = true;
            block.current = tid;
            threadIdx = {tid, 0, 0};
            swapcontext(&block.back, &fiber.context);
        }
        if (!left) return true;
        if (!moved) return false;
    }
}

template <typename... Args, std::size_t... I>
static void unpack(void (*kernel)(Args...), void** args, std::index_sequence<I...>) {
    kernel(*static_cast<typename std::remove_cv<Args>::type*>(args[I])...);
}

template <typename Kernel, Kernel kernel> struct Caller;
template <typename... Args, void (*kernel)(Args...)> struct Caller<void (*)(Args...), kernel> {
    static void call(void** args) { unpack(kernel, args, std::index_sequence_for<Args...>()); }
};
struct Named {
    const char* name;
    void (*call)(void**);
};
extern const Named kernels[];

// 0 done, 1 no kernel of this name, 2 threads that wait for ever.
extern "C" int emulate(const char* name, int x, int y, int z, int threads, void** args, int order) {
    for (const Named* known = kernels; known->name; ++known) {
        if (strcmp(known->name, name)) continue;
        Block block;
        block.threads = threads;
        block.call = known->call;
        block.args = args;
        block.fibers.resize(threads);
        for (Fiber& fiber : block.fibers) fiber.stack.resize(1 << 16);
        gridDim = {x, y, z};
        for (blockIdx.z = 0; blockIdx.z < z; ++blockIdx.z)
            for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y)
                for (blockIdx.x = 0; blockIdx.x < x; ++blockIdx.x)
                    if (!run_block(block, order)) return 2;
        return 0;
    }
    return 1;
}
