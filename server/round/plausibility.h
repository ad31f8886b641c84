// Holds what a member says about itself against what the coordinator knows without it.
//
// A member is authenticated, not believed. Its step is bounded by the rounds that are published:
// nobody gets past an answer that there is not. Its tokens are bounded by the steps that it can
// have trained since its last accepted delta; where the coordinator does not know what a step
// trains, because the sites bring their own trainers, by what the others say of theirs. Its speed
// counts as far as another member confirms it.
//
// An honest member stays within all bounds. What is beyond them is cut to the bound: the delta
// counts, the claim does not. Pure bookkeeping: no lock, no time, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "causeway/v1/config.pb.h"
#include "common/params/draws.h"
#include "server/round/membership.h"
#include "server/round/round_policy.h"

namespace causeway::server {

// Tokens of an inner step of one worker. 0: not known, as every site has a trainer of its own.
int64_t TokensPerStep(const v1::RunConfig& config);

// membership.max_pace as whole steps of the schedule, 1 at least.
int64_t LargestPace(const v1::RunConfig& config);

// The largest step that a member can have reached: it waits for the answer of the first open round
// that is due, but passes that step by what is left of an inner step at the largest pace.
int64_t LargestPossibleStep(std::span<const OpenRound> open_rounds, const v1::RunConfig& config);

// How many tokens a contribution can stand for. Not thread-safe. Steps are those of the schedule.
class TokenLedger {
 public:
  // tokens_per_step: see TokensPerStep. `reserve_steps`: by how much the inner steps of a period
  // may be more than the period, once.
  TokenLedger(int64_t tokens_per_step, int64_t reserve_steps)
      : tokens_per_step_(tokens_per_step), reserve_(tokens_per_step * reserve_steps) {}

  // The worker holds the published state of that step and has trained nothing on it. A region has
  // `sites`, which train at once; what one of them has not sent in time comes with a later delta of
  // the region.
  void Begin(const std::string& worker_id, int64_t step, int sites = 0);
  // The bound of a contribution to a round that is sent at `step`. No bound where tokens_per_step
  // is 0.
  int64_t Most(int fragment, const std::string& worker_id, int64_t step) const;
  // Books an accepted one. One from before the worker began again, which a restart reads after
  // that, is booked as it was then.
  void Add(int fragment, const std::string& worker_id, int64_t tokens, int64_t step);

 private:
  struct Account {
    int64_t step = 0;     // Up to which its tokens are accounted for.
    int64_t reserve = 0;  // Tokens that are left of it.
  };
  // What is `tokens` of one site.
  int64_t OfSites(const std::string& worker_id, int64_t tokens) const;
  // Without what began after that step.
  Account Find(int fragment, const std::string& worker_id, int64_t latest_begin) const;

  const int64_t tokens_per_step_;
  const int64_t reserve_;
  std::map<std::string, int64_t> begun_;  // By worker id.
  std::map<std::string, int64_t> sites_;  // Number of sites, by region.
  std::map<std::pair<int, std::string>, Account> accounts_;
};

// Where nobody knows what a step trains: no contribution to a round counts for more than so many
// times the median of the others'. Sites may be as unequal as that.
inline constexpr int64_t kMostOverMedian = 8;
// The tokens of a round's contributions, those above that cut. A single one is as it was.
std::vector<int64_t> WithinMedian(std::span<const int64_t> tokens);

// Speeds of so many members are confirmed by others; with fewer, each is believed.
inline constexpr size_t kConfirming = 4;
// The members as far as they are believed: the tokens of each are at most what it can have trained
// up to the step it reported, and so is its speed in tokens where a step's are not known; of
// kConfirming speeds or more the fastest counts as the second fastest does.
std::map<std::string, Member> Believed(const std::map<std::string, Member>& members,
                                       const v1::RunConfig& config);

// The guard: finds contributions so much larger than their fragment's usual ones that something
// must be wrong with them.
//
// It judges the Euclidean norm of the decoded delta against the median of the norms that were
// merged last. The history advances when a round closes, in order of worker id. So the verdict on a
// contribution does not depend on the order of arrival.

// Norms that count for the median, and the number needed before anybody is judged: the first rounds
// of a run differ from each other (warm-up, a short first period).
inline constexpr size_t kNormWindow = 32;
inline constexpr size_t kNormMinimum = 8;

// The norms of one fragment. Not thread-safe.
class NormHistory {
 public:
  void Add(double norm);
  // Returns nothing before there are kNormMinimum norms.
  std::optional<double> Median() const;

 private:
  std::deque<double> norms_;  // At most kNormWindow.
};

// True if norm > factor * median. Never without a median, with a median of 0, or a factor of 0.
bool IsOutlier(double norm, const NormHistory& history, double factor);

// How far each part of a run's data has been drawn, by what was contributed.
//
// Pure bookkeeping: no lock, no I/O; the caller serializes the calls. What a worker trained without
// contributing it is not in the ledger: whoever takes its part over trains it again.
//
// The draws of a delta are its worker's own word. A worker that claims draws which it has not
// trained would keep whoever has its part later from that text, so it is believed only as far as it
// can have got: a step draws so many windows, and the rounds say how many steps have passed since
// the part's last contribution, or since it was given to somebody. Besides there is a reserve, for
// what was trained and not contributed yet, and for steps that a checkpoint lets a worker repeat. A
// claim may use it once; a part that is given to somebody has it anew.

// Not thread-safe. Steps are those of the schedule.
class DrawLedger {
 public:
  // `draws_per_step`: windows of one inner step. `reserve_steps`: see above.
  DrawLedger(int64_t draws_per_step, int64_t reserve_steps)
      : draws_per_step_(draws_per_step), reserve_(DrawsOf(reserve_steps)) {}

  // Somebody begins, or goes on, to draw that part at that step.
  void Give(int slot, int64_t step);

  // The end of what a contribution to a round that is sent at `step` can have drawn of that part.
  // Anything goes for kOwnData, which is nobody else's.
  int64_t PossibleEnd(int slot, int64_t step) const;
  // Books the draws of an accepted contribution to such a round.
  void Add(const std::string& worker_id, const Draws& draws, int64_t step);

  // Beyond every draw of that part (kOwnData: of that worker's own data) that any accepted
  // contribution to any fragment was trained on. 0 if there was none.
  int64_t NextDraw(int slot, const std::string& worker_id) const;

 private:
  struct Part {
    int64_t next = 0;
    int64_t step = 0;     // Up to which its draws are accounted for.
    int64_t reserve = 0;  // Draws that are left of it.
  };
  // The part, or what it is before anybody had it.
  Part Find(int slot, const std::string& worker_id) const;
  // Returns the draws of so many steps, kMaxDraw at most.
  int64_t DrawsOf(int64_t steps) const;

  const int64_t draws_per_step_;
  const int64_t reserve_;
  // Parts by data slot and worker id, which is empty for shared ones.
  std::map<std::pair<int, std::string>, Part> parts_;
};

}  // namespace causeway::server
