// Folders that transformers wrote, with the logits it computes from them
// (tests/compat/huggingface.py --fixtures), in and out.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files/safetensors.h"
#include "common/files/safetensors_writer.h"
#include "common/huggingface/huggingface_export.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/backend/cpu/cpu_transformer.h"
#include "worker/io/huggingface_import.h"
#include "worker/io/stored_model.h"

namespace causeway::worker {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::string Fixture(const std::string& name) {
  return std::string(CAUSEWAY_HUGGINGFACE_FIXTURES) + "/" + name;
}

std::string FreshFolder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/huggingface_" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

TensorSource SourceOf(const std::string& name, const std::string& dtype,
                      const std::vector<int64_t>& shape, std::vector<uint8_t> bytes) {
  const uint64_t size = bytes.size();
  return {.name = name,
          .dtype = dtype,
          .shape = shape,
          .bytes = size,
          .read = [bytes = std::move(bytes)](uint64_t begin, std::span<uint8_t> out) {
            std::memcpy(out.data(), bytes.data() + begin, out.size());
          }};
}

FragmentPlan PlanOf(const v1::RunConfig& config) { return *FragmentPlan::Create(config); }

class HuggingFaceTest : public testing::TestWithParam<const char*> {};

TEST_P(HuggingFaceTest, ImportsGiveTheLogitsOfTransformers) {
  const auto imported = ImportHuggingFace(*FileSystem::Real(), Fixture(GetParam()), 0);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const json expected =
      json::parse(*FileSystem::Real()->ReadFile(Fixture(GetParam()) + "/expected.json"));
  const auto tokens = expected["tokens"].get<std::vector<int32_t>>();
  ThreadPool pool(1);
  const FragmentPlan plan = PlanOf(imported->config);
  CpuTransformer<float> model(imported->config.model(), plan, 1, &pool);
  std::vector<float> logits(static_cast<size_t>(imported->config.model().vocabulary_size()));
  for (size_t i = 0; i < tokens.size(); ++i) {
    model.Logits(imported->parameters, std::span(tokens).first(i + 1), logits);
    for (size_t token = 0; token < logits.size(); ++token) {
      ASSERT_NEAR(logits[token], expected["logits"][i][token].get<float>(), 1e-5)
          << "token " << token << " after " << i + 1;
    }
  }
}

TEST_P(HuggingFaceTest, ExportsOfImportsHaveTheSameBits) {
  const auto imported = ImportHuggingFace(*FileSystem::Real(), Fixture(GetParam()), 0);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const std::string folder = FreshFolder(GetParam());
  const absl::Status status =
      ExportHuggingFace(*FileSystem::Real(), imported->config.model(), PlanOf(imported->config),
                        imported->parameters, folder, {.max_file_bytes = 3000});
  ASSERT_TRUE(status.ok()) << status;
  const auto theirs = SafetensorsFolder::Open(*FileSystem::Real(), Fixture(GetParam()));
  const auto ours = SafetensorsFolder::Open(*FileSystem::Real(), folder);
  ASSERT_TRUE(ours.ok()) << ours.status();
  ASSERT_EQ(ours->tensors().size(), theirs->tensors().size());
  for (const auto& [name, tensor] : theirs->tensors()) {
    ASSERT_TRUE(ours->tensors().contains(name)) << name;
    const SafeTensor& other = ours->tensors().at(name);
    EXPECT_EQ(other.shape, tensor.shape) << name;
    EXPECT_TRUE(std::ranges::equal(other.bytes, tensor.bytes)) << name;
  }
  // And again: the description says the same.
  const auto again = ReadStoredModel(*FileSystem::Real(), folder, 0);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->config.model().SerializeAsString(),
            imported->config.model().SerializeAsString());
  EXPECT_EQ(again->parameters, imported->parameters);
}

INSTANTIATE_TEST_SUITE_P(Architectures, HuggingFaceTest,
                         testing::Values("llama", "llama_tied_biases", "llama3_rope", "qwen2",
                                         "qwen3", "qwen3_tied", "gpt2"),
                         [](const auto& test) { return std::string(test.param); });

