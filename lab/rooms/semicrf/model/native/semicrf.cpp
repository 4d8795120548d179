// The linear-domain semi-CRF on a CPU, float64: messages from both ends and every expected count.
//
// A plain C interface of pointers and sizes: no header of torch or Python, so one source serves every version of both.
// The recursion is that of model/factorised. Per frame t, with w the exponentials of its scores less their maximum:
//     alpha[t+1] = (pending[0] + gamma[t] D[1]) w      what ends here
//     pending[j] = (pending[j+1] + gamma[t] D[j+2]) w  what began and will end j+1 frames on
//     gamma[t+1] = alpha[t+1] E
// Before a frame the power of two of the largest alpha moves from its weights into an integer exponent: exact.
// What underflow may have lost is bounded per label (`lost`); a message that is not zero and below that bound times a
// margin marks its sequence, and so does a zero that the model does not forbid, which a pass with weights 0 and 1 tells.
//
// Labels are padded to a multiple of 8, whole vectors on every processor. A sequence is one task, and nothing in it is
// divided among threads or depends on its batch or padding: the same bits for any of them. All memory is taken before
// threads start.
#include "vectors.h"

namespace {

constexpr double TINY = std::numeric_limits<double>::min();  // below it digits are lost, and flushed to zero here
constexpr double MARGIN = 0x1p80;  // the loss is summed over up to K C terms and must stay below 1e-16 of a message
constexpr double MOST = 1e300;     // a factor beyond float64 meets a zero, or what is lost and marked
constexpr double LN2 = 0.6931471805599453;
constexpr double EXACT = 1e-9;     // a draw's weights must add up to the message, or underflow has lost some
constexpr int CROSSED = 32;        // frames between two products of the transition counts
constexpr int ROWS = 4;            // of the transition counts, held in registers

inline double total(V a) {
    double sum = a[0];
    for (int i = 1; i < LANES; ++i) sum += a[i];
    return sum;
}

// floor(log2 x), so that x 2^-that is in [1, 2); 0 for zero, inf and NaN. Held where 2^-that is a normal number.
inline int exponent_of(double x) {
    int64_t bits;
    std::memcpy(&bits, &x, 8);
    int raw = int(bits >> 52) & 2047;
    if (raw == 0 || raw == 2047) return 0;
    return raw - 1023 > 1000 ? 1000 : raw - 1023;
}

// Numbers too small for full precision are flushed to zero for as long as this lives: they cost a hundred times more.
class Flushing {
#if defined(__SSE2__)
    unsigned before = _mm_getcsr();
public:
    Flushing() { _mm_setcsr(before | 0x8040); }
    ~Flushing() { _mm_setcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;
public:
    Flushing() {
        asm volatile("mrs %0, fpcr" : "=r"(before));
        asm volatile("msr fpcr, %0" : : "r"(before | (1u << 24)));
    }
    ~Flushing() { asm volatile("msr fpcr, %0" : : "r"(before)); }
#else
public:
    Flushing() {}
#endif
};

// The model in the linear domain, or with `reach` as 0 and 1: what is forbidden and what is not.
struct Model {
    int64_t longest, labels, wide, nv;
    Vectors onward, back;  // E[c][c'] (C, nv) and its transpose
    Vectors duration;      // D[v][k - 1]: the vector of labels goes first, so that each runs through its own rows
    Vectors first, last;
    double margin, shift;
    bool rounded = false;  // whether a weight is zero, though nothing forbids it

