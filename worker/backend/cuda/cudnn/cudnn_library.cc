#include "worker/backend/cuda/cudnn/cudnn_library.h"

#include <cuda_runtime.h>
#include <cudnn.h>
#include <dlfcn.h>

#include <cstdlib>

#include "absl/base/attributes.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"

namespace cudnn_frontend {

// Where the frontend looks for cuDNN's functions.
void* cudnn_dlhandle = nullptr;

}  // namespace cudnn_frontend

namespace causeway::worker::cuda {
namespace {

constexpr char kWorkspaceLimit[] = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT";

ABSL_CONST_INIT absl::Mutex mutex(absl::kConstInit);

// `opened` gets the name that did.
absl::StatusOr<void*> Open(const char* what, const std::vector<std::string>& names,
                           std::string* opened) {
  std::vector<std::string> failures;
  for (const std::string& name : names) {
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      *opened = name;
      return library;
    }
    const char* const error = dlerror();
    failures.push_back(error == nullptr ? name : error);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      what, " was not found (", absl::StrJoin(failures, "; "), "): install cuDNN ", CUDNN_MAJOR,
      " for CUDA ", CUDART_VERSION / 1000, " and name its folder in LD_LIBRARY_PATH"));
}

std::vector<std::string> Places(const std::string& name) {
  return {name, absl::StrCat("/usr/local/cuda/lib64/", name)};
}

}  // namespace

CudnnNames CudnnNames::Default() {
  return {.cudnn = Places(absl::StrCat("libcudnn.so.", CUDNN_MAJOR)),
          .runtime = Places(absl::StrCat("libcudart.so.", CUDART_VERSION / 1000))};
}

absl::Status OpenCudnn(const CudnnNames& names) {
  absl::MutexLock lock(&mutex);
  if (cudnn_frontend::cudnn_dlhandle != nullptr) return absl::OkStatus();
  std::string name;
  ASSIGN_OR_RETURN(void* const library, Open("cuDNN", names.cudnn, &name));
  if (dlsym(library, "cudnnGetVersion") == nullptr ||
      dlsym(library, "cudnnBackendExecute") == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " has no cudnnBackendExecute: it is another library, or ",
                     "another version than cuDNN ", CUDNN_MAJOR, "; install that one"));
  }
  std::string runtime;
  RETURN_IF_ERROR(
      Open("CUDA's run-time library, which cuDNN's frontend wants,", names.runtime, &runtime)
          .status());
  // Otherwise the frontend takes one of an older CUDA, if there is one.
  setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", runtime.c_str(), /*replace=*/0);
  // From 9.25 on, cuDNN has a backward pass for Hopper that adds up in one order without keeping a
  // number for every pair of positions; the frontend takes it where less memory than that is
  // allowed. Older ones do not read this.
  setenv(kWorkspaceLimit, "0", /*replace=*/0);
  cudnn_frontend::cudnn_dlhandle = library;
  return absl::OkStatus();
}

std::string CudnnName() {
  const auto get_version = reinterpret_cast<decltype(&cudnnGetVersion)>(
      dlsym(cudnn_frontend::cudnn_dlhandle, "cudnnGetVersion"));
  const size_t version = get_version();
  std::string name =
      absl::StrCat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  // Which of its backward passes it is.
  if (version >= 92500) absl::StrAppend(&name, ", workspace limit ", std::getenv(kWorkspaceLimit));
  return name;
}

}  // namespace causeway::worker::cuda
