#include "server/core/fragment_rounds.h"

#include "common/base/checksum.h"

namespace causeway::server {
namespace {

// Rounds for which a repeated push is still recognized. A worker that resumes from a checkpoint
// sends again what it had sent since; answers are not kept for longer than that either.
constexpr size_t kPastRounds = 1024;

std::string RoundName(const v1::PushHeader& header) {
  return absl::StrCat("round ", header.round(), " of fragment ", header.fragment());
}

}  // namespace

void RoundLedger::Restore(std::span<const v1::Round> rounds,
                          std::span<const v1::Contribution> contributions, Rejections rejections) {
  open_ = std::ssize(rounds) + 1;
  rejections_ = std::move(rejections);
  const auto round_of = [](const v1::Contribution& record) { return record.header().round(); };
  while (!contributions.empty() && round_of(contributions.front()) < open_) {
    const int64_t round = round_of(contributions.front());
    const auto end = std::ranges::upper_bound(contributions, round, {}, round_of);
    const auto count = static_cast<size_t>(end - contributions.begin());
    Remember(rounds[static_cast<size_t>(round - 1)], contributions.first(count));
    contributions = contributions.subspan(count);
  }
}

void RoundLedger::Describe(OpenRound& round) const {
  round.round = open_;
  for (const auto& [id, held] : contributions_) {
    if (held.accepted) (held.kept_out() ? round.quarantined : round.arrivals)[id] = held.arrived;
  }
}

v1::PushResponse RoundLedger::Accepted(const v1::PushHeader& header, bool duplicate) const {
  v1::PushResponse response;
  response.set_durable_bytes(header.total_bytes());
  response.set_duplicate(duplicate);
  response.set_quarantined(quarantined_.contains({header.round(), header.worker_id()}));
  return response;
}

absl::StatusOr<std::optional<v1::PushResponse>> RoundLedger::Find(
    const v1::PushHeader& header) const {
  const auto same_object =
      [&](uint64_t held_hash) -> absl::StatusOr<std::optional<v1::PushResponse>> {
    if (held_hash == header.object_hash()) return Accepted(header, /*duplicate=*/true);
    return absl::AlreadyExistsError(
        absl::StrCat(header.worker_id(), " has contributed another object to ", RoundName(header),
                     " (", HashToHex(held_hash), ", now ", HashToHex(header.object_hash()), ")"));
  };
  if (header.round() > open_ || header.round() < 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(RoundName(header), " is not open: round ", open_, " is"));
  }
  if (header.round() == open_) {
    const auto held = contributions_.find(header.worker_id());
    if (held != contributions_.end() && (held->second.accepted || closed_)) {
      return same_object(held->second.record.header().object_hash());
    }
    if (!closed_) return std::nullopt;
  } else if (const auto past = past_.find(header.round()); past != past_.end()) {
    const auto held = past->second.find(header.worker_id());
    if (held != past->second.end()) return same_object(held->second);
  }
  return absl::AbortedError(absl::StrCat(RoundName(header), " closed without ", header.worker_id(),
                                         "; fold the delta into the next round"));
}

void RoundLedger::NoteBegun(const std::string& worker_id, RoundClosed closed) {
  begun_[worker_id] = std::move(closed);
}

bool RoundLedger::IsAdding(const std::string& worker_id) const {
  const auto found = contributions_.find(worker_id);
  return found != contributions_.end() && !found->second.accepted && !closed_;
}

void RoundLedger::BeginAdd(const v1::Contribution& record) {
  contributions_[record.header().worker_id()].record = record;
}

v1::PushResponse RoundLedger::EndAdd(v1::Contribution record, SharedBytes object,
                                     absl::Duration now) {
  const v1::PushHeader header = record.header();
  Held& entry = contributions_[header.worker_id()];
  entry.object = std::move(object);
  entry.arrived = now;
  entry.record = std::move(record);
  entry.rejected = IsRejected(header.worker_id(), header.round());
  entry.accepted = true;
  if (entry.kept_out()) quarantined_.emplace(header.round(), header.worker_id());
  return Accepted(header, /*duplicate=*/false);
}

