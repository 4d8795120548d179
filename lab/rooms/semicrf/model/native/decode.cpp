// Best segmentations and exact draws on a CPU, float64. Each is a pass from the left that keeps every boundary's
// messages, and walks back through them that look at what can have come before: K durations, or C labels.
//
// The pass is max-plus. Per label, `history[s]` is gamma[s] less the sum of the frames before s, so that
//     alpha[t] = sum of the frames before t + max over k of history[t - k] + D[k]     what ends at t
//     gamma[t] = max over labels a of alpha[t, a] + E[a]                              what a segment from t on follows
// The sum starts anew every REBASED frames, and where a score is -inf or large: it goes into the history one by one.
// Further segmentations are Lawler's: each node of a path found leaves its next best choice; the best of all is next.
#include "vectors.h"

#include <cstring>

namespace {

constexpr double LARGE = 1e6;   // a sum that holds more would lose digits of what comes after
constexpr int64_t REBASED = 64; // a power of two
constexpr double EXACT = 1e-9;  // a draw's weights must add up to the message, or underflow has lost some

struct Model {
    int64_t longest, labels, wide, nv;
    const double *transition, *duration, *start, *end;  // (C, C), (K, C), (C,), (C,)
};

struct Sequence {
    const void* score;  // (T, C) float64, or float32 where `single`
    int64_t length, labels;
    bool single;

    double at(int64_t t, int64_t c) const {
        const int64_t i = t * labels + c;
        return single ? double(static_cast<const float*>(score)[i]) : static_cast<const double*>(score)[i];
    }
};

struct Inputs {
    int64_t frames;
    const void* score;
    const int64_t* lengths;
    bool single;

    Sequence of(int64_t b, int64_t labels) const {
        const char* first = static_cast<const char*>(score) + b * frames * labels * (single ? 4 : 8);
        return {first, lengths[b], labels, single};
    }
};

inline V highest(V a, V b) { return a > b ? a : b; }

inline bool any(M mask) {
    long found = 0;
    for (int i = 0; i < LANES; ++i) found |= mask[i];
    return found != 0;
}

// The model for the pass: labels padded to whole vectors, with -inf; durations from the longest to the shortest.
struct Tables {
    Vectors onward, durations, first;

    explicit Tables(const Model& m)
        : onward(vectors(m.labels * m.nv)), durations(vectors(m.longest * m.nv)), first(vectors(m.nv)) {
        for (int64_t a = 0; a < m.labels; ++a) fill(m, m.transition + a * m.labels, onward.get() + a * m.nv, 1);
        for (int64_t k = 1; k <= m.longest; ++k)
            fill(m, m.duration + (k - 1) * m.labels, durations.get() + m.longest - k, m.longest);
        fill(m, m.start, first.get(), 1);
    }

    static void fill(const Model& m, const double* from, V* to, int64_t stride) {
        for (int64_t v = 0; v < m.nv; ++v)
            for (int64_t i = 0; i < LANES; ++i) {
                const int64_t c = v * LANES + i;
                to[v * stride][i] = c < m.labels ? from[c] : -INF;
            }
    }
};

// A thread's memory: alpha (T+1, nv) and gamma (T, nv), and a window of K histories for each vector of labels.
struct Rows {
    int64_t reach, room;
    V *alpha, *gamma, *history, *passed, *line;