TEST(HuggingFaceConfig, AsksForWhatIsMissingAndRefusesTheUnsupportedByName) {
  json good = json::parse(*FileSystem::Real()->ReadFile(Fixture("llama") + "/config.json"));
  const auto error = [&](const char* field, const json& value) {
    json config = good;
    config[field] = value;
    const auto read = ReadHuggingFaceConfig(config.dump(), "config.json", 0);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr("config.json"));
    return std::string(read.status().message());
  };
  EXPECT_THAT(error("architectures", {"MambaForCausalLM"}), HasSubstr("MambaForCausalLM"));
  EXPECT_THAT(error("hidden_size", nullptr), HasSubstr("hidden_size is missing"));
  EXPECT_THAT(error("hidden_size", "8"), HasSubstr("hidden_size must be an integer"));
  EXPECT_THAT(error("hidden_size", 1e30), HasSubstr("hidden_size must be an integer"));
  EXPECT_THAT(error("vocab_size", 0), HasSubstr("vocab_size"));
  EXPECT_THAT(error("num_hidden_layers", -1), HasSubstr("model.layers"));
  EXPECT_THAT(error("hidden_act", "relu"), HasSubstr("relu"));
  EXPECT_THAT(error("rope_parameters", {{"rope_type", "yarn"}}), HasSubstr("yarn"));
  EXPECT_THAT(error("rope_parameters", {{"rope_type", "llama3"}, {"factor", 8}}),
              HasSubstr("original_max_position_embeddings is missing"));
  EXPECT_THAT(error("quantization_config", {{"bits", 4}}), HasSubstr("quantized"));
  EXPECT_THAT(error("layer_types", {"sliding_attention"}), HasSubstr("full_attention"));
  EXPECT_FALSE(ReadHuggingFaceConfig("{}", "config.json", 0).ok());
  EXPECT_FALSE(ReadHuggingFaceConfig("", "config.json", 0).ok());
  EXPECT_FALSE(ReadHuggingFaceConfig(std::string(100000, '['), "config.json", 0).ok());
  EXPECT_THAT(std::string(ReadHuggingFaceConfig(good.dump(), "config.json", 17).status().message()),
              HasSubstr("takes 16 positions; windows of 17"));
}

// The error of the llama fixture's config.json with `changes` merged into it; empty: it is taken.
std::string ConfigError(const std::string& fixture, const json& changes,
                        const std::vector<const char*>& without = {}) {
  json config = json::parse(*FileSystem::Real()->ReadFile(Fixture(fixture) + "/config.json"));
  for (const char* field : without) config.erase(field);
  config.update(changes);
  return std::string(ReadHuggingFaceConfig(config.dump(), "config.json", 0).status().message());
}

TEST(HuggingFaceConfig, WhatIsNotUnderstoodIsRefusedByName) {
  const auto llama = [](const json& changes) { return ConfigError("llama", changes); };
  EXPECT_EQ(llama({{"attention_dropout", 0.1}, {"_name_or_path", "x"}, {"top_p", 0.9}}), "");
  EXPECT_EQ(llama({{"use_mrope", false}, {"rope_interleaved", false}, {"future", nullptr}}), "");
  EXPECT_THAT(llama({{"attn_logit_softcapping", 30.0}}),
              HasSubstr("config.json: attn_logit_softcapping is 30.0, which is not understood"));
  for (const char* field : {"embedding_multiplier", "no_rope_layers", "rotary_pct", "auto_map",
                            "residual_multiplier", "num_experts", "use_qk_norm"}) {
    EXPECT_THAT(llama({{field, 1}}), HasSubstr(field));
  }
  EXPECT_THAT(llama({{"rope_interleaved", true}}), HasSubstr("rope_interleaved is true"));
  EXPECT_THAT(llama({{"sliding_window", 8}}), HasSubstr("sliding_window"));
  EXPECT_THAT(llama({{"partial_rotary_factor", 0.5}}), HasSubstr("partial_rotary_factor"));
  EXPECT_EQ(llama({{"partial_rotary_factor", 1.0}}), "");
  EXPECT_THAT(llama({{"rms_norm_eps", nullptr}}), HasSubstr("rms_norm_eps is null"));
  EXPECT_THAT(llama({{"model_type", "qwen2"}}),
              HasSubstr("architectures names LlamaForCausalLM, model_type qwen2"));
  EXPECT_THAT(llama({{"model_type", "mistral"}}), HasSubstr("mistral"));
  EXPECT_THAT(ConfigError("gpt2", {{"hidden_size", 16}}), HasSubstr("hidden_size"));
  EXPECT_THAT(ConfigError("gpt2", {{"tie_word_embeddings", nullptr}}),
              HasSubstr("tie_word_embeddings is null"));
  EXPECT_EQ(ConfigError("qwen2", {{"sliding_window", 8}, {"max_window_layers", 1}}), "");
  EXPECT_THAT(ConfigError("qwen2", {{"attention_bias", false}}), HasSubstr("attention_bias"));
}

