#include "tests/security/hostile_client/site.h"

#include "common/base/random.h"
#include "common/rpc/status.h"
#include "common/transfer/wire.h"
#include "tests/unit/common/rpc/plain_lane.h"
#include "tests/unit/server/core/small_run.h"

namespace causeway::hostile {
namespace {

// An honest round moves every value by about this much.
constexpr double kMove = 1e-3;

const Codec& UpCodec(const Run& run) { return **FindCodec(run.config().sync().codec_up()); }

}  // namespace

Site::Site(Run& run, std::string id) : Site(run, std::move(id), ChannelSecurity::Plaintext()) {}

Site::Site(Run& run, std::string id, const ChannelSecurity& security)
    : run_(&run), id_(std::move(id)), security_(security), nonce_(Checksum64(id_) | 1) {
  Connect();
}

void Site::Connect() {
  channel_ = MakeChannel(run_->address(), 0, security_);
  session_ = v1::Session::NewStub(channel_);
  exchange_ = v1::Exchange::NewStub(channel_);
  admin_ = v1::Admin::NewStub(channel_);
}

absl::Status Site::Return() {
  Disconnect();
  Connect();
  RETURN_IF_ERROR(Join());
  return Ready(ready_step_);
}

absl::Status Site::ReturnTo(Run& run) {
  run_ = &run;
  return Return();
}

Site::~Site() { Disconnect(); }

void Site::Disconnect() {
  if (context_ != nullptr) context_->TryCancel();
  if (listener_.joinable()) listener_.join();
  stream_.reset();
  context_.reset();
}

absl::Status Site::AwaitConnection() {
  const auto deadline = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kPatience);
  if (channel_->WaitForConnected(deadline)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(id_, " does not reach the coordinator"));
}

absl::Status Site::Join() {
  Disconnect();
  grpc::ClientContext describing;
  v1::DescribeRequest request;
  request.set_wire_version(kWireVersion);
  v1::DescribeResponse description;
  RETURN_IF_ERROR(FromGrpcStatus(session_->Describe(&describing, request, &description)));
  context_ = std::make_unique<grpc::ClientContext>();
  stream_ = session_->Attach(context_.get());
  v1::WorkerMessage message;
  v1::Join& join = *message.mutable_join();
  join = server::JoinOf(description, id_, nonce_);
  join.set_has_checkpoint(welcome_.incarnation() > 0);
  join.set_seen_epoch(welcome_.epoch());
  stream_->Write(message);
  v1::CoordinatorMessage answer;
  if (!stream_->Read(&answer)) {
    const absl::Status status = FromGrpcStatus(stream_->Finish());
    return status.ok() ? absl::UnavailableError("the session ended at once") : status;
  }
  welcome_ = answer.welcome();
  {
    absl::MutexLock lock(&mutex_);
    ended_.reset();
  }
  listener_ = std::thread([this] { Listen(); });
  return absl::OkStatus();
}

void Site::Listen() {
  v1::CoordinatorMessage message;
  while (stream_->Read(&message)) {
    absl::MutexLock lock(&mutex_);
    if (message.has_directive()) directives_.push_back(message.directive());
    renewals_ += message.has_lease_renewed();
  }
  const absl::Status status = FromGrpcStatus(stream_->Finish());
  absl::MutexLock lock(&mutex_);
  ended_ = status;
}

absl::Status Site::Send(const v1::WorkerMessage& message) {
  if (stream_ != nullptr && stream_->Write(message)) return absl::OkStatus();
  return absl::UnavailableError("the session is over");
}

absl::Status Site::Ready(int64_t step) {
  ready_step_ = step;
  return Send(server::ReadyAt(step));
}

absl::Status Site::Heartbeat(int64_t step, int64_t tokens, double inner_step_seconds) {
  v1::WorkerMessage message;
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_step(step);
  heartbeat.set_tokens(tokens);
  heartbeat.set_checkpoint_step(-1);
  heartbeat.set_pace_milli(1000);
  heartbeat.set_inner_step_seconds(inner_step_seconds);
  return Send(message);
}

bool Site::Settle(int64_t step, int64_t tokens, double inner_step_seconds) {
  int64_t wanted = 0;
  {
    absl::MutexLock lock(&mutex_);
    wanted = renewals_ + 1;
  }
  if (!Heartbeat(step, tokens, inner_step_seconds).ok()) return false;
  absl::MutexLock lock(&mutex_);
  const auto heard = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return renewals_ >= wanted || ended_.has_value();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&heard), kPatience);
  return renewals_ >= wanted;
}