    static int64_t room_for(int64_t reach) { return 2 * reach + 64; }
    static int64_t size(const Model& m, int64_t frames) {
        return (2 * frames + 3 + room_for(std::min(m.longest, frames))) * m.nv;
    }
    Rows(const Model& m, int64_t frames, V* base)
        : reach(std::min(m.longest, frames)), room(room_for(reach)), alpha(base), gamma(alpha + (frames + 1) * m.nv),
          history(gamma + frames * m.nv), passed(history + room * m.nv), line(passed + m.nv) {}
};

inline V best_of(const V* history, const V* durations, int64_t count) {
    V best[4] = {all(-INF), all(-INF), all(-INF), all(-INF)};
    int64_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (int j = 0; j < 4; ++j) best[j] = highest(history[i + j] + durations[i + j], best[j]);
    for (; i < count; ++i) best[0] = highest(history[i] + durations[i], best[0]);
    return highest(highest(best[0], best[1]), highest(best[2], best[3]));
}

template <int W>
inline void onward_tile(const double* alpha, const V* onward, int64_t labels, int64_t nv, V* to) {
    V best[2][W];
    for (int v = 0; v < W; ++v) best[0][v] = best[1][v] = all(-INF);
    int64_t a = 0;
    for (; a + 2 <= labels; a += 2)
        for (int way = 0; way < 2; ++way)
            for (int v = 0; v < W; ++v) best[way][v] = highest(alpha[a + way] + onward[(a + way) * nv + v], best[way][v]);
    for (; a < labels; ++a)
        for (int v = 0; v < W; ++v) best[0][v] = highest(alpha[a] + onward[a * nv + v], best[0][v]);
    for (int v = 0; v < W; ++v) to[v] = highest(best[0][v], best[1][v]);
}

void cross(const Model& m, const Tables& tables, const V* alpha, V* gamma) {
    const double* flat = reinterpret_cast<const double*>(alpha);
    int64_t v = 0;
    for (; v + 4 <= m.nv; v += 4) onward_tile<4>(flat, tables.onward.get() + v, m.labels, m.nv, gamma + v);
    for (; v + 2 <= m.nv; v += 2) onward_tile<2>(flat, tables.onward.get() + v, m.labels, m.nv, gamma + v);
    for (; v < m.nv; ++v) onward_tile<1>(flat, tables.onward.get() + v, m.labels, m.nv, gamma + v);
}

void read_line(const Model& m, const Sequence& q, int64_t t, V* line) {
    double* flat = reinterpret_cast<double*>(line);
    if (q.single) std::copy_n(static_cast<const float*>(q.score) + t * m.labels, m.labels, flat);
    else std::copy_n(static_cast<const double*>(q.score) + t * m.labels, m.labels, flat);
    for (int64_t c = m.labels; c < m.wide; ++c) flat[c] = 0.0;
}

void best_messages(const Model& m, const Tables& tables, const Sequence& q, const Rows& rows) {
    int64_t base = 0;  // the boundary whose history comes first in the window
    for (int64_t v = 0; v < m.nv; ++v) {
        rows.alpha[v] = all(-INF);
        rows.gamma[v] = tables.first[v];
        rows.passed[v] = V{};
    }
    for (int64_t t = 0; t < q.length; ++t) {
        const int64_t reach = std::min(rows.reach, t + 1), begin = t + 1 - reach;
        if (t - base == rows.room) {
            for (int64_t v = 0; v < m.nv; ++v) {
                V* row = rows.history + v * rows.room;
                std::memmove(static_cast<void*>(row), row + (begin - base), sizeof(V) * size_t(reach - 1));
            }
            base = begin;
        }
        read_line(m, q, t, rows.line);
        for (int64_t v = 0; v < m.nv; ++v) {
            V* history = rows.history + v * rows.room + (begin - base);
            const V x = rows.line[v];
            history[reach - 1] = rows.gamma[t * m.nv + v] - rows.passed[v];
            V passed = rows.passed[v] + x;
            if (any(~(larger(x, -x) <= LARGE)) || (t & (REBASED - 1)) == REBASED - 1) {
                for (int64_t s = 0; s < reach; ++s) history[s] += passed;
                passed = V{};
            }
            rows.passed[v] = passed;
            rows.alpha[(t + 1) * m.nv + v] =
                passed + best_of(history, tables.durations.get() + v * m.longest + m.longest - reach, reach);
        }
        if (t + 1 < q.length) cross(m, tables, rows.alpha + (t + 1) * m.nv, rows.gamma + (t + 1) * m.nv);
    }
}

// What a walk back can choose at each node, and its worth: the label of the segment that ends at t, given the label
// `next` after it (-1 at the end), then the duration of that segment.
struct Choices {
    const Model& m;
    const Sequence& q;
    const double *alpha, *gamma;  // rows of `wide`
    double* worth;                // room for max(K, C)

