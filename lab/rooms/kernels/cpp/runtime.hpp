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
#include <functional>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace lab {

using Stack = std::vector<c10::IValue>;

constexpr int64_t PATTERN_ELEMENTS = 1 << 20;

struct Options {
  bool cuda = false;
  int repeats = 20;
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
    flat = tiled(source.to(spec.dtype), spec.length, spec.seed);
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
inline at::Tensor number(at::ScalarType dtype) {
  auto made = at::ones({}, at::TensorOptions().dtype(dtype));
  made.unsafeGetTensorImpl()->set_wrapped_number(true);
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

// A function of CUDA's runtime, which torch has loaded.
template <typename... Args>
int cuda(const char* name, Args... args) {
  const auto function = reinterpret_cast<int (*)(Args...)>(dlsym(RTLD_DEFAULT, name));
  if (!function) throw std::runtime_error(std::string("CUDA's runtime has no ") + name);
  return function(args...);
}

struct Entry {
  const char* op;
  const char* overload;
  const char* cells;  // of its row, as JSON
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
  static void *begin = nullptr, *end = nullptr, *stream = nullptr;
  if (!begin) cuda("cudaEventCreate", &begin), cuda("cudaEventCreate", &end);
  cuda("cudaEventRecord", begin, stream);
  for (int i = 0; i < 10; ++i) {
    stack = arguments;
    op.callBoxed(&stack);
  }
  cuda("cudaEventRecord", end, stream);
  cuda("cudaEventSynchronize", end);
  float ms = 0;
  cuda("cudaEventElapsedTime", &ms, begin, end);
  return static_cast<double>(ms) * 100.0;
}

// Makes one call and prints its row; false if it failed.
inline bool print_row(const Entry& entry, const Options& options, bool last) {
  std::vector<double> us;
  unsigned long long sum = 0;
  std::string error;
  try {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(entry.op, entry.overload);
    Stack first = entry.arguments(options);  // its own data: an in-place op changes them
    op.callBoxed(&first);
    if (options.cuda) cuda("cudaDeviceSynchronize");
    sum = checksum(first);
    const Stack arguments = entry.arguments(options);
    for (int i = 0; i < options.repeats; ++i) us.push_back(time_us(op, arguments, options));
    std::sort(us.begin(), us.end());
  } catch (const std::exception& thrown) {
    error = std::string(thrown.what()).substr(0, std::string(thrown.what()).find('\n'));
    const auto unsafe = [](unsigned char c) { return c == '"' || c == '\\' || c < 0x20; };
    std::replace_if(error.begin(), error.end(), unsafe, '\'');
    error = "\"" + error + "\"";
  }
  const size_t n = us.size();
  std::printf("  {%s, \"mode\": \"hot\", \"n_ran\": %zu, \"us\": ", entry.cells, n);
  if (n) {
    std::printf("{\"median\": %.4f, \"ci\": [%.4f, %.4f]}", us[n / 2], us[n / 4], us[(3 * n) / 4]);
  } else {
    std::printf("null");
  }
  std::printf(", \"checksum\": \"%016llx\", \"flags\": [%s]}%s\n", sum, error.c_str(), last ? "" : ",");
  std::fflush(stdout);
  return error.empty();
}

inline int run(const std::vector<Entry>& entries, int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--cuda") options.cuda = true;
    else if (word == "--repeats" && i + 1 < argc) options.repeats = std::atoi(argv[++i]);
    else {
      std::cerr << "usage: replay [--cuda] [--repeats N]\n";
      return 2;
    }
  }
  int failed = 0;
  std::printf("{\"device\": \"%s\", \"rows\": [\n", options.cuda ? "cuda" : "cpu");
  for (size_t i = 0; i < entries.size(); ++i) failed += !print_row(entries[i], options, i + 1 == entries.size());
  std::printf("], \"failed\": %d}\n", failed);
  return failed ? 1 : 0;
}

}  // namespace lab
