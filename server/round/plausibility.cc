#include "server/round/plausibility.h"

#include "common/params/run_config.h"

namespace causeway::server {
namespace {

// tokens >= 0, steps of any size.
int64_t Times(int64_t tokens, int64_t steps) {
  int64_t product = 0;
  if (steps <= 0 || !__builtin_mul_overflow(tokens, steps, &product)) {
    return std::max<int64_t>(0, product);
  }
  return std::numeric_limits<int64_t>::max();
}

// The lower one of the two in the middle. `values` are not empty.
double LowerMedian(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2 - (values.size() % 2 == 0 ? 1 : 0);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Tokens that a member trained per step of the schedule, by its own word.
double TokenRate(const Member& member) {
  return member.record.step() > 0 ? static_cast<double>(member.progress.tokens) /
                                        static_cast<double>(member.record.step())
                                  : 0;
}

// The largest rate that a member has by what the others say of theirs; infinite if none does.
double MostByOthers(const std::map<std::string, Member>& members, const Member& member,
                    double (*rate)(const Member&)) {
  std::vector<double> rates;
  for (const auto& [id, other] : members) {
    if (id != member.record.worker_id() && rate(other) > 0) rates.push_back(rate(other));
  }
  return rates.empty() ? std::numeric_limits<double>::infinity()
                       : kMostOverMedian * LowerMedian(std::move(rates));
}

// The most tokens that the member can have trained, where a step's are not known.
int64_t MostTokens(const std::map<std::string, Member>& members, const Member& member) {
  const double most = MostByOthers(members, member, TokenRate) *
                      static_cast<double>(std::max<int64_t>(1, member.record.step()));
  return most >= 0x1p62 ? std::numeric_limits<int64_t>::max() : std::llround(std::ceil(most));
}

// Tokens that a member trains per step of the schedule now, by its own word.
double TrainingRate(const Member& member) {
  return member.progress.tokens_per_second * absl::ToDoubleSeconds(member.progress.step_time());
}

// Lowers a member's speed in tokens to what the others make likely.
void HoldAgainstOthers(const std::map<std::string, Member>& members, Member& member) {
  const double own = TrainingRate(member);
  const double most = MostByOthers(members, member, TrainingRate);
  if (own > most) member.progress.tokens_per_second *= most / own;
}

}  // namespace

int64_t TokensPerStep(const v1::RunConfig& config) {
  return int64_t{config.train().batch_sequences()} * config.model().sequence_length();
}

int64_t LargestPace(const v1::RunConfig& config) {
  return std::max<int64_t>(1, std::llround(std::ceil(config.membership().max_pace())));
}

int64_t LargestPossibleStep(std::span<const OpenRound> open_rounds, const v1::RunConfig& config) {
  int64_t step = config.train().steps();
  for (const OpenRound& round : open_rounds) {
    step =
        std::min(step, round.send_step + MaxOverlapSteps(config.sync()) + LargestPace(config) - 1);
  }
  return step;
}

int64_t TokenLedger::OfSites(const std::string& worker_id, int64_t tokens) const {
  const auto region = sites_.find(worker_id);
  return Times(tokens, region == sites_.end() ? 1 : region->second);
}

TokenLedger::Account TokenLedger::Find(int fragment, const std::string& worker_id,
                                       int64_t latest_begin) const {
  const auto found = accounts_.find({fragment, worker_id});
  Account account =
      found == accounts_.end() ? Account{.reserve = OfSites(worker_id, reserve_)} : found->second;
  const auto begun = begun_.find(worker_id);
  if (begun != begun_.end() && begun->second <= latest_begin) {
    account.step = std::max(account.step, begun->second);
  }
  return account;
}

void TokenLedger::Begin(const std::string& worker_id, int64_t step, int sites) {
  if (sites > 0) sites_[worker_id] = sites;
  int64_t& begun = begun_[worker_id];
  begun = std::max(begun, step);
}

int64_t TokenLedger::Most(int fragment, const std::string& worker_id, int64_t step) const {
  if (tokens_per_step_ == 0) return std::numeric_limits<int64_t>::max();
  const Account account = Find(fragment, worker_id, std::numeric_limits<int64_t>::max());
  const int64_t trained = Times(OfSites(worker_id, tokens_per_step_), step - account.step);
  return trained > std::numeric_limits<int64_t>::max() - account.reserve
             ? std::numeric_limits<int64_t>::max()
             : trained + account.reserve;
}

void TokenLedger::Add(int fragment, const std::string& worker_id, int64_t tokens, int64_t step) {
  Account account = Find(fragment, worker_id, step);
  const int64_t beyond = tokens - Times(OfSites(worker_id, tokens_per_step_), step - account.step);
  const int64_t most = sites_.contains(worker_id) ? std::numeric_limits<int64_t>::max() / 2
                                                  : OfSites(worker_id, reserve_);
  account.reserve = std::clamp<int64_t>(account.reserve - beyond, 0, most);
  account.step = std::max(account.step, step);
  accounts_[{fragment, worker_id}] = account;
}

std::vector<int64_t> WithinMedian(std::span<const int64_t> tokens) {
  std::vector<int64_t> within(tokens.begin(), tokens.end());
  if (tokens.size() < 2) return within;
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<double> others;
    for (size_t k = 0; k < tokens.size(); ++k) {
      if (k != i) others.push_back(static_cast<double>(tokens[k]));
    }
    const double most = kMostOverMedian * std::max(1.0, LowerMedian(std::move(others)));
    if (static_cast<double>(tokens[i]) > most) within[i] = std::llround(most);
  }
  return within;
}

std::map<std::string, Member> Believed(const std::map<std::string, Member>& members,
                                       const v1::RunConfig& config) {
  std::map<std::string, Member> believed = members;
  const int64_t per_step = TokensPerStep(config);
  std::vector<Member*> with_speed;
  for (auto& [id, member] : believed) {
    // A worker that resumed may have trained a period twice.
    const int64_t most = per_step > 0
                             ? Times(Times(per_step, member.workers()),
                                     member.record.step() + config.sync().steps_between_syncs())
                             : MostTokens(members, members.at(id));
    member.progress.tokens = std::min(member.progress.tokens, most);
    if (per_step == 0) HoldAgainstOthers(members, member);
    if (member.record.state() == v1::Member::ACTIVE &&
        member.progress.inner_step_time > absl::ZeroDuration()) {
      with_speed.push_back(&member);
    }
  }
  if (with_speed.size() < kConfirming) return believed;
  std::ranges::sort(with_speed, {},
                    [](const Member* member) { return member->progress.inner_step_time; });
  with_speed[0]->progress.inner_step_time = with_speed[1]->progress.inner_step_time;
  return believed;
}

void NormHistory::Add(double norm) {
  norms_.push_back(norm);
  if (norms_.size() > kNormWindow) norms_.pop_front();
}

std::optional<double> NormHistory::Median() const {
  if (norms_.size() < kNormMinimum) return std::nullopt;
  std::vector<double> sorted(norms_.begin(), norms_.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : 0.5 * (sorted[middle - 1] + sorted[middle]);
}

bool IsOutlier(double norm, const NormHistory& history, double factor) {
  const std::optional<double> median = history.Median();
  return factor > 0 && median.has_value() && *median > 0 && norm > factor * *median;
}

namespace {

std::pair<int, std::string> PartOf(int slot, const std::string& worker_id) {
  return {slot, slot == kOwnData ? worker_id : std::string()};
}

}  // namespace

DrawLedger::Part DrawLedger::Find(int slot, const std::string& worker_id) const {
  const auto found = parts_.find(PartOf(slot, worker_id));
  return found == parts_.end() ? Part{.reserve = reserve_} : found->second;
}

int64_t DrawLedger::DrawsOf(int64_t steps) const {
  if (steps <= 0) return 0;
  return steps > kMaxDraw / draws_per_step_ ? kMaxDraw : steps * draws_per_step_;
}

void DrawLedger::Give(int slot, int64_t step) {
  Part part = Find(slot, "");
  part.step = step;
  part.reserve = reserve_;
  parts_[PartOf(slot, "")] = part;
}

int64_t DrawLedger::PossibleEnd(int slot, int64_t step) const {
  if (slot == kOwnData) return kMaxDraw;
  const Part part = Find(slot, "");
  return std::min(kMaxDraw, part.next + DrawsOf(step - part.step) + part.reserve);
}

void DrawLedger::Add(const std::string& worker_id, const Draws& draws, int64_t step) {
  for (const DrawRange& range : draws) {
    Part part = Find(range.slot, worker_id);
    const int64_t drawn = std::max<int64_t>(0, range.end - part.next);
    part.reserve =
        std::clamp<int64_t>(part.reserve + DrawsOf(step - part.step) - drawn, 0, reserve_);
    part.next += drawn;
    part.step = std::max(part.step, step);
    parts_[PartOf(range.slot, worker_id)] = part;
  }
}

int64_t DrawLedger::NextDraw(int slot, const std::string& worker_id) const {
  return Find(slot, worker_id).next;
}

}  // namespace causeway::server
