// A checkpoint of Hugging Face, as people hand it over: safetensors headers, their index,
// config.json, and a multiple-choice task.
//
//   safetensors  a length of the header (2 bytes), the header, then data. What is opened lies
//   within
//                the file, without an overlap.
//   safetensors_index   the text of an index beside a folder of three files
//   huggingface_config  the text of config.json: what is read is a complete configuration, which is
//                       described in words that are read as the same again
//   choice_task  a byte (odd: a proper header in front), then the file
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "common/files/safetensors.h"
#include "common/huggingface/huggingface_config.h"
#include "common/huggingface/huggingface_tensors.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_files.h"
#include "tests/fuzz/target.h"
#include "worker/data/choice_task.h"

namespace causeway::fuzz {
namespace {

std::vector<uint8_t> MakeFile(const std::vector<uint8_t>& header, std::span<const uint8_t> data) {
  const uint64_t length = header.size();
  std::vector<uint8_t> file(sizeof(length) + header.size() + data.size());
  std::memcpy(file.data(), &length, sizeof(length));
  std::ranges::copy(header, file.begin() + sizeof(length));
  std::ranges::copy(data, file.end() - static_cast<ptrdiff_t>(data.size()));
  return file;
}

std::vector<uint8_t> Bytes(const std::string& text) { return {text.begin(), text.end()}; }

void RequireInvalidArgument(const absl::Status& status) {
  FUZZ_REQUIRE(absl::IsInvalidArgument(status), status.ToString());
}

void CheckSafetensors(Input input) {
  const auto length = input.Take<uint16_t>();
  const std::vector<uint8_t> header = input.TakeBytes(length);
  MemoryFiles files;
  // The length in the file is the header's own; with none, all of it is the fuzzer's.
  files.Put("x.safetensors",
            length == 0 ? input.TakeBytes(input.rest().size()) : MakeFile(header, input.rest()));
  const uint64_t size = *files.FileSize("x.safetensors");
  const auto file = SafetensorsFile::Open(files, "x.safetensors");
  if (!file.ok()) return RequireInvalidArgument(file.status());
  uint64_t bytes = 0;
  uint32_t sum = 0;
  for (const auto& [name, tensor] : file->tensors()) {
    bytes += tensor.bytes.size();
    for (const uint8_t byte : tensor.bytes) sum += byte;
    for (const int64_t dimension : tensor.shape) {
      FUZZ_REQUIRE(dimension >= 0, "a negative dimension");
    }
  }
  FUZZ_REQUIRE(bytes < size && sum <= 255 * size, "the tensors are larger than the file");
}

void CheckIndex(Input input) {
  MemoryFiles files;
  for (const char* name : {"a", "b"}) {
    files.Put(JoinPath("folder", std::string(name) + ".safetensors"),
              MakeFile(Bytes(std::string("{\"") + name +
                             "\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]}}"),
                       std::vector<uint8_t>(4)));
  }
  files.Put("secret.safetensors", MakeFile(Bytes("{}"), {}));
  files.Put(JoinPath("folder", kSafetensorsIndexFile), input.TakeBytes(input.rest().size()));
  const auto folder = SafetensorsFolder::Open(files, "folder");
  if (!folder.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(folder.status()) || absl::IsNotFound(folder.status()),
                 folder.status().ToString());
    return;
  }
  for (const auto& [name, tensor] : folder->tensors()) {
    FUZZ_REQUIRE(name == "a" || name == "b", "a tensor of no file in the folder");
    FUZZ_REQUIRE(tensor.bytes.size() == 4, "another tensor");
  }
}

void CheckConfig(Input input) {
  const std::string text(input.rest().begin(), input.rest().end());
  const auto read = ReadHuggingFaceConfig(text, "config.json", 0);
  if (!read.ok()) return RequireInvalidArgument(read.status());
  v1::RunConfig config;
  *config.mutable_model() = read->model;
  FUZZ_REQUIRE(CompleteRunConfig(config).ok() &&
                   config.model().SerializeAsString() == read->model.SerializeAsString(),
               "the model is not complete");
  if (read->model.layers() > 16) return;  // Their tensors would be many, not other.
  int64_t values = 0;
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(read->model, read->architecture)) {
    FUZZ_REQUIRE(tensor.size() > 0 && !tensor.parts.empty(), "an empty tensor");
    values += tensor.size();
  }
  const auto plan = FragmentPlan::Create(config);
  FUZZ_REQUIRE(plan.ok() && values <= plan->parameters(), "tensors beyond the model's");
  const auto architecture = ChooseArchitecture(read->model);
  if (!architecture.ok()) return;
  const std::string described =
      MakeHuggingFaceConfig(read->model, *architecture, "float32", 0).dump();
  const auto again = ReadHuggingFaceConfig(described, "again", 0);
  FUZZ_REQUIRE(again.ok(), again.status().ToString());
  HuggingFaceModel expected = *read;
  expected.model.set_sequence_length(again->model.sequence_length());
  if (*architecture == Architecture::kGpt2) expected.model.set_rope_theta(10000);
  FUZZ_REQUIRE(again->model.SerializeAsString() == expected.model.SerializeAsString(),
               "the description reads as another model");
}

void CheckChoiceTask(Input input) {
  const bool headed = input.Take<uint8_t>() % 2 == 1;
  std::vector<uint8_t> content;
  if (headed) {
    const int32_t header[3] = {20240522, input.Take<uint8_t>() % 2 + 1, input.Take<uint8_t>()};
    content.resize(1024);
    std::memcpy(content.data(), header, sizeof(header));
  }
  const std::vector<uint8_t> rest = input.TakeBytes(input.rest().size());
  content.insert(content.end(), rest.begin(), rest.end());
  MemoryFiles files;
  files.Put("task", std::move(content));
  const auto task = worker::ReadChoiceTask(files, "task", 50000);
  if (!task.ok()) return RequireInvalidArgument(task.status());
  FUZZ_REQUIRE(worker::WriteChoiceTask(files, "again", *task).ok(), "what was read is not written");
  const auto again = worker::ReadChoiceTask(files, "again", 50000);
  FUZZ_REQUIRE(again.ok() && again->size() == task->size(), "the task changed");
  for (size_t i = 0; i < task->size(); ++i) {
    const worker::ChoiceExample& a = (*task)[i];
    const worker::ChoiceExample& b = (*again)[i];
    FUZZ_REQUIRE(a.label == b.label && a.context == b.context && a.completions == b.completions,
                 "an example changed");
  }
}

using Check = void (*)(Input);
constexpr Check kChecks[] = {CheckSafetensors, CheckIndex, CheckConfig, CheckChoiceTask};

}  // namespace

std::vector<std::string> TargetNames() {
  return {"safetensors", "safetensors_index", "huggingface_config", "choice_task"};
}

void CheckHuggingFace(std::span<const uint8_t> bytes) { kChecks[SelectedTarget()](Input(bytes)); }

}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::CheckHuggingFace({data, size});
  return 0;
}
