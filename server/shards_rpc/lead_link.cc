#include "server/shards_rpc/lead_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/checksum.h"
#include "common/base/crash_point.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "common/telemetry/log.h"
#include "server/core/shards.h"
#include "server/shards/end_note.h"
#include "server/store/run_directory.h"

namespace causeway::server {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(500);
// For one answer, so that a signal is noticed.
constexpr absl::Duration kOneAsk = absl::Seconds(3);
constexpr absl::Duration kWatch = absl::Milliseconds(100);
// A lead that died at the end has come back by then, or has ended.
constexpr absl::Duration kLastPatience = absl::Seconds(30);
constexpr absl::Duration kLastLook = absl::Seconds(10);

}  // namespace

LeadLink::LeadLink(std::string lead, const ChannelSecurity& security, v1::ShardHello hello)
    : lead_(std::move(lead)),
      security_(security),
      stub_(v1::Shards::NewStub(MakeChannel(lead_, connection_, security_))),
      hello_(std::move(hello)) {}

absl::StatusOr<v1::ShardWelcome> LeadLink::Ask(absl::Duration timeout, absl::Duration served,
                                               const Waiter& wait) {
  const absl::Time asked_at = absl::Now();
  absl::Time deadline = asked_at + timeout;
  bool waits = false;
  for (;;) {
    absl::StatusOr<v1::ShardWelcome> welcome = AskOnce(std::min(deadline, absl::Now() + kOneAsk));
    const absl::Status& status = welcome.status();
    // A lead that stops cancels what it has under way.
    const bool away = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
                      absl::IsCancelled(status);
    const bool is_served = absl::IsAlreadyExists(status);
    const bool awaits_model = status.ok() && welcome->awaits_model();
    if (awaits_model || is_served) deadline = absl::Now() + timeout;  // It answers.
    if (awaits_model) {
      if (!std::exchange(waits, true)) {
        Log().info("run {} waits for the model, which its first site brings", welcome->run_id());
      }
    } else if (!away && !is_served) {
      absl::MutexLock lock(&mutex_);
      lost_at_ = absl::InfiniteFuture();
      return welcome;
    }
    if (wait(kPause)) return absl::CancelledError("stopped while its lead was asked");
    if (absl::Now() < (is_served ? asked_at + served : deadline)) continue;
    if (!away) return welcome;
    {
      absl::MutexLock lock(&mutex_);
      lost_at_ = std::min(lost_at_, asked_at);
    }
    return absl::UnavailableError(absl::StrCat(
        "no lead answers at ", lead_, " within ", absl::FormatDuration(timeout),
        "; check --lead, that causeway-coordinator serve --shards runs there, and the firewall (",
        status.message(), ")"));
  }
}

absl::StatusOr<std::vector<float>> LeadLink::Initial(const FragmentPlan& plan,
                                                     std::span<const int> fragments,
                                                     const Waiter& wait) {
  grpc::ClientContext context;
  std::atomic<bool> over = false;
  bool stopped = false;
  const auto watch = [&] {
    while (!over && !stopped) stopped = wait(kWatch);
    if (stopped) context.TryCancel();
  };
  ASSIGN_OR_RETURN(std::thread watcher, StartThread(watch));
  absl::StatusOr<std::vector<float>> values = ReadInitial(plan, fragments, context);
  over = true;
  watcher.join();
  if (stopped) return absl::CancelledError("stopped while the lead's values came");
  return values;
}

absl::StatusOr<std::vector<float>> LeadLink::ReadInitial(const FragmentPlan& plan,
                                                         std::span<const int> fragments,
                                                         grpc::ClientContext& context) {
  const auto reader = stub_->Initial(&context, hello_);
  const absl::Status other = absl::DataLossError(
      absl::StrCat("the lead at ", lead_,
                   " has sent other values than those that this shard's fragments begin with: "
                   "start this shard again"));
  std::vector<float> values;
  bool all_came = true;
  v1::ShardValues piece;
  for (const int fragment : fragments) {
    const size_t begin = values.size();
    const auto size = static_cast<size_t>(plan.range(fragment).size());
    if (size == 0) continue;
    values.resize(begin + size);
    const std::span<float> own = std::span(values).subspan(begin, size);
    size_t filled = 0;  // Bytes.
    while (filled < own.size_bytes() && reader->Read(&piece)) {
      const std::string& bytes = piece.values();
      if (piece.fragment() != fragment || bytes.empty() ||
          bytes.size() > own.size_bytes() - filled) {
        context.TryCancel();
        return other;
      }
      std::memcpy(reinterpret_cast<char*>(own.data()) + filled, bytes.data(), bytes.size());
      filled += bytes.size();
    }
    all_came = filled == own.size_bytes();
    if (!all_came) break;  // Finish says why.
    if (!piece.last() || piece.hash() != TreeHash(own)) {
      context.TryCancel();
      return other;
    }
  }
  v1::ShardValues none;
  if (reader->Read(&none)) {
    context.TryCancel();
    return other;
  }
  RETURN_IF_ERROR(Annotate(FromGrpcStatus(reader->Finish()), absl::StrCat("the lead at ", lead_)));
  if (!all_came) return other;
  return values;
}

