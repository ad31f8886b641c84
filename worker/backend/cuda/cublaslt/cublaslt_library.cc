#include "worker/backend/cuda/cublaslt/cublaslt_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace causeway::worker::cuda {
namespace {

template <typename Function>
absl::Status Find(void* library, const std::string& name, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(name, " has no ", symbol, ": it is another version than CUDA ", CUBLAS_VER_MAJOR,
                   "'s; install libcublas of CUDA ", CUBLAS_VER_MAJOR));
}

}  // namespace

std::vector<std::string> CublasLtLibrary::Names() {
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  return {name, absl::StrCat("/usr/local/cuda/lib64/", name),
          absl::StrCat("/usr/local/cuda-", CUBLAS_VER_MAJOR, "/lib64/", name)};
}

absl::StatusOr<CublasLtLibrary> CublasLtLibrary::Open(const std::vector<std::string>& names) {
  void* library = nullptr;
  std::string opened;
  std::vector<std::string> failures;
  for (const std::string& name : names) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      opened = name;
      break;
    }
    const char* const error = dlerror();
    failures.push_back(error == nullptr ? name : error);
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "training on a GPU needs NVIDIA's cuBLASLt, which was not found (",
        absl::StrJoin(failures, "; "), "): install libcublas of CUDA ", CUBLAS_VER_MAJOR,
        " or name its folder in LD_LIBRARY_PATH; to compute on this machine's processors, give "
        "--device=cpu"));
  }
  CublasLtLibrary functions;
  const auto find = [&](const char* symbol, auto& function) {
    return Find(library, opened, symbol, function);
  };
  RETURN_IF_ERROR(find("cublasLtCreate", functions.create));
  RETURN_IF_ERROR(find("cublasLtDestroy", functions.destroy));
  RETURN_IF_ERROR(find("cublasLtGetVersion", functions.get_version));
  RETURN_IF_ERROR(find("cublasLtGetStatusString", functions.get_status_string));
  RETURN_IF_ERROR(find("cublasLtMatmulDescCreate", functions.matmul_desc_create));
  RETURN_IF_ERROR(find("cublasLtMatmulDescDestroy", functions.matmul_desc_destroy));
  RETURN_IF_ERROR(find("cublasLtMatmulDescSetAttribute", functions.matmul_desc_set_attribute));
  RETURN_IF_ERROR(find("cublasLtMatrixLayoutCreate", functions.matrix_layout_create));
  RETURN_IF_ERROR(find("cublasLtMatrixLayoutDestroy", functions.matrix_layout_destroy));
  RETURN_IF_ERROR(find("cublasLtMatrixLayoutSetAttribute", functions.matrix_layout_set_attribute));
  RETURN_IF_ERROR(find("cublasLtMatmulPreferenceCreate", functions.matmul_preference_create));
  RETURN_IF_ERROR(find("cublasLtMatmulPreferenceDestroy", functions.matmul_preference_destroy));
  RETURN_IF_ERROR(
      find("cublasLtMatmulPreferenceSetAttribute", functions.matmul_preference_set_attribute));
  RETURN_IF_ERROR(find("cublasLtMatmulAlgoGetHeuristic", functions.matmul_algo_get_heuristic));
  RETURN_IF_ERROR(find("cublasLtMatmulAlgoCheck", functions.matmul_algo_check));
  RETURN_IF_ERROR(find("cublasLtMatmul", functions.matmul));
  return functions;
}

absl::Status CublasLtLibrary::Check(cublasStatus_t status, absl::string_view what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat("cuBLASLt, ", what, ": ", get_status_string(status));
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(text);
    case CUBLAS_STATUS_NOT_INITIALIZED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::FailedPreconditionError(text);
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return absl::UnavailableError(
          absl::StrCat(text, "; the GPU cannot be used any more by this process"));
    default:
      return absl::InternalError(text);
  }
}

}  // namespace causeway::worker::cuda
