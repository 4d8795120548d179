// Every function of both C++ sources on sizes around a vector's edge: a sanitizer sees each access beyond its memory.
#include "semicrf.cpp"
namespace decode {
#include "decode.cpp"
}

int main() {
    const int64_t batch = 2, frames = 11;
    for (int64_t labels : {1, 2, 3, 7, 8, 9, 15, 17})
        for (int64_t longest : {1, 2, 13}) {
            uint64_t state = uint64_t(labels * 100 + longest);
            const auto numbers = [&state](int64_t count) {
                std::vector<double> found(static_cast<size_t>(count));
                for (double& x : found) {
                    state = state * 6364136223846793005u + 1442695040888963407u;
                    x = (state >> 33) % 9 == 0 ? -INF : double(int64_t(state >> 40)) / double(1 << 23) - 1.0;
                }
                return found;
            };
            const auto empty = [](int64_t count) { return std::vector<double>(static_cast<size_t>(count)); };
            const std::vector<double> score = numbers(batch * frames * labels), into = numbers(labels * labels);
            const std::vector<double> lasting = numbers(longest * labels), first = numbers(labels), last = numbers(labels);
            const std::vector<int64_t> lengths{frames, 4};
            std::vector<uint8_t> flagged(batch);
            std::vector<int64_t> frame(batch);
            std::vector<int32_t> exponent(size_t(batch * (frames + 1)));
            std::vector<double> z = empty(batch), log_z = empty(batch), mass = empty(batch), worst = empty(batch);
            std::vector<double> counts = empty(3 * batch * frames * labels), durations = empty(batch * longest * labels);
            std::vector<double> crossed = empty(batch * labels * labels);
            const Batch x{batch, frames, longest, labels, 1, 0, score.data(), lengths.data(), into.data(), lasting.data(), first.data(),
                          last.data()};
            const Vectors rows = vectors(2 * batch * (frames + 1) * x.padded() / LANES);
            double *alpha = reinterpret_cast<double*>(rows.get()), *gamma = alpha + batch * (frames + 1) * x.padded();
            double *label = counts.data(), *starts = label + batch * frames * labels, *ends = starts + batch * frames * labels;
            const Messages kept{alpha, gamma, exponent.data(), z.data(), log_z.data(), flagged.data()};
            const Counts out{label, starts, ends, durations.data(), crossed.data(), mass.data(), frame.data()};
            double* const error = worst.data();
            lab_semicrf_forward(&x, &kept);
            lab_semicrf_backward(&x, &kept, &out);
            lab_semicrf_audit(&x, &out, &error);
            for (int64_t count : {1, 3}) {
                std::vector<double> best = empty(batch * count);
                std::vector<int32_t> marks(size_t(batch * count * frames));
                const decode::Found found{count, best.data(), marks.data()};
                const Draws drawn{count, 7, flagged.data(), marks.data()};
                decode::lab_semicrf_best(&x, &found);
                std::fill(marks.begin(), marks.end(), 0);
                lab_semicrf_draw(&x, &drawn);
            }
        }
}
