// Best segmentations on a CPU, float64: a pass from the left that keeps every boundary's messages, and walks back
// through them that look at what can have come before: K durations, or C labels.
//
// The pass is max-plus. Per label, `history[s]` is gamma[s] less the sum of the frames before s, so that
//     alpha[t] = sum of the frames before t + max over k of history[t - k] + D[k]     what ends at t
//     gamma[t] = max over labels a of alpha[t, a] + E[a]                              what a segment from t on follows
// The sum starts anew every REBASED frames, and where a score is -inf or large: it goes into the history one by one.
// Further segmentations are Lawler's: each node of a path found leaves its next best choice; the best of all is next.
#include "vectors.h"

namespace {

constexpr double LARGE = 1e6;   // a sum that holds more would lose digits of what comes after
constexpr int64_t REBASED = 64; // a power of two
constexpr double ROUNDED = 1e-15;

struct Model : Batch {
    int64_t wide, nv;
    explicit Model(const Batch& x) : Batch(x), wide(x.padded()), nv(wide / LANES) {}
};

// The model for the pass: labels padded to whole vectors, with -inf; durations from the longest to the shortest.
struct Tables {
    Vectors onward, durations, first;
    Vectors into;  // (C+1, nv): the transitions into each label, and the ends

    explicit Tables(const Model& m)
        : onward(vectors(m.labels * m.nv)), durations(vectors(m.longest * m.nv)), first(vectors(m.nv)),
          into(vectors((m.labels + 1) * m.nv)) {
        std::fill_n(into.get(), (m.labels + 1) * m.nv, all(-INF));
        double* flat = reinterpret_cast<double*>(into.get());
        for (int64_t a = 0; a < m.labels; ++a) {
            for (int64_t c = 0; c < m.labels; ++c) flat[c * m.wide + a] = m.transition[a * m.labels + c];
            flat[m.labels * m.wide + a] = m.end[a];
        }
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

// A thread's memory: alpha (T+1, nv) and gamma (T, nv), a window of K histories for each vector of labels, and where more
// than one path is wanted what the second best duration at each (t, c) is worth, (T+1, nv).
struct Rows {
    int64_t reach, room;
    V *alpha, *gamma, *history, *passed, *line, *second;

    static int64_t room_for(int64_t reach) { return 2 * reach + 64; }
    static int64_t size(const Model& m, int64_t frames, bool more) {
        return ((more ? 3 : 2) * (frames + 1) + 2 + room_for(std::min(m.longest, frames))) * m.nv;
    }
    Rows(const Model& m, int64_t frames, V* base)
        : reach(std::min(m.longest, frames)), room(room_for(reach)), alpha(base), gamma(alpha + (frames + 1) * m.nv),
          history(gamma + frames * m.nv), passed(history + room * m.nv), line(passed + m.nv),
          second(line + m.nv) {}
};

// The best, and where it is asked for the second best.
template <bool SECOND>
struct Tops {
    V best = all(-INF), second = all(-INF);

    void add(V x) {
        if (SECOND) second = larger(second, smaller(best, x));
        best = larger(x, best);
    }
    void add(const Tops& other) {
        if (SECOND) second = larger(larger(second, other.second), smaller(best, other.best));
        best = larger(other.best, best);
    }
};

template <bool SECOND>
inline Tops<SECOND> tops_of(const V* history, const V* durations, int64_t count) {
    Tops<SECOND> tops[4];
    int64_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (int j = 0; j < 4; ++j) tops[j].add(history[i + j] + durations[i + j]);
    for (; i < count; ++i) tops[0].add(history[i] + durations[i]);
    for (int j = 1; j < 4; ++j) tops[0].add(tops[j]);
    return tops[0];
}

template <int W>
inline void onward_tile(const double* alpha, const V* onward, int64_t labels, int64_t nv, V* to) {
    V best[2][W];
    for (int v = 0; v < W; ++v) best[0][v] = best[1][v] = all(-INF);
    int64_t a = 0;
    for (; a + 2 <= labels; a += 2)
        for (int way = 0; way < 2; ++way)
            for (int v = 0; v < W; ++v) best[way][v] = larger(alpha[a + way] + onward[(a + way) * nv + v], best[way][v]);
    for (; a < labels; ++a)
        for (int v = 0; v < W; ++v) best[0][v] = larger(alpha[a] + onward[a * nv + v], best[0][v]);
    for (int v = 0; v < W; ++v) to[v] = larger(best[0][v], best[1][v]);
}

void cross(const Model& m, const Tables& tables, const V* alpha, V* gamma) {
    const double* flat = reinterpret_cast<const double*>(alpha);
    int64_t v = 0;
    for (; v + 4 <= m.nv; v += 4) onward_tile<4>(flat, tables.onward.get() + v, m.labels, m.nv, gamma + v);
    for (; v + 2 <= m.nv; v += 2) onward_tile<2>(flat, tables.onward.get() + v, m.labels, m.nv, gamma + v);
    for (; v < m.nv; ++v) onward_tile<1>(flat, tables.onward.get() + v, m.labels, m.nv, gamma + v);
}

template <bool SECOND>
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
        q.read(t, m.wide, 0.0, rows.line);
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
            const V* durations = tables.durations.get() + v * m.longest + m.longest - reach;
            const Tops<SECOND> found = tops_of<SECOND>(history, durations, reach);
            rows.alpha[(t + 1) * m.nv + v] = passed + found.best;
            if (SECOND) rows.second[(t + 1) * m.nv + v] = passed + found.second;
        }
        if (t + 1 < q.length) cross(m, tables, rows.alpha + (t + 1) * m.nv, rows.gamma + (t + 1) * m.nv);
    }
}

