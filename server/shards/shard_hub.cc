#include "server/shards/shard_hub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "common/transfer/wire.h"
#include "server/store/run_directory.h"

namespace causeway::server {

namespace {

constexpr size_t kPieceValues = (size_t{1} << 20) / sizeof(float);

}  // namespace

ShardHub::ShardHub(Options options) : options_(std::move(options)) { Deal(options_.deal); }

void ShardHub::Deal(std::vector<DealtShard> deal) {
  absl::MutexLock lock(&mutex_);
  for (const DealtShard& shard : deal) {
    if (shard.name != kLeadName) places_[shard.name].dealt = shard;
  }
  deal_ = std::move(deal);
}

void ShardHub::Begin(Coordinator& coordinator) { coordinator_ = &coordinator; }

absl::Status ShardHub::Check(const v1::ShardHello& hello) const {
  if (hello.wire_version() != kWireVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the lead speaks wire version ", kWireVersion,
                                                      ", the shard ", hello.wire_version(),
                                                      ": use the same release for both"));
  }
  if (stopping_) return absl::UnavailableError("the lead stops");
  const auto place = places_.find(hello.name());
  if (place == places_.end()) {
    std::vector<std::string> names;
    for (const auto& [name, other] : places_) names.push_back(name);
    return absl::NotFoundError(absl::StrCat("the lead has no shard ", hello.name(),
                                            "; --shards names ", absl::StrJoin(names, ", ")));
  }
  if (!hello.run_id().empty()) {
    RETURN_IF_ERROR(CheckRunId("shard's folder", hello.run_id(), coordinator_->run_id()));
  }
  const std::vector<int> held = {hello.fragments().begin(), hello.fragments().end()};
  if (!held.empty() && held != place->second.dealt.fragments) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the folder of shard ", hello.name(), " has fragments ", absl::StrJoin(held, ","),
        ", the lead deals it ", absl::StrJoin(place->second.dealt.fragments, ","),
        ": serve the folder with which this name began"));
  }
  if (held.empty() && place->second.dealt.begun) {
    return absl::FailedPreconditionError(
        absl::StrCat("shard ", hello.name(),
                     " has begun already, and its fragments are in another folder than "
                     "the empty one given: serve that one, or restore it from a backup"));
  }
  const std::shared_ptr<Line>& line = place->second.line;
  if (line != nullptr && !line->closed_ && line->hello_.process_nonce() != hello.process_nonce()) {
    return absl::AlreadyExistsError(absl::StrCat("shard ", hello.name(), " is served already, at ",
                                                 line->hello_.address(),
                                                 ": stop that one first, or give another --shard"));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ShardWelcome> ShardHub::Admit(const v1::ShardHello& hello) const {
  v1::ShardWelcome welcome;
  const v1::DescribeResponse run = coordinator_->Describe();
  {
    absl::ReaderMutexLock lock(&mutex_);
    RETURN_IF_ERROR(Check(hello));
    for (const int fragment : places_.at(hello.name()).dealt.fragments) {
      welcome.add_fragments(fragment);
    }
  }
  welcome.set_run_id(run.run_id());
  welcome.set_awaits_model(run.awaits_model());
  welcome.set_given_values(!run.awaits_model() && HasInitial());
  *welcome.mutable_config() = run.config();
  welcome.set_config_hash(run.config_hash());
  welcome.set_plan_hash(run.plan_hash());
  welcome.set_software_version(run.software_version());
  return welcome;
}

bool ShardHub::HasInitial() const {
  return options_.file_system->Exists(JoinPath(options_.folder, kInitialFile));
}

absl::Status ShardHub::SendInitial(
    const v1::ShardHello& hello,
    const std::function<absl::Status(const v1::ShardValues&)>& send) const {
  ASSIGN_OR_RETURN(const v1::ShardWelcome welcome, Admit(hello));
  if (!welcome.given_values()) {
    return absl::NotFoundError("the run was given no values: its seed makes them");
  }
  const std::vector<int> fragments = {welcome.fragments().begin(), welcome.fragments().end()};
  return options_.initial(fragments, [&](int fragment, std::span<const float> values) {
    v1::ShardValues piece;
    piece.set_fragment(fragment);
    for (size_t begin = 0; begin < values.size(); begin += kPieceValues) {
      const auto part = values.subspan(begin, std::min(kPieceValues, values.size() - begin));
      piece.set_values(part.data(), part.size_bytes());
      piece.set_last(begin + part.size() == values.size());
      if (piece.last()) piece.set_hash(TreeHash(values));
      RETURN_IF_ERROR(send(piece));
    }
    return absl::OkStatus();
  });
}

absl::Status ShardHub::Note() {
  std::vector<DealtShard> deal = deal_;
  for (DealtShard& shard : deal) {
    const auto place = places_.find(shard.name);
    if (place != places_.end()) shard = place->second.dealt;
  }
  return WriteDeal(*options_.file_system, options_.folder, deal);
}

void ShardHub::GiveUp(Line& line, const std::string& why) {
  line.closed_ = true;
  line.why_ = why;
  if (line.cancel_) line.cancel_();
}

absl::StatusOr<std::shared_ptr<ShardHub::Line>> ShardHub::Attach(const v1::ShardHello& hello,
                                                                 std::function<void()> cancel) {
  if (coordinator_->Describe().awaits_model()) {
    return absl::UnavailableError("the run awaits its model: ask again");
  }
  if (options_.may_tell) RETURN_IF_ERROR(options_.may_tell());
  auto line = std::make_shared<Line>(hello);
  bool moved = false;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(Check(hello));
    Place& place = places_.at(hello.name());
    if (!std::exchange(place.dealt.begun, true)) {
      if (const absl::Status noted = Note(); !noted.ok()) {
        place.dealt.begun = false;
        return noted;
      }
    }
    if (place.line != nullptr) GiveUp(*place.line, "it has come again");
    line->cancel_ = std::move(cancel);
    place.line = line;
    moved = !place.address.empty() && place.address != hello.address();
    place.address = hello.address();
  }
  options_.events->Record(
      "shard_attached",
      absl::StrCat("shard ", hello.name(), " serves fragments ",
                   absl::StrJoin(hello.fragments(), ","), " at ", hello.address()),
      {{"shard", hello.name()},
       {"address", hello.address()},
       {"software_version", hello.software_version()}});
  // Nobody else's roster can be newer and yet not reach it.
  Tell(coordinator_->Roster(), /*wait=*/false);
  if (moved) coordinator_->AnnouncePlacement();
  return line;
}