    Model(const Batch& x, bool reach)
        : longest(x.longest), labels(x.labels), wide(x.padded()), nv(wide / LANES), onward(vectors(wide * nv)),
          back(vectors(wide * nv)), duration(vectors(longest * nv)), first(vectors(nv)), last(vectors(nv)) {
        const double across = finite_or_zero(maximum(x.transition, labels * labels));
        const double ending = finite_or_zero(maximum(x.end, labels));
        double most = 1.0;
        std::vector<double> row(size_t(wide), -INF);
        for (int64_t c = 0; c < wide; ++c) {
            fill(row, c < labels ? x.transition + c * labels : nullptr, 1);
            weigh(row, -across, reach, onward.get() + c * nv, 1);
            fill(row, c < labels ? x.transition + c : nullptr, labels);
            weigh(row, -across, reach, back.get() + c * nv, 1);
        }
        for (int64_t k = 0; k < longest; ++k) {
            fill(row, x.duration + k * labels, 1);
            weigh(row, across, reach, duration.get() + k, longest);  // all but the first pay a transition
            for (int64_t v = 0; v < nv; ++v) most = std::fmax(most, largest(duration[v * longest + k]));
        }
        fill(row, x.start, 1);
        weigh(row, -across, reach, first.get(), 1);
        fill(row, x.end, 1);
        weigh(row, -ending, reach, last.get(), 1);
        margin = most * MARGIN;
        shift = ending;
    }

    static double maximum(const double* values, int64_t count) {
        double top = -INF;
        for (int64_t i = 0; i < count; ++i) top = values[i] > top ? values[i] : top;
        return top;
    }

    void fill(std::vector<double>& row, const double* from, int64_t stride) const {
        for (int64_t c = 0; c < labels; ++c) row[size_t(c)] = from ? from[c * stride] : -INF;
    }