// What a walk back can choose at each node, and its worth: the label of the segment that ends at t, given the label
// `next` after it (-1 at the end), then the duration of that segment.
struct Choices {
    const Model& m;
    const Sequence& q;
    const double *alpha, *gamma, *second;  // rows of `wide`
    const V* into;
    double* worth;  // room for max(K, C), up to whole vectors

    double label_step(int64_t label, int64_t next) const {
        return next < 0 ? m.end[label] : m.transition[label * m.labels + next];
    }
    int64_t labels(int64_t t, int64_t next) const {
        const V *from = reinterpret_cast<const V*>(alpha) + t * m.nv, *step = into + (next < 0 ? m.labels : next) * m.nv;
        for (int64_t v = 0; v < m.nv; ++v) {
            const V x = from[v] + step[v];
            std::memcpy(worth + v * LANES, &x, sizeof(V));
        }
        return m.labels;
    }
    // The best alone: the first that is worth what the message holds, up to its rounding.
    int64_t best_label(int64_t t, int64_t next) const {
        if (next < 0) return best(labels(t, next));
        const double known = gamma[t * m.wide + next], enough = known - ROUNDED * std::fabs(known);
        for (int64_t a = 0; a < m.labels; ++a)
            if (alpha[t * m.wide + a] + label_step(a, next) >= enough) return a;
        return best(labels(t, next));
    }
    int64_t best_duration(int64_t t, int64_t label) const {
        const double known = alpha[t * m.wide + label], enough = known - ROUNDED * std::fabs(known);
        double content = 0.0;
        for (int64_t k = 1; k <= std::min(m.longest, t); ++k) {
            content += q.at(t - k, label);
            const double lasting = content + m.duration[(k - 1) * m.labels + label];
            if (gamma[(t - k) * m.wide + label] + lasting >= enough) return k - 1;
        }
        return best(durations(t, label));
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
    V worth_at(int64_t i) const {
        V x;
        std::memcpy(&x, worth + i, sizeof(V));
        return x;
    }
    // The first that is worth so much; -1 where there is none.
    int64_t first_from(int64_t count, double enough) const {
        for (int64_t at = count; at % LANES; ++at) worth[at] = -INF;
        for (int64_t i = 0; i < count; i += LANES)
            if (any(worth_at(i) >= enough))
                for (int64_t j = i; j < count; ++j)
                    if (worth[j] >= enough) return j;
        return -1;
    }
    int64_t best(int64_t count, int64_t except = -1) const {
        for (int64_t at = count; at % LANES; ++at) worth[at] = -INF;
        const double kept = except < 0 ? 0.0 : worth[except];
        if (except >= 0) worth[except] = -INF;
        V tops = all(-INF);
        for (int64_t i = 0; i < count; i += LANES) tops = larger(worth_at(i), tops);
        double top = tops[0];
        for (int i = 1; i < LANES; ++i) top = std::max(top, tops[i]);
        const int64_t found = top > -INF ? first_from(count, top) : -1;
        if (except >= 0) worth[except] = kept;
        return found;
    }
    // The next one in descending order, the smaller index first; -1 where there is none.
    int64_t after(int64_t count, int64_t chosen, int64_t except) const {
        int64_t found = -1;
        for (int64_t i = 0; i < count; ++i) {
            const bool behind = worth[i] < worth[chosen] || (worth[i] == worth[chosen] && i > chosen);
            if (behind && i != except && worth[i] > (found < 0 ? -INF : worth[found])) found = i;
        }
        return found;
    }
};

constexpr int32_t NONE = -1, UNKNOWN = -2;

// A path from its end: labels and durations (less 1) in turn, and the boundary of each node. Each node from `first` on has
// what the best segmentation is worth that takes another choice there, -inf where there is none or it was taken; and that
// choice. At `first` the path itself took another choice than the best, which is `root`.
struct Path {
    std::vector<int32_t> chosen, boundary, other;
    std::vector<double> worth, rest, step;  // `rest` is the other choice's worth less what lies behind the node, `step` the chosen one's
    double score = -INF;
    int64_t first = 0, root = NONE;