TEST(HuggingFaceConfig, TwoPlacesForTheRopeMustSayTheSame) {
  const json base = {{"rope_type", "default"}, {"rope_theta", 20000.0}};
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8}};
  json whole = llama3;
  whole["rope_theta"] = 20000.0;
  const auto error = [](const json& changes) {
    return ConfigError("llama", changes, {"rope_parameters"});
  };
  EXPECT_EQ(error({{"rope_theta", 20000.0}, {"rope_parameters", base}}), "");
  EXPECT_EQ(error({{"rope_theta", 20000.0}, {"rope_scaling", llama3}}), "");
  EXPECT_EQ(error({{"rope_parameters", whole}, {"rope_scaling", llama3}}), "");
  EXPECT_THAT(error({{"rope_theta", 10000.0}, {"rope_parameters", base}}),
              HasSubstr("rope_theta is 10000, and 20000 in rope_parameters"));
  EXPECT_THAT(error({{"rope_parameters", base}, {"rope_scaling", llama3}}),
              HasSubstr("rope_scaling differs from rope_parameters"));
  EXPECT_THAT(error({{"rope_parameters", json::object()}, {"rope_scaling", llama3}}),
              HasSubstr("rope_scaling differs from rope_parameters"));
  EXPECT_THAT(error({{"rope_parameters", base}, {"rope_scaling", {{"rope_type", "yarn"}}}}),
              HasSubstr("rope_scaling: rope_type is \"yarn\""));
  EXPECT_THAT(error({{"rope_scaling", {{"rope_type", "default"}, {"type", "linear"}}}}),
              HasSubstr("linear"));
  json more = base;
  more["mrope_section"] = {1, 1, 1};
  EXPECT_THAT(error({{"rope_parameters", more}}), HasSubstr("rope_parameters: mrope_section"));
  EXPECT_THAT(error({{"rope_parameters", {{"full_attention", base}}}}),
              HasSubstr("rope_parameters: full_attention"));
}

// What transformers makes of a field that is not there depends on the architecture.
TEST(HuggingFaceConfig, AnAbsentFieldHasTheDefaultOfItsArchitecture) {
  const auto read = [](const std::string& fixture, const json& changes, const char* without) {
    json config = json::parse(*FileSystem::Real()->ReadFile(Fixture(fixture) + "/config.json"));
    config.erase(without);
    if (!changes.empty()) config.update(changes);
    return ReadHuggingFaceConfig(config.dump(), "config.json", 0);
  };
  const json heads = {{"num_attention_heads", 64}, {"head_dim", 2}};
  for (const char* fixture : {"qwen2", "qwen3"}) {
    EXPECT_EQ(read(fixture, heads, "num_key_value_heads")->model.kv_heads(), 32);
    json null = heads;
    null["num_key_value_heads"] = nullptr;
    EXPECT_EQ(read(fixture, null, "x")->model.kv_heads(), 64);
    EXPECT_EQ(read(fixture, {}, "max_position_embeddings")->max_positions, 32768);
  }
  EXPECT_EQ(read("llama", heads, "num_key_value_heads")->model.kv_heads(), 64);
  EXPECT_EQ(read("llama", {}, "max_position_embeddings")->max_positions, 2048);
  EXPECT_EQ(read("qwen3", {}, "head_dim")->model.head_dim(), 128);
  EXPECT_THAT(std::string(read("qwen3", {{"head_dim", nullptr}}, "x").status().message()),
              HasSubstr("head_dim is null"));
}

