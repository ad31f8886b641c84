#include "common/params/copy_parameters.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace causeway {

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
