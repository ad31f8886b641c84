// Arrays on a device, for tests.
#ifndef CAUSEWAY_TESTS_UNIT_WORKER_BACKEND_CUDA_DEVICE_ARRAY_H_
#define CAUSEWAY_TESTS_UNIT_WORKER_BACKEND_CUDA_DEVICE_ARRAY_H_

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "worker/backend/cuda/device.h"

namespace causeway::worker::cuda {

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) {
    Check(CheckCuda(cudaMalloc(&data_, Bytes() == 0 ? 1 : Bytes()), "allocating"));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    Check(CheckCuda(cudaMemcpy(data_, values.data(), Bytes(), cudaMemcpyHostToDevice), "copying"));
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  size_t size() const { return size_; }
  // When all that the device was given before is done.
  std::vector<T> Get() const {
    Check(CheckCuda(cudaDeviceSynchronize(), "waiting"));
    std::vector<T> values(size_);
    Check(CheckCuda(cudaMemcpy(values.data(), data_, Bytes(), cudaMemcpyDeviceToHost), "copying"));
    return values;
  }

 private:
  size_t Bytes() const { return size_ * sizeof(T); }
  static void Check(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

  T* data_ = nullptr;
  size_t size_;
};

}  // namespace causeway::worker::cuda

#endif  // CAUSEWAY_TESTS_UNIT_WORKER_BACKEND_CUDA_DEVICE_ARRAY_H_
