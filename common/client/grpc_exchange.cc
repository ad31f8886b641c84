#include "common/client/grpc_exchange.h"

#include <bit>
#include <cstring>

#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/codec/codec.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"
#include "common/transfer/lane_client.h"
#include "common/transfer/wire.h"

namespace causeway {
namespace {

constexpr int kPackingThreads = 2;
constexpr int kFirstLane = 1;  // By its channel.

}  // namespace

GrpcExchange::GrpcExchange(Options options)
    : options_(std::move(options)), packer_(kPackingThreads) {
  Link& link = *options_.link;
  dialer_ = std::make_unique<LaneDialer>(
      [channels = link.options().channels](int lane) { return channels->Now(kFirstLane + lane); });
  LaneClient::Options client;
  client.clock = link.options().clock;
  client.run_long = packer_.runner();
  client.greeting.set_wire_version(kWireVersion);
  client.greeting.set_run_id(options_.session->join().run_id());
  client.greeting.set_worker_id(options_.session->join().worker_id());
  client.greeting.set_process(RandomNonce());
  client.greeting.set_max_bytes_per_second(link.options().max_download_bytes_per_second);
  client.max_upload_bytes_per_second = link.options().max_upload_bytes_per_second;
  client.dial = [this](int lane, const auto& self) { dialer_->Dial(lane, self); };
  client.lanes = [&link] { return link.connections(); };
  client.incarnation = [session = options_.session] { return session->incarnation(); };
  client.stall = [this, &link] {
    link.Refresh();
    dialer_->EndOutdated();
    return link.stall_limit(Direction::kUp);
  };
  client.observer = options_.link;
  client.passes = [session = options_.session](const absl::Status& status) {
    return session->Passes(status);
  };
  // A lane that somebody else may have refused is dialed again: the session knows who is a member.
  client.lane_passes = MayBeAnothers;
  client_ = std::make_shared<LaneClient>(std::move(client));
}

GrpcExchange::~GrpcExchange() {
  Cancel();
  dialer_.reset();
  packer_.Stop();
  options_.link->OnBlocked(false);  // Nothing is left to be sent.
}

int64_t GrpcExchange::bytes_up() const { return options_.link->bytes(Direction::kUp); }

int64_t GrpcExchange::bytes_down() const { return options_.link->bytes(Direction::kDown); }

LaneClient::Handle GrpcExchange::Offer(const Contribution& contribution) {
  // The network holds on to this, perhaps after Push has returned.
  struct Kept {
    std::vector<uint64_t> leaves;
    std::shared_ptr<const void> owner;
  };
  auto kept = std::make_shared<Kept>();
  kept->leaves = contribution.leaves;
  kept->owner = contribution.owner;
  if (kept->leaves.size() != (contribution.object.size() + kChunkBytes - 1) / kChunkBytes) {
    kept->leaves = LeafChecksums(contribution.object);
  }
  LaneClient::Offered offered;
  v1::PushHeader& header = offered.header;
  header.set_fragment(contribution.fragment);
  header.set_round(contribution.round);
  header.set_codec(options_.sync.codec_up());
  header.set_total_bytes(static_cast<int64_t>(contribution.object.size()));
  header.set_object_hash(TreeRoot(kept->leaves));
  header.set_tokens(contribution.tokens);
  DrawsToProto(contribution.draws, header.mutable_draws());
  header.set_send_step(contribution.send_step);
  header.set_epoch(options_.session->epoch());
  {
    absl::MutexLock lock(&mutex_);
    const auto base = applied_.find(contribution.fragment);
    if (base != applied_.end() && base->second.first == contribution.round - 1) {
      header.set_base_hash(base->second.second);
    }
  }
  offered.source =
      std::make_shared<ChunkSource>(ChunkSource::Options{.bytes = contribution.object,
                                                         .leaves = kept->leaves,
                                                         .owner = kept,
                                                         .pack = options_.sync.entropy_up()});
  offered.due_step = contribution.due_step;
  offered.maybe_held = contribution.maybe_sent;
  return client_->Offer(std::move(offered));
}

absl::Status GrpcExchange::AwaitOffer(const Contribution& contribution,
                                      const LaneClient::Handle& offer) {
  const LaneClient::Result result = client_->Await(offer);
  RETURN_IF_ERROR(result.status);
  if (result.accepted.quarantined()) {
    Log().warn(
        "the delta of fragment {} for round {} is quarantined: it is larger than "
        "membership.norm_cap or membership.outlier_factor allow (the coordinator's log says "
        "which), and will not be merged. Training goes on; if this repeats, look at this site's "
        "data, learning rate and devices",
        contribution.fragment, contribution.round);
  }
  return absl::OkStatus();
}

absl::Status GrpcExchange::Push(const Contribution& contribution) {
  return AwaitOffer(contribution, Offer(contribution));
}

absl::StatusOr<PulledObject> GrpcExchange::PushAndPull(
    const Contribution& contribution, const std::function<void(const absl::Status&)>& pushed) {
  const LaneClient::Handle offer = Offer(contribution);
  const LaneClient::Handle answer =
      WantAnswer(contribution.fragment, contribution.round, contribution.due_step);
  const absl::Status status = AwaitOffer(contribution, offer);
  pushed(status);
  // The round may wait for ever for what was refused.
  if (!GetsAnswer(status)) {
    client_->GiveUp(answer);
    return status;
  }
  return AwaitObject(answer);
}

LaneClient::Handle GrpcExchange::WantAnswer(int fragment, int64_t round, int64_t due_step) {
  LaneClient::Wanted wanted;
  wanted.want.set_object(v1::Want::ANSWER);
  wanted.want.set_fragment(fragment);
  wanted.want.set_round(round);
  wanted.want.set_due_step(due_step);
  const Codec* const codec = FindCodec(options_.sync.codec_down()).value();
  const auto values = static_cast<size_t>(options_.plan->range(fragment).size());
  wanted.expected_bytes = static_cast<int64_t>(codec->EncodedBytes(values));
  return client_->Want(std::move(wanted));
}

absl::StatusOr<PulledObject> GrpcExchange::PullAnswer(int fragment, int64_t round,
                                                      int64_t due_step) {
  return AwaitObject(WantAnswer(fragment, round, due_step));
}

absl::StatusOr<PulledObject> GrpcExchange::PullState(int fragment) {
  LaneClient::Wanted wanted;
  wanted.want.set_object(v1::Want::STATE);
  wanted.want.set_fragment(fragment);
  wanted.expected_bytes = options_.plan->range(fragment).size() * int64_t{sizeof(float)};
  return AwaitObject(client_->Want(std::move(wanted)));
}

absl::StatusOr<PulledObject> GrpcExchange::AwaitObject(const LaneClient::Handle& wanted) {
  LaneClient::Result result = client_->Await(wanted);
  RETURN_IF_ERROR(result.status);
  return PulledObject{.round = result.header.round(),
                      .codec = result.header.codec(),
                      .published_hash = result.header.published_hash(),
                      .bytes = std::move(*result.bytes)};
}

void GrpcExchange::ReportApplied(int fragment, int64_t round, uint64_t published_hash) {
  {
    absl::MutexLock lock(&mutex_);
    applied_[fragment] = {round, published_hash};
  }
  options_.session->Applied(fragment, round, published_hash);
}

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

absl::StatusOr<PublishedState> PullPublishedState(RenewedChannels& channels,
                                                  const std::string& run_id,
                                                  const FragmentPlan& plan,
                                                  const StatePullOptions& options) {
  PublishedState state;
  state.parameters.resize(static_cast<size_t>(plan.arena_size()));
  state.versions.resize(static_cast<size_t>(plan.fragments()));
  PullProgress progress(options, plan.arena_size() * static_cast<int64_t>(sizeof(float)));
  WorkQueue unpacker(1);
  LaneDialer dialer([&channels](int) { return channels.Now(); });
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