    double label_step(int64_t label, int64_t next) const {
        return next < 0 ? m.end[label] : m.transition[label * m.labels + next];
    }
    int64_t labels(int64_t t, int64_t next) const {
        for (int64_t a = 0; a < m.labels; ++a) worth[a] = alpha[t * m.wide + a] + label_step(a, next);
        return m.labels;
    }
    int64_t durations(int64_t t, int64_t label) const {
        double content = 0.0;
        const int64_t reach = std::min(m.longest, t);
        for (int64_t k = 1; k <= reach; ++k) {
            content += q.at(t - k, label);
            if (content == -INF) return k - 1;
            worth[k - 1] = gamma[(t - k) * m.wide + label] + (content + m.duration[(k - 1) * m.labels + label]);
        }
        return reach;
    }
    double duration_step(int64_t t, int64_t label, int64_t k) const {
        double content = 0.0;
        for (int64_t u = t - 1; u >= t - k; --u) content += q.at(u, label);
        return content + m.duration[(k - 1) * m.labels + label];
    }
    int64_t best(int64_t count) const {
        int64_t found = 0;
        for (int64_t i = 1; i < count; ++i)
            if (worth[i] > worth[found]) found = i;
        return found;
    }
    // The next one in descending order, the smaller index first; -1 where there is none.
    int64_t after(int64_t count, int64_t chosen) const {
        int64_t found = -1;
        for (int64_t i = 0; i < count; ++i) {
            const bool behind = worth[i] < worth[chosen] || (worth[i] == worth[chosen] && i > chosen);
            if (behind && (found < 0 || worth[i] > worth[found])) found = i;
        }
        return found;
    }
};

// A path from its end: labels and durations (less 1) in turn. Each node from `first` on has its next best choice, and what
// the best segmentation with it is worth; -inf where there is none, or it was taken.
struct Path {
    std::vector<int32_t> chosen, other;
    std::vector<double> worth;
    double score = -INF;
};

struct Deviation {
    int64_t path = -1, node = 0;
    double worth = -INF;
};

// Of two with the same worth: the smaller choice where they differ first.
bool comes_first(const std::vector<Path>& paths, const Deviation& a, const Deviation& b) {
    const Path &p = paths[size_t(a.path)], &q = paths[size_t(b.path)];
    for (int64_t node = 0; node <= std::min(a.node, b.node); ++node) {
        const int32_t x = node == a.node ? p.other[size_t(node)] : p.chosen[size_t(node)];
        const int32_t y = node == b.node ? q.other[size_t(node)] : q.chosen[size_t(node)];
        if (x != y) return x < y;
    }
    return a.node > b.node;
}

Deviation best_deviation(const std::vector<Path>& paths) {
    Deviation found;
    for (size_t p = 0; p < paths.size(); ++p)
        for (size_t node = 0; node < paths[p].worth.size(); ++node) {
            const Deviation one{int64_t(p), int64_t(node), paths[p].worth[node]};
            if (one.worth > found.worth || (one.worth == found.worth && one.worth > -INF && comes_first(paths, one, found)))
                found = one;
        }
    return found;
}

// The best path that follows `parent` up to `from.node` and there takes its other choice; with `more` its own deviations.
Path follow(const Choices& choices, const Path* parent, const Deviation& from, bool more) {
    Path path;
    double after = 0.0;
    int64_t t = choices.q.length, next = -1, label = 0;
    for (int64_t node = 0; t > 0; ++node) {
        const bool labels = node % 2 == 0;
        int64_t chosen;
        double worth = -INF;
        int64_t other = -1;
        if (parent && node < from.node) chosen = parent->chosen[size_t(node)];
        else {
            const int64_t count = labels ? choices.labels(t, next) : choices.durations(t, label);
            chosen = parent && node == from.node ? parent->other[size_t(node)] : choices.best(count);
            if (!parent && node == 0) path.score = choices.worth[chosen];
            if (more) other = choices.after(count, chosen);
            if (other >= 0) worth = after + choices.worth[other];
        }
        path.chosen.push_back(int32_t(chosen));
        if (more) {
            path.other.push_back(int32_t(other));
            path.worth.push_back(worth);
        }
        if (labels) {
            label = chosen;
            after += choices.label_step(label, next);
            if (!parent && node == 0 && path.score == -INF) return path;
        } else {
            after += choices.duration_step(t, label, chosen + 1);
            t -= chosen + 1;
            next = label;
        }
    }
    if (parent) path.score = from.worth;
    return path;
}

// Ends and labels of the segments, from the first one on; -> how many.
int32_t write_segments(const std::vector<int32_t>& chosen, int64_t length, int32_t* to) {
    const int64_t count = int64_t(chosen.size()) / 2;
    int64_t t = length;
    for (int64_t i = 0; i < count; ++i) {
        int32_t* one = to + 2 * (count - 1 - i);
        one[0] = int32_t(t);
        one[1] = chosen[size_t(2 * i)];
        t -= chosen[size_t(2 * i + 1)] + 1;
    }
    return int32_t(count);
}

struct Found {
    double* score;      // (count,), -inf where there is none
    int32_t *segments;  // (count, T, 2)
    int32_t* sizes;     // (count,)
};

void best_one(const Model& m, const Tables& tables, const Sequence& q, const Rows& rows, double* worth, int64_t count,
              int64_t frames, const Found& to) {
    best_messages(m, tables, q, rows);
    const double *alpha = reinterpret_cast<double*>(rows.alpha), *gamma = reinterpret_cast<double*>(rows.gamma);
    const Choices choices{m, q, alpha, gamma, worth};
    std::vector<Path> paths;
    for (int64_t n = 0; n < count; ++n) {
        to.score[n] = -INF;
        to.sizes[n] = 0;
    }
    for (int64_t n = 0; n < count; ++n) {
        const bool more = n + 1 < count;
        if (n == 0) paths.push_back(follow(choices, nullptr, {}, more));
        else {
            const Deviation from = best_deviation(paths);
            if (from.path < 0) return;
            Path next = follow(choices, &paths[size_t(from.path)], from, more);
            paths[size_t(from.path)].worth[size_t(from.node)] = -INF;
            paths.push_back(std::move(next));
        }
        if (!(paths.back().score > -INF)) return;
        to.score[n] = paths.back().score;
        to.sizes[n] = write_segments(paths.back().chosen, q.length, to.segments + n * frames * 2);
    }
}

// 64 well mixed bits (the finaliser of SplitMix64).
inline uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15u;

// Random numbers of one draw: they depend on the seed, the sequence's own scores and the draw's number alone.
struct Random {
    uint64_t state;