absl::StatusOr<v1::ShardWelcome> LeadLink::AskOnce(absl::Time deadline) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(deadline));
  const auto stream = stub_->Serve(&context);
  v1::ShardReport report;
  *report.mutable_hello() = hello_;
  report.mutable_hello()->set_ask(true);
  v1::ShardOrder order;
  if (stream->Write(report) && stream->Read(&order) && order.has_welcome()) {
    stream->WritesDone();
    v1::ShardOrder none;
    while (stream->Read(&none)) {
    }
    RETURN_IF_ERROR(
        Annotate(FromGrpcStatus(stream->Finish()), absl::StrCat("the lead at ", lead_)));
    return order.welcome();
  }
  const grpc::Status end = stream->Finish();
  if (end.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator at ", lead_, " has no shards: start it with --shards"));
  }
  const absl::Status status = FromGrpcStatus(end);
  if (absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status)) return status;
  return Annotate(status, absl::StrCat("the lead at ", lead_));
}

absl::Status LeadLink::Start(Coordinator& coordinator, v1::ShardHello hello,
                             absl::Duration silence) {
  silence_ = silence;
  coordinator_ = &coordinator;
  hello_ = std::move(hello);
  {
    // The lead that Ask asked in vain may have come back while this shard recovered.
    absl::MutexLock lock(&mutex_);
    lost_at_ = std::max(lost_at_, absl::Now() - kLastPatience + kLastLook);
  }
  ASSIGN_OR_RETURN(thread_, StartThread([this] { Run(); }));
  return absl::OkStatus();
}

absl::Status LeadLink::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

bool LeadLink::MayEnd() const {
  absl::MutexLock lock(&mutex_);
  return ended_ || absl::Now() - lost_at_ > kLastPatience;
}

void LeadLink::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
  }
  if (thread_.joinable()) thread_.join();
}

void LeadLink::Run() {
  std::string last_line;
  for (;;) {
    grpc::ClientContext context;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      context_ = &context;
    }
    absl::Status status = may_tell_ ? may_tell_() : absl::OkStatus();
    const bool may_tell = status.ok();
    if (may_tell) status = Follow(context);
    coordinator_->LoseLead();
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
    if (stopping_) return;
    if (std::exchange(was_silent_, false)) {
      // Another connection: gRPC would wait for the former one.
      stub_ = v1::Shards::NewStub(MakeChannel(lead_, ++connection_, security_));
    }
    lost_at_ = std::min(lost_at_, absl::Now());
    // ALREADY_EXISTS, too: Ask has waited for the process before this one to be gone. Another one
    // serves the fragments now, and has nothing of what this one would take from workers.
    if (!IsRetryable(status)) {
      status_ = Annotate(status, absl::StrCat("the lead at ", lead_));
      return;
    }
    const std::string line =
        may_tell ? absl::StrCat("the lead at ", lead_, " is not heard: ", status.message(),
                                "; no round closes, and no delta is taken, until it is back")
                 : absl::StrCat("not attached to the lead at ", lead_, ": ", status.message());
    if (line != last_line) Log().warn("{}", line);
    last_line = line;
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kPause);
  }
}

absl::Status LeadLink::Follow(grpc::ClientContext& context) {
  const auto stream = stub_->Serve(&context);
  {
    absl::MutexLock lock(&mutex_);
    streams_ = true;
    heard_at_ = absl::Now();
  }
  // Writes nothing before the lead's welcome, but ends a stream on which none comes.
  absl::StatusOr<std::thread> writer = StartThread([&] { Write(context, *stream); });
  if (!writer.ok()) context.TryCancel();
  v1::ShardReport report;
  *report.mutable_hello() = hello_;
  v1::ShardOrder order;
  absl::Status obeyed;
  if (stream->Write(report) && stream->Read(&order) && order.has_welcome()) {
    QueueAll();
    while (obeyed.ok() && stream->Read(&order)) obeyed = Obey(order);
    if (!obeyed.ok()) context.TryCancel();
  }
  {
    absl::MutexLock lock(&mutex_);
    streams_ = attached_ = false;
    reports_.clear();
    fragments_changed_ = false;
  }
  if (writer.ok()) writer->join();
  const absl::Status ended = FromGrpcStatus(stream->Finish());
  RETURN_IF_ERROR(obeyed);
  {
    absl::MutexLock lock(&mutex_);
    if (was_silent_) {
      return absl::UnavailableError(
          absl::StrCat("nothing came for ", absl::FormatDuration(silence_)));
    }
  }
  RETURN_IF_ERROR(ended);
  return absl::UnavailableError("it has ended the stream");
}

