#include "worker/backend/cuda/cublaslt.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "worker/backend/cuda/opened_library.h"

namespace causeway::worker::cuda {

std::vector<std::string> CublasLtLibrary::Names() {
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  std::vector<std::string> names = UsualPlaces(name);
  names.push_back(absl::StrCat("/usr/local/cuda-", CUBLAS_VER_MAJOR, "/lib64/", name));
  return names;
}

absl::StatusOr<CublasLtLibrary> CublasLtLibrary::Open(const std::vector<std::string>& names) {
  ASSIGN_OR_RETURN(
      const OpenedLibrary library,
      OpenedLibrary::Open(
          {.what = "training on a GPU needs NVIDIA's cuBLASLt, which was not found",
           .names = names,
           .remedy = absl::StrCat(
               "install libcublas of CUDA ", CUBLAS_VER_MAJOR,
               " or name its folder in LD_LIBRARY_PATH; to compute on this machine's processors, "
               "give --device=cpu"),
           .other_version = absl::StrCat("it is another version than CUDA ", CUBLAS_VER_MAJOR,
                                         "'s; install libcublas of CUDA ", CUBLAS_VER_MAJOR)}));
  CublasLtLibrary found;
  RETURN_IF_ERROR(
      library.Find({{"cublasLtCreate", found.create},
                    {"cublasLtDestroy", found.destroy},
                    {"cublasLtGetVersion", found.get_version},
                    {"cublasLtGetStatusString", found.get_status_string},
                    {"cublasLtMatmulDescCreate", found.matmul_desc_create},
                    {"cublasLtMatmulDescDestroy", found.matmul_desc_destroy},
                    {"cublasLtMatmulDescSetAttribute", found.matmul_desc_set_attribute},
                    {"cublasLtMatrixLayoutCreate", found.matrix_layout_create},
                    {"cublasLtMatrixLayoutDestroy", found.matrix_layout_destroy},
                    {"cublasLtMatrixLayoutSetAttribute", found.matrix_layout_set_attribute},
                    {"cublasLtMatmulPreferenceCreate", found.matmul_preference_create},
                    {"cublasLtMatmulPreferenceDestroy", found.matmul_preference_destroy},
                    {"cublasLtMatmulPreferenceSetAttribute", found.matmul_preference_set_attribute},
                    {"cublasLtMatmulAlgoGetHeuristic", found.matmul_algo_get_heuristic},
                    {"cublasLtMatmulAlgoCheck", found.matmul_algo_check},
                    {"cublasLtMatmul", found.matmul}}));
  return found;
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

namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 8;
// Alignment of the operands that one plan is used for, in bytes: rows of a matrix begin anywhere.
constexpr uint32_t kAlignment = 16;
constexpr int kTimedRuns = 3;

// cuBLASLt is column-major: our rows are its columns, and D^T = op(B)^T op(A)^T, so that our B is
// its first operand.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr;
  cublasLtMatrixLayout_t second = nullptr;
  cublasLtMatrixLayout_t result = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
};

std::string Shape(const GemmCall& call) {
  const auto operand = [](const GemmOperand& o) {
    return absl::StrCat(o.transpose ? "T" : "N", o.stride, "/", o.batch_stride);
  };
  const void* const d = call.d_float != nullptr ? static_cast<const void*>(call.d_float) : call.d;
  return absl::StrCat(call.m, "x", call.n, "x", call.k, "*", call.batch, " ", operand(call.a), " ",
                      operand(call.b), " ", call.d_float != nullptr ? "f32" : "bf16", call.d_stride,
                      "/", call.d_batch_stride, call.beta == 0 ? "" : (call.c == d ? " +D" : " +C"),
                      call.bias == nullptr ? "" : " +bias");
}

class CublasLtGemm final : public Gemm {
 public:
  CublasLtGemm(const CublasLtLibrary& library, cublasLtHandle_t handle, std::string device,
               void* workspace, GemmPlanStore* plans)
      : library_(library),
        handle_(handle),
        device_(std::move(device)),
        workspace_(workspace),
        store_(*plans) {}
  ~CublasLtGemm() override {
    for (auto& [shape, plan] : plans_) Free(plan);
    (void)library_.destroy(handle_);
  }

  absl::Status Run(const GemmCall& call, cudaStream_t stream) override {
    ASSIGN_OR_RETURN(const Plan* const plan, PlanFor(call, stream));
    return Multiply(*plan, plan->algorithm, call, stream);
  }
  void SetTuning(bool on) override { tuning_ = on; }