    static uint64_t content(const Sequence& q) {
        uint64_t sum = mixed(uint64_t(q.length));
        for (int64_t t = 0; t < q.length; ++t)
            for (int64_t c = 0; c < q.labels; ++c) {
                const double x = q.at(t, c) + 0.0;  // -0.0 becomes 0.0
                uint64_t bits;
                std::memcpy(&bits, &x, 8);
                sum += mixed(bits + GOLDEN * uint64_t(t * q.labels + c + 1));
            }
        return sum;
    }
    Random(uint64_t seed, uint64_t content, uint64_t number) : state(mixed(mixed(mixed(seed + GOLDEN) ^ content) + number * GOLDEN)) {}
    double next() {  // in [0, 1)
        state += GOLDEN;
        return double(mixed(state) >> 11) * 0x1p-53;
    }
};

inline double finite_or_zero(double x) { return std::fabs(x) < INF ? x : 0.0; }

// The model's weights as the linear forward pass has them: the largest transition moves from E into D.
struct Weights {
    std::vector<double> onward, duration, last;

    explicit Weights(const Model& m)
        : onward(size_t(m.labels * m.labels)), duration(size_t(m.longest * m.labels)), last(size_t(m.labels)) {
        const double across = finite_or_zero(*std::max_element(m.transition, m.transition + m.labels * m.labels));
        const double ending = finite_or_zero(*std::max_element(m.end, m.end + m.labels));
        for (size_t i = 0; i < onward.size(); ++i) onward[i] = std::exp(m.transition[i] - across);
        for (size_t i = 0; i < duration.size(); ++i) duration[i] = std::exp(m.duration[i] + across);
        for (size_t i = 0; i < last.size(); ++i) last[i] = std::exp(m.end[i] - ending);
    }
};

// One sequence's linear messages: rows of `wide` labels in units of 2^exponent.
struct Messages {
    const double *alpha, *gamma;
    const int32_t* exponent;
};

struct Drawing {
    const Model& m;
    const Weights& model;
    const Sequence& q;
    const Messages& from;
    double *frame, *weight;  // (T, C), and room for max(K, C)
    bool exact = true;