    int32_t other_at(const Choices& choices, size_t node) {
        if (other[node] == UNKNOWN)
            other[node] = int32_t(choices.best(choices.durations(boundary[node], chosen[node - 1]), chosen[node]));
        return other[node];
    }
};

struct Deviation {
    int64_t path = -1, node = 0;
    double worth = -INF;
};

// Of two with the same worth: the smaller choice where they differ first.
bool comes_first(const Choices& choices, std::vector<Path>& paths, const Deviation& a, const Deviation& b) {
    Path &p = paths[size_t(a.path)], &q = paths[size_t(b.path)];
    for (int64_t node = 0; node <= std::min(a.node, b.node); ++node) {
        const size_t at = size_t(node);
        const int32_t x = node == a.node ? p.other_at(choices, at) : p.chosen[at];
        const int32_t y = node == b.node ? q.other_at(choices, at) : q.chosen[at];
        if (x != y) return x < y;
    }
    return a.node > b.node;
}

Deviation best_deviation(const Choices& choices, std::vector<Path>& paths) {
    Deviation found;
    for (size_t p = 0; p < paths.size(); ++p)
        for (size_t node = 0; node < paths[p].worth.size(); ++node) {
            const Deviation one{int64_t(p), int64_t(node), paths[p].worth[node]};
            if (one.worth > found.worth ||
                (one.worth == found.worth && one.worth > -INF && comes_first(choices, paths, one, found)))
                found = one;
        }
    return found;
}

// A path from the end backwards: as it is followed, with `more` its own deviations are noted.
struct Follower {
    const Choices& choices;
    const bool more;
    Path path;
    double after = 0.0;  // what lies behind the node is worth
    int64_t t, next = NONE;

    Follower(const Choices& choices, bool more) : choices(choices), more(more), t(choices.q.length) {
        const size_t most = size_t(2 * t);
        path.chosen.reserve(most);
        if (!more) return;
        for (auto* column : {&path.boundary, &path.other}) column->reserve(most);
        for (auto* column : {&path.worth, &path.rest, &path.step}) column->reserve(most);
    }

    bool labels() const { return path.chosen.size() % 2 == 0; }

