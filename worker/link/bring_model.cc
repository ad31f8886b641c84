#include "worker/link/bring_model.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/params/tensor_table.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"

namespace causeway::worker {
namespace {

using Bytes = std::span<const uint8_t>;

// Calls `take` with all the values' bytes in order, until it returns false.
absl::Status ForAllBytes(const ModelToBring& model, const std::vector<TensorInfo>& tensors,
                         const std::function<bool(Bytes)>& take) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (model.is_cancelled()) return absl::CancelledError("bringing the model was cancelled");
    const std::span<const float> values = model.values(static_cast<int>(i));
    if (std::ssize(values) != tensors[i].size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tensor ", tensors[i].name, " is ", ShapeText(tensors[i]),
                       " and must have ", tensors[i].size(), " values; it has ", values.size()));
    }
    if (!take({reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()})) break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BringModel(v1::Session::StubInterface& stub, const ModelToBring& model) {
  RETURN_IF_ERROR(CheckTensorTable(model.tensors));
  v1::RunConfig config;
  *config.mutable_tensors() = model.tensors;
  const std::vector<TensorInfo> tensors = RunTensors(config);
  TreeHasher hasher;
  RETURN_IF_ERROR(ForAllBytes(model, tensors, [&](Bytes bytes) {
    hasher.Update(bytes);
    return true;
  }));

  grpc::ClientContext context;
  v1::BringModelResponse response;
  const std::unique_ptr<grpc::ClientWriterInterface<v1::BringModelRequest>> stream =
      stub.BringModel(&context, &response);
  v1::BringModelRequest first;
  v1::ModelHeader& header = *first.mutable_header();
  header.set_run_id(model.run_id);
  header.set_wire_version(kWireVersion);
  header.set_worker_id(model.worker_id);
  *header.mutable_tensors() = model.tensors;
  header.set_total_bytes(CountParameters(tensors) * int64_t{sizeof(float)});
  header.set_tree_hash(hasher.Finish());
  bool open = stream->Write(first);

  v1::BringModelRequest message;
  std::string& data = *message.mutable_chunk()->mutable_data();
  int64_t sent = 0;
  const auto send = [&] {
    message.mutable_chunk()->set_offset(sent);
    sent += std::ssize(data);
    open = stream->Write(message);
    data.clear();
  };
  const absl::Status read = ForAllBytes(model, tensors, [&](Bytes bytes) {
    while (open && !bytes.empty()) {
      const size_t size = std::min(bytes.size(), kChunkBytes - data.size());
      data.append(reinterpret_cast<const char*>(bytes.data()), size);
      bytes = bytes.subspan(size);
      if (data.size() < kChunkBytes) continue;
      if (model.is_cancelled()) context.TryCancel();
      send();
    }
    return open;
  });
  if (!read.ok()) {
    context.TryCancel();
  } else {
    if (open && !data.empty()) send();
    if (open) stream->WritesDone();
  }
  // Says why, if the stream broke.
  const absl::Status status = FromGrpcStatus(stream->Finish());
  return read.ok() ? status : read;
}

}  // namespace causeway::worker
