// What every generated replay needs: tensors with the data of lab's Python replay, calls through torch's
// dispatcher, timing, and a report in the columns of replay.json. Works with libtorch 1.12 (C++14) to the
// newest (C++20).
//
// CUDA's runtime is loaded at run time by dlsym, so the program is built without a CUDA toolkit.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace lab {

using Stack = std::vector<c10::IValue>;

constexpr int64_t PATTERN_ELEMENTS = 1 << 20;

struct Options {
  bool cuda = false;
  int repeats = 20;
  std::string only;       // a sig_id
};

inline at::Device device_of(const Options& options, bool on_cpu) {
  return on_cpu || !options.cuda ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
}

// The hash of an element's index, as in lab.rooms.kernels.workload.replay.fill.pattern: float32 in [-1, 1).
inline const at::Tensor& pattern() {
  static const at::Tensor table = [] {
    auto made = at::empty({PATTERN_ELEMENTS}, at::kFloat);
    float* out = made.data_ptr<float>();
    for (int64_t i = 0; i < PATTERN_ELEMENTS; ++i) {
      uint64_t x = (static_cast<uint64_t>(i) * 2654435761ULL) & 0xffffffffULL;
      x = ((x ^ (x >> 16)) * 22468225ULL) & 0xffffffffULL;
      x = x ^ (x >> 13);
      out[i] = static_cast<float>(x >> 8) * (1.0f / 8388608.0f) - 1.0f;
    }
    return made;
  }();
  return table;
}

inline at::Tensor tiled(const at::Tensor& table, int64_t length, int64_t seed) {
  const int64_t size = table.numel();
  const int64_t start = (seed * 7919) % size;
  auto turned = at::cat({table.slice(0, start), table.slice(0, 0, start)});
  if (length <= size) return turned.slice(0, 0, length).clone();
  auto out = at::empty({length}, table.options());
  const int64_t whole = length / size;
  out.slice(0, 0, whole * size).view({whole, size}).copy_(turned);
  out.slice(0, whole * size).copy_(turned.slice(0, 0, length - whole * size));
  return out;
}

struct TensorSpec {
  at::ScalarType dtype;
  std::vector<int64_t> shape, stride;
  int64_t lead;    // elements before the first one: keeps the address modulo 16
  int64_t length;  // elements up to the last addressed one, with lead
  int64_t seed;
  int fill;  // 0 floats, 1 positive floats, 2 bools, 3 integers in [low, high], 4 zeros, 5 ones
  int64_t low, high;
  bool on_cpu;
};

inline at::Tensor make(const TensorSpec& spec, const Options& options) {
  const auto device = device_of(options, spec.on_cpu);
  at::Tensor flat;
  if (spec.fill <= 1) {
    auto table = spec.fill == 1 ? pattern().abs() : pattern();
    const auto source = at::isComplexType(spec.dtype) ? at::complex(pattern(), pattern()) : table;
    flat = tiled(source.to(spec.dtype),
                 spec.length, spec.seed);
  } else if (spec.fill == 2) {
    flat = tiled(pattern().lt(0), spec.length, spec.seed);
  } else if (spec.fill == 3) {
    const double span = static_cast<double>(spec.high - spec.low + 1);
    auto table = pattern().to(at::kDouble).add(1).mul(0.5).mul(span).floor().clamp_max(span - 1);
    table = table.add(static_cast<double>(spec.low));
    flat = tiled(table.to(spec.dtype), spec.length, spec.seed);
  } else {
    flat = at::full({spec.length}, spec.fill == 5 ? 1 : 0, at::TensorOptions().dtype(spec.dtype));
  }
  return flat.to(device).as_strided(spec.shape, spec.stride, spec.lead);
}