    void take(int64_t chosen, int64_t other, double rest) {
        const bool duration = !labels();
        path.chosen.push_back(int32_t(chosen));
        if (more) {
            const double step = duration ? choices.duration_step(t, next, chosen + 1) : choices.label_step(chosen, next);
            path.boundary.push_back(int32_t(t));
            path.other.push_back(int32_t(other));
            path.rest.push_back(rest);
            path.worth.push_back(after + rest);
            path.step.push_back(step);
            after += step;
        }
        if (duration) t -= chosen + 1;
        else next = chosen;
    }
    // Nodes of another path, with what it has noted of them or, for they are that path's, without.
    void copy(const Path& from, size_t begin, size_t end, bool noted) {
        const auto add = [=](auto& to, const auto& values) { to.insert(to.end(), values.begin() + begin, values.begin() + end); };
        add(path.chosen, from.chosen);
        if (more) {
            size_t node = path.rest.size();
            add(path.boundary, from.boundary);
            add(path.step, from.step);
            if (noted) {
                add(path.other, from.other);
                add(path.rest, from.rest);
            } else {
                path.other.resize(path.step.size(), NONE);
                path.rest.resize(path.step.size(), -INF);
            }
            path.worth.resize(path.step.size());
            for (; node < path.step.size(); ++node) {
                path.worth[node] = after + path.rest[node];
                after += path.step[node];
            }
        }
        t = end < from.chosen.size() ? from.boundary[end] : 0;
        const size_t last = path.chosen.size();
        next = last == 0 ? int64_t(NONE) : path.chosen[last - (labels() ? 2 : 1)];
    }
    // The other choice of the parent, and what comes behind it in the order of worth.
    void deviate(int64_t chosen, int64_t root) {
        path.first = int64_t(path.chosen.size());
        path.root = root;
        const int64_t count = labels() ? choices.labels(t, next) : choices.durations(t, next);
        const int64_t other = more ? choices.after(count, chosen, root) : NONE;
        take(chosen, other, other < 0 ? -INF : choices.worth[other]);
    }
    void best() {
        if (labels()) {
            const int64_t chosen = choices.best_label(t, next);
            const int64_t other = more ? choices.best(choices.labels(t, next), chosen) : NONE;
            return take(chosen, other, other < 0 ? -INF : choices.worth[other]);
        }
        const int64_t chosen = choices.best_duration(t, next);
        take(chosen, UNKNOWN, more ? choices.second[t * choices.m.wide + next] : -INF);
    }
    // The best way from here. From where another path comes by, before the same label, it is that path's.
    void finish(const Path& other, size_t node) {
        while (t > 0) {
            if (labels()) {
                while (node < other.chosen.size() && (node % 2 || other.boundary[node] > t)) ++node;
                if (node < other.chosen.size() && other.boundary[node] == t && other.chosen[node - 2] == next)
                    return copy(other, node, other.chosen.size(), true);
            }
            best();
        }
    }
};

Path best_path(const Choices& choices, bool more) {
    Follower walk(choices, more);
    const int64_t last = choices.best(choices.labels(walk.t, NONE));
    if (last < 0) return walk.path;
    const double score = choices.worth[last];
    while (walk.t > 0) walk.best();
    walk.path.score = score;
    return walk.path;
}

Path deviated(const Choices& choices, Path& parent, const Deviation& from, bool more) {
    Follower walk(choices, more);
    const size_t node = size_t(from.node);
    walk.copy(parent, 0, node, false);
    const int64_t root = from.node == parent.first && parent.root >= 0 ? parent.root : parent.chosen[node];
    walk.deviate(parent.other_at(choices, node), root);
    walk.finish(parent, node + 2);
    walk.path.score = from.worth;
    parent.worth[node] = -INF;
    return walk.path;
}

struct Found {
    int64_t count;
    double* score;   // (B, count), -inf where there is none
    int32_t* marks;  // (B, count, T): label + 1 where a segment ends with that frame, else 0 as before
};

void best_one(const Model& m, const Tables& tables, const Sequence& q, const Rows& rows, double* worth, int64_t count, double* score,
              int32_t* marks) {
    if (count > 1) best_messages<true>(m, tables, q, rows);
    else best_messages<false>(m, tables, q, rows);
    const auto flat = [](const V* row) { return reinterpret_cast<const double*>(row); };
    const Choices choices{m, q, flat(rows.alpha), flat(rows.gamma), flat(rows.second), tables.into.get(), worth};
    std::vector<Path> paths;
    std::fill_n(score, count, -INF);
    for (int64_t n = 0; n < count; ++n) {
        const bool more = n + 1 < count;
        if (n == 0) paths.push_back(best_path(choices, more));
        else {
            const Deviation from = best_deviation(choices, paths);
            if (from.path < 0) return;
            paths.push_back(deviated(choices, paths[size_t(from.path)], from, more));
        }
        if (!(paths.back().score > -INF)) return;
        score[n] = paths.back().score;
        const std::vector<int32_t>& chosen = paths.back().chosen;
        int64_t t = q.length;
        for (size_t i = 0; i < chosen.size(); i += 2) {
            marks[n * m.frames + t - 1] = chosen[i] + 1;
            t -= chosen[i + 1] + 1;
        }
    }
}

}  // namespace

// The `count` best segmentations of each sequence. Returns 0, or 1 where there is not enough memory.
extern "C" int lab_semicrf_best(const Batch* x, const Found* to) {
    return guarded([&] {
        const Model m(*x);
        const Tables tables(m);
        const int64_t size = Rows::size(m, m.frames, to->count > 1), room = (std::max(m.longest, m.labels) + PADDED) / LANES + 1;
        in_turns(m, size + room, [&](int64_t b, V* memory) {
            best_one(m, tables, m.sequence(b), Rows(m, m.frames, memory), reinterpret_cast<double*>(memory + size), to->count,
                     to->score + b * to->count, to->marks + b * to->count * m.frames);
        });
    });
}
