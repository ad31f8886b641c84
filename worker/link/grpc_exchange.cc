#include "worker/link/grpc_exchange.h"

#include <thread>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/codec/codec.h"
#include "common/telemetry/log.h"

namespace causeway::worker {
namespace {

// A connection carries only so many streams at once: pulls that wait for what is being pushed must
// leave enough of them to the pushes.
constexpr int kMaxEarlyPulls = 16;

}  // namespace

GrpcExchange::GrpcExchange(Options options)
    : options_(std::move(options)),
      uplink_(options_.link, [session = options_.session] { return session->incarnation(); }),
      downlink_(options_.link) {}

void GrpcExchange::Cancel() {
  uplink_.Cancel();
  downlink_.Cancel();
}

int64_t GrpcExchange::bytes_up() const { return options_.link->meter().bytes(Direction::kUp); }

int64_t GrpcExchange::bytes_down() const { return options_.link->meter().bytes(Direction::kDown); }

absl::Status GrpcExchange::Push(const Contribution& contribution) {
  UploadObject object;
  v1::PushHeader& header = object.header;
  header.set_run_id(options_.run_id);
  header.set_worker_id(options_.worker_id);
  header.set_fragment(contribution.fragment);
  header.set_round(contribution.round);
  header.set_codec(options_.sync.codec_up());
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
  object.bytes = contribution.object;
  object.leaves = contribution.leaves;
  object.owner = contribution.owner;
  object.due_step = contribution.due_step;
  object.entropy = options_.sync.entropy_up();
  object.maybe_held = contribution.maybe_sent;
  ASSIGN_OR_RETURN(const v1::PushResponse response, uplink_.Push(std::move(object)));
  if (response.quarantined()) {
    Log().warn(
        "the delta of fragment {} for round {} is quarantined: it is out of line with what this "
        "fragment is used to (membership.outlier_factor), and will not be merged. Training goes "
        "on; if this repeats, look at this site's data, learning rate and devices",
        contribution.fragment, contribution.round);
  }
  return absl::OkStatus();
}

absl::StatusOr<PulledObject> GrpcExchange::PushAndPull(
    const Contribution& contribution, const std::function<void(const absl::Status&)>& pushed) {
  if (early_pulls_.fetch_add(1) >= kMaxEarlyPulls) {
    --early_pulls_;
    return Exchange::PushAndPull(contribution, pushed);
  }
  Downlink::Ticket ticket;
  absl::StatusOr<PulledObject> answer;
  absl::StatusOr<std::thread> pull = StartThread([&] {
    answer = PullAnswer(contribution.fragment, contribution.round, contribution.due_step, ticket);
  });
  if (!pull.ok()) {
    --early_pulls_;
    Log().warn("the answer to round {} of fragment {} is asked for after its delta was sent: {}",
               contribution.round, contribution.fragment, std::string(pull.status().message()));
    return Exchange::PushAndPull(contribution, pushed);
  }
  const absl::Status status = Push(contribution);
  --early_pulls_;
  pushed(status);
  // The round may wait for ever for what was refused.
  if (!GetsAnswer(status)) downlink_.GiveUp(ticket);
  pull->join();
  return GetsAnswer(status) ? std::move(answer) : status;
}

absl::StatusOr<PulledObject> GrpcExchange::PullAnswer(int fragment, int64_t round,
                                                      int64_t due_step) {
  Downlink::Ticket ticket;
  return PullAnswer(fragment, round, due_step, ticket);
}

absl::StatusOr<PulledObject> GrpcExchange::PullAnswer(int fragment, int64_t round, int64_t due_step,
                                                      Downlink::Ticket& ticket) {
  v1::PullRequest request;
  request.set_object(v1::PullRequest::ANSWER);
  request.set_fragment(fragment);
  request.set_round(round);
  request.set_due_step(due_step);
  const Codec* const codec = FindCodec(options_.sync.codec_down()).value();
  const auto values = static_cast<size_t>(options_.plan->range(fragment).size());
  return Pull(std::move(request), static_cast<int64_t>(codec->EncodedBytes(values)), ticket);
}

absl::StatusOr<PulledObject> GrpcExchange::PullState(int fragment) {
  v1::PullRequest request;
  request.set_object(v1::PullRequest::STATE);
  request.set_fragment(fragment);
  Downlink::Ticket ticket;
  return Pull(std::move(request), options_.plan->range(fragment).size() * int64_t{sizeof(float)},
              ticket);
}

absl::StatusOr<PulledObject> GrpcExchange::Pull(v1::PullRequest request, int64_t expected_bytes,
                                                Downlink::Ticket& ticket) {
  request.set_run_id(options_.run_id);
  request.set_worker_id(options_.worker_id);
  return downlink_.Pull(std::move(request), expected_bytes, ticket);
}

void GrpcExchange::ReportApplied(int fragment, int64_t round, uint64_t published_hash) {
  {
    absl::MutexLock lock(&mutex_);
    applied_[fragment] = {round, published_hash};
  }
  options_.session->Applied(fragment, round, published_hash);
}

}  // namespace causeway::worker
