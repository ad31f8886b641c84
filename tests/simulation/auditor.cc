#include "tests/simulation/auditor.h"

#include "server/round/membership.h"

#include "absl/strings/str_join.h"
#include "common/base/checksum.h"

namespace causeway::simulation {
namespace {

constexpr double kTolerance = 1e-5;  // For fp32 residuals, of values around 1.

std::span<const float> Part(std::span<const float> arena, const FragmentRange& range) {
  return arena.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

}  // namespace

Auditor::Auditor(World& world, const Scenario& scenario, const FragmentPlan& plan,
                 std::span<const float> initial, Auditor* parent, std::string region_id)
    : world_(world),
      scenario_(scenario),
      plan_(plan),
      up_(**FindCodec(scenario.config.sync().codec_up())),
      down_(**FindCodec(scenario.config.sync().codec_down())),
      lease_(absl::Milliseconds(scenario.config.membership().lease_ms())),
      parent_(parent),
      region_id_(std::move(region_id)),
      quorum_(parent == nullptr ? scenario.config.membership().quorum() : 1),
      schedule_(plan.fragments(), scenario.config.sync().steps_between_syncs(),
                scenario.config.sync().overlap_steps()) {
  for (int i = 0; i < plan.fragments(); ++i) {
    const std::span<const float> part = Part(initial, plan.range(i));
    Fragment& entry = fragments_.emplace_back();
    entry.theta.assign(part.begin(), part.end());
    entry.published = entry.theta;
    entry.momentum.resize(part.size());
    entry.residual.resize(part.size());
    entry.hashes.push_back(TreeHash(part));
    entry.answer_hashes.push_back(0);
  }
}

std::string Auditor::RoundName(int fragment, int64_t round) const {
  return absl::StrCat("round ", round, " of fragment ", fragment);
}

void Auditor::Died() { died_ = world_.now(); }

void Auditor::Started() {
  started_ = world_.now();
  for (auto& [id, member] : members_) {
    // Who was lost before, or nearly, may have been found out or not.
    if (member.lease_end > died_) member.lease_end = started_ + lease_;
    if (!member.left) member.last_lease_end = started_ + lease_ + server::kReturnTime;
  }
}

void Auditor::Attached(const v1::Join& join, const v1::Welcome& welcome) {
  const absl::Duration now = world_.now();
  Member& member = members_[join.worker_id()];
  if (welcome.incarnation() <= member.incarnation) {
    world_.Violate("incarnations_increase",
                   absl::StrCat(join.worker_id(), " was given incarnation ", welcome.incarnation(),
                                " after ", member.incarnation));
  }
  member.incarnation = welcome.incarnation();
  member.slot.reset();
  member.sites = std::max(1, join.sites());
  member.left = false;
  member.lease_end = member.last_lease_end = now + lease_;
}

int Auditor::SitesOf(const std::string& worker) const {
  const auto member = members_.find(worker);
  return member == members_.end() ? 1 : member->second.sites;
}

void Auditor::Draws(const std::string& worker, int slot) {
  members_[worker].slot = slot;
  if (parent_ != nullptr) {
    const Member& region = parent_->members_[region_id_];
    if (region.slot.has_value() && (slot < *region.slot || slot >= *region.slot + region.sites)) {
      world_.Violate("slots_are_distinct",
                     absl::StrCat(worker, " was given data slot ", slot, "; ", region_id_, " has ",
                                  region.sites, " from ", *region.slot, " on"));
    }
  }
  // On a stalled stream the order may come when the worker is lost, and its part given away: its
  // next message is refused, and it attaches again.
  if (members_[worker].lease_end <= world_.now()) return;
  for (const auto& [id, other] : members_) {
    if (id == worker || other.left || other.lease_end <= world_.now()) continue;
    if (!other.slot.has_value() || *other.slot >= slot + SitesOf(worker) ||
        slot >= *other.slot + other.sites) {
      continue;
    }
    world_.Violate("slots_are_distinct",
                   absl::StrCat(worker, " was given data slot ", slot, ", which ", id, " has"));
  }
}

void Auditor::Handled(const std::string& worker, uint64_t incarnation,
                      const v1::WorkerMessage& message, const absl::Status& status) {
  if (absl::IsDataLoss(status) && message.has_applied()) {
    world_.Violate("workers_hold_published", std::string(status.message()));
  }
  if (!status.ok()) return;
  Member& member = members_[worker];
  if (incarnation != member.incarnation) {
    world_.Violate("fenced_off", absl::StrCat("a message of incarnation ", incarnation, " of ",
                                              worker, " was accepted after incarnation ",
                                              member.incarnation, " attached"));
  }
  if (message.has_heartbeat()) member.lease_end = member.last_lease_end = world_.now() + lease_;
  if (message.has_leave()) {
    member.left = true;
    member.last_lease_end = world_.now();
  }
}

void Auditor::PushServed(const v1::PushHeader& header, const absl::Status& status) {
  const std::string what = absl::StrCat("the push of ", header.worker_id(), " to ",
                                        RoundName(header.fragment(), header.round()));
  const auto& arrivals = fragment(header.fragment()).arrivals;
  const auto round = arrivals.find(header.round());
  const Arrival* held = nullptr;
  if (round != arrivals.end()) {
    const auto found = round->second.find(header.worker_id());
    if (found != round->second.end()) held = &found->second;
  }
  if (status.ok()) {
    const uint64_t present = members_[header.worker_id()].incarnation;
    if (header.incarnation() != present) {
      world_.Violate("fenced_off",
                     absl::StrCat(what, " by incarnation ", header.incarnation(),
                                  " was accepted after incarnation ", present, " attached"));
    }
    if (held == nullptr || held->object_hash != header.object_hash()) {
      world_.Violate("acknowledged_is_kept",
                     absl::StrCat(what, " was acknowledged, but the store does not hold it"));
      return;
    }
    fragment(header.fragment()).arrivals[header.round()][header.worker_id()].acknowledged = true;
  } else if (absl::IsAborted(status)) {
    if (held != nullptr) {
      world_.Violate("late_only_if_closed",
                     absl::StrCat(what, " was called late, but the round has it"));
    } else if (header.round() > version(header.fragment()) &&
               !ClosedHere(header.fragment(), header.round())) {
      world_.Violate("late_only_if_closed",
                     absl::StrCat(what, " was called late, but the round is open"));
    }
  } else if (absl::IsAlreadyExists(status)) {
    if (held == nullptr || held->object_hash == header.object_hash()) {
      world_.Violate("acknowledged_is_kept",
                     absl::StrCat(what, " was refused for another object that there is not"));
    }
  }
}

void Auditor::Shown(int index, int64_t shown_version, uint64_t published_hash) {
  const Fragment& entry = fragment(index);
  if (shown_version > version(index)) {
    world_.Violate("published_never_changes",
                   absl::StrCat(RoundName(index, shown_version), " is shown before it is durable"));
  } else if (entry.hashes[static_cast<size_t>(shown_version)] != published_hash) {
    world_.Violate("published_never_changes",
                   absl::StrCat("version ", shown_version, " of fragment ", index,
                                " is shown with the hash ", HashToHex(published_hash), ", it is ",
                                HashToHex(entry.hashes[static_cast<size_t>(shown_version)])));
  }
}

void Auditor::AnswerShown(const server::PullObject& answer) {
  const v1::PullHeader& header = answer.header;
  Shown(header.fragment(), header.round(), header.published_hash());
  if (header.round() > version(header.fragment())) return;
  const uint64_t hash =
      fragment(header.fragment()).answer_hashes[static_cast<size_t>(header.round())];
  if (TreeHash(answer.bytes) != hash || header.object_hash() != hash) {
    world_.Violate("published_never_changes",
                   absl::StrCat("the answer of ", RoundName(header.fragment(), header.round()),
                                " has other bytes than it had"));
  }
}

void Auditor::StateShown(const server::PullObject& state) {
  const v1::PullHeader& header = state.header;
  Shown(header.fragment(), header.round(), header.published_hash());
  if (TreeHash(state.bytes) != header.published_hash()) {
    world_.Violate("published_never_changes",
                   absl::StrCat("the state of fragment ", header.fragment(), " at version ",
                                header.round(), " has other bytes than its hash says"));
  }
}

void Auditor::Stored(const v1::Contribution& record, std::span<const uint8_t> object) {
  if (parent_ != nullptr && record.header().worker_id() == region_id_) {
    StoredForParent(record, object);
    return;
  }
  world_.Count("contributions");
  Fragment& entry = fragment(record.header().fragment());
  const std::string what =
      absl::StrCat("the delta of ", record.header().worker_id(), " stored for ",
                   RoundName(record.header().fragment(), record.header().round()));
  auto& arrivals = entry.arrivals[record.header().round()];
  if (arrivals.contains(record.header().worker_id())) {
    world_.Violate("counted_once", absl::StrCat(what, " is the second one"));
    return;
  }
  if (record.header().round() != version(record.header().fragment()) + 1) {
    world_.Violate("made_for_its_round",
                   absl::StrCat(what, " comes while round ",
                                version(record.header().fragment()) + 1, " is open"));
    return;
  }
  if (entry.upward.contains(record.header().round())) {
    world_.Violate("acknowledged_is_kept",
                   absl::StrCat(what, " comes after the region's own delta of that round"));
    return;
  }
  const auto made = entry.deltas.find({record.header().worker_id(), record.header().object_hash()});
  if (made == entry.deltas.end()) {
    world_.Violate("made_for_its_round", absl::StrCat(what, " was made by nobody"));
    return;
  }
  for (const auto& [round, delta] : made->second) {
    const auto other = entry.arrivals[round].find(record.header().worker_id());
    if (round == record.header().round() || other == entry.arrivals[round].end()) continue;
    if (other->second.object_hash != record.header().object_hash() ||
        made->second.contains(record.header().round())) {
      continue;
    }
    world_.Violate("counted_once", absl::StrCat(what, " is in round ", round, " already"));
    return;
  }
  const auto delta = made->second.find(record.header().round());
  if (delta == made->second.end() || delta->second.base_hash != entry.hashes.back() ||
      !std::ranges::equal(delta->second.object, object)) {
    world_.Violate("made_for_its_round",
                   absl::StrCat(what, " was made for another round or against other values"));
    return;
  }
  // Since the worker's last delta that counts, at the most.
  int64_t sent_before = 0;
  int64_t trained_before = 0;  // Trained by a region's sites: what one has not sent comes later.
  const bool region = delta->second.tokens >= 0;
  for (const auto& [round, others] : entry.arrivals) {
    const auto other = others.find(record.header().worker_id());
    if (round >= record.header().round() || other == others.end()) continue;
    if (region) {
      trained_before += other->second.tokens;
    } else {
      sent_before = schedule_.SendStep(record.header().fragment(), round);
    }
  }
  const int64_t steps =
      schedule_.SendStep(record.header().fragment(), record.header().round()) - sent_before;
  const v1::RunConfig& config = scenario_.config;
  const int64_t most = steps * config.train().batch_sequences() * config.model().sequence_length() *
                           SitesOf(record.header().worker_id()) -
                       trained_before;
  if (record.header().tokens() > most) {
    world_.Violate("tokens_are_bounded",
                   absl::StrCat(what, " counts for ", record.header().tokens(), " tokens; in ",
                                steps, " steps nobody trains more than ", most));
    return;
  }
  const int64_t trained = delta->second.tokens;
  if (trained >= 0 && record.header().tokens() != trained) {
    world_.Violate("counted_once", absl::StrCat(what, " counts for ", record.header().tokens(),
                                                " tokens, its sites trained ", trained));
    return;
  }
  arrivals[record.header().worker_id()] = {.object_hash = record.header().object_hash(),
                                           .tokens = record.header().tokens(),
                                           .time = world_.now(),
                                           .acknowledged = false};
}

void Auditor::CheckContributors(const v1::Round& record,
                                const std::map<std::string, Arrival>& arrivals) {
  const std::string name = RoundName(record.fragment(), record.round());
  const std::set<std::string> contributors(record.contributors().begin(),
                                           record.contributors().end());
  for (const auto& [id, arrival] : arrivals) {
    if (contributors.contains(id)) continue;
    world_.Violate("acknowledged_is_kept",
                   absl::StrCat(name, " was published without ", id, ", whose delta was ",
                                arrival.acknowledged ? "acknowledged" : "stored"));
  }
  for (const std::string& id : contributors) {
    if (arrivals.contains(id)) continue;
    world_.Violate("counted_once",
                   absl::StrCat(name, " counts a delta of ", id, " that was never stored"));
  }
  int workers = 0;
  for (const std::string& id : contributors) workers += SitesOf(id);
  if (!contributors.empty() && workers < quorum_) {
    world_.Violate("quorum_kept", absl::StrCat(name, " has the contributions of ", workers,
                                               " workers, the quorum is ", quorum_));
  }
}

bool Auditor::Merge(const v1::Round& record, const std::map<std::string, Arrival>& arrivals) {
  Fragment& entry = fragment(record.fragment());
  int64_t tokens = 0;
  for (const auto& [id, arrival] : arrivals) tokens += arrival.tokens;
  const bool uniform =
      scenario_.config.membership().weighting() == v1::MembershipConfig::UNIFORM || tokens == 0;
  std::vector<double> g(entry.published.size());
  int at = 0;
  for (const auto& [id, arrival] : arrivals) {
    const double share = uniform
                             ? 1.0 / static_cast<double>(arrivals.size())
                             : static_cast<double>(arrival.tokens) / static_cast<double>(tokens);
    const double weight = record.weights(at++);
    if (std::abs(weight - share) > 1e-12) {
      world_.Violate("counted_once",
                     absl::StrCat(RoundName(record.fragment(), record.round()), " weighs ", id,
                                  " by ", weight, ", its share is ", share));
      return false;
    }
    const auto made = entry.deltas.find({id, arrival.object_hash});
    if (!up_.Accumulate(made->second.at(record.round()).object, entry.published, weight, g).ok()) {
      return false;
    }
  }
  const v1::OuterConfig& outer = scenario_.config.outer();
  const double lr = outer.learning_rate();
  const double mu = outer.momentum();
  const bool nesterov = outer.optimizer() == v1::OuterConfig::NESTEROV;
  for (size_t i = 0; i < g.size() && !arrivals.empty(); ++i) {
    double step = g[i];
    if (nesterov) {
      entry.momentum[i] = static_cast<float>(mu * double{entry.momentum[i]} + g[i]);
      step = g[i] + mu * double{entry.momentum[i]};
    }
    entry.theta[i] = static_cast<float>(double{entry.theta[i]} - lr * step);
  }
  std::vector<uint8_t> answer(down_.EncodedBytes(g.size()));
  if (!down_.Encode(entry.published, entry.theta, {}, answer).ok() ||
      !down_.Apply(answer, entry.published).ok()) {
    return false;
  }
  entry.answer_hashes.push_back(TreeHash(answer));
  entry.hashes.push_back(TreeHash(std::span<const float>(entry.published)));
  return true;
}

void Auditor::RoundStored(const v1::Round& record, std::span<const uint8_t> answer) {
  const std::string name = RoundName(record.fragment(), record.round());
  world_.Trace(name, " is durable: ", absl::StrJoin(record.contributors(), " "), " (",
               record.reason(), ")");
  world_.Count(record.contributors().empty() ? "rounds_published_empty" : "rounds_published");
  if (record.contributors_size() < scenario_.sites) {
    world_.Count("rounds_closed_without_some");
  }
  Fragment& entry = fragment(record.fragment());
  if (record.round() != version(record.fragment()) + 1) {
    world_.Violate("no_gaps", absl::StrCat(name, " follows version ", version(record.fragment())));
    return;
  }
  const std::map<std::string, Arrival>& arrivals = entry.arrivals[record.round()];
  CheckContributors(record, arrivals);
  if (world_.violation().has_value()) return;
  if (parent_ != nullptr) {
    RoundOfRegionStored(record, answer);
    return;
  }
  if (!Merge(record, arrivals)) {
    world_.Violate("counted_once", absl::StrCat(name, " cannot be computed from what was sent"));
    return;
  }
  if (entry.hashes.back() != record.published_hash() ||
      entry.answer_hashes.back() != record.answer_hash()) {
    world_.Violate("counted_once",
                   absl::StrCat(name, " hashes to ", HashToHex(record.published_hash()),
                                "; the contributions to it give ", HashToHex(entry.hashes.back())));
  }
}

void Auditor::DeltaMade(const std::string& worker, int index, int64_t round,
                        std::span<const float> base, std::span<const float> target,
                        std::span<const uint8_t> object, std::span<const float> residual,
                        DeltaLedger& ledger) {
  Delta& delta = fragment(index).deltas[{worker, TreeHash(object)}][round];
  delta.base_hash = TreeHash(base);
  delta.object.assign(object.begin(), object.end());
  if (residual.empty()) return;
  ledger.carried.resize(base.size());
  std::vector<double> sent(base.size());
  if (!up_.Accumulate(object, base, 1.0, sent).ok()) {
    world_.Violate("nothing_trained_is_lost", "a delta cannot be decoded");
    return;
  }
  for (size_t i = 0; i < sent.size(); ++i) {
    ledger.carried[i] += double{base[i]} - double{target[i]} - sent[i];
  }
  CheckCarried(worker, index, round, residual, ledger);
}

void Auditor::Landed(const std::string& worker, int index, int64_t round,
                     std::span<const float> base, std::span<const uint8_t> object,
                     std::span<const float> residual, DeltaLedger& ledger) {
  if (object.empty()) return;
  if (round > version(index)) {
    world_.Violate(
        "published_never_changes",
        absl::StrCat(worker, " merges ", RoundName(index, round), ", which is not published"));
    return;
  }
  // Also if another delta of this worker stands there: the same steps must not count twice.
  if (!fragment(index).arrivals[round].contains(worker)) {
    ledger.carried.resize(base.size());
    if (!up_.Accumulate(object, base, 1.0, ledger.carried).ok()) return;
    world_.Count("late_deltas");
  }
  if (!ledger.carried.empty()) CheckCarried(worker, index, round, residual, ledger);
}

void Auditor::CheckCarried(const std::string& worker, int index, int64_t round,
                           std::span<const float> residual, const DeltaLedger& ledger) {
  for (size_t i = 0; i < ledger.carried.size(); ++i) {
    const double held = residual.empty() ? 0 : double{residual[i]};
    if (std::abs(held - ledger.carried[i]) <= kTolerance) continue;
    world_.Violate("nothing_trained_is_lost",
                   absl::StrCat("after ", RoundName(index, round), " ", worker, " carries ", held,
                                " at value ", i, "; of what it trained, ", ledger.carried[i],
                                " is in no round"));
    return;
  }
}

void Auditor::Merged(const std::string& worker, int index, int64_t merged_version,
                     std::span<const float> published) {
  world_.Count("merges");
  const Fragment& entry = fragment(index);
  if (merged_version <= version(index) &&
      TreeHash(published) == entry.hashes[static_cast<size_t>(merged_version)]) {
    return;
  }
  world_.Violate("workers_hold_published",
                 absl::StrCat(worker, " holds other bits than version ", merged_version,
                              " of fragment ", index, " has"));
}

void Auditor::AfterEvent(const server::Coordinator* coordinator) {
  if (coordinator == nullptr || !coordinator->Health().ok()) return;
  const std::vector<float> values = coordinator->PublishedParameters();
  for (int i = 0; i < plan_.fragments(); ++i) {
    const std::span<const float> held = Part(values, plan_.range(i));
    if (std::memcmp(held.data(), fragment(i).published.data(), held.size_bytes()) == 0) continue;
    world_.Violate("published_never_changes",
                   absl::StrCat("the coordinator holds other bits than version ", version(i),
                                " of fragment ", i, " has"));
  }
  for (int i = 0; i < plan_.fragments(); ++i) CheckWait(i);
}

void Auditor::CheckWait(int i) {
  const v1::MembershipConfig& membership = scenario_.config.membership();
  const absl::Duration grace = absl::Milliseconds(membership.grace_ms());
  const std::map<std::string, Arrival>& arrivals = fragment(i).arrivals[version(i) + 1];
  std::vector<absl::Duration> times;
  for (const auto& [id, arrival] : arrivals) {
    times.insert(times.end(), static_cast<size_t>(SitesOf(id)), std::max(arrival.time, started_));
  }
  if (static_cast<int>(times.size()) < quorum_ || ClosedHere(i, version(i) + 1)) return;
  std::sort(times.begin(), times.end());
  const absl::Duration quorum = times[static_cast<size_t>(quorum_ - 1)];
  absl::Duration alone = quorum;
  for (const auto& [id, member] : members_) {
    if (arrivals.contains(id)) continue;
    alone = std::max(alone, member.last_lease_end);
  }
  absl::Duration latest = alone;
  if (grace > absl::ZeroDuration()) latest = std::min(latest, quorum + grace);
  if (parent_ != nullptr) latest = std::max(latest, fragment(i).no_room);
  if (world_.now() <= latest + 2 * scenario_.tick) return;
  world_.Violate("no_wait_for_the_dead",
                 absl::StrCat(RoundName(i, version(i) + 1), " has ", arrivals.size(),
                              " contributions and should have closed at ",
                              absl::ToDoubleSeconds(latest), " s"));
}

std::vector<float> Auditor::Published() const {
  std::vector<float> values;
  for (const Fragment& entry : fragments_) {
    values.insert(values.end(), entry.published.begin(), entry.published.end());
  }
  return values;
}

}  // namespace causeway::simulation
