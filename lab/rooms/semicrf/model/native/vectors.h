// Vectors of float64, and threads that take sequences in turn: what the C++ forms share. Nothing but the standard library.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <thread>
#include <vector>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

// As wide as the processor's registers: compilers take wider vectors apart through memory, at a tenth of the speed.
#if defined(LAB_LANES)
constexpr int LANES = LAB_LANES;  // the tests try what other processors have
#elif defined(__AVX512F__)
constexpr int LANES = 8;
#elif defined(__AVX__)
constexpr int LANES = 4;
#else
constexpr int LANES = 2;
#endif
constexpr int PADDED = 8;
constexpr double INF = std::numeric_limits<double>::infinity();

typedef double V __attribute__((vector_size(LANES * sizeof(double))));
typedef decltype(V{} > V{}) M;  // lanes of -1 where true, of 0 where not

inline V all(double value) { return value - V{}; }
inline V pick(M mask, V yes, V no) { return (V)((mask & (M)yes) | (~mask & (M)no)); }
inline V larger(V a, V b) { return a > b ? a : b; }
inline V smaller(V a, V b) { return a < b ? a : b; }

inline bool any(M mask) {
    long found = 0;
    for (int i = 0; i < LANES; ++i) found |= mask[i];
    return found != 0;
}

inline double largest(V a) {
    double top = a[0];
    for (int i = 1; i < LANES; ++i) top = a[i] > top ? a[i] : top;
    return top;
}

inline double finite_or_zero(double x) { return std::fabs(x) < INF ? x : 0.0; }

inline double power_of_two(int64_t n) {
    int64_t raw = n + 1023;
    raw = raw < 0 ? 0 : raw > 2046 ? 2046 : raw;
    raw <<= 52;
    double value;
    std::memcpy(&value, &raw, 8);
    return value;
}

// exp within one unit in the last place: x = n ln 2 + r, Taylor's polynomial of r, and n into the exponent.
// What is below the normal numbers is zero: with them flushed, that is what it would become.
inline V exponential(V x) {
    constexpr double SHIFT = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
    V kept = larger(smaller(x, all(710.0)), all(-745.0));
    V shifted = kept * 1.4426950408889634 + SHIFT;
    V n = shifted - SHIFT;
    V r = kept - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10;
    V sum = all(1.0 / 6227020800.0);
    constexpr double terms[] = {479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0,
                                720.0,       120.0,      24.0,      6.0,      2.0,     1.0, 1.0};
    for (double term : terms) sum = sum * r + 1.0 / term;
    M power = ((M)shifted + 1023) << 52;
    V found = sum * (V)power;
    found = pick(x < -708.0, V{}, found);
    found = pick(x > 709.0, all(INF), found);
    return pick(x == x, found, x);
}

struct Free {
    void operator()(V* p) const { std::free(p); }
};
using Vectors = std::unique_ptr<V[], Free>;

Vectors vectors(int64_t count) {
    void* p = nullptr;
    if (posix_memalign(&p, 64, sizeof(V) * size_t(count > 0 ? count : 1))) throw std::bad_alloc();
    return Vectors(static_cast<V*>(p));
}

// One sequence's scores, (T, C): float64, or float32 where `single`.
struct Sequence {
    const void* score;
    int64_t length, labels;
    bool single;

    double at(int64_t t, int64_t c) const {
        const int64_t i = t * labels + c;
        return single ? double(static_cast<const float*>(score)[i]) : static_cast<const double*>(score)[i];
    }
    // Frame t, with `padding` up to whole vectors.
    void read(int64_t t, int64_t wide, double padding, V* line) const {
        double* flat = reinterpret_cast<double*>(line);
        if (single) std::copy_n(static_cast<const float*>(score) + t * labels, labels, flat);
        else std::copy_n(static_cast<const double*>(score) + t * labels, labels, flat);
        std::fill(flat + labels, flat + wide, padding);
    }
};

// What every function is given first, as Python lays it out: numbers of 64 bits and addresses. Arrays are contiguous, and hold
// float64 unless said otherwise.
struct Batch {
    int64_t batch, frames, longest, labels, threads, single;
    const void* score;       // (B, T, C), float32 where `single`
    const int64_t* lengths;  // (B,)
    const double *transition, *duration, *start, *end;  // (C, C), (K, C), (C,), (C,)

    int64_t length(int64_t b) const { return std::min(std::max<int64_t>(lengths[b], 1), frames); }
    int64_t padded() const { return (labels + PADDED - 1) / PADDED * PADDED; }
    Sequence sequence(int64_t b) const {
        const char* from = static_cast<const char*>(score) + b * frames * labels * (single ? 4 : 8);
        return {from, length(b), labels, single != 0};
    }
};

// `one(b, memory)` for every sequence, on up to x.threads threads; `memory` are a thread's `size` vectors. Throws bad_alloc where
// one did.
template <class One>
void in_turns(const Batch& x, int64_t size, const One& one) {
    const int64_t threads = std::max<int64_t>(1, std::min(x.threads, x.batch));
    const Vectors memory = vectors(size * threads);
    std::atomic<int64_t> next{0};
    std::atomic<bool> enough{true};
    const auto work = [&](int64_t thread) {
        try {
            for (int64_t b = next++; b < x.batch; b = next++) one(b, memory.get() + thread * size);
        } catch (const std::bad_alloc&) {
            enough = false;
        }
    };
    std::vector<std::thread> others;
    others.reserve(size_t(threads - 1));
    try {
        for (int64_t thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    } catch (const std::exception&) {
        // No more threads are to be had: those there are do all of it.
    }
    work(0);
    for (std::thread& other : others) other.join();
    if (!enough) throw std::bad_alloc();
}

// 0, or 1 where there is not enough memory.
template <class Body>
int guarded(const Body& body) {
    try {
        body();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

}  // namespace