// A Python number that the dispatcher wrapped in a tensor: 1, as in the Python replay.
inline at::Tensor number(at::ScalarType dtype, bool wrapped) {
  auto made = at::ones({}, at::TensorOptions().dtype(dtype));
  if (wrapped) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

inline c10::IValue tensors(const std::vector<at::Tensor>& values) {
  return c10::IValue(c10::List<at::Tensor>(at::ArrayRef<at::Tensor>(values)));
}

inline c10::IValue optional_tensors(const std::vector<c10::optional<at::Tensor>>& values) {
  c10::List<c10::optional<at::Tensor>> list;
  for (const auto& value : values) list.push_back(value);
  return c10::IValue(list);
}

template <typename T>
c10::IValue list_of(const std::vector<T>& values) {
  c10::List<T> list;
  for (const T& value : values) list.push_back(value);
  return c10::IValue(list);
}

// FNV-1a over the bytes of every tensor among the results, in order: equal bytes give equal numbers.
inline uint64_t checksum(const Stack& results) {
  uint64_t hash = 14695981039346656037ULL;
  const std::function<void(const c10::IValue&)> add = [&](const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) {
      const auto held = value.toTensor().detach().to(at::kCPU).contiguous();
      const auto* bytes = static_cast<const unsigned char*>(held.data_ptr());
      for (size_t i = 0; i < held.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211ULL;
    } else if (value.isList()) {
      for (const auto& one : value.toListRef()) add(one);
    }
  };
  for (const auto& value : results) add(value);
  return hash;
}

// CUDA's runtime, if there is one -----------------------------------------------------------------------

struct Cuda {
  int (*create)(void**) = nullptr;
  int (*record)(void*, void*) = nullptr;
  int (*synchronize)(void*) = nullptr;
  int (*elapsed)(float*, void*, void*) = nullptr;
  int (*device_synchronize)() = nullptr;

  static Cuda& get() {
    static Cuda found;
    return found;
  }

 private:
  template <typename F>
  static void find(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
    if (!function) throw std::runtime_error(std::string("CUDA's runtime has no ") + name);
  }
  Cuda() {
    find(create, "cudaEventCreate");
    find(record, "cudaEventRecord");
    find(synchronize, "cudaEventSynchronize");
    find(elapsed, "cudaEventElapsedTime");
    find(device_synchronize, "cudaDeviceSynchronize");
  }
};

inline void wait(const Options& options) {
  if (options.cuda) Cuda::get().device_synchronize();
}

struct Measured {
  std::vector<double> us;
  uint64_t sum = 0;
  std::string error;
};

struct Entry {
  const char* sig_id;
  const char* op;
  const char* overload;
  const char* kernel;
  long long count;
  std::function<Stack(const Options&)> arguments;
};

inline double time_us(const c10::OperatorHandle& op, const Stack& arguments, const Options& options) {
  Stack stack = arguments;
  if (!options.cuda) {
    const auto begin = std::chrono::steady_clock::now();
    op.callBoxed(&stack);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  }
  // Events around ten calls: around a single call they would time the launch.
  static void *begin = nullptr, *end = nullptr;
  if (!begin) Cuda::get().create(&begin), Cuda::get().create(&end);
  Cuda::get().record(begin, nullptr);
  for (int i = 0; i < 10; ++i) {
    stack = arguments;
    op.callBoxed(&stack);
  }
  Cuda::get().record(end, nullptr);
  Cuda::get().synchronize(end);
  float ms = 0;
  Cuda::get().elapsed(&ms, begin, end);
  return static_cast<double>(ms) * 100.0;
}

inline Measured measure(const Entry& entry, const Options& options) {
  Measured out;
  try {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(entry.op, entry.overload);
    {
      Stack first = entry.arguments(options);  // its own data: an in-place op changes them
      op.callBoxed(&first);
      wait(options);
      out.sum = checksum(first);
    }
    const Stack arguments = entry.arguments(options);
    for (int i = 0; i < options.repeats; ++i) out.us.push_back(time_us(op, arguments, options));
  } catch (const std::exception& error) {
    out.error = std::string(error.what()).substr(0, std::string(error.what()).find('\n'));
  }
  return out;
}

inline std::string in_quotes(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

inline void print_row(const Entry& entry, Measured& done, bool last) {
  std::sort(done.us.begin(), done.us.end());
  const size_t n = done.us.size();
  std::printf("  {\"sig_id\": %s, \"op\": %s, \"overload\": %s, \"kernel\": %s, \"mode\": \"hot\", \"count\": %lld, \"n_ran\": %zu, ",
              in_quotes(entry.sig_id).c_str(), in_quotes(entry.op).c_str(), in_quotes(entry.overload).c_str(), in_quotes(entry.kernel).c_str(),
              entry.count, n);
  if (n) {
    std::printf("\"us\": {\"median\": %.4f, \"ci\": [%.4f, %.4f]}, ", done.us[n / 2], done.us[n / 4], done.us[(3 * n) / 4]);
  } else {
    std::printf("\"us\": null, ");
  }
  std::printf("\"checksum\": \"%016llx\", \"flags\": [%s]}%s\n", static_cast<unsigned long long>(done.sum),
              done.error.empty() ? "" : in_quotes(done.error).c_str(), last ? "" : ",");
}

inline int run(const std::vector<Entry>& entries, int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--cuda") options.cuda = true;
    else if (word == "--repeats" && i + 1 < argc) options.repeats = std::atoi(argv[++i]);
    else if (word == "--only" && i + 1 < argc) options.only = argv[++i];
    else {
      std::cerr << "usage: replay [--cuda] [--repeats N] [--only SIG_ID]\n";
      return 2;
    }
  }
  int failed = 0;
  std::vector<const Entry*> chosen;
  for (const auto& entry : entries)
    if (options.only.empty() || options.only == entry.sig_id) chosen.push_back(&entry);
  std::printf("{\"device\": \"%s\", \"rows\": [\n", options.cuda ? "cuda" : "cpu");
  for (size_t i = 0; i < chosen.size(); ++i) {
    auto done = measure(*chosen[i], options);
    failed += !done.error.empty();
    print_row(*chosen[i], done, i + 1 == chosen.size());
    std::fflush(stdout);
  }
  std::printf("], \"failed\": %d}\n", failed);
  return failed ? 1 : 0;
}

}  // namespace lab
