// Which tensors a run trains. Derived from its configuration alone, so that the coordinator knows
// the layout without any model code, and a worker whose model differs is found out at the join.
//
// A configuration lists the tensors by name and shape (RunConfig.tensors: any model, any trainer),
// or describes a model of Causeway's own family (RunConfig.model). The rest of this comment is
// about the latter.
//
// Matrices are row-major, [rows = outputs, cols = inputs]: y = W x. config.proto lists their names,
// which are Hugging Face's (LlamaForCausalLM, Qwen3ForCausalLM), shapes and order; the embedding
// and the head have the padded vocabulary's rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "causeway/v1/config.pb.h"

namespace causeway {

enum class TensorRole {
  kEmbedding,  // Also the head when tied.
  kPositions,
  kHead,
  kFinalNorm,
  kNorm,    // A vector of a block.
  kBias,    // Starts at zero, wherever it is.
  kMatrix,  // A matrix of a block: what Muon owns. In a run of `tensors`, every tensor.
};

struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape = {};  // Outermost dimension first; none: a scalar.
  int64_t rows = 0;                 // The first dimension; 1 for scalars.
  int64_t cols = 1;                 // The product of the others; 1 for vectors.
  int block = -1;                   // Counted from 0; -1 outside the blocks.
  TensorRole role = TensorRole::kMatrix;
  // Weights start as N(0, initial_stddev^2); 0 means that they start as ones (norms), or as zeros
  // where the role is kBias.
  double initial_stddev = 0;

  int64_t size() const { return rows * cols; }
  bool is_matrix() const { return cols > 1; }
  // Decoupled weight decay applies to matrices, the embedding and the head included.
  bool decays() const { return is_matrix(); }
};

// Limits of a TensorTable. A table travels in one message with the rest of the configuration.
inline constexpr int kMaxTensors = 16384;
inline constexpr size_t kMaxTensorTableBytes = size_t{640} << 10;
inline constexpr size_t kMaxTensorNameBytes = 512;
inline constexpr int kMaxTensorDimensions = 8;
inline constexpr int64_t kMaxTableValues = int64_t{1} << 40;  // All tensors together.

// INVALID_ARGUMENT, naming the tensor, unless the table keeps these limits and the rules in
// config.proto. A configuration that is complete has passed it.
absl::Status CheckTensorTable(const v1::TensorTable& table);

// The tensors of a complete configuration, in the order that it gives them: the table's, or that of
// BuildTensorTable.
std::vector<TensorInfo> RunTensors(const v1::RunConfig& config);

// The tensors as a table, in their order.
v1::TensorTable MakeTensorTable(const std::vector<TensorInfo>& tensors);

// One more than the largest TensorInfo::block.
int CountBlocks(const std::vector<TensorInfo>& tensors);

// Orders names as people do: numbers in them by value, so that layer 2 stands before layer 10.
bool NaturalLess(const std::string& a, const std::string& b);

// "[3, 4]"; "[]" for a scalar.
std::string ShapeText(const TensorInfo& tensor);

// In model order: embedding, blocks, final norm, head. `model` must be complete (run_config.h).
std::vector<TensorInfo> BuildTensorTable(const v1::ModelConfig& model);

// Rows of the embedding: the vocabulary rounded up to a multiple of 128.
int64_t PaddedVocabulary(const v1::ModelConfig& model);

// Values in all tensors, padding rows of the vocabulary included.
int64_t CountParameters(const std::vector<TensorInfo>& tensors);

// Radians per position of each of the head_dim / 2 pairs of a head, scaled as the model says.
// `model` must be complete. Zeros for a model of learned positions: nothing is turned.
std::vector<double> RopeFrequencies(const v1::ModelConfig& model);

}  // namespace causeway