    // Each frame's weights in the next boundary's units.
    void weigh_frames() const {
        for (int64_t t = 0; t < q.length; ++t) {
            double top = -INF;
            for (int64_t c = 0; c < m.labels; ++c) top = std::max(top, q.at(t, c));
            top = finite_or_zero(top);
            const double unit = std::ldexp(1.0, from.exponent[t] - from.exponent[t + 1]);
            for (int64_t c = 0; c < m.labels; ++c) frame[t * m.labels + c] = std::exp(q.at(t, c) - top) * unit;
        }
    }
    // An index by its weight; all of them must add up to `whole`.
    int64_t pick(int64_t count, double total, double whole, Random& random) {
        if (!(std::fabs(total - whole) <= EXACT * whole) || !(total < INF) || !(total > 0.0)) {
            exact = false;
            return 0;
        }
        const double target = random.next() * total;
        double sum = 0.0;
        int64_t last = 0;
        for (int64_t i = 0; i < count; ++i) {
            sum += weight[i];
            if (sum > target) return i;
            if (weight[i] > 0.0) last = i;
        }
        return last;
    }
    int64_t label(int64_t t, int64_t next, Random& random) {
        double total = 0.0;
        for (int64_t a = 0; a < m.labels; ++a) {
            const double step = next < 0 ? model.last[size_t(a)] : model.onward[size_t(a * m.labels + next)];
            total += weight[a] = from.alpha[t * m.wide + a] * step;
        }
        return pick(m.labels, total, next < 0 ? total : from.gamma[t * m.wide + next], random);
    }
    int64_t duration(int64_t t, int64_t label, Random& random) {
        const int64_t reach = std::min(m.longest, t);
        double content = 1.0, total = 0.0;
        int64_t count = 0;
        for (int64_t k = 1; k <= reach; ++k) {
            content *= frame[(t - k) * m.labels + label];
            if (content == 0.0) break;
            count = k;
            const double lasting = content * model.duration[size_t((k - 1) * m.labels + label)];
            total += weight[k - 1] = from.gamma[(t - k) * m.wide + label] * lasting;
        }
        return 1 + pick(count, total, from.alpha[t * m.wide + label], random);
    }
    void once(Random random, std::vector<int32_t>& chosen) {
        chosen.clear();
        int64_t t = q.length, next = -1;
        while (t > 0) {
            next = label(t, next, random);
            const int64_t k = exact ? duration(t, next, random) : 0;
            if (!exact) return;
            chosen.push_back(int32_t(next));
            chosen.push_back(int32_t(k - 1));
            t -= k;
        }
    }
};

// `one(b, thread)` for every sequence; false where memory was not to be had.
template <class One>
bool each(int64_t batch, int64_t threads, const One& one) {
    std::atomic<int64_t> next{0};
    std::atomic<bool> enough{true};
    on_threads(threads, [&](int64_t thread) {
        try {
            for (int64_t b = next++; b < batch; b = next++) one(b, thread);
        } catch (const std::bad_alloc&) {
            enough = false;
        }
    });
    return enough;
}

Model model_of(int64_t longest, int64_t labels, const double* transition, const double* duration, const double* start,
               const double* end) {
    const int64_t wide = (labels + PADDED - 1) / PADDED * PADDED;
    return {longest, labels, wide, wide / LANES, transition, duration, start, end};
}

}  // namespace

