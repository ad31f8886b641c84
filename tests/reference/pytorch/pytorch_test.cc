// The trainer against PyTorch: the same weights and batches, 20 steps of AdamW and of Muon.
// make_fixture.py says what the fixtures are and writes them again.
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/thread_pool.h"
#include "common/params/fragment_plan.h"
#include "common/params/run_config.h"
#include "worker/backend/cpu/cpu_transformer.h"
#include "worker/backend/cpu/optimizer.h"

namespace causeway::worker {
namespace {

// Bounds on rounding, all relative. The fixture is computed in double; only its gradients are
// rounded to fp32, which is an error of 6e-8.
struct Tolerance {
  double gradient;       // A tensor's largest difference to its largest gradient.
  double loss;           // At any of the 20 steps.
  double gradient_norm;  // Likewise.
};
template <typename T>
constexpr Tolerance kTolerance = {};
// Ten thousand times what was measured (1e-15), far below what any mistake in a formula would do.
template <>
constexpr Tolerance kTolerance<double> = {2e-7, 1e-11, 1e-11};
// fp32 operations have an error of 6e-8, sums here have up to some hundred terms, and training
// multiplies the rounding of a step by its effect on the following ones: AdamW divides by the
// gradient's own magnitude, Newton-Schulz stretches small singular values by up to 480. Measured:
// losses 8e-8, norms 5e-7.
template <>
constexpr Tolerance kTolerance<float> = {1e-5, 1e-6, 5e-6};

struct Fixture {
  nlohmann::json description;
  v1::RunConfig config;
  std::vector<float> weights;    // In the fixture's order, tensor after tensor.
  std::vector<float> gradients;  // Gradients of step 1, likewise.
  std::vector<int32_t> tokens;   // [steps, sequences, length + 1]
};

template <typename Value>
void Take(std::vector<char>& bytes, size_t count, std::vector<Value>& values) {
  ASSERT_GE(bytes.size(), count * sizeof(Value));
  values.resize(count);
  std::memcpy(values.data(), bytes.data(), count * sizeof(Value));
  bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count * sizeof(Value)));
}