 private:
  void Free(const Plan& plan) const {
    if (plan.operation != nullptr) (void)library_.matmul_desc_destroy(plan.operation);
    for (cublasLtMatrixLayout_t layout : {plan.first, plan.second, plan.result}) {
      if (layout != nullptr) (void)library_.matrix_layout_destroy(layout);
    }
  }

  absl::StatusOr<const Plan*> PlanFor(const GemmCall& call, cudaStream_t stream) {
    const std::string shape = Shape(call);
    const auto known = plans_.find(shape);
    if (known != plans_.end()) return &known->second;
    Plan plan;
    absl::Status status = Describe(call, plan);
    if (status.ok()) status = Choose(call, absl::StrCat(device_, " ", shape), plan, stream);
    if (!status.ok()) {
      Free(plan);
      return Annotate(status, absl::StrCat("a product of shape ", shape));
    }
    return &plans_.emplace(shape, plan).first->second;
  }

  absl::Status MakeLayout(const GemmOperand& operand, cudaDataType_t type, int64_t rows,
                          int64_t columns, int64_t batch, cublasLtMatrixLayout_t& layout) const {
    RETURN_IF_ERROR(library_.Check(
        library_.matrix_layout_create(&layout, type, static_cast<uint64_t>(rows),
                                      static_cast<uint64_t>(columns), operand.stride),
        "describing a matrix"));
    const auto count = static_cast<int32_t>(batch);
    RETURN_IF_ERROR(
        library_.Check(library_.matrix_layout_set_attribute(
                           layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
                       "describing a batch"));
    return library_.Check(
        library_.matrix_layout_set_attribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                             &operand.batch_stride, sizeof(operand.batch_stride)),
        "describing a batch");
  }

