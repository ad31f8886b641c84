#include "worker/sync/site_ranks.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"

namespace causeway::worker {
namespace {

// Whoever ends silence looks more often.
constexpr absl::Duration kMostBetweenLooks = absl::Seconds(1);

std::string NameOfRank(int rank) { return absl::StrCat("rank ", rank, " of this site"); }

}  // namespace

// --- Links ---------------------------------------------------------------------------------------

class SiteLinks::QueueStream final : public SiteStream {
 public:
  QueueStream(SiteLinks& links, int rank) : links_(links), rank_(rank) {}
  ~QueueStream() override { Cut(); }

  absl::Status Read(v1::SiteFrame& frame) override {
    absl::MutexLock lock(&links_.mutex_);
    Link& link = links_.link(rank_);
    const auto there = [&] { return link.ended || !link.frames.empty(); };
    links_.mutex_.Await(absl::Condition(&there));
    if (link.frames.empty()) return Over();
    frame = std::move(link.frames.front());
    link.frames.pop_front();
    return absl::OkStatus();
  }
  absl::Status Write(const v1::SiteFrame& frame) override {
    std::string bytes = frame.SerializeAsString();
    absl::MutexLock lock(&links_.mutex_);
    if (links_.link(rank_).closed || links_.link(rank_).ended) return Over();
    links_.outgoing_.push_back({rank_, std::move(bytes)});
    return absl::OkStatus();
  }
  void CloseWrites() override {
    absl::MutexLock lock(&links_.mutex_);
    links_.CloseWrites(links_.link(rank_), rank_);
  }
  void Cut() override {
    absl::MutexLock lock(&links_.mutex_);
    Link& link = links_.link(rank_);
    link.ended = true;
    link.frames.clear();
    links_.CloseWrites(link, rank_);
  }

 private:
  static absl::Status Over() { return absl::UnavailableError("it has ended"); }

  SiteLinks& links_;
  const int rank_;
};

SiteLinks::SiteLinks(int rank, int ranks)
    : rank_(rank), ranks_(ranks), links_(static_cast<size_t>(ranks)) {
  absl::MutexLock lock(&mutex_);
  for (int other = 0; other < ranks; ++other) {
    const bool linked = other != rank && (rank == 0 || other == 0);
    link(other).ended = link(other).closed = !linked;
    open_ += linked ? 1 : 0;
  }
}

std::unique_ptr<SiteStream> SiteLinks::Stream(int rank) {
  return std::make_unique<QueueStream>(*this, rank);
}

void SiteLinks::CloseWrites(Link& link, int rank) {
  if (std::exchange(link.closed, true)) return;
  --open_;
  outgoing_.push_back({rank, ""});
}

void SiteLinks::Close() {
  absl::MutexLock lock(&mutex_);
  for (int rank = 0; rank < ranks_; ++rank) {
    link(rank).ended = true;
    CloseWrites(link(rank), rank);
  }
}

std::optional<SiteLinks::Message> SiteLinks::NextOutgoing() {
  absl::MutexLock lock(&mutex_);
  const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return open_ == 0 || !outgoing_.empty();
  };
  mutex_.Await(absl::Condition(&there));
  if (outgoing_.empty()) return std::nullopt;
  Message message = std::move(outgoing_.front());
  outgoing_.pop_front();
  return message;
}

absl::Status SiteLinks::TakeIncoming(Message message) {
  const bool linked = message.rank != rank_ && message.rank >= 0 && message.rank < ranks_ &&
                      (rank_ == 0 || message.rank == 0);
  if (!linked) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank_, " of ", ranks_, " has no link to rank ", message.rank));
  }
  v1::SiteFrame frame;
  if (!message.bytes.empty() && !frame.ParseFromString(message.bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("what came from rank ", message.rank,
                     " is not what its causeway_links_outgoing gave: all ranks must be of one "
                     "version, and messages whole and in order"));
  }
  absl::MutexLock lock(&mutex_);
  if (message.bytes.empty()) {
    link(message.rank).ended = true;
  } else if (!link(message.rank).ended) {
    link(message.rank).frames.push_back(std::move(frame));
  }
  return absl::OkStatus();
}

