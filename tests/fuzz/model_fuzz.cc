// A model that a site brings to a run that awaits one: tables and headers, then chunks in any order
// and of any length. What is accepted is finite, and in the arena value for value.
//
// Input: a byte for the run's cut, a serialized ModelHeader with its length, then for each chunk a
// byte (which: 0 none, odd as it should be, else as the input says) and values.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/base/checksum.h"
#include "common/params/run_config.h"
#include "common/params/tensor_table.h"
#include "server/core/served_run.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/target.h"

namespace causeway::fuzz {
namespace {

constexpr int64_t kMostBytes = 3 << 20;

std::string Text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

void CheckArena(const server::BroughtModel& model, const std::string& sent,
                const std::vector<float>& arena) {
  size_t at = 0;
  for (const TensorInfo& tensor : RunTensors(model.config)) {
    const PlacedTensor* const placed = model.plan.Find(tensor.name);
    FUZZ_REQUIRE(placed != nullptr, "a tensor has no place");
    const auto bytes = static_cast<size_t>(tensor.size()) * sizeof(float);
    FUZZ_REQUIRE(std::memcmp(arena.data() + placed->offset, sent.data() + at, bytes) == 0,
                 "a value is not where it belongs");
    at += bytes;
  }
  FUZZ_REQUIRE(at == sent.size(), "values are left");
  for (const float value : arena) FUZZ_REQUIRE(std::isfinite(value), "a value is not finite");
}

void CheckModel(Input input) {
  v1::RunConfig config;
  const auto cut = input.Take<uint8_t>();
  config.mutable_sync()->set_fragments(1 + cut % 4);
  config.mutable_sync()->set_pattern(static_cast<v1::SyncConfig::Pattern>(1 + cut / 4 % 3));
  FUZZ_REQUIRE(CompleteRunConfig(config, ModelIs::kStillToCome).ok(), "the run is refused");
  const server::ServedRun waiting(config, "fuzz-1",
                                  [](const server::BroughtModel&, std::vector<float>) {
                                    return absl::UnimplementedError("it never begins");
                                  });
  v1::ModelHeader header;
  if (!header.ParseFromString(Text(input.TakeBytes(input.Take<uint16_t>())))) return;
  if (cut >= 128) {
    header.set_run_id("fuzz-1");
    header.set_worker_id("w");
    if (CheckTensorTable(header.tensors()).ok()) {
      v1::RunConfig tensors;
      *tensors.mutable_tensors() = header.tensors();
      header.set_total_bytes(CountParameters(RunTensors(tensors)) * 4);
    }
  }
  const auto model = waiting.AdmitModel(header);
  if (!model.ok()) return;
  FUZZ_REQUIRE(model->plan.parameters() * 4 == header.total_bytes(), "the header has another size");
  if (header.total_bytes() > kMostBytes) return;
  // As the values would be if nothing went wrong: the input's, over and over, without exponents of
  // infinity.
  std::vector<uint8_t> right = input.Repeat(static_cast<size_t>(header.total_bytes()));
  for (size_t i = 3; i < right.size(); i += 4) right[i] &= 0xbf;
  header.set_tree_hash(TreeHash(right));
  server::ModelAssembly assembly(*model, header);
  std::string sent;
  while (const auto kind = input.Take<uint8_t>()) {
    v1::ModelChunk chunk;
    if (kind % 2 == 1) {
      const size_t size = std::min(right.size() - sent.size(), kTreeLeafBytes);
      chunk.set_offset(static_cast<int64_t>(sent.size()));
      chunk.set_data(right.data() + sent.size(), size);
    } else {
      chunk.set_offset(input.Take<int32_t>());
      chunk.set_data(Text(input.TakeBytes(input.Take<uint16_t>())));
    }
    if (!assembly.Add(chunk).ok()) break;
    FUZZ_REQUIRE(chunk.offset() == static_cast<int64_t>(sent.size()), "a chunk was out of order");
    sent += chunk.data();
    FUZZ_REQUIRE(assembly.received_bytes() == static_cast<int64_t>(sent.size()), "bytes are lost");
  }
  const bool whole =
      sent.size() == right.size() && std::memcmp(sent.data(), right.data(), right.size()) == 0;
  const auto arena = assembly.Finish(model->plan);
  FUZZ_REQUIRE(arena.ok() == whole, "a model is taken that is not the announced one, or refused");
  if (arena.ok()) CheckArena(*model, sent, *arena);
}

}  // namespace
}  // namespace causeway::fuzz

FUZZ_TARGET("model", CheckModel)
