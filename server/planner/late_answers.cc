#include "server/planner/late_answers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace causeway::server {
namespace {

constexpr double kNone = -1;
constexpr double kRounding = 1e-9;  // Part of a step.

}  // namespace

LateAnswers::LateAnswers(int fragments, double step_seconds)
    : step_seconds_(step_seconds), since_(static_cast<size_t>(fragments), kNone) {}

void LateAnswers::Begin(int fragment, double now) {
  since_[static_cast<size_t>(fragment)] = now;
  ++late_;
}

int LateAnswers::End(int fragment, double now) {
  const double since = std::exchange(since_[static_cast<size_t>(fragment)], kNone);
  if (since < 0) return 0;
  longest_ = std::max(longest_, now - since);
  if (--late_ > 0) return 0;
  return Steps(std::exchange(longest_, 0));
}

int LateAnswers::Unfinished(double now) const {
  if (late_ == 0) return 0;
  double longest = longest_;
  for (const double since : since_) {
    if (since >= 0) longest = std::max(longest, now - since);
  }
  return Steps(longest);
}

int LateAnswers::Steps(double seconds) const {
  return static_cast<int>(std::ceil(seconds / step_seconds_ - kRounding));
}

void LateAnswers::Clear() {
  std::ranges::fill(since_, kNone);
  late_ = 0;
  longest_ = 0;
}

}  // namespace causeway::server