  absl::Status Describe(const GemmCall& call, Plan& plan) const {
    RETURN_IF_ERROR(
        library_.Check(library_.matmul_desc_create(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                       "describing a product"));
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
      return library_.Check(
          library_.matmul_desc_set_attribute(plan.operation, attribute, &value, sizeof(value)),
          "describing a product");
    };
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, call.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N));
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, call.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N));
    if (call.bias != nullptr) {
      RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS));
      // The search reads its alignment; every product sets its own (Multiply).
      const void* const least_aligned = reinterpret_cast<const void*>(uintptr_t{kAlignment});
      RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, least_aligned));
    }
    const cudaDataType_t type = call.d_float != nullptr ? CUDA_R_32F : CUDA_R_16BF;
    RETURN_IF_ERROR(MakeLayout(call.b, CUDA_R_16BF, call.b.transpose ? call.k : call.n,
                               call.b.transpose ? call.n : call.k, call.batch, plan.first));
    RETURN_IF_ERROR(MakeLayout(call.a, CUDA_R_16BF, call.a.transpose ? call.m : call.k,
                               call.a.transpose ? call.k : call.m, call.batch, plan.second));
    return MakeLayout(
        {.data = nullptr, .stride = call.d_stride, .batch_stride = call.d_batch_stride}, type,
        call.n, call.m, call.batch, plan.result);
  }

  absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Recommended(const Plan& plan) const {
    constexpr char kWhat[] = "choosing an algorithm";
    cublasLtMatmulPreference_t made = nullptr;
    RETURN_IF_ERROR(library_.Check(library_.matmul_preference_create(&made), kWhat));
    const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                          decltype(library_.matmul_preference_destroy)>
        preference(made, library_.matmul_preference_destroy);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      return library_.Check(
          library_.matmul_preference_set_attribute(made, attribute, &value, sizeof(value)), kWhat);
    };
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes));
    // Sums over a divided k are added in fp32, not in the result's type.
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)));
    for (const auto operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      RETURN_IF_ERROR(set(operand, kAlignment));
    }
    std::vector<cublasLtMatmulHeuristicResult_t> results(kCandidates);
    int found = 0;
    RETURN_IF_ERROR(library_.Check(
        library_.matmul_algo_get_heuristic(handle_, plan.operation, plan.first, plan.second,
                                           plan.result, plan.result, made, kCandidates,
                                           results.data(), &found),
        kWhat));
    results.resize(static_cast<size_t>(found));
    std::erase_if(results, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
    if (results.empty()) return absl::InternalError("cuBLASLt knows no algorithm");
    return results;
  }

  absl::Status Choose(const GemmCall& call, const std::string& key, Plan& plan,
                      cudaStream_t stream) {
    const std::optional<GemmPlan> stored = store_.Find(key);
    if (stored.has_value()) {
      static_assert(sizeof(plan.algorithm) == sizeof(GemmPlan));
      std::memcpy(&plan.algorithm, stored->data(), sizeof(plan.algorithm));
      cublasLtMatmulHeuristicResult_t checked = {};
      const cublasStatus_t usable =
          library_.matmul_algo_check(handle_, plan.operation, plan.first, plan.second, plan.result,
                                     plan.result, &plan.algorithm, &checked);
      if (usable == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= kWorkspaceBytes) {
        return absl::OkStatus();
      }
    }
    ASSIGN_OR_RETURN(const auto candidates, Recommended(plan));
    plan.algorithm = candidates.front().algo;
    if (!tuning_) return absl::OkStatus();
    double best = std::numeric_limits<double>::infinity();
    absl::Status refused;
    for (const cublasLtMatmulHeuristicResult_t& candidate : candidates) {
      const absl::StatusOr<double> seconds = Time(call, plan, candidate.algo, stream);
      if (!seconds.ok()) {  // One that was recommended may be refused all the same.
        if (absl::IsUnavailable(seconds.status())) return seconds.status();
        refused = seconds.status();
        continue;
      }
      if (*seconds >= best) continue;
      best = *seconds;
      plan.algorithm = candidate.algo;
    }
    if (std::isinf(best)) return refused;
    GemmPlan words;
    std::memcpy(words.data(), &plan.algorithm, sizeof(plan.algorithm));
    const GemmPlan kept = store_.Keep(key, words, /*unusable=*/stored);
    std::memcpy(&plan.algorithm, kept.data(), sizeof(plan.algorithm));
    return absl::OkStatus();
  }

  absl::StatusOr<double> Time(const GemmCall& call, const Plan& plan,
                              const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) const {
    ASSIGN_OR_RETURN(const Event begin, Event::Create(/*timing=*/true));
    ASSIGN_OR_RETURN(const Event end, Event::Create(/*timing=*/true));
    double best = std::numeric_limits<double>::infinity();
    for (int run = 0; run <= kTimedRuns; ++run) {
      RETURN_IF_ERROR(begin.Record(stream));
      RETURN_IF_ERROR(Multiply(plan, algorithm, call, stream));
      RETURN_IF_ERROR(end.Record(stream));
      ASSIGN_OR_RETURN(const double seconds, end.SecondsSince(begin));
      if (run > 0) best = std::min(best, seconds);  // The first loads code.
    }
    return best;
  }

  absl::Status Multiply(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                        const GemmCall& call, cudaStream_t stream) const {
    if (call.bias != nullptr) {
      RETURN_IF_ERROR(library_.Check(
          library_.matmul_desc_set_attribute(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                             &call.bias, sizeof(call.bias)),
          "setting a bias"));
    }
    void* const d = call.d_float != nullptr ? static_cast<void*>(call.d_float) : call.d;
    const void* const c = call.beta == 0 ? d : call.c;
    return library_.Check(
        library_.matmul(handle_, plan.operation, &call.alpha, call.b.data, plan.first, call.a.data,
                        plan.second, &call.beta, c, plan.result, d, plan.result, &algorithm,
                        workspace_, kWorkspaceBytes, stream),
        "starting a product");
  }

  const CublasLtLibrary library_;
  const cublasLtHandle_t handle_;
  const std::string device_;
  void* const workspace_;
  GemmPlanStore& store_;
  bool tuning_ = false;
  std::map<std::string, Plan> plans_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> MakeCublasLtGemm(const DeviceInfo& device,
                                                       DeviceMemory* memory, GemmPlanStore* plans) {
  ASSIGN_OR_RETURN(const CublasLtLibrary library, CublasLtLibrary::Open());
  ASSIGN_OR_RETURN(std::byte* const workspace,
                   memory->Allocate<std::byte>("cuBLASLt's workspace",
                                               static_cast<int64_t>(kWorkspaceBytes), ""));
  cublasLtHandle_t handle = nullptr;
  RETURN_IF_ERROR(library.Check(library.create(&handle), "starting the library"));
  const std::string name = absl::StrCat(device.name, " ", device.major, ".", device.minor,
                                        " cuBLASLt ", library.get_version());
  return std::make_unique<CublasLtGemm>(library, handle, name, workspace, plans);
}

}  // namespace causeway::worker::cuda
