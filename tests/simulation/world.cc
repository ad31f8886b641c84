#include "tests/simulation/world.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/random.h"

namespace causeway::simulation {
namespace {

constexpr char kHappenings[] =
    "calls requests_lost replies_lost calls_duplicated calls_stalled streams_opened "
    "streams_severed streams_stalled workers_killed workers_failed workers_resumed "
    "workers_started_anew workers_too_far_behind second_processes coordinators_killed "
    "coordinators_shut_down deaths_before_a_save deaths_after_a_save disks_failed "
    "disks_full recoveries pauses drains stops_at_a_step wall_clock_jumps lies_told "
    "rounds_published rounds_published_empty rounds_closed_without_some contributions "
    "contributions_repeated late_deltas pushes_fenced_off answers_gone merges "
    "merges_before_the_last_step regions_attached regions_late regions_left_alone";

}  // namespace

World::World(uint64_t seed, std::ostream* trace) : state_(seed), trace_(trace) {
  for (const absl::string_view name : absl::StrSplit(kHappenings, ' ')) {
    counts_[std::string(name)] = 0;
  }
}

void World::After(absl::Duration delay, std::function<void()> event) {
  queue_.push_back({now() + delay, ++order_, std::move(event)});
  std::push_heap(queue_.begin(), queue_.end(), Later);
}

bool World::RunNext() {
  if (queue_.empty()) return false;
  std::pop_heap(queue_.begin(), queue_.end(), Later);
  const Event event = std::move(queue_.back());
  queue_.pop_back();
  clock_.Advance(event.time - now());
  ++events_;
  event.run();
  return true;
}

uint64_t World::Bits() {
  state_ += 0x9e3779b97f4a7c15U;
  return MixBits(state_);
}

int64_t World::Between(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(Bits() % static_cast<uint64_t>(high - low + 1));
}

void World::WriteTrace(const std::string& line) {
  *trace_ << absl::StrFormat("%10.6f  ", absl::ToDoubleSeconds(now())) << line << '\n';
}

void World::Violate(const std::string& invariant, const std::string& message) {
  Trace("VIOLATION of ", invariant, ": ", message);
  if (violation_.has_value()) return;
  violation_ = {invariant, absl::StrCat("at ", absl::ToDoubleSeconds(now()), " s, event ", events_,
                                        ": ", message)};
}

}  // namespace causeway::simulation
