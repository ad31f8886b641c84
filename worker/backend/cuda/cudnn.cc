#include "worker/backend/cuda/cudnn.h"

#include <cudnn.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
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

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

// Builds the graphs of one shape.
class Builder {
 public:
  Builder(const AttentionShape& shape, const CudnnTarget& target)
      : shape_(shape),
        target_(target),
        scale_(1.0F / std::sqrt(static_cast<float>(shape.head_dim))) {}

  absl::StatusOr<std::shared_ptr<Graph>> Forward() {
    const std::shared_ptr<Graph> graph = NewGraph();
    auto [out, log_sum_exp] = graph->sdpa(Query(*graph), Key(*graph), Value(*graph),
                                          fe::graph::SDPA_attributes()
                                              .set_name("attention")
                                              .set_generate_stats(true)
                                              .set_causal_mask(true)
                                              .set_attn_scale(scale_));
    LayOut(out, kCudnnOut, shape_.heads, shape_.heads);
    out->set_output(true);
    LayOutRows(log_sum_exp);
    log_sum_exp->set_output(true);
    RETURN_IF_ERROR(Plan(*graph, "attention"));
    return graph;
  }

  absl::StatusOr<std::shared_ptr<Graph>> Backward() {
    const std::shared_ptr<Graph> graph = NewGraph();
    const Tensor out = graph->tensor(Tensor_attributes().set_name("out"));
    LayOut(out, kCudnnOut, shape_.heads, shape_.heads);
    const Tensor dout = graph->tensor(Tensor_attributes().set_name("gradient of out"));
    LayOut(dout, kCudnnOutGradient, shape_.heads, shape_.heads);
    const Tensor log_sum_exp = graph->tensor(Tensor_attributes().set_name("log_sum_exp"));
    LayOutRows(log_sum_exp);
    auto [dquery, dkey, dvalue] =
        graph->sdpa_backward(Query(*graph), Key(*graph), Value(*graph), out, dout, log_sum_exp,
                             fe::graph::SDPA_backward_attributes()
                                 .set_name("attention's gradient")
                                 .set_causal_mask(true)
                                 .set_attn_scale(scale_)
                                 .set_deterministic_algorithm(target_.deterministic));
    LayOut(dquery, kCudnnQueryGradient, shape_.heads, RowHeads());
    LayOut(dkey, kCudnnKeyGradient, shape_.kv_heads, RowHeads());
    LayOut(dvalue, kCudnnValueGradient, shape_.kv_heads, RowHeads());
    for (const Tensor& gradient : {dquery, dkey, dvalue}) gradient->set_output(true);
    RETURN_IF_ERROR(Plan(*graph, "attention's gradient"));
    return graph;
  }

 private:
  int64_t RowHeads() const { return int64_t{shape_.heads} + 2 * shape_.kv_heads; }

  std::shared_ptr<Graph> NewGraph() const {
    auto graph = std::make_shared<Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (target_.properties != nullptr) {
      graph->set_device_properties(target_.properties);
      graph->set_sm_version(target_.compute_capability);
    }
    return graph;
  }

  // [sequences, heads, length, head_dim], of tokens that have `row_heads` heads.
  void LayOut(const Tensor& tensor, CudnnTensor uid, int64_t heads, int64_t row_heads) const {
    const int64_t row = row_heads * shape_.head_dim;
    tensor->set_uid(uid)
        .set_data_type(fe::DataType_t::BFLOAT16)
        .set_dim({shape_.sequences, heads, shape_.length, shape_.head_dim})
        .set_stride({shape_.length * row, shape_.head_dim, row, 1});
  }
  void LayOutRows(const Tensor& tensor) const {
    const int64_t length = shape_.length;
    tensor->set_uid(kCudnnLogSumExp)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({shape_.sequences, shape_.heads, length, 1})
        .set_stride({shape_.heads * length, length, 1, 1});
  }
  Tensor Input(Graph& graph, const char* name, CudnnTensor uid, int64_t heads) const {
    const Tensor tensor = graph.tensor(Tensor_attributes().set_name(name));
    LayOut(tensor, uid, heads, RowHeads());
    return tensor;
  }
  Tensor Query(Graph& graph) const { return Input(graph, "queries", kCudnnQuery, shape_.heads); }
  Tensor Key(Graph& graph) const { return Input(graph, "keys", kCudnnKey, shape_.kv_heads); }
  Tensor Value(Graph& graph) const { return Input(graph, "values", kCudnnValue, shape_.kv_heads); }

