// Memory of a device for tests of kernels. A failing call ends the program.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace causeway::worker::cuda {

inline void MustWork(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::abort();
}

template <typename T>
class DeviceArray {
 public:
  // All bytes 0xff: NaN in every floating-point type, so that what a kernel leaves out shows.
  explicit DeviceArray(size_t size) : size_(size) {
    MustWork(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()));
    std::vector<unsigned char> poison(bytes(), 0xff);
    MustWork(cudaMemcpy(data_, poison.data(), bytes(), cudaMemcpyHostToDevice));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    MustWork(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { MustWork(cudaFree(data_)); }

  T* data() const { return data_; }
  // Waits for the device.
  std::vector<T> Download() const {
    MustWork(cudaGetLastError());
    MustWork(cudaDeviceSynchronize());
    std::vector<T> values(size_);
    MustWork(cudaMemcpy(static_cast<void*>(values.data()), data_, size_ * sizeof(T),
                        cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  size_t bytes() const { return (size_ == 0 ? 1 : size_) * sizeof(T); }
  T* data_ = nullptr;
  size_t size_;
};

}  // namespace causeway::worker::cuda