// --- Rank 0 --------------------------------------------------------------------------------------

MakeParts OfOnePart(MakePart make) {
  return [make = std::move(make)]() -> absl::StatusOr<std::vector<std::unique_ptr<ReplicaPart>>> {
    std::vector<std::unique_ptr<ReplicaPart>> parts(1);
    ASSIGN_OR_RETURN(parts[0], make());
    return parts;
  };
}

LeadingRank::LeadingRank(SiteLinks& links, const FragmentPlan& plan, const ShardPlan& shards,
                         const v1::SyncConfig& sync, MakePart make_part)
    : plan_(plan), sync_(sync), make_own_(OfOnePart(std::move(make_part))) {
  for (int rank = 1; rank < links.ranks(); ++rank) {
    links_.push_back(std::make_unique<SiteLink>(links.Stream(rank), NameOfRank(rank), cause_));
    links_.back()->Start();
    others_.push_back({links_.back().get(), PieceBytes(plan, shards, sync, rank, 1)});
  }
  heard_.resize(links_.size());
}

LeadingRank::~LeadingRank() { Leave(); }

void LeadingRank::Leave() {
  for (const std::unique_ptr<SiteLink>& link : links_) link->Leave();
}

absl::StatusOr<std::unique_ptr<Replica>> LeadingRank::MakeReplica() {
  return MakeDividedReplica(plan_, sync_, make_own_, others_);
}

absl::Status LeadingRank::Settle() { return CallAll(others_, kReplicaSettle); }

absl::Status LeadingRank::EndSilence(absl::Duration now, absl::Duration patience) {
  // Silence before a pause says nothing of now.
  if (now - last_look_ > kMostBetweenLooks) heard_.assign(heard_.size(), {});
  last_look_ = now;
  for (size_t i = 0; i < links_.size(); ++i) {
    const SiteLink::Waits waits = links_[i]->waits();
    Heard& heard = heard_[i];
    if (waits.any && heard.since.has_value() && heard.frames == waits.frames) {
      if (now - *heard.since < patience) continue;
      cause_->Set(absl::AbortedError(
          absl::StrCat(links_[i]->peer(), " has said nothing for ", absl::FormatDuration(patience),
                       ", and this wait for it is to end: is that process stopped, or hung?")));
      return cause_->Get();
    }
    heard = {.frames = waits.frames, .since = std::nullopt};
    if (waits.any) heard.since = now;
  }
  return absl::OkStatus();
}

// --- The others ----------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<FollowingRank>> FollowingRank::Open(SiteLinks& links,
                                                                   const FragmentPlan& plan,
                                                                   const ShardPlan& shards,
                                                                   const v1::SyncConfig& sync,
                                                                   MakePart make_part) {
  auto link =
      std::make_unique<SiteLink>(links.Stream(0), NameOfRank(0), std::make_shared<SharedCause>());
  std::unique_ptr<FollowingRank> following(new FollowingRank(
      std::move(link), PieceBytes(plan, shards, sync, links.rank(), 1), std::move(make_part)));
  FollowingRank& self = *following;
  KeepFreedBlocks(ObjectBytesInFlight(plan, sync));
  RETURN_IF_ERROR(self.server_.Make());
  self.link_->Start([&self](SiteCall& call) { return self.server_.HandleAtOnce(call); });
  self.thread_ = std::thread([&self] {
    for (;;) {
      absl::StatusOr<std::optional<SiteCall>> call = self.link_->NextCall();
      if (!call.ok() || !call->has_value() || !self.server_.Handle(**call).ok()) return;
    }
  });
  return following;
}

FollowingRank::~FollowingRank() {
  // First the link, which wakes the thread; then what its calls use.
  if (thread_.joinable()) {
    link_->Leave();
    thread_.join();
  }
  server_.Drop();  // Answers over the link.
  link_.reset();   // Ends the thread that receives, which may use the rest.
}

}  // namespace causeway::worker
