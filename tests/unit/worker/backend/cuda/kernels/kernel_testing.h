// Shared by the tests of kernels: tensors on a device, runs whose bits must not depend on the order
// of threads, and the bound on errors: a kernel may be 1.5 times as far from the oracle, which
// computes in double, as the oracle's own result is once it is rounded to bf16 where the kernel
// rounds.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace causeway::worker::cuda {

inline size_t Size(int64_t value) { return static_cast<size_t>(value); }

using Doubles = std::vector<double>;

// `value` as bf16 holds it.
double RoundToBf16(double value);
Doubles RoundToBf16(Doubles values);

// Values that bf16 holds exactly.
class RandomValues {
 public:
  explicit RandomValues(uint32_t seed) : engine_(seed) {}
  // About normal with this deviation, around `mean`.
  Doubles Normal(int64_t size, double deviation = 1, double mean = 0);
  // Integers in [low, high).
  std::vector<int32_t> Integers(int64_t size, int32_t low, int32_t high);

 private:
  std::mt19937 engine_;
};

// A stream of the present device, and memory that lives as long.
class TestDevice {
 public:
  TestDevice();
  ~TestDevice();
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;

  cudaStream_t stream() const { return stream_; }

  // All bytes 0xff: NaN in every floating-point type, so that what a kernel leaves out shows.
  template <typename T>
  T* Allocate(int64_t size) {
    return static_cast<T*>(AllocateBytes(static_cast<size_t>(size) * sizeof(T)));
  }
  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* const data = Allocate<T>(static_cast<int64_t>(values.size()));
    Copy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
    return data;
  }
  __nv_bfloat16* UploadBf16(const Doubles& values);
  float* UploadFloat(const Doubles& values);

  // Waits for the stream.
  template <typename T>
  std::vector<T> Download(const T* data, int64_t size) {
    std::vector<T> values(static_cast<size_t>(size));
    Copy(values.data(), data, values.size() * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }
  Doubles Values(const __nv_bfloat16* data, int64_t size);
  Doubles Values(const float* data, int64_t size);
  template <typename T>
  T Value(const T* data) {
    return Download(data, 1)[0];
  }

 private:
  void* AllocateBytes(size_t bytes);
  void Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);

  cudaStream_t stream_ = nullptr;
  std::vector<void*> blocks_;
};

// The tensors that `run` returns, after it has run again and, under emulation, with the threads in
// other orders: each time with the same bits.
std::vector<Doubles> Repeat(const std::function<std::vector<Doubles>(TestDevice&)>& run);

// The largest and the mean square error of `actual` are at most 1.5 times those of `emulated`, up
// to `tolerance` of the oracle's largest value, which stands for fp32's arithmetic.
void ExpectClose(const std::string& what, const Doubles& actual, const Doubles& oracle,
                 const Doubles& emulated, double tolerance = 2e-6);
// For tensors that are written in fp32, and as bf16.
void ExpectCloseFloat(const std::string& what, const Doubles& actual, const Doubles& oracle,
                      double tolerance = 2e-6);
void ExpectCloseBf16(const std::string& what, const Doubles& actual, const Doubles& oracle);

// What floats compare by where NaNs and signs of zeros count.
inline std::vector<uint32_t> Bits(std::span<const float> values) {
  std::vector<uint32_t> bits;
  for (const float x : values) bits.push_back(std::bit_cast<uint32_t>(x));
  return bits;
}

// The same values as T.
template <typename T>
std::vector<T> As(const Doubles& values) {
  std::vector<T> converted(values.size());
  for (size_t i = 0; i < values.size(); ++i) converted[i] = static_cast<T>(values[i]);
  return converted;
}

}  // namespace causeway::worker::cuda