// Writes tensors of `from`, each changed by `change`, as a folder of their own with its config.
std::string Edited(const std::string& from, const std::string& name,
                   const std::function<void(std::vector<TensorSource>&)>& change) {
  const std::string folder = FreshFolder(name);
  std::filesystem::create_directories(folder);
  std::filesystem::copy(Fixture(from) + "/config.json", folder + "/config.json");
  const auto files = SafetensorsFolder::Open(*FileSystem::Real(), Fixture(from));
  std::vector<TensorSource> sources;
  for (const auto& [tensor_name, tensor] : files->tensors()) {
    sources.push_back(SourceOf(tensor_name, tensor.dtype, tensor.shape,
                               {tensor.bytes.begin(), tensor.bytes.end()}));
  }
  change(sources);
  EXPECT_TRUE(WriteSafetensors(*FileSystem::Real(), folder, sources, 1 << 30).ok());
  return folder;
}

std::string ImportError(const std::string& folder) {
  return std::string(ImportHuggingFace(*FileSystem::Real(), folder, 0).status().message());
}

TEST(HuggingFaceImport, ATiedModelsHeadIsItsEmbeddingOrRefused) {
  const auto files = SafetensorsFolder::Open(*FileSystem::Real(), Fixture("qwen3_tied"));
  const SafeTensor& embedding = files->tensors().at("model.embed_tokens.weight");
  const std::vector<uint8_t> same(embedding.bytes.begin(), embedding.bytes.end());
  const auto with_head = [&](const char* name, const std::string& dtype,
                             const std::vector<int64_t>& shape, const std::vector<uint8_t>& bytes) {
    return ImportError(Edited("qwen3_tied", name, [&](std::vector<TensorSource>& sources) {
      sources.push_back(SourceOf("lm_head.weight", dtype, shape, bytes));
    }));
  };
  EXPECT_EQ(with_head("same", embedding.dtype, embedding.shape, same), "");
  std::vector<uint8_t> other = same;
  other[5] ^= 1;
  EXPECT_THAT(with_head("other", embedding.dtype, embedding.shape, other),
              HasSubstr("says tie_word_embeddings, but lm_head.weight"));
  EXPECT_THAT(with_head("shape", "F32", {3, 5}, std::vector<uint8_t>(60)), HasSubstr("[3, 5]"));
  EXPECT_THAT(with_head("dtype", "I32", embedding.shape, same), HasSubstr("I32"));
}

TEST(HuggingFaceImport, ATensorThatIsThereTwiceIsRefused) {
  const std::string error =
      ImportError(Edited("llama", "twice", [](std::vector<TensorSource>& sources) {
        sources.push_back(SourceOf("norm.weight", "F32", {8}, std::vector<uint8_t>(32)));
      }));
  EXPECT_THAT(error, HasSubstr("norm.weight is there twice"));
}

TEST(HuggingFaceImport, AnAdapterOnTopIsRefused) {
  const std::string folder = Edited("llama", "adapter", [](std::vector<TensorSource>&) {});
  EXPECT_EQ(ImportError(folder), "");
  ASSERT_TRUE(WriteFileAtomically(*FileSystem::Real(), folder + "/adapter_config.json",
                                  absl::string_view("{}"))
                  .ok());
  EXPECT_THAT(ImportError(folder), HasSubstr("adapter_config.json"));
}

TEST(HuggingFaceImport, AGitLfsPointerAmongItsFilesIsCalledThat) {
  for (const char* const name : {"config.json", "generation_config.json", "model.safetensors"}) {
    const std::string folder = Edited("llama", "pointer", [](std::vector<TensorSource>&) {});
    ASSERT_TRUE(WriteFileAtomically(*FileSystem::Real(), absl::StrCat(folder, "/", name),
                                    absl::string_view("version https://git-lfs.github.com/spec/v1\n"
                                                      "oid sha256:0\nsize 1\n"))
                    .ok());
    EXPECT_THAT(ImportError(folder), HasSubstr(absl::StrCat(name, " is a Git LFS pointer")));
  }
}

TEST(HuggingFaceImport, NamesTheTensorAndBothShapes) {
  const std::string folder = FreshFolder("edited");
  std::filesystem::copy(Fixture("qwen3"), folder);
  json config = json::parse(*FileSystem::Real()->ReadFile(folder + "/config.json"));
  config["intermediate_size"] = 16;
  ASSERT_TRUE(WriteFileAtomically(*FileSystem::Real(), folder + "/config.json",
                                  absl::string_view(config.dump()))
                  .ok());
  const absl::Status status = ImportHuggingFace(*FileSystem::Real(), folder, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.layers.0.mlp.gate_proj.weight is [12, 8]; its config.json takes "
                        "[16, 8]"));
}

