// cuBLASLt, opened when a GPU is used: the worker starts and trains on CPUs where it is not
// installed.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/backend/cuda/gemm.h"
#include "worker/backend/cuda/kernels/device.h"

namespace causeway::worker::cuda {

// The functions that are used, as cublasLt.h declares them.
struct CublasLtLibrary {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) matrix_layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) matrix_layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) matrix_layout_set_attribute = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) matmul_preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) matmul_preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) matmul_preference_set_attribute = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) matmul_algo_get_heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) matmul_algo_check = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  // Never unloaded. FAILED_PRECONDITION with the names that were tried, why each failed, and what
  // to install.
  static absl::StatusOr<CublasLtLibrary> Open(const std::vector<std::string>& names = Names());
  // The names of the major version that this program was built with.
  static std::vector<std::string> Names();

  // OK, or the library's error. `what` was being done.
  absl::Status Check(cublasStatus_t status, absl::string_view what) const;
};

}  // namespace causeway::worker::cuda
