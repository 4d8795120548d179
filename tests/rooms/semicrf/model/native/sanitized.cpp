// Every function of the C++ source on sizes around a vector's edge: a sanitizer sees each access beyond its memory.
#include "semicrf.cpp"

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
            std::vector<double> log_z = empty(batch), best = empty(batch), durations = empty(batch * longest * labels);
            std::vector<double> counts = empty(3 * batch * frames * labels), crossed = empty(batch * labels * labels);
            std::vector<int32_t> marks(size_t(batch * frames));
            const Batch x{batch, frames, longest, labels, 1, score.data(), lengths.data(), into.data(), lasting.data(), first.data(),
                          last.data()};
            const int64_t size = batch * (frames + 1) * x.padded();
            const Vectors rows = vectors(3 * size / LANES);
            double *alpha = reinterpret_cast<double*>(rows.get()), *label = counts.data();
            double *starts = label + batch * frames * labels, *ends = starts + batch * frames * labels;
            const Messages alone{nullptr, nullptr, nullptr, log_z.data()};
            const Messages kept{alpha, alpha + size, alpha + 2 * size, log_z.data()};
            const Counts out{label, starts, ends, durations.data(), crossed.data()};
            const Best found{best.data(), marks.data()};
            if (lab_semicrf_forward(&x, &alone) || lab_semicrf_forward(&x, &kept)) return 1;
            if (lab_semicrf_backward(&x, &kept, &out) || lab_semicrf_best(&x, &found)) return 1;
        }
}