void LeadLink::QueueAll() {
  std::deque<v1::ShardReport> all;
  for (v1::ShardContribution& past : coordinator_->PastDraws()) {
    *all.emplace_back().mutable_contribution() = std::move(past);
  }
  *all.emplace_back().mutable_accounts() = coordinator_->Accounts();
  absl::MutexLock lock(&mutex_);
  reports_ = std::move(all);
  attached_ = true;
  heard_at_ = absl::Now();
  lost_at_ = absl::InfiniteFuture();
  fragments_changed_ = true;
}

void LeadLink::Queue(v1::ShardReport report, bool fragments_changed) {
  absl::MutexLock lock(&mutex_);
  if (!attached_) return;  // QueueAll has what matters.
  reports_.push_back(std::move(report));
  fragments_changed_ |= fragments_changed;
}

void LeadLink::Write(grpc::ClientContext& context, Stream& stream) {
  std::map<int, std::string> sent;  // Serialized.
  for (;;) {
    std::deque<v1::ShardReport> reports;
    bool fragments_changed = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !streams_ || !reports_.empty() || fragments_changed_;
      };
      while (!mutex_.AwaitWithTimeout(absl::Condition(&ready), kPause)) {
        if (absl::Now() - heard_at_ < silence_) continue;
        was_silent_ = true;
        context.TryCancel();
        return;
      }
      if (!streams_) return;
      reports.swap(reports_);
      fragments_changed = std::exchange(fragments_changed_, false);
    }
    if (fragments_changed) {
      // First: a roster that is heard below may be the last one.
      const v1::RunStatus status = coordinator_->GetStatus();
      for (const v1::FragmentStatus& fragment : status.fragments()) {
        std::string& last = sent[fragment.fragment()];
        std::string now = fragment.SerializeAsString();
        if (now == last) continue;
        last = std::move(now);
        v1::ShardReport report;
        *report.mutable_fragment() = fragment;
        if (!stream.Write(report)) return;
      }
    }
    for (const v1::ShardReport& report : reports) {
      if (!stream.Write(report)) return;
    }
  }
}

absl::Status LeadLink::RememberEnd(const v1::ShardRoster& roster) {
  const bool remembered = file_system_->Exists(JoinPath(folder_, kEndFile));
  if (remembered == roster.reached_end()) return absl::OkStatus();
  if (!roster.reached_end()) return ForgetEnd(*file_system_, folder_);
  RETURN_IF_ERROR(NoteEnd(*file_system_, folder_, roster));
  CrashPoint("after_end_note");
  return absl::OkStatus();
}

absl::Status LeadLink::Obey(const v1::ShardOrder& order) {
  if (order.has_roster()) {
    {
      absl::MutexLock lock(&mutex_);
      heard_at_ = absl::Now();
    }
    RETURN_IF_ERROR(coordinator_->FollowLead(order.roster()));
    RETURN_IF_ERROR(RememberEnd(order.roster()));
    // Before the lead writes its summary: what all have left behind.
    if (order.roster().finished()) coordinator_->Tick();
    {
      absl::MutexLock lock(&mutex_);
      ended_ = order.roster().ended();
      lost_at_ = absl::InfiniteFuture();
    }
    v1::ShardReport report;
    *report.mutable_accounts() = coordinator_->Accounts();
    Queue(std::move(report), /*fragments_changed=*/true);
    report.set_heard(order.roster().number());
    Queue(std::move(report));
    return absl::OkStatus();
  }
  if (!order.has_call()) return absl::OkStatus();
  const absl::Status answer = coordinator_->AnswerLead(order.call());
  v1::ShardReport report;
  report.mutable_answer()->set_number(order.call().number());
  report.mutable_answer()->set_code(static_cast<int>(answer.code()));
  report.mutable_answer()->set_message(std::string(answer.message()));
  Queue(std::move(report));
  return absl::OkStatus();
}

void LeadLink::OnContributed(const v1::PushHeader& header, bool quarantined) {
  v1::ShardReport report;
  *report.mutable_contribution()->mutable_header() = header;
  report.mutable_contribution()->set_quarantined(quarantined);
  Queue(std::move(report), /*fragments_changed=*/true);
}

void LeadLink::OnPublished(const RoundRecord& round, const std::vector<std::string>& missing) {
  Queue(RoundReport(round, missing), /*fragments_changed=*/true);
}

void LeadLink::Record(absl::string_view event, const std::string& message,
                      const nlohmann::json& fields) {
  events_->Record(event, message, fields);
  v1::ShardReport report;
  report.mutable_event()->set_event(std::string(event));
  report.mutable_event()->set_message(message);
  report.mutable_event()->set_fields_json(
      fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  Queue(std::move(report));
}

}  // namespace causeway::server