void Site::Leave() {
  Send(server::LeaveFor(v1::Leave::DRAINED)).IgnoreError();
  if (stream_ != nullptr) stream_->WritesDone();
  if (listener_.joinable()) listener_.join();
  stream_.reset();
}

absl::Status Site::PullStates() {
  const FragmentPlan& plan = run_->coordinator().plan();
  published_.resize(static_cast<size_t>(plan.arena_size()));
  v1::Want want;
  want.set_object(v1::Want::STATE);
  std::vector<uint8_t> bytes;
  RETURN_IF_ERROR(PlainLane(*exchange_, run_->coordinator().run_id(), id_).Pull(want, &bytes));
  if (bytes.size() != published_.size() * sizeof(float)) {
    return absl::InternalError("the state has another size");
  }
  std::memcpy(published_.data(), bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::Status Site::Enter(int64_t ready_step) {
  RETURN_IF_ERROR(Join());
  RETURN_IF_ERROR(PullStates());
  RETURN_IF_ERROR(Ready(ready_step < 0 ? welcome_.run_step() : ready_step));
  return Settle(0) ? absl::OkStatus() : ended().value_or(absl::UnavailableError("no answer"));
}

int64_t Site::honest_tokens() const {
  const v1::RunConfig& config = run_->config();
  return kInterval * config.train().batch_sequences() * config.model().sequence_length();
}

v1::PushHeader Site::Header(int64_t round, const std::vector<uint8_t>& object) const {
  v1::PushHeader header =
      server::HeaderOf(run_->coordinator().run_id(), id_, welcome_.incarnation(), /*fragment=*/0,
                       round, run_->config().sync().codec_up(), object);
  header.set_tokens(honest_tokens());
  header.set_send_step(round * kInterval);
  header.set_epoch(welcome_.epoch());
  header.set_base_hash(TreeHash(std::span<const float>(published_)));
  return header;
}

Push Site::MakePushOf(int64_t round, const std::vector<float>& local) const {
  Push push;
  const Codec& codec = UpCodec(*run_);
  push.object.resize(codec.EncodedBytes(local.size()));
  if (!codec.Encode(published_, local, {}, push.object).ok()) push.object.clear();
  push.header = Header(round, push.object);
  return push;
}

Push Site::MakePush(int64_t round, double size) const {
  std::vector<float> local = published_;
  const auto stream = static_cast<uint64_t>(round);
  for (size_t i = 0; i < local.size(); ++i) {
    local[i] += static_cast<float>(size * kMove * RandomNormal(nonce_, stream, i));
  }
  return MakePushOf(round, local);
}

Push Site::MakePushTo(int64_t round, float target) const {
  return MakePushOf(round, std::vector<float>(published_.size(), target));
}

absl::Status Site::Deliver(const Push& push) {
  return PlainLane(*exchange_, push.header.run_id(), push.header.worker_id())
      .Push(push.header, push.object);
}

absl::Status Site::DeliverHeader(const Push& push) {
  PlainLane lane(*exchange_, push.header.run_id(), push.header.worker_id());
  lane.Offer(1, push.header);
  v1::LaneMessage answer;
  if (!lane.Read(answer)) return lane.Finish();
  const v1::Outcome& outcome = answer.control().outcome();
  return {static_cast<absl::StatusCode>(outcome.code()), outcome.message()};
}

absl::Status Site::Merge(int64_t round, absl::Duration patience) {
  v1::Want want;
  want.set_object(v1::Want::ANSWER);
  want.set_round(round);
  std::vector<uint8_t> answer;
  PlainLane lane(*exchange_, run_->coordinator().run_id(), id_, absl::Now() + patience);
  RETURN_IF_ERROR(lane.Pull(want, &answer));
  return (*FindCodec(run_->config().sync().codec_down()))->Apply(answer, published_);
}

std::vector<v1::Directive> Site::Directives(v1::Directive::Action action) const {
  std::vector<v1::Directive> result;
  absl::MutexLock lock(&mutex_);
  for (const v1::Directive& directive : directives_) {
    if (directive.action() == action) result.push_back(directive);
  }
  return result;
}

bool Site::AwaitEnd(absl::Duration patience) const {
  absl::MutexLock lock(&mutex_);
  const auto is_over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_.has_value(); };
  return mutex_.AwaitWithTimeout(absl::Condition(&is_over), patience);
}

std::optional<absl::Status> Site::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

}  // namespace causeway::hostile