std::optional<v1::ShardOrder> ShardHub::NextOrder(Line& line) {
  absl::MutexLock lock(&mutex_);
  const auto ready = [&line] {
    return line.closed_ || !line.calls_.empty() || line.roster_.has_value();
  };
  mutex_.Await(absl::Condition(&ready));
  return TakeOrder(line);
}

std::optional<v1::ShardOrder> ShardHub::TryNextOrder(Line& line) {
  absl::MutexLock lock(&mutex_);
  return TakeOrder(line);
}

std::optional<v1::ShardOrder> ShardHub::TakeOrder(Line& line) {
  v1::ShardOrder order;
  if (line.closed_ || (line.calls_.empty() && !line.roster_.has_value())) return std::nullopt;
  // Calls that were made before the roster come before it.
  if (!line.calls_.empty()) {
    *order.mutable_call() = std::move(line.calls_.front());
    line.calls_.pop_front();
  } else {
    *order.mutable_roster() = *std::move(line.roster_);
    line.roster_.reset();
  }
  return order;
}

absl::Status ShardHub::Take(Line& line, const v1::ShardReport& report) {
  std::function<void(const absl::Status&)> done;
  switch (report.report_case()) {
    case v1::ShardReport::kHeard: {
      absl::MutexLock lock(&mutex_);
      line.heard_ = std::max(line.heard_, report.heard());
      line.silent_since_ = line.heard_ >= line.given_ || options_.clock == nullptr
                               ? absl::InfiniteDuration()
                               : options_.clock->Monotonic();
      DealtShard& dealt = places_.at(line.hello_.name()).dealt;
      if (finished_ == 0 || line.heard_ < finished_ || std::exchange(dealt.ended, true)) {
        return absl::OkStatus();
      }
      const absl::Status noted = Note();
      if (!noted.ok()) dealt.ended = false;  // The shard is told only what the disk has.
      return noted;
    }
    case v1::ShardReport::kAnswer: {
      {
        absl::MutexLock lock(&mutex_);
        const auto found = line.answers_.find(report.answer().number());
        if (found == line.answers_.end()) return absl::OkStatus();
        done = std::move(found->second);
        line.answers_.erase(found);
      }
      done(absl::Status(static_cast<absl::StatusCode>(report.answer().code()),
                        report.answer().message()));
      return absl::OkStatus();
    }
    case v1::ShardReport::kAccounts: {
      RETURN_IF_ERROR(coordinator_->TakeReport(line.hello_.name(), report));
      // They follow the draws of the past: a site that joins now is given the text after these.
      absl::MutexLock lock(&mutex_);
      places_.at(line.hello_.name()).told = true;
      return absl::OkStatus();
    }
    default:
      return coordinator_->TakeReport(line.hello_.name(), report);
  }
}

void ShardHub::Close(Line& line) {
  absl::MutexLock lock(&mutex_);
  line.closed_ = true;
}

