// The books of a region: what it owes its parent, and what the parent has made of it.

#include "common/base/checksum.h"
#include "tests/simulation/auditor.h"

namespace causeway::simulation {

bool Auditor::ClosedHere(int index, int64_t round) const {
  if (parent_ == nullptr) return false;
  // Also without a delta: nothing is gained by waiting once the parent has published it.
  return fragments_[static_cast<size_t>(index)].upward.contains(round) ||
         parent_->version(index) >= round;
}

void Auditor::StoredForParent(const v1::Contribution& record, std::span<const uint8_t> object) {
  Fragment& entry = fragment(record.header().fragment());
  const std::string what =
      absl::StrCat("the delta of ", region_id_, " for ",
                   RoundName(record.header().fragment(), record.header().round()));
  if (entry.upward.contains(record.header().round())) {
    world_.Violate("counted_once", absl::StrCat(what, " is the second one"));
    return;
  }
  if (record.header().round() != version(record.header().fragment()) + 1) {
    world_.Violate("made_for_its_round", absl::StrCat(what, " comes after version ",
                                                      version(record.header().fragment())));
    return;
  }
  const std::map<std::string, Arrival>& arrivals = entry.arrivals[record.header().round()];
  int64_t trained = arrivals.empty() ? 0 : entry.late_tokens;
  for (const auto& [id, arrival] : arrivals) trained += arrival.tokens;
  if (record.header().tokens() != trained) {
    world_.Violate("counted_once", absl::StrCat(what, " counts for ", record.header().tokens(),
                                                " tokens, its sites trained ", trained));
    return;
  }
  Upward& sent = entry.upward[record.header().round()];
  sent.object_hash = record.header().object_hash();
  sent.object.assign(object.begin(), object.end());
  Delta& delta = parent_->fragment(record.header().fragment())
                     .deltas[{region_id_, record.header().object_hash()}][record.header().round()];
  delta.base_hash = entry.hashes.back();
  delta.object = sent.object;
  delta.tokens = trained;
}

std::optional<std::vector<uint8_t>> Auditor::EncodeForParent(
    const v1::Round& record, const std::map<std::string, Arrival>& arrivals) {
  Fragment& entry = fragment(record.fragment());
  int64_t tokens = 0;
  for (const auto& [id, arrival] : arrivals) tokens += arrival.tokens;
  std::vector<double> g(entry.published.size());
  int at = 0;
  for (const auto& [id, arrival] : arrivals) {
    const double share = tokens == 0
                             ? 1.0 / static_cast<double>(arrivals.size())
                             : static_cast<double>(arrival.tokens) / static_cast<double>(tokens);
    const double weight = std::abs(record.weights(at++));
    if (std::abs(weight - share) > 1e-12) return std::nullopt;
    const auto made = entry.deltas.find({id, arrival.object_hash});
    if (!up_.Accumulate(made->second.at(record.round()).object, entry.published, weight, g).ok()) {
      return std::nullopt;
    }
  }
  // FP32 is of values, the others are of a difference.
  std::vector<float> base(g.size());
  if (up_.id() == v1::FP32) base = entry.published;
  std::vector<float> target(g.size());
  for (size_t i = 0; i < g.size(); ++i) target[i] = static_cast<float>(base[i] - g[i]);
  std::vector<uint8_t> object(up_.EncodedBytes(g.size()));
  if (!up_.Encode(base, target, {.residual = entry.residual}, object).ok()) return std::nullopt;
  return object;
}

void Auditor::RoundOfRegionStored(const v1::Round& record, std::span<const uint8_t> answer) {
  const int index = record.fragment();
  const std::string name = absl::StrCat(RoundName(index, record.round()), " of ", region_id_);
  Fragment& entry = fragment(index);
  Fragment& above = parent_->fragment(index);
  if (parent_->version(index) < record.round()) {
    world_.Violate("tiers_agree", absl::StrCat(name, " is published before its parent has"));
    return;
  }
  const std::map<std::string, Arrival>& arrivals = entry.arrivals[record.round()];
  if (!arrivals.empty()) {
    const auto sent = entry.upward.find(record.round());
    const bool late =
        std::ranges::any_of(record.weights(), [](double weight) { return weight < 0; });
    const auto counted = above.arrivals[record.round()].find(region_id_);
    const bool counts = counted != above.arrivals[record.round()].end();
    if (sent == entry.upward.end() ||
        (counts && counted->second.object_hash != sent->second.object_hash)) {
      world_.Violate("counted_once", absl::StrCat(name, " has another delta than its parent"));
      return;
    }
    if (late == counts) {
      world_.Violate(counts ? "counted_once" : "acknowledged_is_kept",
                     absl::StrCat(name, " is recorded as ", late ? "late" : "counted",
                                  ", and at its parent it is not"));
      return;
    }
    const std::optional<std::vector<uint8_t>> object = EncodeForParent(record, arrivals);
    if (!object.has_value() || *object != sent->second.object) {
      world_.Violate("counted_once",
                     absl::StrCat(name, " went up with another delta than its sites' make"));
      return;
    }
    if (late) {
      world_.Count("regions_late");
      std::vector<double> delta(entry.residual.size());
      if (!up_.Accumulate(*object, entry.published, 1.0, delta).ok()) return;
      for (size_t i = 0; i < delta.size(); ++i) {
        entry.residual[i] = static_cast<float>(entry.residual[i] + delta[i]);
      }
    }
    int64_t tokens = entry.late_tokens;
    for (const auto& [id, arrival] : arrivals) tokens += arrival.tokens;
    entry.late_tokens = late ? tokens : 0;
  }
  const auto at = static_cast<size_t>(record.round());
  if (!down_.Apply(answer, entry.published).ok() || TreeHash(answer) != above.answer_hashes[at] ||
      TreeHash(std::span<const float>(entry.published)) != above.hashes[at] ||
      record.published_hash() != above.hashes[at] ||
      record.answer_hash() != above.answer_hashes[at]) {
    world_.Violate("tiers_agree", absl::StrCat(name, " has other bits than its parent's"));
    return;
  }
  entry.answer_hashes.push_back(record.answer_hash());
  entry.hashes.push_back(record.published_hash());
}

}  // namespace causeway::simulation
