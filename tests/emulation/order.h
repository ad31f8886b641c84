// Inside the emulator: the order of what nothing orders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cuda_runtime.h"

namespace causeway::emulation {

// 0 .. size - 1 as SetOrder says; shuffled, `salt` gives another one.
std::vector<int> Permutation(int size, uint64_t salt);

// Runs `body` as every thread of every block.
void RunGrid(dim3 grid, dim3 block_shape, size_t shared_bytes, const std::function<void()>& body);

}  // namespace causeway::emulation