// All arrays are contiguous and hold float64 unless said otherwise; scores and model as in semicrf.cpp.
// Segments are pairs (end, label), (B, count, T, 2) int32 of which the first `sizes` (B, count) int32 are written.
// Returns 0, or 1 where there is not enough memory.
extern "C" {

// The `count` best segmentations of each sequence -> score (B, count), -inf where there is none; segments and sizes.
int lab_semicrf_best(int64_t batch, int64_t frames, int64_t longest, int64_t labels, int64_t threads, int64_t single,
                     int64_t count, const void* score, const int64_t* lengths, const double* transition,
                     const double* duration, const double* start, const double* end, double* best, int32_t* segments,
                     int32_t* sizes) {
    try {
        const Model m = model_of(longest, labels, transition, duration, start, end);
        const Tables tables(m);
        const Inputs inputs{frames, score, lengths, single != 0};
        threads = std::max<int64_t>(1, std::min(threads, batch));
        const int64_t size = Rows::size(m, frames), room = std::max(longest, labels);
        const Vectors memory = vectors(size * threads);
        std::vector<double> worth(size_t(room * threads));
        return !each(batch, threads, [&](int64_t b, int64_t thread) {
            const Found to{best + b * count, segments + b * count * frames * 2, sizes + b * count};
            best_one(m, tables, inputs.of(b, labels), Rows(m, frames, memory.get() + thread * size),
                     worth.data() + thread * room, count, frames, to);
        });
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

// `count` draws of each sequence from what lab_semicrf_forward left -> segments and sizes; `flagged` (B,) uint8 gains the
// sequences whose weights do not add up to their messages. Sequences flagged before, or with z = 0, get none.
int lab_semicrf_draw(int64_t batch, int64_t frames, int64_t longest, int64_t labels, int64_t threads, int64_t single,
                     int64_t count, const void* score, const int64_t* lengths, const double* transition,
                     const double* duration, const double* start, const double* end, int64_t seed, const double* alpha,
                     const double* gamma, const int32_t* exponent, const double* z, uint8_t* flagged, int32_t* segments,
                     int32_t* sizes) {
    try {
        const Model m = model_of(longest, labels, transition, duration, start, end);
        const Weights weights(m);
        const Inputs inputs{frames, score, lengths, single != 0};
        threads = std::max<int64_t>(1, std::min(threads, batch));
        const int64_t room = std::max(longest, labels), size = frames * labels + room;
        std::vector<double> memory(size_t(size * threads));
        return !each(batch, threads, [&](int64_t b, int64_t thread) {
            std::fill_n(sizes + b * count, count, 0);
            if (flagged[b] || !(z[b] > 0.0)) return;
            const Sequence q = inputs.of(b, labels);
            const int64_t row = b * (frames + 1);
            const Messages from{alpha + row * m.wide, gamma + row * m.wide, exponent + row};
            double* frame = memory.data() + thread * size;
            Drawing drawing{m, weights, q, from, frame, frame + frames * labels};
            drawing.weigh_frames();
            const uint64_t content = Random::content(q);
            std::vector<int32_t> chosen;
            for (int64_t n = 0; n < count && drawing.exact; ++n) {
                drawing.once(Random(uint64_t(seed), content, uint64_t(n)), chosen);
                if (!drawing.exact) break;
                sizes[b * count + n] = write_segments(chosen, q.length, segments + (b * count + n) * frames * 2);
            }
            flagged[b] = !drawing.exact;
        });
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
}
