// A site that brings a model and leaves: what any_model_test.py needs of one.
//
//   bring_model ADDRESS WORKER_ID FILE.safetensors
//
// Prints "brought" or what went wrong; status 0 or 1. The tensors are F32, in the order of names.
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/file_system.h"
#include "common/base/status_macros.h"
#include "common/client/session.h"
#include "common/files/safetensors.h"
#include "common/rpc/channel.h"
#include "worker/member/joining.h"

namespace causeway::worker {
namespace {

absl::Status Bring(const std::string& address, const std::string& id, const std::string& path) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(*FileSystem::Real(), path));
  const auto stub = v1::Session::NewStub(MakeChannel(address, 0, ChannelSecurity::Plaintext()));
  ASSIGN_OR_RETURN(const v1::DescribeResponse run, DescribeRun(*stub, address, absl::Seconds(30)));
  if (!run.awaits_model()) return absl::FailedPreconditionError("the run awaits no model");
  ModelToBring model;
  model.run_id = run.run_id();
  model.worker_id = id;
  std::vector<std::vector<float>> values;
  for (const auto& [name, tensor] : file.tensors()) {
    v1::TensorTable::Tensor& entry = *model.tensors.add_tensor();
    entry.set_name(name);
    entry.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    values.emplace_back(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.back().data(), tensor.bytes.data(), tensor.bytes.size());
  }
  model.values = [&](int index) {
    return std::span<const float>(values[static_cast<size_t>(index)]);
  };
  return BringModel(*stub, model);
}

}  // namespace
}  // namespace causeway::worker

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const absl::Status status = causeway::worker::Bring(argv[1], argv[2], argv[3]);
  std::puts(status.ok() ? "brought" : status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