Fixture LoadFixture(const std::string& name) {
  const std::string path = std::string(CAUSEWAY_PYTORCH_FIXTURES) + "/" + name;
  Fixture fixture;
  std::ifstream(path + ".json") >> fixture.description;
  fixture.config = *ParseRunConfig(fixture.description["config"].get<std::string>(), name);
  EXPECT_EQ(CompleteRunConfig(fixture.config).status(), absl::OkStatus());
  std::ifstream file(path + ".bin", std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto weights = fixture.description["weights"].get<size_t>();
  Take(bytes, weights, fixture.weights);
  Take(bytes, weights, fixture.gradients);
  Take(bytes, bytes.size() / sizeof(int32_t), fixture.tokens);
  return fixture;
}

struct Case {
  std::string fixture;
  v1::TrainConfig::Optimizer optimizer;
};
void PrintTo(const Case& tested, std::ostream* out) { *out << tested.fixture; }

class PyTorchTest : public ::testing::TestWithParam<Case> {
 protected:
  PyTorchTest() : fixture_(LoadFixture(GetParam().fixture)) {
    fixture_.config.mutable_train()->set_optimizer(GetParam().optimizer);
    plan_ = *FragmentPlan::Create(fixture_.config);
    length_ = fixture_.description["length"].get<int>();
    sequences_ = fixture_.description["sequences"].get<int>();
    for (const nlohmann::json& tensor : fixture_.description["tensors"]) {
      const PlacedTensor* const placed = plan_.Find(tensor["name"]);
      EXPECT_NE(placed, nullptr) << tensor["name"];
      EXPECT_EQ(placed->info.size(), tensor["size"].get<int64_t>()) << tensor["name"];
      offset_in_fixture_[placed->info.name] = tensor["offset"].get<size_t>();
    }
    EXPECT_EQ(offset_in_fixture_.size(), plan_.tensors().size());
  }

  template <typename T>
  std::vector<T> InitialWeights() const {
    std::vector<T> arena(static_cast<size_t>(plan_.arena_size()));
    for (const PlacedTensor& tensor : plan_.tensors()) {
      const size_t from = offset_in_fixture_.at(tensor.info.name);
      for (size_t i = 0; i < static_cast<size_t>(tensor.info.size()); ++i) {
        arena[static_cast<size_t>(tensor.offset) + i] = static_cast<T>(fixture_.weights[from + i]);
      }
    }
    return arena;
  }

  // The batch of `step`, which counts from 0.
  void LoadBatch(size_t step, std::vector<int32_t>& inputs, std::vector<int32_t>& targets) const {
    inputs.clear();
    targets.clear();
    const auto window = static_cast<size_t>(length_) + 1;
    const auto rows = static_cast<size_t>(sequences_);
    for (size_t row = step * rows; row < (step + 1) * rows; ++row) {
      const auto begin = fixture_.tokens.begin() + static_cast<ptrdiff_t>(row * window);
      inputs.insert(inputs.end(), begin, begin + length_);
      targets.insert(targets.end(), begin + 1, begin + 1 + length_);
    }
  }

  template <typename T>
  void ExpectGradients(const std::vector<T>& gradients) const {
    for (const PlacedTensor& tensor : plan_.tensors()) {
      const size_t from = offset_in_fixture_.at(tensor.info.name);
      double largest = 0;
      double difference = 0;
      for (size_t i = 0; i < static_cast<size_t>(tensor.info.size()); ++i) {
        const auto expected = static_cast<double>(fixture_.gradients[from + i]);
        const auto found = static_cast<double>(gradients[static_cast<size_t>(tensor.offset) + i]);
        largest = std::max(largest, std::abs(expected));
        difference = std::max(difference, std::abs(found - expected));
      }
      EXPECT_GT(largest, 0) << tensor.info.name;
      EXPECT_LE(difference, kTolerance<T>.gradient * largest) << tensor.info.name;
    }
  }

  // How far from the fixture a run of all its steps gets.
  struct Errors {
    double loss = 0;
    double gradient_norm = 0;
  };
  template <typename T>
  Errors Train(bool check_gradients) {
    const v1::TrainConfig& train = fixture_.config.train();
    const nlohmann::json& curve =
        fixture_.description["curves"][v1::TrainConfig::Optimizer_Name(train.optimizer())];
    ThreadPool pool(2);
    CpuTransformer<T> transformer(fixture_.config.model(), plan_, sequences_, &pool);
    InnerOptimizer<T> optimizer(plan_, train, &pool);
    std::vector<T> weights = InitialWeights<T>();
    std::vector<T> gradients(weights.size());
    std::vector<int32_t> inputs;
    std::vector<int32_t> targets;
    Errors errors;
    for (size_t step = 0; step < curve["losses"].size(); ++step) {
      LoadBatch(step, inputs, targets);
      const TokenLoss loss =
          transformer.ForwardBackward(weights, inputs, targets, T{1}, false, gradients);
      if (step == 0 && check_gradients) ExpectGradients(gradients);
      const absl::StatusOr<OptimizerReport> report =
          optimizer.Step(static_cast<int64_t>(step) + 1, weights, gradients);
      if (!report.ok()) {
        ADD_FAILURE() << report.status();
        return errors;
      }
      const auto relative = [](double found, double expected) {
        return std::abs(found - expected) / expected;
      };
      errors.loss =
          std::max(errors.loss, relative(loss.total, curve["losses"][step].get<double>()));
      errors.gradient_norm =
          std::max(errors.gradient_norm,
                   relative(report->gradient_norm, curve["gradient_norms"][step].get<double>()));
    }
    return errors;
  }

  template <typename T>
  void TrainAndCompare() {
    ASSERT_EQ(fixture_.description["steps"].get<int>(), 20);
    const Errors errors = Train<T>(/*check_gradients=*/true);
    EXPECT_LE(errors.loss, kTolerance<T>.loss);
    EXPECT_LE(errors.gradient_norm, kTolerance<T>.gradient_norm);
  }

  Fixture fixture_;
  FragmentPlan plan_ = *FragmentPlan::Create(fixture_.config);
  int length_ = 0;
  int sequences_ = 0;
  std::map<std::string, size_t> offset_in_fixture_;
};

TEST_P(PyTorchTest, FloatFollowsPyTorchFor20Steps) { TrainAndCompare<float>(); }

TEST_P(PyTorchTest, DoubleFollowsPyTorchFor20Steps) { TrainAndCompare<double>(); }

// Shows that the two tests above can fail.
TEST_P(PyTorchTest, ChangeOfAnyHyperParameterByOneInTenThousandIsNoticed) {
  const v1::RunConfig config = fixture_.config;
  const bool is_muon = GetParam().optimizer == v1::TrainConfig::MUON;
  std::vector<std::string> train_fields = {"learning_rate", "beta1",
                                           "beta2",         "weight_decay",
                                           "clip_norm",     "final_learning_rate_fraction"};
  if (is_muon) {
    train_fields.emplace_back("muon_learning_rate");
    train_fields.emplace_back("muon_momentum");
  }
  std::vector<std::string> model_fields = {"rope_theta", "norm_epsilon"};
  if (config.model().z_loss() > 0) model_fields.emplace_back("z_loss");
  const auto expect_noticed = [&](google::protobuf::Message& message, const std::string& name) {
    const google::protobuf::FieldDescriptor* const field =
        message.GetDescriptor()->FindFieldByName(name);
    ASSERT_NE(field, nullptr) << name;
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    reflection.SetDouble(&message, field, reflection.GetDouble(message, field) * 1.0001);
    EXPECT_GT(Train<double>(/*check_gradients=*/false).loss, 10 * kTolerance<double>.loss) << name;
    fixture_.config = config;
  };
  for (const std::string& name : train_fields) {
    expect_noticed(*fixture_.config.mutable_train(), name);
  }
  for (const std::string& name : model_fields) {
    expect_noticed(*fixture_.config.mutable_model(), name);
  }
}

INSTANTIATE_TEST_SUITE_P(Curves, PyTorchTest,
                         ::testing::Values(Case{"swiglu_grouped_tied", v1::TrainConfig::ADAMW},
                                           Case{"swiglu_grouped_tied", v1::TrainConfig::MUON},
                                           Case{"gelu_untied", v1::TrainConfig::ADAMW},
                                           Case{"gelu_untied", v1::TrainConfig::MUON}),
                         [](const auto& tested) {
                           return tested.param.fixture + "_" +
                                  v1::TrainConfig::Optimizer_Name(tested.param.optimizer);
                         });

}  // namespace
}  // namespace causeway::worker