    void weigh(const std::vector<double>& row, double shift, bool reach, V* to, int64_t stride) {
        for (int64_t v = 0; v < nv; ++v) {
            V x;
            std::memcpy(&x, row.data() + v * LANES, sizeof(V));
            to[v * stride] = reach ? pick(x == -INF, V{}, all(1.0)) : exponential(x + shift);
            rounded |= any((x != -INF) & (to[v * stride] < TINY));
        }
    }
};

struct Weighed {
    double shift;   // the maximum that was taken out of the frame's scores
    double lowest;  // the smallest score that forbids nothing, less the maximum
};

// The weights of frame t.
Weighed weigh_frame(const Model& m, const Sequence& s, int64_t t, bool reach, V* weight) {
    s.read(t, m.wide, -INF, weight);
    V top = all(-INF);
    for (int64_t v = 0; v < m.nv; ++v) top = larger(weight[v], top);
    const double shift = finite_or_zero(largest(top));
    V low = all(INF);
    for (int64_t v = 0; v < m.nv; ++v) {
        const V score = weight[v];
        low = smaller(pick(score == -INF, all(INF), score), low);
        weight[v] = reach ? pick(score == -INF, V{}, all(1.0)) : exponential(score - shift);
    }
    return {shift, -largest(-low) - shift};
}

// out = x matrix, (wide,) times (wide, nv). Independent sums hide the latency of an addition; wide is a multiple of their number.
void product(const V* x, const V* matrix, const Model& m, V* out) {
    const double* flat = reinterpret_cast<const double*>(x);
    for (int64_t v = 0; v < m.nv; ++v) {
        V sum[4] = {};
        for (int64_t c = 0; c < m.wide; c += 4)
            for (int way = 0; way < 4; ++way) sum[way] += flat[c + way] * matrix[(c + way) * m.nv + v];
        out[v] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}

// K rows for each vector of labels that move by one row a frame: a window slides over a little more room, and
// goes back to the beginning when it has reached the end.
struct Window {
    int64_t rows, room, at = 0, nv;
    V* base;

    Window(V* base, int64_t rows, int64_t nv) : rows(rows), room(room_for(rows)), nv(nv), base(base) {}
    static int64_t room_for(int64_t rows) { return rows + std::max<int64_t>(16, rows / 8); }
    static int64_t size(int64_t rows, int64_t nv) { return room_for(rows) * nv; }
    V* row(int64_t v) const { return base + v * room + at; }

    void clear(int64_t begin) {
        at = begin;
        for (int64_t v = 0; v < nv; ++v) std::memset(static_cast<void*>(row(v)), 0, sizeof(V) * size_t(rows));
    }
    void move(int64_t to, int64_t count, int64_t from) {
        for (int64_t v = 0; v < nv; ++v)
            std::memmove(static_cast<void*>(base + v * room + to), base + v * room + from, sizeof(V) * size_t(count));
        at = to;
    }
    void forwards() {  // row 0 leaves, the new last row is zero
        if (++at + rows > room) move(0, rows - 1, at);
        for (int64_t v = 0; v < nv; ++v) row(v)[rows - 1] = V{};
    }
    void backwards() {  // the last row leaves, row 0 is to be written
        if (at == 0) move(room - rows + 1, rows - 1, 0);
        --at;
    }
};

struct Sums {  // compensated: the maxima of 10^5 frames add up to 10^6
    double sum = 0.0, rest = 0.0;
    void add(double x) {
        double next = sum + x;
        rest += std::fabs(sum) >= std::fabs(x) ? (sum - next) + x : (x - next) + sum;
        sum = next;
    }
};

// The largest exponent of the last `rows` frames, or of up to as many before.
struct Highest {
    int64_t rows, seen = 0, older = INT64_MIN / 2, newer = INT64_MIN / 2;

    explicit Highest(int64_t rows) : rows(rows) {}
    void add(int64_t power) {
        if (seen++ % rows == 0) {
            older = newer;
            newer = power;
        }
        newer = std::max(newer, power);
    }
    // What a pending row can exceed 1 by, in units of 2^now.
    double above(int64_t now) const { return power_of_two(std::max<int64_t>(std::max(older, newer) - now, 0)); }
};

// What underflow may have lost by now, and whether a message is below it.
//
// A product that becomes zero loses less than TINY. A weight that does (scaled by 2^-step) loses as much of each message
// that meets it: of the one that enters, up to 2^step, and of those that wait, which may come from larger ones.
struct Loss {
    double margin, bound;
    M bad{};
    V* lost;

    Loss(const Model& m, V* lost) : margin(m.margin), bound(TINY), lost(lost) {
        for (int64_t v = 0; v < m.nv; ++v) lost[v] = all(TINY);
    }
    // `waiting`: the largest message that waits, before the scaling; `met`: what meets the model's weights after it.
    void frame(const V* weight, int64_t nv, double lowest, int step, double waiting, double met) {
        const bool rounded = lowest < LN2 * (std::max(step, 0) - 1021);
        const double most_met = power_of_two(step) + waiting, floor = (1.0 + power_of_two(-step)) * most_met;
        const V least = all(rounded ? std::fmax(floor, 1.0) * TINY : TINY);
        V most = least;
        for (int64_t v = 0; v < nv; ++v) {
            lost[v] = larger(lost[v] * weight[v], least);
            most = larger(lost[v], most);
        }
        bound = largest(most) * margin * std::fmax(met, 1.0);
    }
    void look(V message) { bad |= (message != 0.0) & ~((message >= bound) & (message < INF)); }
    bool found(double z) const {  // in any message, in z, or by a weight beyond float64, which may meet a zero
        return any(bad) || (z != 0.0 && !(z >= bound && z < INF)) || !(margin < INF);
    }
};

// How many messages are more than zero.
struct Above {
    M lanes{};

    void look(V message) { lanes -= message > 0.0; }
    int64_t count(double z) const {
        int64_t sum = z > 0.0;
        for (int i = 0; i < LANES; ++i) sum += lanes[i];
        return sum;
    }
};

struct Kept {  // one sequence's rows: T + 1 of alpha and exponents, T of gamma; null when only log Z is wanted
    V *alpha, *gamma;
    int32_t* exponent;
    V* scaled = nullptr;  // T rows of the frames' weights, each in the next boundary's units
};

struct Found {
    double z = 0.0, log_shift = 0.0;
    int64_t power = 0, nonzero = 0;
    bool bad = false;
};

struct Scratch {
    V *window, *counts, *rows;
    static constexpr int ROWS_USED = 10;
};

// All but the first row of the window: gamma goes in, and the frame's weights are multiplied in.
void pass_on(const Model& m, const Window& window, const V* gamma, const V* weight, int64_t rows) {
    for (int64_t v = 0; v < m.nv; ++v) {
        V* row = window.row(v);
        const V* duration = m.duration.get() + v * m.longest;
        const V g = gamma[v], w = weight[v];
#pragma GCC unroll 4
        for (int64_t j = 1; j < rows; ++j) row[j] = (row[j] + g * duration[j]) * w;
    }
}

// The pass over the frames, from the left or, with `reversed`, from the right; REACH: with weights 0 and 1, saturated.
template <bool REACH>
Found walk(const Model& m, const Sequence& s, bool reversed, const Kept& kept, const Scratch& scratch) {
    const int64_t nv = m.nv, length = s.length, stride = kept.alpha ? nv : 0;
    const V *onward = (reversed ? m.back : m.onward).get(), *entry = (reversed ? m.last : m.first).get();
    V *scaled = kept.scaled ? kept.scaled : scratch.rows, *lost = scratch.rows + nv, *weight = lost + nv;
    V *alpha = kept.alpha ? kept.alpha : lost + 2 * nv, *gamma = kept.gamma ? kept.gamma : lost + 3 * nv;
    V *next = lost + 4 * nv;
    Window window(scratch.window, std::min(m.longest, length), nv);
    window.clear(0);
    Found found;
    Loss loss(m, lost);
    Above above;
    Highest highest(window.rows);
    Sums tops;
    V peak = V{};
    for (int64_t v = 0; v < nv; ++v) {
        alpha[v] = V{};
        next[v] = entry[v];
        peak = larger(entry[v], peak);
    }
    if (kept.exponent) kept.exponent[0] = 0;
    for (int64_t t = 0; t < length; ++t, gamma += stride, scaled += kept.scaled ? nv : 0) {
        const Weighed weighed = weigh_frame(m, s, reversed ? length - 1 - t : t, REACH, weight);
        tops.add(weighed.shift);
        const int step = REACH ? 0 : exponent_of(largest(peak));
        const double back = power_of_two(-step), waiting = highest.above(found.power);
        found.power += step;
        highest.add(found.power);
        alpha += stride;
        peak = V{};
        for (int64_t v = 0; v < nv; ++v) {
            gamma[v] = next[v];
            scaled[v] = weight[v] * back;
            alpha[v] = (window.row(v)[0] + gamma[v] * m.duration[v * m.longest]) * scaled[v];
            if (REACH) alpha[v] = smaller(alpha[v], all(1.0));
            peak = larger(alpha[v], peak);
        }
        if (kept.exponent) kept.exponent[t + 1] = int32_t(found.power);
        product(alpha, onward, m, next);
        pass_on(m, window, gamma, scaled, std::min(window.rows, length - t));
        if (!REACH) loss.frame(scaled, nv, weighed.lowest, step, waiting, largest(peak));
        for (int64_t v = 0; v < nv && t + 1 < length; ++v) {
            if (!REACH) loss.look(next[v]);
            above.look(next[v]);
        }
        window.forwards();
    }
    V z = V{};
    const V* leave = (reversed ? m.first : m.last).get();
    for (int64_t v = 0; v < nv; ++v) z += alpha[v] * leave[v];
    found.z = total(z);
    found.bad = !REACH && loss.found(found.z);
    found.nonzero = above.count(found.z);
    found.log_shift = tops.sum + tops.rest;
    return found;
}

// Of a batch: rows of messages have `wide` labels and lie at multiples of 64 bytes; gamma follows alpha in memory.
struct Messages {
    double *alpha, *gamma;  // (B, T+1, wide), or null
    int32_t* exponent;      // (B, T+1), or null
    double *z, *log_z;      // (B,)
    uint8_t* flagged;       // (B,)

    Kept kept(const Batch& x, int64_t b) const {
        if (!alpha) return {nullptr, nullptr, nullptr};
        const int64_t first = b * (x.frames + 1), at = first * x.padded() / LANES;
        auto rows = [at](double* of) { return reinterpret_cast<V*>(of) + at; };
        return {rows(alpha), rows(gamma), exponent + first};
    }
};

// Whether messages that are zero need not be: as many must be more than zero as can be reached at all.
bool hidden(const Model& m, const Model& reach, const Sequence& s, bool reversed, int64_t nonzero, const Scratch& own) {
    if (nonzero == (s.length - 1) * m.labels + 1) return false;
    return walk<true>(reach, s, reversed, {nullptr, nullptr, nullptr}, own).nonzero != nonzero;
}

void forward_one(const Model& m, const Model& reach, const Batch& x, const Messages& to, int64_t b, const Scratch& own) {
    Sequence s = x.sequence(b);
    Found found = walk<false>(m, s, false, to.kept(x, b), own);
    to.z[b] = found.z;
    to.log_z[b] = std::log(found.z) + double(found.power) * LN2 + (found.log_shift + m.shift);
    to.flagged[b] = found.bad || hidden(m, reach, s, false, found.nonzero, own);
}

// 64 well mixed bits (the finaliser of SplitMix64).
inline uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15u;

// Random numbers of one draw: they depend on the seed, the sequence's row in the batch and the draw's number, and belong to a
// boundary: a draw comes by it once at most.
struct Random {
    uint64_t state;

    Random(uint64_t seed, uint64_t row, uint64_t number)
        : state(mixed(mixed(mixed(seed + GOLDEN) ^ mixed(row + 1)) + number * GOLDEN)) {}
    double at(int64_t t, bool duration) const {  // in [0, 1)
        return double(mixed(state + GOLDEN * uint64_t(2 * t + duration)) >> 11) * 0x1p-53;
    }
};

// Draws, each a walk back through the messages. Along the first one all weights of each choice are added up, and must come to the
// message, or underflow has lost some.
struct Drawing {
    const Model& m;
    const Sequence& s;
    const Kept& from;
    const double* lasting;  // the durations' weights, (C, K)
    bool exact = true;

    double at(const V* rows, int64_t t, int64_t label) const { return reinterpret_cast<const double*>(rows + t * m.nv)[label]; }

    // The index that a share of all `count` weights falls on; what rounding left beyond them goes to the last one that is not zero.
    template <class Weight>
    int64_t choice(int64_t count, double whole, double share, bool prove, Weight weight) {
        double sum = 0.0;
        int64_t chosen = -1, last = -1;
        for (int64_t i = 0; i < count; ++i) {
            const double own = weight(i);
            sum += own;
            if (own > 0.0) last = i;
            if (chosen >= 0 || !(sum > share * whole)) continue;
            chosen = i;
            if (!prove) return chosen;
        }
        exact = exact && std::fabs(sum - whole) <= EXACT * whole && whole > 0.0 && whole < INF && last >= 0;
        return chosen >= 0 ? chosen : last;
    }
    void draw(const Random& random, int32_t* marks, bool prove) {
        for (int64_t t = s.length, next = -1; t > 0;) {
            const V* step = next < 0 ? m.last.get() : m.back.get() + next * m.nv;
            const auto before = [&](int64_t label) { return at(from.alpha, t, label) * at(step, 0, label); };
            double whole = 0.0;
            if (next >= 0) whole = at(from.gamma, t, next);
            else for (int64_t label = 0; label < m.labels; ++label) whole += before(label);
            next = choice(m.labels, whole, random.at(t, false), prove, before);
            if (!exact) return;
            double content = 1.0;
            const auto lasted = [&](int64_t k) {
                content *= at(from.scaled, t - 1 - k, next);
                return at(from.gamma, t - 1 - k, next) * (content * lasting[next * m.longest + k]);
            };
            const int64_t reach = std::min(m.longest, t);
            const int64_t k = choice(reach, at(from.alpha, t, next), random.at(t, true), prove, lasted);
            if (!exact) return;
            marks[t - 1] = int32_t(next + 1);
            t -= k + 1;
        }
    }
};

struct Draws {
    int64_t count;
    uint64_t seed;
    uint8_t* flagged;  // (B,): something may have been lost, and nothing is drawn
    int32_t* marks;    // (B, count, T): label + 1 where a segment ends with that frame, else 0 as before
};

void draw_one(const Model& m, const Model& reach, const double* lasting, const Batch& x, const Draws& to, int64_t b, V* rows,
              const Scratch& own) {
    const Sequence s = x.sequence(b);
    int32_t* marks = to.marks + b * to.count * x.frames;
    const Kept kept{rows, rows + (x.frames + 1) * m.nv, nullptr, rows + (2 * x.frames + 1) * m.nv};
    const Found found = walk<false>(m, s, false, kept, own);
    to.flagged[b] = found.bad || hidden(m, reach, s, false, found.nonzero, own);
    if (to.flagged[b] || !(found.z > 0.0) || to.count == 0) return;
    Drawing drawing{m, s, kept, lasting};
    for (int64_t n = 0; n < to.count && drawing.exact; ++n)
        drawing.draw(Random(to.seed, uint64_t(b), uint64_t(n)), marks + n * x.frames, n == 0);
    if (!drawing.exact) std::fill_n(marks, to.count * x.frames, 0);
    to.flagged[b] = !drawing.exact;
}

struct Counts {  // of a batch; label, starts, ends (B, T, C) in a row, duration (B, K, C), transition (B, C, C); (B,)
    double *label, *starts, *ends, *duration, *transition, *mass_error;
    int64_t* mass_frame;
};

// Every count of one sequence, in one pass from the right. `window` holds beta[s + k] times the frames between.
class Right {
    const Model& m;
    const Batch& x;
    const Counts& out;
    const int64_t b, nv, length;
    const Sequence s;
    const Kept kept;
    Window window;
    Highest highest;
    V *counts, *scaled, *lost, *beta, *eta, *gamma, *alpha, *covered, *started;
    V *crossed, *left, *right;
    int64_t waiting = 0, power = 0, z_power;
    double inverse, worst = 0.0;
    int64_t worst_frame = 0;

public:
    Right(const Model& m, const Batch& x, const Messages& from, const Counts& out, int64_t b, const Scratch& own)
        : m(m), x(x), out(out), b(b), nv(m.nv), length(x.length(b)), s(x.sequence(b)), kept(from.kept(x, b)),
          window(own.window, std::min(m.longest, length), m.nv), highest(window.rows), counts(own.counts) {
        V* row = own.rows;
        for (V** each : {&scaled, &lost, &beta, &eta, &gamma, &alpha, &covered, &started}) {
            *each = row;
            row += nv;
        }
        crossed = counts + m.longest * nv;
        left = crossed + m.wide * nv;
        right = left + CROSSED * nv;
        // z keeps a power of two of its own, which would underflow in a product with those of the messages.
        z_power = exponent_of(from.z[b]);
        inverse = 1.0 / (from.z[b] * power_of_two(-z_power));
    }
    static int64_t size(const Model& m) { return (m.longest + m.wide + 2 * CROSSED) * m.nv; }

    // -> whether something may have been lost
    bool run(const Model& reach, const Scratch& own) {
        Loss loss(m, lost);
        Above above;
        begin();
        for (int64_t t = length - 1; t >= 0; --t) {
            finish(t);
            enter(t, loss);
            gather(std::min(window.rows, length - t));
            start(t);
            if (t == 0) break;
            cross();
            product(eta, m.back.get(), m, beta);
            for (int64_t v = 0; v < nv; ++v) {
                loss.look(beta[v]);
                above.look(beta[v]);
            }
        }
        V z = V{};
        for (int64_t v = 0; v < nv; ++v) z += m.first[v] * eta[v];
        parameters();
        out.mass_error[b] = worst;
        out.mass_frame[b] = worst_frame;
        return loss.found(total(z)) || hidden(m, reach, s, true, above.count(total(z)), own);
    }

private:
    void begin() {
        window.clear(window.room - window.rows);
        std::memset(static_cast<void*>(counts), 0, sizeof(V) * size_t((m.longest + m.wide) * nv));
        for (int64_t v = 0; v < nv; ++v) {
            beta[v] = m.last[v];
            covered[v] = started[v] = V{};
            alpha[v] = smaller(kept.alpha[length * nv + v] * power_of_two(-z_power) * inverse, all(MOST));
        }
    }

    // Boundary t + 1: what ends with frame t, and so what covers it.
    void finish(int64_t t) {
        V mass = V{};
        for (int64_t v = 0; v < nv; ++v) {
            V ended = alpha[v] * beta[v];
            covered[v] += ended - started[v];
            mass += covered[v];
            store(out.ends, t, v, ended);
        }
        double error = std::fabs(total(mass) - 1.0);
        if (error != error) error = INF;
        if (error >= worst) {
            worst = error;
            worst_frame = t;
        }
    }

    // Scale frame t, and the left messages at boundary t so that left times right is a count; label the frame.
    void enter(int64_t t, Loss& loss) {
        V peak = V{};
        for (int64_t v = 0; v < nv; ++v) peak = larger(beta[v], peak);
        const int step = exponent_of(largest(peak));
        const double back = power_of_two(-step), waiting = highest.above(power);
        power += step;
        highest.add(power);
        // The power is halved, for half of it never overflows where the count does not.
        const int64_t all_of_it = kept.exponent[t] + power - kept.exponent[length] - z_power, half = all_of_it >> 1;
        const double one = power_of_two(half), other = power_of_two(all_of_it - half) * inverse;
        window.backwards();
        const double lowest = weigh_frame(m, s, t, false, scaled).lowest;
        for (int64_t v = 0; v < nv; ++v) {
            // Of a label that the frame forbids the sum of what starts less what ends may leave rounding.
            store(out.label, t, v, pick(scaled[v] == 0.0, V{}, covered[v]));
            scaled[v] *= back;
            gamma[v] = smaller(kept.gamma[t * nv + v] * one * other, all(MOST));
            alpha[v] = smaller(kept.alpha[t * nv + v] * one * other, all(MOST));
            window.row(v)[0] = beta[v];
        }
        // The durations' and transitions' weights meet whatever waits.
        loss.frame(scaled, nv, lowest, step, waiting, m.rounded ? highest.above(power) : 1.0);
    }

    // eta, and the durations' counts before D.
    void gather(int64_t rows) {
        for (int64_t v = 0; v < nv; ++v) {
            V *row = window.row(v), *count = counts + v * m.longest;
            const V* duration = m.duration.get() + v * m.longest;
            const V g = gamma[v], w = scaled[v];
            V sum[4] = {};
            int64_t k = 0;
            for (; k + 4 <= rows; k += 4)
                for (int i = 0; i < 4; ++i) {
                    V value = row[k + i] * w;
                    row[k + i] = value;
                    sum[i] += duration[k + i] * value;
                    count[k + i] += g * value;
                }
            for (; k < rows; ++k) {
                V value = row[k] * w;
                row[k] = value;
                sum[0] += duration[k] * value;
                count[k] += g * value;
            }
            eta[v] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        }
    }

    void start(int64_t t) {
        for (int64_t v = 0; v < nv; ++v) {
            started[v] = gamma[v] * eta[v];
            store(out.starts, t, v, started[v]);
        }
    }

    void store(double* to, int64_t t, int64_t v, const V& value) const {
        const int64_t from = v * LANES, count = std::min<int64_t>(m.labels - from, LANES);
        if (count <= 0) return;  // nothing but padding
        std::memcpy(to + (b * x.frames + t) * m.labels + from, &value, sizeof(double) * size_t(count));
    }

    void cross() {
        std::memcpy(static_cast<void*>(left + waiting * nv), alpha, sizeof(V) * size_t(nv));
        std::memcpy(static_cast<void*>(right + waiting * nv), eta, sizeof(V) * size_t(nv));
        if (++waiting == CROSSED) cross_all();
    }

    // crossed += left^T right over the frames that wait, in their order.
    void cross_all() {
        const double* flat = reinterpret_cast<const double*>(left);
        for (int64_t c = 0; c < m.wide; c += ROWS)
            for (int64_t v = 0; v < nv; ++v) {
                V sum[ROWS];
                for (int i = 0; i < ROWS; ++i) sum[i] = crossed[(c + i) * nv + v];
                for (int64_t f = 0; f < waiting; ++f)
                    for (int i = 0; i < ROWS; ++i) sum[i] += flat[f * m.wide + c + i] * right[f * nv + v];
                for (int i = 0; i < ROWS; ++i) crossed[(c + i) * nv + v] = sum[i];
            }
        waiting = 0;
    }

    void parameters() {
        cross_all();
        for (int64_t k = 0; k < m.longest; ++k)
            for (int64_t c = 0; c < m.labels; ++c) {
                const int64_t at = (c / LANES) * m.longest + k;
                out.duration[(b * m.longest + k) * m.labels + c] = counts[at][c % LANES] * m.duration[at][c % LANES];
            }
        const double *sums = reinterpret_cast<double*>(crossed), *weights = reinterpret_cast<double*>(m.onward.get());
        for (int64_t a = 0; a < m.labels; ++a)
            for (int64_t c = 0; c < m.labels; ++c)
                out.transition[(b * m.labels + a) * m.labels + c] = sums[a * m.wide + c] * weights[a * m.wide + c];
    }
};

void zeros(double* p, int64_t count) { std::memset(p, 0, sizeof(double) * size_t(count)); }

// Nothing where nothing is feasible, and nothing yet for what is to be done again.
void no_counts(const Batch& x, const Counts& out, int64_t b) {
    for (double* p : {out.label, out.starts, out.ends}) zeros(p + b * x.frames * x.labels, x.frames * x.labels);
    zeros(out.duration + b * x.longest * x.labels, x.longest * x.labels);
    zeros(out.transition + b * x.labels * x.labels, x.labels * x.labels);
    out.mass_error[b] = 0.0;
    out.mass_frame[b] = 0;
}

void backward_one(const Model& m, const Model& reach, const Batch& x, const Messages& from, const Counts& out, int64_t b,
                  const Scratch& own) {
    if (from.flagged[b] || !(from.z[b] > 0.0)) return no_counts(x, out, b);
    const int64_t after = x.length(b), padding = (x.frames - after) * m.labels;
    for (double* p : {out.label, out.starts, out.ends}) zeros(p + (b * x.frames + after) * m.labels, padding);
    from.flagged[b] = Right(m, x, from, out, b, own).run(reach, own);
}

// `one(b, scratch, further)` for every sequence; `further` are `more` vectors.
template <class One>
void each(const Batch& x, const Model& m, int64_t more, const One& one) {
    const int64_t window = Window::size(std::min(m.longest, x.frames), m.nv), counts = Right::size(m);
    const int64_t rows = Scratch::ROWS_USED * m.nv;
    in_turns(x, window + counts + rows + more, [&](int64_t b, V* base) {
        Flushing flushing;
        one(b, Scratch{base, base + window, base + window + counts}, base + window + counts + rows);
    });
}

}  // namespace

// Each returns 0, or 1 where there is not enough memory.
extern "C" {

int lab_semicrf_forward(const Batch* x, const Messages* to) {
    return guarded([&] {
        Flushing flushing;
        const Model m(*x, false), reach(*x, true);
        each(*x, m, 0, [&](int64_t b, const Scratch& own, V*) { forward_one(m, reach, *x, *to, b, own); });
    });
}

// The same, after it -> the counts; flagged gains the sequences whose pass from the right may have lost something.
int lab_semicrf_backward(const Batch* x, const Messages* from, const Counts* out) {
    return guarded([&] {
        Flushing flushing;
        const Model m(*x, false), reach(*x, true);
        each(*x, m, 0, [&](int64_t b, const Scratch& own, V*) { backward_one(m, reach, *x, *from, *out, b, own); });
    });
}

int lab_semicrf_draw(const Batch* x, const Draws* to) {
    return guarded([&] {
        Flushing flushing;
        const Model m(*x, false), reach(*x, true);
        std::vector<double> lasting(size_t(m.labels * m.longest));  // D[c][k - 1]: a walk back stays with a label
        for (int64_t c = 0; c < m.labels; ++c)
            for (int64_t k = 0; k < m.longest; ++k) lasting[size_t(c * m.longest + k)] = m.duration[c / LANES * m.longest + k][c % LANES];
        each(*x, m, (3 * x->frames + 1) * m.nv, [&](int64_t b, const Scratch& own, V* rows) {
            draw_one(m, reach, lasting.data(), *x, *to, b, rows, own);
        });
    });
}
}
