#include "worker/backend/cuda/cudnn_graphs.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/backend/cuda/kernels/device.h"

namespace causeway::worker::cuda {
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

}  // namespace causeway::worker::cuda
