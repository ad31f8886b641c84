#include "worker/backend/cuda/kernels/token_order.h"

#include <algorithm>
#include <cassert>
#include <cstddef>

namespace causeway::worker::cuda {

TokenOrder::TokenOrder(int64_t vocabulary) : next_(static_cast<size_t>(vocabulary)) {}

void TokenOrder::Sort(std::span<const int32_t> inputs, std::span<int32_t> order) {
  assert(inputs.size() == order.size());
  std::fill(next_.begin(), next_.end(), 0);
  for (const int32_t token : inputs) ++next_[static_cast<size_t>(token)];
  int32_t begin = 0;
  for (int32_t& next : next_) {
    const int32_t count = next;
    next = begin;
    begin += count;
  }
  for (size_t place = 0; place < inputs.size(); ++place) {
    int32_t& next = next_[static_cast<size_t>(inputs[place])];
    order[static_cast<size_t>(next++)] = static_cast<int32_t>(place);
  }
}

}  // namespace causeway::worker::cuda
