// The `count` best segmentations on a CPU, float64: one pass from the left that keeps for every boundary and label the best ways to
// get there, best first, and where each came from; then the walks back.
//
// Equal scores are in the order of the smaller duration, then the smaller label, from the end: lists are scanned in that order, and
// a later one goes behind its equals. No sum spans more than one segment, so a score of -inf, or a large one, spoils no other.
#include "vectors.h"

namespace {

struct Best {
    int64_t count;
    double* score;   // (B, count), -inf where there is none
    int32_t* marks;  // (B, count, T): label + 1 where a segment ends with that frame, else 0 as before
};

// For each label the `count` largest values in descending order, and the code of each: row n holds the n-th of all labels.
struct Lists {
    int64_t count, labels;
    double* value;
    int32_t* code;

    void clear() const { std::fill_n(value, count * labels, -INF); }
    // -> whether there was room: below what was refused nothing smaller need be tried.
    bool add(int64_t c, double x, int32_t from) const {
        int64_t n = count;
        for (; n > 0 && x > value[(n - 1) * labels + c]; --n) {
            if (n == count) continue;
            value[n * labels + c] = value[(n - 1) * labels + c];
            code[n * labels + c] = code[(n - 1) * labels + c];
        }
        if (n == count) return false;
        value[n * labels + c] = x;
        code[n * labels + c] = from;
        return true;
    }
};

class Search {
    const Batch& x;
    const int64_t labels, count, size, length;
    std::vector<double> frames, alpha, gamma, content;
    std::vector<int32_t> ended, entered;  // (duration - 1) * count + rank before a segment; label * count + rank before a label

public:
    Search(const Batch& x, const Sequence& s, int64_t count)
        : x(x), labels(x.labels), count(count), size(count * labels), length(s.length), frames(size_t(length * labels)),
          alpha(size_t(size)), gamma(size_t((length + 1) * size), -INF), content(size_t(labels)), ended(size_t(length * size)),
          entered(size_t((length + 1) * size)) {
        for (int64_t t = 0; t < length; ++t)
            for (int64_t c = 0; c < labels; ++c) frames[size_t(t * labels + c)] = s.at(t, c);
        std::copy_n(x.start, labels, gamma.begin());
        for (int64_t t = 0; t < length; ++t) {
            const Lists ends = ways(alpha.data(), ended, t);
            if (count == 1) arrive_one(t, ends);
            else arrive(t, ends);
            if (t + 1 == length) break;
            const Lists next = ways(gamma.data() + (t + 1) * size, entered, t + 1);
            if (count == 1) leave_one(next);
            else leave(next);
        }
    }

    void walks(double* score, int32_t* marks) {
        std::vector<double> values(static_cast<size_t>(count), -INF);
        std::vector<int32_t> last(static_cast<size_t>(count));
        const Lists tops{count, 1, values.data(), last.data()};
        for (int64_t c = 0; c < labels; ++c)
            for (int64_t n = 0; n < count; ++n) tops.add(0, alpha[size_t(n * labels + c)] + x.end[c], int32_t(c * count + n));
        std::copy(values.begin(), values.end(), score);
        for (int64_t n = 0; n < count && score[n] > -INF; ++n) {
            int64_t way = last[size_t(n)];
            for (int64_t t = length; t > 0;) {
                const int64_t label = way / count, from = ended[size_t((t - 1) * size + way % count * labels + label)];
                marks[n * x.frames + t - 1] = int32_t(label + 1);
                t -= from / count + 1;
                way = entered[size_t(t * size + from % count * labels + label)];
            }
        }
    }

private:
    Lists ways(double* value, std::vector<int32_t>& codes, int64_t row) const {
        const Lists lists{count, labels, value, codes.data() + row * size};
        lists.clear();
        return lists;
    }
    // What ends with frame t: the segments of 1..K frames.
    void arrive(int64_t t, const Lists& ends) {
        std::fill(content.begin(), content.end(), 0.0);
        for (int64_t k = 1; k <= std::min(x.longest, t + 1); ++k)
            for (int64_t c = 0; c < labels; ++c) {
                const double lasting = (content[size_t(c)] += frames[size_t((t + 1 - k) * labels + c)]) + x.duration[(k - 1) * labels + c];
                const double* before = gamma.data() + (t + 1 - k) * size + c;
                for (int64_t n = 0; n < count && ends.add(c, before[n * labels] + lasting, int32_t((k - 1) * count + n)); ++n) {}
            }
    }
    // Of the best alone, for all labels side by side: `value(c)` where it is better.
    template <class Value>
    void take(const Lists& to, int32_t from, const Value& value) const {
        double* __restrict best = to.value;
        int32_t* __restrict code = to.code;
        for (int64_t c = 0; c < labels; ++c) {
            const double own = value(c);
            const bool better = own > best[c];
            best[c] = better ? own : best[c];
            code[c] = better ? from : code[c];
        }
    }
    void arrive_one(int64_t t, const Lists& ends) {
        double* __restrict sum = content.data();
        std::fill_n(sum, labels, 0.0);
        for (int64_t k = 1; k <= std::min(x.longest, t + 1); ++k) {
            const double *__restrict frame = frames.data() + (t + 1 - k) * labels, *__restrict lasting = x.duration + (k - 1) * labels;
            const double* __restrict before = gamma.data() + (t + 1 - k) * labels;
            take(ends, int32_t(k - 1), [=](int64_t c) { return before[c] + ((sum[c] += frame[c]) + lasting[c]); });
        }
    }
    void leave_one(const Lists& next) const {
        for (int64_t a = 0; a < labels; ++a) {
            const double *__restrict step = x.transition + a * labels, sent = alpha[size_t(a)];
            take(next, int32_t(a), [=](int64_t c) { return sent + step[c]; });
        }
    }
    void leave(const Lists& next) const {
        for (int64_t a = 0; a < labels; ++a)
            for (int64_t c = 0; c < labels; ++c) {
                const double step = x.transition[a * labels + c], *before = alpha.data() + a;
                for (int64_t n = 0; n < count && next.add(c, before[n * labels] + step, int32_t(a * count + n)); ++n) {}
            }
    }
};

}  // namespace

// Returns 0, or 1 where there is not enough memory.
extern "C" int lab_semicrf_best(const Batch* x, const Best* to) {
    return guarded([&] {
        in_turns(*x, 0, [&](int64_t b, V*) {
            Search search(*x, x->sequence(b), to->count);
            search.walks(to->score + b * to->count, to->marks + b * to->count * x->frames);
        });
    });
}
