#include "common/params/initialize.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/random.h"

namespace causeway {
namespace {

// Values of one task: some milliseconds of work.
constexpr int64_t kTaskValues = int64_t{1} << 16;

// A part of one tensor.
struct Task {
  const PlacedTensor* tensor = nullptr;
  int64_t begin = 0;  // Within the tensor.
  int64_t end = 0;
};

std::vector<Task> CutIntoTasks(const FragmentPlan& plan, int64_t arena_begin, int64_t arena_end) {
  std::vector<Task> tasks;
  for (const PlacedTensor& tensor : plan.tensors()) {
    const int64_t end = std::min(tensor.info.size(), arena_end - tensor.offset);
    for (int64_t begin = std::max<int64_t>(0, arena_begin - tensor.offset); begin < end;
         begin += kTaskValues) {
      tasks.push_back({&tensor, begin, std::min(begin + kTaskValues, end)});
    }
  }
  return tasks;
}

// `part`: the arena from `arena_begin` on.
void Initialize(const Task& task, uint64_t seed, int64_t arena_begin, std::span<float> part) {
  const TensorInfo& info = task.tensor->info;
  const auto values =
      part.subspan(static_cast<size_t>(task.tensor->offset - arena_begin + task.begin),
                   static_cast<size_t>(task.end - task.begin));
  if (info.initial_stddev == 0) {
    std::fill(values.begin(), values.end(), info.role == TensorRole::kBias ? 0.0F : 1.0F);
    return;
  }
  const uint64_t stream = Checksum64(info.name);
  auto index = static_cast<uint64_t>(task.begin);
  for (float& value : values) {
    value = static_cast<float>(info.initial_stddev * RandomNormal(seed, stream, index++));
  }
}

}  // namespace

void InitializeParameters(const FragmentPlan& plan, uint64_t seed, std::span<float> arena,
                          ThreadPool* threads) {
  InitializeRange(plan, seed, 0, arena, threads);
}

void InitializeRange(const FragmentPlan& plan, uint64_t seed, int64_t begin,
                     std::span<float> values, ThreadPool* threads) {
  std::fill(values.begin(), values.end(), 0.0F);
  const std::vector<Task> tasks = CutIntoTasks(plan, begin, begin + std::ssize(values));
  const auto run = [&](int64_t number) {
    Initialize(tasks[static_cast<size_t>(number)], seed, begin, values);
  };
  if (threads != nullptr) return threads->ParallelFor(std::ssize(tasks), run);
  for (int64_t number = 0; number < std::ssize(tasks); ++number) run(number);
}

absl::Status CopyParameters(const FragmentPlan& from_plan, std::span<const float> from,
                            const FragmentPlan& to_plan, std::span<float> to) {
  if (static_cast<int64_t>(from.size()) != from_plan.arena_size() ||
      static_cast<int64_t>(to.size()) != to_plan.arena_size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the parameters are ", from.size(), " and ", to.size(), " values, their plans ",
        from_plan.arena_size(), " and ", to_plan.arena_size()));
  }
  std::map<std::string, const PlacedTensor*> left;
  for (const PlacedTensor& tensor : from_plan.tensors()) left[tensor.info.name] = &tensor;
  std::ranges::fill(to, 0.0F);
  for (const PlacedTensor& tensor : to_plan.tensors()) {
    const auto found = left.find(tensor.info.name);
    if (found == left.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the run's model has a tensor ",
                                                     tensor.info.name, " ", ShapeText(tensor.info),
                                                     ", the given parameters have none"));
    }
    const PlacedTensor& source = *found->second;
    if (source.info.shape != tensor.info.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the tensor ", tensor.info.name, " is ", ShapeText(tensor.info),
          " in the run's model, but ", ShapeText(source.info), " in the given parameters"));
    }
    const auto size = static_cast<size_t>(tensor.info.size());
    std::ranges::copy(from.subspan(static_cast<size_t>(source.offset), size),
                      to.begin() + tensor.offset);
    left.erase(found);
  }
  if (!left.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the given parameters have a tensor ", left.begin()->first, " ",
                     ShapeText(left.begin()->second->info), ", the run's model has none"));
  }
  return absl::OkStatus();
}

}  // namespace causeway