TEST(HuggingFaceExport, ModelsThatNoArchitectureHasAreRefusedByTheirFields) {
  v1::RunConfig config;
  config.mutable_model()->set_preset("paper-35m");
  ASSERT_TRUE(CompleteRunConfig(config).ok());
  EXPECT_THAT(std::string(ChooseArchitecture(config.model()).status().message()),
              HasSubstr("mlp GELU, layer_norm 0"));
  config.mutable_model()->set_preset("tiny-1m");
  config.mutable_model()->set_mlp(v1::ModelConfig::SWIGLU);
  EXPECT_EQ(*ChooseArchitecture(config.model()), Architecture::kQwen3);
}

TEST(HuggingFaceExport, TheTokenizersFilesAndIdsGoAlong) {
  const auto imported = ImportHuggingFace(*FileSystem::Real(), Fixture("llama"), 0);
  const std::string tokenizer = FreshFolder("tokenizer");
  std::filesystem::create_directories(tokenizer);
  const auto write = [&](const std::string& name, absl::string_view content) {
    ASSERT_TRUE(WriteFileAtomically(*FileSystem::Real(), tokenizer + "/" + name, content).ok());
  };
  write("tokenizer.json", "{}");
  write("config.json", R"({"eos_token_id": [3, 4], "bos_token_id": 1})");
  const std::string folder = FreshFolder("with_tokenizer");
  ASSERT_TRUE(ExportHuggingFace(*FileSystem::Real(), imported->config.model(),
                                PlanOf(imported->config), imported->parameters, folder,
                                {.bf16 = true, .max_positions = 4096, .tokenizer = tokenizer})
                  .ok());
  const json config = json::parse(*FileSystem::Real()->ReadFile(folder + "/config.json"));
  EXPECT_EQ(config["eos_token_id"], json({3, 4}));
  EXPECT_EQ(config["max_position_embeddings"], 4096);
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  EXPECT_TRUE(FileSystem::Real()->Exists(folder + "/tokenizer.json"));
  const json generation =
      json::parse(*FileSystem::Real()->ReadFile(folder + "/generation_config.json"));
  EXPECT_EQ(generation["bos_token_id"], 1);
  const auto files = SafetensorsFolder::Open(*FileSystem::Real(), folder);
  EXPECT_EQ(files->tensors().begin()->second.dtype, "BF16");
}

TEST(HuggingFaceExport, ATokenizerJsonIsTakenAsItIsWhateverTheArchitectureUsuallyHas) {
  const auto imported = ImportHuggingFace(*FileSystem::Real(), Fixture("qwen3"), 0);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const std::string source = FreshFolder("classless");
  std::filesystem::create_directories(source);
  const auto write = [&](const std::string& name, absl::string_view content) {
    ASSERT_TRUE(WriteFileAtomically(*FileSystem::Real(), source + "/" + name, content).ok());
  };
  const auto exported = [&] {
    const std::string folder = FreshFolder("with_class");
    EXPECT_TRUE(ExportHuggingFace(*FileSystem::Real(), imported->config.model(),
                                  PlanOf(imported->config), imported->parameters, folder,
                                  {.tokenizer = source, .end_of_text = 7})
                    .ok());
    return *FileSystem::Real()->ReadFile(folder + "/tokenizer_config.json");
  };
  write("tokenizer.json", R"({"added_tokens": [{"id": 6, "content": "<a>"}, 3, {"id": 7},
                             {"id": 7, "content": "<end>"}]})");
  const json made = json::parse(exported());
  EXPECT_EQ(made["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(made["eos_token"], "<end>");
  EXPECT_FALSE(made.contains("bos_token"));
  write("tokenizer_config.json", R"({"eos_token": "<a>", "more": 1})");
  EXPECT_EQ(json::parse(exported()), json::parse(R"({"eos_token": "<a>", "more": 1,
                                     "tokenizer_class": "PreTrainedTokenizerFast"})"));
  for (const char* const kept : {R"({"tokenizer_class": "Qwen2Tokenizer"})", "no JSON"}) {
    write("tokenizer_config.json", kept);
    EXPECT_EQ(exported(), kept);
  }
}

TEST(HuggingFaceExport, ATokenizerTakesThePlaceOfAllFilesOfTheFormerOne) {
  const auto imported = ImportHuggingFace(*FileSystem::Real(), Fixture("llama"), 0);
  const std::string first = FreshFolder("first_tokenizer");
  const std::string second = FreshFolder("second_tokenizer");
  const std::string folder = FreshFolder("replaced_tokenizer");
  const auto write = [&](const std::string& path, absl::string_view content) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    ASSERT_TRUE(WriteFileAtomically(*FileSystem::Real(), path, content).ok());
  };
  write(first + "/tokenizer.json", "{}");
  write(first + "/special_tokens_map.json", "{}");
  write(first + "/generation_config.json", R"({"eos_token_id": 5})");
  write(second + "/tokenizer.model", "model");
  write(folder + "/README.md", "mine");
  const auto run = [&](const std::string& tokenizer) {
    return ExportHuggingFace(*FileSystem::Real(), imported->config.model(),
                             PlanOf(imported->config), imported->parameters, folder,
                             {.tokenizer = tokenizer, .end_of_text = 7});
  };
  const auto end_of_text = [&] {
    return json::parse(*FileSystem::Real()->ReadFile(folder + "/generation_config.json"))
        .at("eos_token_id");
  };
  ASSERT_TRUE(run(first).ok());
  EXPECT_EQ(end_of_text(), 5);
  // New weights alone leave the tokenizer.
  ASSERT_TRUE(run("").ok());
  EXPECT_TRUE(FileSystem::Real()->Exists(folder + "/tokenizer.json"));
  ASSERT_TRUE(run(second).ok());
  EXPECT_EQ(end_of_text(), 7);
  EXPECT_THAT(*FileSystem::Real()->List(folder),
              UnorderedElementsAre("README.md", "config.json", "generation_config.json",
                                   "model.safetensors", "tokenizer.model"));
}