bool RoundLedger::IsRejected(const std::string& worker_id, int64_t round) const {
  const auto found = rejections_.find(worker_id);
  if (found == rejections_.end() || found->second.empty()) return false;
  // The first element, if it is not positive, is that of all rounds from one on.
  const int64_t first = *found->second.begin();
  return found->second.contains(round) || (first <= 0 && round >= -first);
}

absl::Status RoundLedger::Reject(const std::string& worker_id, int64_t round, bool undo) {
  if (round < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a round counts from 1, it is ", round));
  }
  if (round != 0 && round < open_) {
    return absl::FailedPreconditionError(
        absl::StrCat("round ", round, " of fragment ", fragment_,
                     " is published, and what it merged cannot be taken out: round ", open_,
                     " is open; `causeway-coordinator replay --without` says what the run would "
                     "have been"));
  }
  if (closed_ && round == open_) {
    return absl::FailedPreconditionError(absl::StrCat("round ", round, " of fragment ", fragment_,
                                                      " is being merged at this moment"));
  }
  // The round that is being merged stays.
  const int64_t from = closed_ ? open_ + 1 : open_;
  std::set<int64_t>& orders = rejections_[worker_id];
  if (undo) {
    const auto order = round != 0                              ? orders.find(round)
                       : orders.empty() || *orders.begin() > 0 ? orders.end()
                                                               : orders.begin();
    if (order == orders.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "nothing is rejected that could be taken back: of worker ", worker_id, ", ",
          round == 0 ? "all rounds" : absl::StrCat("round ", round), " of fragment ", fragment_));
    }
    orders.erase(order);
  } else if (round != 0) {
    orders.insert(round);
  } else if (orders.empty() || *orders.begin() > 0) {
    orders.insert(-from);
  }
  if (orders.empty()) rejections_.erase(worker_id);
  const auto held = contributions_.find(worker_id);
  if (held == contributions_.end() || closed_) return absl::OkStatus();
  held->second.rejected = IsRejected(worker_id, open_);
  if (held->second.kept_out()) {
    quarantined_.emplace(open_, worker_id);
  } else {
    quarantined_.erase({open_, worker_id});
  }
  return absl::OkStatus();
}

bool RoundLedger::Close() {
  for (const auto& [id, held] : contributions_) {
    if (!held.accepted) return false;
  }
  closed_ = true;
  return true;
}

void RoundLedger::Reopen(Begun begun) {
  closed_ = false;
  begun_.merge(begun);
}

void RoundLedger::Publish(const v1::Round& record) {
  std::vector<v1::Contribution> records;
  for (const auto& [id, held] : contributions_) records.push_back(held.record);
  Remember(record, records);
  contributions_.clear();
  closed_ = false;
  ++open_;
}

void RoundLedger::Remember(const v1::Round& round, std::span<const v1::Contribution> records) {
  std::map<std::string, uint64_t>& object_hashes = past_[round.round()];
  std::vector<double> merged;
  std::vector<double> quarantined;
  for (const v1::Contribution& record : records) {
    const std::string& worker_id = record.header().worker_id();
    object_hashes[worker_id] = record.header().object_hash();
    if (std::ranges::binary_search(round.contributors(), worker_id)) {  // Sorted.
      merged.push_back(record.norm());
      continue;
    }
    // The others were rejected, or the merge could not take them.
    if (record.quarantined()) quarantined.push_back(record.norm());
    quarantined_.emplace(round.round(), worker_id);
  }
  if (past_.size() > kPastRounds) past_.erase(past_.begin());
  while (!quarantined_.empty() && quarantined_.begin()->first < past_.begin()->first) {
    quarantined_.erase(quarantined_.begin());
  }
  // Where all are out of line it is the fragment that has changed, not a worker.
  for (const double norm : merged.empty() ? quarantined : merged) norms_.Add(norm);
}

}  // namespace causeway::server