void ShardHub::Detach(const std::shared_ptr<Line>& line, const absl::Status& why) {
  std::map<int64_t, std::function<void(const absl::Status&)>> unanswered;
  bool was_last = false;
  std::string reason(why.message());
  const std::string& name = line->hello_.name();
  {
    absl::MutexLock lock(&mutex_);
    line->closed_ = true;
    line->cancel_ = nullptr;
    if (!line->why_.empty()) reason = line->why_;
    unanswered.swap(line->answers_);
    Place& place = places_.at(name);
    was_last = place.line == line;
    if (was_last) place.line = nullptr;
  }
  for (const auto& [number, done] : unanswered) {
    done(absl::UnavailableError(absl::StrCat("shard ", name, " is away: try again later")));
  }
  if (!was_last) return;
  options_.events->Record("shard_detached",
                          absl::StrCat("shard ", name, " is away (", reason,
                                       "); its fragments wait for it, the others go on"),
                          {{"shard", name}, {"reason", reason}});
}

bool ShardHub::AllHaveEnded() const {
  absl::ReaderMutexLock lock(&mutex_);
  return std::ranges::all_of(places_, [](const auto& place) { return place.second.dealt.ended; });
}

void ShardHub::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  for (auto& [name, place] : places_) {
    if (place.line != nullptr) place.line->closed_ = true;
  }
}

absl::Status ShardHub::Complete() const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<std::string> missing;
  for (const auto& [name, place] : places_) {
    if (!place.told) missing.push_back(name);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("shards of this run are missing: ", absl::StrJoin(missing, ", "),
                   "; start them (causeway-coordinator serve --lead=... --shard=NAME)"));
}

std::vector<v1::Shard> ShardHub::Where() const {
  std::vector<v1::Shard> shards;
  absl::ReaderMutexLock lock(&mutex_);
  for (const auto& [name, place] : places_) {
    v1::Shard& shard = shards.emplace_back();
    shard.set_name(name);
    shard.set_address(place.address);
    for (const int fragment : place.dealt.fragments) shard.add_fragments(fragment);
  }
  return shards;
}

void ShardHub::Tell(const v1::ShardRoster& roster, bool wait) {
  std::vector<std::shared_ptr<Line>> told;
  absl::MutexLock lock(&mutex_);
  const bool is_newest = roster.number() > newest_;
  newest_ = std::max(newest_, roster.number());
  if (is_newest && !roster.finished()) {
    finished_ = 0;
    bool changed = false;
    for (auto& [name, place] : places_) changed |= std::exchange(place.dealt.ended, false);
    if (changed) {
      if (const absl::Status noted = Note(); !noted.ok()) Log().warn("{}", noted.ToString());
    }
  }
  if (is_newest && roster.finished() && finished_ == 0) finished_ = roster.number();
  const absl::Duration now =
      options_.clock == nullptr ? absl::ZeroDuration() : options_.clock->Monotonic();
  for (auto& [name, place] : places_) {
    if (place.line == nullptr || place.line->closed_) continue;
    if (options_.clock != nullptr && now - place.line->silent_since_ >= options_.silence) {
      GiveUp(*place.line,
             absl::StrCat("silent for ", absl::FormatDuration(now - place.line->silent_since_)));
      continue;
    }
    told.push_back(place.line);
    if (roster.number() <= place.line->given_) continue;
    place.line->silent_since_ = std::min(place.line->silent_since_, now);
    place.line->given_ = roster.number();
    place.line->roster_ = roster;
    place.line->roster_->set_process_nonce(options_.process_nonce);
    place.line->roster_->set_ended(place.dealt.ended);
  }
  if (!wait) return;
  const auto heard = [&] {
    return std::ranges::all_of(told, [&](const std::shared_ptr<Line>& line) {
      return line->closed_ || line->heard_ >= roster.number();
    });
  };
  if (mutex_.AwaitWithTimeout(absl::Condition(&heard), options_.patience)) return;
  for (const std::shared_ptr<Line>& line : told) {
    if (line->heard_ >= roster.number()) continue;
    GiveUp(*line, absl::StrCat("no roster heard within ", absl::FormatDuration(options_.patience)));
  }
}

void ShardHub::Call(int fragment, v1::ShardCall call,
                    std::function<void(const absl::Status&)> done) {
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [name, place] : places_) {
      if (!std::ranges::binary_search(place.dealt.fragments, fragment)) continue;
      if (place.line == nullptr || place.line->closed_) break;
      call.set_number(++last_call_);
      place.line->answers_[last_call_] = std::move(done);
      place.line->calls_.push_back(std::move(call));
      return;
    }
  }
  done(absl::UnavailableError(
      absl::StrCat("the shard of fragment ", fragment, " is away: try again later")));
}

}  // namespace causeway::server