TEST(HuggingFaceExport, ASingleTokenizerFileGetsTheNameThatIsLookedForAndTheEndOfText) {
  const auto imported = ImportHuggingFace(*FileSystem::Real(), Fixture("llama"), 0);
  const std::string source = FreshFolder("single");
  std::filesystem::create_directories(source);
  const auto write = [&](const std::string& name, absl::string_view content) {
    ASSERT_TRUE(WriteFileAtomically(*FileSystem::Real(), source + "/" + name, content).ok());
  };
  write("of-my-language.json", "{}");
  write("tokenizer_config.json", "{\"eos_token\": \"</s>\"}");
  write("pieces.model", "model");
  write("vocabulary.txt", "");
  const auto run = [&](const std::string& file, const std::string& folder) {
    return ExportHuggingFace(*FileSystem::Real(), imported->config.model(),
                             PlanOf(imported->config), imported->parameters, folder,
                             {.tokenizer = source + "/" + file, .end_of_text = 7});
  };
  const std::string folder = FreshFolder("with_single");
  ASSERT_TRUE(run("of-my-language.json", folder).ok());
  for (const char* file : {"config.json", "generation_config.json"}) {
    const json content = json::parse(*FileSystem::Real()->ReadFile(folder + "/" + file));
    EXPECT_EQ(content["eos_token_id"], 7) << file;
    EXPECT_TRUE(content.value("bos_token_id", json()).is_null()) << file;
  }
  EXPECT_TRUE(FileSystem::Real()->Exists(folder + "/tokenizer.json"));
  EXPECT_TRUE(FileSystem::Real()->Exists(folder + "/tokenizer_config.json"));
  EXPECT_FALSE(FileSystem::Real()->Exists(folder + "/of-my-language.json"));
  const std::string other = FreshFolder("with_model");
  ASSERT_TRUE(run("pieces.model", other).ok());
  EXPECT_EQ(*FileSystem::Real()->ReadFile(other + "/tokenizer.model"), "model");
  // A refused export leaves no half of a model, which the next export would be refused for.
  const std::string refused = FreshFolder("refused");
  EXPECT_THAT(run("vocabulary.txt", refused).message(), HasSubstr("expected a tokenizer.json"));
  EXPECT_THAT(run("missing.json", refused).message(), HasSubstr("there is no tokenizer"));
  std::filesystem::create_directories(source + "/none");
  EXPECT_THAT(run("none", refused).message(), HasSubstr("has no tokenizer"));
  EXPECT_FALSE(FileSystem::Real()->Exists(refused));
  EXPECT_FALSE(FileSystem::Real()->IsFolder(refused));
}

}  // namespace
}  // namespace causeway::worker
