#include "worker/backend/cuda/cudnn.h"

#include <cudnn.h>
#include <dlfcn.h>

#include <unordered_map>

#include "absl/base/attributes.h"
#include "worker/backend/cuda/cudnn_graphs.h"
#include "worker/backend/cuda/opened_library.h"

namespace cudnn_frontend {

// Where the frontend looks for cuDNN's functions.
void* cudnn_dlhandle = nullptr;

}  // namespace cudnn_frontend

namespace causeway::worker::cuda {
namespace {

constexpr char kWorkspaceLimit[] = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT";

ABSL_CONST_INIT absl::Mutex opening(absl::kConstInit);

absl::StatusOr<OpenedLibrary> Open(const char* what, const std::vector<std::string>& names) {
  return OpenedLibrary::Open(
      {.what = what,
       .names = names,
       .remedy = absl::StrCat("install cuDNN ", CUDNN_MAJOR, " for CUDA ", CUDART_VERSION / 1000,
                              " and name its folder in LD_LIBRARY_PATH"),
       .other_version = absl::StrCat("it is another library, or another version than cuDNN ",
                                     CUDNN_MAJOR, "; install that one")});
}

}  // namespace

CudnnNames CudnnNames::Default() {
  return {.cudnn = UsualPlaces(absl::StrCat("libcudnn.so.", CUDNN_MAJOR)),
          .runtime = UsualPlaces(absl::StrCat("libcudart.so.", CUDART_VERSION / 1000))};
}

absl::Status OpenCudnn(const CudnnNames& names) {
  absl::MutexLock lock(&opening);
  if (cudnn_frontend::cudnn_dlhandle != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const OpenedLibrary library, Open("cuDNN was not found", names.cudnn));
  decltype(&cudnnGetVersion) get_version = nullptr;
  decltype(&cudnnBackendExecute) execute = nullptr;
  RETURN_IF_ERROR(
      library.Find({{"cudnnBackendExecute", execute}, {"cudnnGetVersion", get_version}}));
  ASSIGN_OR_RETURN(
      const OpenedLibrary runtime,
      Open("CUDA's run-time library, which cuDNN's frontend wants, was not found", names.runtime));
  // Otherwise the frontend takes one of an older CUDA, if there is one.
  setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", runtime.name().c_str(), /*replace=*/0);
  // From 9.25 on, cuDNN has a backward pass for Hopper that adds up in one order without keeping a
  // number for every pair of positions; the frontend takes it where less memory than that is
  // allowed. Older ones do not read this.
  setenv(kWorkspaceLimit, "0", /*replace=*/0);
  cudnn_frontend::cudnn_dlhandle = library.handle();
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

namespace {

using Pointers = std::unordered_map<int64_t, void*>;

namespace library = cudnn_frontend::detail;  // cuDNN's functions, as the frontend calls them.

absl::Status CheckCall(cudnnStatus_t status, absl::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cuDNN, ", what, ": ", library::get_error_string(status)));
}

class CudnnAttention final : public AttentionProvider {
 public:
  CudnnAttention(const AttentionShape& shape, bool deterministic)
      : name_(deterministic ? CudnnName() : absl::StrCat(CudnnName(), ", in any order")),
        shape_(shape),
        deterministic_(deterministic) {}
  ~CudnnAttention() override {
    graphs_ = {};
    if (handle_ != nullptr) (void)library::destroy_handle(handle_);
  }
  absl::Status Plan() {
    RETURN_IF_ERROR(CatchCudnn("starting the library", [&] {
      return CheckCall(library::create_handle(&handle_), "starting the library");
    }));
    ASSIGN_OR_RETURN(graphs_, PlanCudnnAttention(shape_, {.handle = handle_,
                                                          .properties = nullptr,
                                                          .compute_capability = 0,
                                                          .deterministic = deterministic_}));
    return absl::OkStatus();
  }

  std::string name() const override { return name_; }
  size_t workspace_bytes() const override { return static_cast<size_t>(graphs_.workspace_bytes); }
  void UseWorkspace(void* workspace) override { workspace_ = workspace; }

  absl::Status Forward(const AttentionShape& shape, const __nv_bfloat16* qkv,
                       const int32_t* document_starts, __nv_bfloat16* out, float* log_sum_exp,
                       cudaStream_t stream) override {
    if (!Takes(shape, document_starts)) {
      return own_.Forward(shape, qkv, document_starts, out, log_sum_exp, stream);
    }
    Pointers pointers = Inputs(qkv);
    pointers[kCudnnOut] = out;
    pointers[kCudnnLogSumExp] = log_sum_exp;
    return Execute(*graphs_.forward, pointers, stream);
  }

  absl::Status Backward(const AttentionShape& shape, const __nv_bfloat16* qkv,
                        const int32_t* document_starts, const __nv_bfloat16* out,
                        const float* log_sum_exp, const __nv_bfloat16* dout, float* delta,
                        __nv_bfloat16* dqkv, cudaStream_t stream) override {
    if (!Takes(shape, document_starts)) {
      return own_.Backward(shape, qkv, document_starts, out, log_sum_exp, dout, delta, dqkv,
                           stream);
    }
    Pointers pointers = Inputs(qkv);
    pointers[kCudnnOut] = const_cast<__nv_bfloat16*>(out);
    pointers[kCudnnLogSumExp] = const_cast<float*>(log_sum_exp);
    pointers[kCudnnOutGradient] = const_cast<__nv_bfloat16*>(dout);
    pointers[kCudnnQueryGradient] = dqkv;
    pointers[kCudnnKeyGradient] = dqkv + KeyOffset();
    pointers[kCudnnValueGradient] = dqkv + ValueOffset();
    return Execute(*graphs_.backward, pointers, stream);
  }

 private:
  bool Takes(const AttentionShape& shape, const int32_t* document_starts) const {
    return document_starts == nullptr && shape == shape_;
  }
  int64_t KeyOffset() const { return int64_t{shape_.heads} * shape_.head_dim; }
  int64_t ValueOffset() const { return KeyOffset() + int64_t{shape_.kv_heads} * shape_.head_dim; }
  Pointers Inputs(const __nv_bfloat16* qkv) const {
    auto* const values = const_cast<__nv_bfloat16*>(qkv);
    return {{kCudnnQuery, values},
            {kCudnnKey, values + KeyOffset()},
            {kCudnnValue, values + ValueOffset()}};
  }
  absl::Status Execute(cudnn_frontend::graph::Graph& graph, Pointers& pointers,
                       cudaStream_t stream) {
    return CatchCudnn("attention", [&]() -> absl::Status {
      if (stream != stream_) {
        RETURN_IF_ERROR(CheckCall(library::set_stream(handle_, stream), "choosing a stream"));
        stream_ = stream;
      }
      return CheckCudnn(graph.execute(handle_, pointers, workspace_), "attention");
    });
  }

  const std::string name_;
  const AttentionShape shape_;
  const bool deterministic_;
  OwnAttention own_;
  cudnnHandle_t handle_ = nullptr;
  CudnnGraphs graphs_;
  cudaStream_t stream_ = nullptr;
  void* workspace_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionProvider>> MakeCudnnAttention(const AttentionShape& shape,
                                                                      bool deterministic) {
  RETURN_IF_ERROR(OpenCudnn());
  auto made = std::make_unique<CudnnAttention>(shape, deterministic);
  RETURN_IF_ERROR(made->Plan());
  return made;
}

}  // namespace causeway::worker::cuda
