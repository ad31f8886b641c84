#include "common/client/state_pull.h"

#include <bit>
#include <cstring>

#include "common/base/random.h"
#include "common/rpc/status.h"
#include "common/transfer/lane_client.h"
#include "common/transfer/wire.h"

namespace causeway {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(100);  // The deadline is looked at as often.

static_assert(std::endian::native == std::endian::little, "states travel as little-endian fp32");

// Says what came, and when.
class PullProgress final : public LaneObserver {
 public:
  explicit PullProgress(const StatePullOptions& options, int64_t all_bytes)
      : options_(options), all_bytes_(all_bytes) {}
  void OnChunk(bool sent, int64_t /*bytes*/, bool again) override {
    if (sent) return;
    moved_ = absl::ToUnixNanos(absl::Now());
    if (!again) came_ += static_cast<int64_t>(kChunkBytes);
    options_.progress(std::min(came_.load(), all_bytes_), all_bytes_);
  }
  void OnTrouble(const std::string& what, const absl::Status& why) override {
    absl::MutexLock lock(&mutex_);
    trouble_ = absl::StrCat(" (", what, ": ", why.message(), ")");
  }
  absl::Duration quiet() const { return absl::Now() - absl::FromUnixNanos(moved_); }
  // The last one, in brackets; empty if there was none.
  std::string trouble() const {
    absl::MutexLock lock(&mutex_);
    return trouble_;
  }

 private:
  const StatePullOptions& options_;
  const int64_t all_bytes_;
  std::atomic<int64_t> moved_ = absl::ToUnixNanos(absl::Now());
  std::atomic<int64_t> came_ = 0;
  mutable absl::Mutex mutex_;
  std::string trouble_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<LaneClient::Result> AwaitState(LaneClient& client, const LaneClient::Handle& state,
                                              const PullProgress& progress, LaneDialer& dialer,
                                              const StatePullOptions& options) {
  while (absl::Now() < options.deadline) {
    dialer.EndOutdated();
    if (client.AwaitAWhile(state)) {
      LaneClient::Result result = client.Await(state);
      RETURN_IF_ERROR(result.status);
      return result;
    }
    if (progress.quiet() > options.stall) {
      return absl::UnavailableError(absl::StrCat(
          "nothing came for ", absl::FormatDuration(options.stall), progress.trouble()));
    }
  }
  return absl::DeadlineExceededError(absl::StrCat("it has not come by then", progress.trouble()));
}

}  // namespace

absl::StatusOr<PublishedState> PullPublishedState(RenewedChannel& channel,
                                                  const std::string& run_id,
                                                  const FragmentPlan& plan,
                                                  const StatePullOptions& options) {
  PublishedState state;
  state.parameters.resize(static_cast<size_t>(plan.arena_size()));
  state.versions.resize(static_cast<size_t>(plan.fragments()));
  PullProgress progress(options, plan.arena_size() * static_cast<int64_t>(sizeof(float)));
  WorkQueue unpacker(1);
  LaneDialer dialer([&channel](int) { return channel.Now(); });
  LaneClient::Options client_options;
  client_options.greeting.set_wire_version(kWireVersion);
  client_options.greeting.set_run_id(run_id);
  client_options.greeting.set_worker_id(options.worker_id);
  client_options.greeting.set_process(RandomNonce());
  client_options.run_long = unpacker.runner();
  client_options.poll = kPoll;
  client_options.dial = [&](int lane, const auto& self) { dialer.Dial(lane, self); };
  client_options.observer = &progress;
  client_options.passes = IsRetryable;
  const auto client = std::make_shared<LaneClient>(std::move(client_options));
  absl::Status status;
  for (int fragment = 0; fragment < plan.fragments(); ++fragment) {
    const FragmentRange& range = plan.range(fragment);
    LaneClient::Wanted wanted;
    wanted.want.set_object(v1::Want::STATE);
    wanted.want.set_fragment(fragment);
    wanted.expected_bytes = range.size() * int64_t{sizeof(float)};
    const LaneClient::Handle handle = client->Want(std::move(wanted));
    const auto result = AwaitState(*client, handle, progress, dialer, options);
    status = Annotate(result.status(), absl::StrCat("fragment ", fragment));
    if (!status.ok()) break;
    std::memcpy(state.parameters.data() + range.begin, result->bytes->data(),
                result->bytes->size());
    state.versions[static_cast<size_t>(fragment)] = result->header.round();
  }
  client->Cancel();
  RETURN_IF_ERROR(status);
  return state;
}

}  // namespace causeway
