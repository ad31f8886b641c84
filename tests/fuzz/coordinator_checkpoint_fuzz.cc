// The coordinator's checkpoint: what is accepted has as many published values as theta, and is the
// same after it is written and read again.
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/params/run_config.h"
#include "server/store/checkpoint_file.h"
#include "tests/fuzz/array_file_input.h"
#include "tests/fuzz/memory_files.h"
#include "tests/fuzz/target.h"

namespace causeway::fuzz {
namespace {

using server::FragmentSnapshot;
using server::FragmentView;
using server::RunSnapshot;

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

bool Same(const FragmentSnapshot& a, const FragmentSnapshot& b) {
  if (a.fragment != b.fragment || a.version != b.version || a.published_hash != b.published_hash ||
      !SameBits(a.theta, b.theta) || !SameBits(a.published, b.published) ||
      a.optimizer.size() != b.optimizer.size()) {
    return false;
  }
  for (size_t i = 0; i < a.optimizer.size(); ++i) {
    if (a.optimizer[i].first != b.optimizer[i].first ||
        !SameBits(a.optimizer[i].second, b.optimizer[i].second)) {
      return false;
    }
  }
  return true;
}

FragmentView ViewOf(const FragmentSnapshot& fragment) {
  FragmentView view;
  view.fragment = fragment.fragment;
  view.version = fragment.version;
  view.published_hash = fragment.published_hash;
  view.theta = fragment.theta;
  view.published = fragment.published;
  for (const auto& [name, values] : fragment.optimizer) view.optimizer.push_back({name, values});
  return view;
}

void CheckCheckpoint(std::span<const uint8_t> input) {
  MemoryFiles files;
  files.Put("run/checkpoint.bin",
            ArrayFileFromInput(input, {'C', 'W', 'A', 'Y', 'C', 'O', 'R', 'D'}, 1));
  const absl::StatusOr<RunSnapshot> read = server::ReadCheckpoint(files, "run/checkpoint.bin");
  if (!read.ok()) return;
  std::vector<FragmentView> views;
  for (const FragmentSnapshot& fragment : read->fragments) {
    FUZZ_REQUIRE(fragment.theta.size() == fragment.published.size(), "theta is not published");
    views.push_back(ViewOf(fragment));
  }
  FUZZ_REQUIRE(server::WriteCheckpoint(files, "run/again", read->identity, views).ok(),
               "what was read cannot be written");
  const absl::StatusOr<RunSnapshot> again = server::ReadCheckpoint(files, "run/again");
  FUZZ_REQUIRE(again.ok(), std::string(again.status().message()));
  FUZZ_REQUIRE(
      again->identity.run_id == read->identity.run_id &&
          again->identity.config_hash == read->identity.config_hash &&
          again->identity.plan_hash == read->identity.plan_hash &&
          FormatRunConfig(again->identity.config) == FormatRunConfig(read->identity.config),
      "the identity changed");
  FUZZ_REQUIRE(again->fragments.size() == read->fragments.size(), "fragments were lost");
  for (size_t i = 0; i < read->fragments.size(); ++i) {
    FUZZ_REQUIRE(Same(again->fragments[i], read->fragments[i]), "a fragment changed");
  }
}

}  // namespace

std::vector<std::string> TargetNames() { return {"coordinator_checkpoint"}; }

}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  causeway::fuzz::CheckCheckpoint({data, size});
  return 0;
}