  absl::Status Plan(Graph& graph, absl::string_view what) const {
    RETURN_IF_ERROR(CheckCudnn(graph.validate(), what));
    RETURN_IF_ERROR(CheckCudnn(graph.build_operation_graph(target_.handle), what));
    RETURN_IF_ERROR(CheckCudnn(graph.create_execution_plans({fe::HeurMode_t::A}), what));
    if (target_.deterministic) {
      graph.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
    }
    RETURN_IF_ERROR(CheckCudnn(graph.check_support(), what));
    if (target_.handle == nullptr) return absl::OkStatus();
    return CheckCudnn(graph.build_plans(), what);
  }

  const AttentionShape& shape_;
  const CudnnTarget& target_;
  const float scale_;
};

}  // namespace

absl::Status CheckCudnn(fe::error_t error, absl::string_view what) {
  if (error.is_good()) return absl::OkStatus();
  // A lost GPU is the cause, whatever cuDNN says.
  const absl::Status device = CheckCuda(cudaDeviceSynchronize(), what);
  if (absl::IsUnavailable(device)) return device;
  return absl::FailedPreconditionError(absl::StrCat("cuDNN, ", what, ": ", error.get_message()));
}

absl::StatusOr<CudnnGraphs> PlanCudnnAttention(const AttentionShape& shape,
                                               const CudnnTarget& target) {
  CudnnGraphs graphs;
  RETURN_IF_ERROR(CatchCudnn("planning attention", [&]() -> absl::Status {
    Builder builder(shape, target);
    ASSIGN_OR_RETURN(graphs.forward, builder.Forward());
    ASSIGN_OR_RETURN(graphs.backward, builder.Backward());
    if (target.handle == nullptr) return absl::OkStatus();
    graphs.workspace_bytes =
        std::max(graphs.forward->get_workspace_size(), graphs.backward->get_workspace_size());
    return absl::OkStatus();
  }));
  return graphs;
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

  absl::Status Forward(const AttentionCall& call, cudaStream_t stream) override {
    if (!Takes(call)) return own_.Forward(call, stream);
    Pointers pointers = Common(call);
    return Execute(*graphs_.forward, pointers, stream);
  }

  absl::Status Backward(const AttentionCall& call, cudaStream_t stream) override {
    if (!Takes(call)) return own_.Backward(call, stream);
    Pointers pointers = Common(call);
    pointers[kCudnnOutGradient] = const_cast<__nv_bfloat16*>(call.dout);
    pointers[kCudnnQueryGradient] = call.dqkv;
    pointers[kCudnnKeyGradient] = call.dqkv + KeyOffset();
    pointers[kCudnnValueGradient] = call.dqkv + ValueOffset();
    return Execute(*graphs_.backward, pointers, stream);
  }

 private:
  bool Takes(const AttentionCall& call) const {
    return call.document_starts == nullptr && call.shape == shape_;
  }
  int64_t KeyOffset() const { return int64_t{shape_.heads} * shape_.head_dim; }
  int64_t ValueOffset() const { return KeyOffset() + int64_t{shape_.kv_heads} * shape_.head_dim; }
  // Names what both passes take.
  Pointers Common(const AttentionCall& call) const {
    auto* const values = const_cast<__nv_bfloat16*>(call.qkv);
    return {{kCudnnQuery, values},
            {kCudnnKey, values + KeyOffset()},
            {kCudnnValue, values + ValueOffset()},
            {kCudnnOut, call.out},
            {kCudnnLogSumExp, call.log_sum_exp}};
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
