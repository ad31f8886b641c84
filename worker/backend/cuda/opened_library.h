// NVIDIA's libraries are opened when a GPU is used: a worker starts, and trains on processors,
// where they are not installed.
//
//   cuBLASLt  matrix products        cublaslt.h
//   NCCL      between several GPUs   nccl.h
//   cuDNN     attention              cudnn.h; with CUDA's run-time library, whose functions its
//                                    frontend looks up by name
//
// The driver is the linked run-time library's affair.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace causeway::worker::cuda {

// What is asked for, in the words of the message that says it is not there.
struct LibraryRequest {
  std::string what;                // "several GPUs need NCCL, which was not found"
  std::vector<std::string> names;  // In the order in which they are tried.
  std::string remedy;              // "install libnccl.so.2": what to do where none is found,
  std::string other_version;       // and where one lacks a function.
};

// `name` by itself and in the CUDA Toolkit's folder.
std::vector<std::string> UsualPlaces(const std::string& name);

// Never closed: its threads go on.
class OpenedLibrary {
 public:
  // FAILED_PRECONDITION with the names that were tried, why each failed, and the remedy.
  static absl::StatusOr<OpenedLibrary> Open(const LibraryRequest& request);

  // A function by its name, and the pointer to it that is to be set.
  struct Symbol {
    template <typename Function>
    Symbol(const char* symbol, Function*& function)
        : name(symbol), address(reinterpret_cast<void**>(&function)) {}
    const char* name;
    void** address;
  };
  // FAILED_PRECONDITION if the library lacks one of them.
  absl::Status Find(std::initializer_list<Symbol> symbols) const;

  void* handle() const { return handle_; }
  // The name that it was opened by.
  const std::string& name() const { return name_; }

 private:
  OpenedLibrary(void* handle, std::string name, std::string other_version)
      : handle_(handle), name_(std::move(name)), other_version_(std::move(other_version)) {}

  void* handle_;
  std::string name_;
  std::string other_version_;
};

}  // namespace causeway::worker::cuda
