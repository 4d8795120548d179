/* Counts of NaN, infinities and subnormals of dense tensors in this process's memory, one dtype per call; the plain
 * form is `plain_counts` in count.py.
 *
 * Above the sign bit, an IEEE number's bits order like its magnitude: infinity is the exponent alone, what is
 * greater is NaN. So one look at each number finds the largest magnitude, and only a tensor in which that is no
 * finite number is looked at again. This file includes itself for each width of numbers.
 */
#ifndef T
#include <stdint.h>
#include <string.h>

#define KINDS 5 /* nan, posinf, neginf, subnormal, absmax: a row of the result */
#define VECTOR 32 /* bytes */
#define TOGETHER 4 /* vectors, so that none waits for the other */
#define MOST_ROUNDS 8192 /* of a sum in 16 bits */
#define JOINED(name, bits) name##_##bits
#define WITH(name, bits) JOINED(name, bits)
#define NAMED(name) WITH(name, BITS)
#ifdef __x86_64__
#define WIDE __builtin_cpu_supports("avx2")
#define FOR_WIDE __attribute__((target("avx2")))
#else
#define WIDE 0
#define FOR_WIDE
#endif

typedef struct {
    int64_t kinds[4];
    int64_t largest; /* bits of the largest finite magnitude */
} Found;

#define T int16_t
#define BITS 16
#include "counts.c"
#define T int32_t
#define BITS 32
#include "counts.c"
#define T int64_t
#define BITS 64
#include "counts.c"

/* A number from its bits. */
static double number_16(int64_t bits)
{
    int64_t exponent = bits >> 10, fraction = bits & 0x3FF;
    double number = exponent ? (double)(fraction | 0x400) : (double)fraction;
    for (exponent = (exponent ? exponent : 1) - 25; exponent < 0; exponent++)
        number /= 2;
    for (; exponent > 0; exponent--)
        number *= 2;
    return number;
}

static double number_32(int64_t bits)
{
    uint32_t word = (uint32_t)bits;
    float number;
    if (word < 0x00800000) /* a subnormal, which the processor may take for 0 where the program asked for that */
        return word / 0x1p149;
    memcpy(&number, &word, sizeof number);
    return number;
}

static double number_64(int64_t bits)
{
    double number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

int64_t count_kinds(void) { return KINDS; }

/* rows: (tensors, KINDS), -1 for subnormals that nobody asked for. format: 0 half, 1 bfloat16, 2 float, 3 double.
 * Without rows (NULL) only how many tensors hold something bad; -1 for another format. */
int64_t count_tensors(int64_t tensors, const uint64_t *addresses, const int64_t *sizes, int format, int subnormals,
                      double *rows)
{
    int64_t bad = 0;
    for (int64_t at = 0; at < tensors; at++) {
        const char *bytes = (const char *)(uintptr_t)addresses[at];
        double unread[KINDS], *row = rows ? rows + at * KINDS : unread;
        Found found = {{0}, 0};
        switch (format) {
        case 0:
            bad += count_16(bytes, sizes[at], 0x7C00, 0x0400, subnormals, &found);
            row[4] = number_16(found.largest);
            break;
        case 1:
            bad += count_16(bytes, sizes[at], 0x7F80, 0x0080, subnormals, &found);
            row[4] = number_32(found.largest << 16);
            break;
        case 2:
            bad += count_32(bytes, sizes[at], 0x7F800000, 0x00800000, subnormals, &found);
            row[4] = number_32(found.largest);
            break;
        case 3:
            bad += count_64(bytes, sizes[at], 0x7FF0000000000000, 0x0010000000000000, subnormals, &found);
            row[4] = number_64(found.largest);
            break;
        default:
            return -1;
        }
        for (int kind = 0; kind < 4; kind++)
            row[kind] = (double)found.kinds[kind];
        if (!subnormals)
            row[3] = -1;
    }
    return bad;
}

#else

typedef T NAMED(vector) __attribute__((vector_size(VECTOR)));

/* The first look: in vectors, then at what is left. */
static inline __attribute__((always_inline)) void NAMED(look)(const char *bytes, int64_t count, T normal,
                                                              int subnormals, Found *found)
{
    const T mask = (T)~((T)1 << (BITS - 1));
    const int64_t lanes = VECTOR / sizeof(T), step = lanes * TOGETHER;
    NAMED(vector) most[TOGETHER] = {{0}}, few[TOGETHER];
    T largest = 0, lane[VECTOR / sizeof(T)];
    int64_t at = 0, tiny = 0;
    while (at + step <= count) {
        memset(few, 0, sizeof few);
        for (int64_t round = 0; round < MOST_ROUNDS && at + step <= count; round++, at += step)
            for (int one = 0; one < TOGETHER; one++) {
                NAMED(vector) size, more;
                memcpy(&size, bytes + (at + one * lanes) * sizeof(T), VECTOR);
                size &= mask;
                more = size > most[one];
                most[one] = (size & more) | (most[one] & ~more);
                if (subnormals)
                    few[one] -= (size > 0) & (size < normal);
            }
        for (int one = 0; subnormals && one < TOGETHER; one++) {
            memcpy(lane, &few[one], VECTOR);
            for (int64_t n = 0; n < lanes; n++)
                tiny += lane[n];
        }
    }
    for (int one = 0; one < TOGETHER; one++) {
        memcpy(lane, &most[one], VECTOR);
        for (int64_t n = 0; n < lanes; n++)
            largest = lane[n] > largest ? lane[n] : largest;
    }
    for (; at < count; at++) {
        T size;
        memcpy(&size, bytes + at * sizeof(T), sizeof(T));
        size &= mask;
        largest = size > largest ? size : largest;
        tiny += size > 0 && size < normal;
    }
    found->kinds[3] = tiny;
    found->largest = largest;
}

/* The same code for any processor of this kind and, on x86-64, for those with wider vectors. */
static void NAMED(plain)(const char *bytes, int64_t count, T normal, int subnormals, Found *found)
{
    if (subnormals)
        NAMED(look)(bytes, count, normal, 1, found);
    else
        NAMED(look)(bytes, count, normal, 0, found);
}

FOR_WIDE static void NAMED(wide)(const char *bytes, int64_t count, T normal, int subnormals, Found *found)
{
    if (subnormals)
        NAMED(look)(bytes, count, normal, 1, found);
    else
        NAMED(look)(bytes, count, normal, 0, found);
}

/* Whether anything is bad. */
static int NAMED(count)(const char *bytes, int64_t count, T infinity, T normal, int subnormals, Found *found)
{
    const T mask = (T)~((T)1 << (BITS - 1));
    T largest = 0;
    (WIDE ? NAMED(wide) : NAMED(plain))(bytes, count, normal, subnormals, found);
    if (found->largest < infinity)
        return 0;
    for (int64_t at = 0; at < count; at++) {
        T number, size;
        memcpy(&number, bytes + at * sizeof(T), sizeof(T));
        size = number & mask;
        if (size > infinity)
            found->kinds[0]++;
        else if (size == infinity)
            found->kinds[number > 0 ? 1 : 2]++;
        else
            largest = size > largest ? size : largest;
    }
    found->largest = largest;
    return 1;
}

#undef T
#undef BITS
#endif
