// What a test of a coordinator begins with: a small run, its coordinator's options, the messages of
// a worker that joins and contributes, and where what the coordinator says goes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/base/checksum.h"
#include "common/base/clock.h"
#include "common/params/initialize.h"
#include "common/params/run_config.h"
#include "common/transfer/wire.h"
#include "server/core/coordinator.h"

namespace causeway::server {

// A configuration that `text` (a textproto) changes, before it is completed: one block of width 16,
// 128 tokens of vocabulary, windows of 8, one fragment. Ends the program for a text that is none.
inline v1::RunConfig SmallConfig(const std::string& text = "") {
  static constexpr char kSmall[] =
      "model { vocabulary_size: 128 layers: 1 width: 16 heads: 2 mlp_width: 32 sequence_length: 8 "
      "} "
      "sync { fragments: 1 }";
  return ParseRunConfig(text, "a test", ParseRunConfig(kSmall, "a test").value()).value();
}

// The same, complete.
inline v1::RunConfig CompleteSmallConfig(const std::string& text = "") {
  v1::RunConfig config = SmallConfig(text);
  CompleteRunConfig(config).value();
  return config;
}

inline std::vector<float> InitialOf(const FragmentPlan& plan, uint64_t seed = 3) {
  std::vector<float> arena(static_cast<size_t>(plan.arena_size()));
  InitializeParameters(plan, seed, arena);
  return arena;
}

// The values of an arena, as a coordinator asks for them.
inline InitialValues ValuesOf(const FragmentPlan& plan, const std::vector<float>& arena) {
  return [plan, arena](int fragment, std::span<float> values) {
    std::copy_n(arena.begin() + plan.range(fragment).begin, values.size(), values.begin());
    return absl::OkStatus();
  };
}

// A coordinator that begins a run with InitialOf, in real time. `config` is complete, `store`
// outlives the coordinator.
inline Coordinator::Options OptionsOf(v1::RunConfig config, const std::string& run_id, Store& store,
                                      uint64_t seed = 3) {
  Coordinator::Options options;
  const FragmentPlan plan = FragmentPlan::Create(config).value();
  options.config = std::move(config);
  options.run_id = run_id;
  options.initial_values = ValuesOf(plan, InitialOf(plan, seed));
  options.clock = Clock::Real();
  options.store = &store;
  return options;
}

// The Join of a worker that computed the same configuration and plan.
inline v1::Join JoinOf(const v1::DescribeResponse& run, const std::string& worker_id,
                       uint64_t nonce = 1) {
  v1::Join join;
  join.set_worker_id(worker_id);
  join.set_run_id(run.run_id());
  join.set_wire_version(kWireVersion);
  join.set_config_hash(run.config_hash());
  join.set_plan_hash(run.plan_hash());
  join.set_data_vocabulary_size(run.config().model().vocabulary_size());
  join.set_process_nonce(nonce);
  return join;
}

// The header of a delta whose codes are `object`. The caller adds what else it tells.
inline v1::PushHeader HeaderOf(const std::string& run_id, const std::string& worker_id,
                               uint64_t incarnation, int fragment, int64_t round, v1::Codec codec,
                               std::span<const uint8_t> object) {
  v1::PushHeader header;
  header.set_run_id(run_id);
  header.set_worker_id(worker_id);
  header.set_incarnation(incarnation);
  header.set_fragment(fragment);
  header.set_round(round);
  header.set_codec(codec);
  header.set_total_bytes(static_cast<int64_t>(object.size()));
  header.set_object_hash(TreeHash(object));
  return header;
}

inline v1::WorkerMessage ReadyAt(int64_t step, bool anew = false) {
  v1::WorkerMessage message;
  message.mutable_ready()->set_step(step);
  message.mutable_ready()->set_anew(anew);
  return message;
}

inline v1::WorkerMessage LeaveFor(v1::Leave::Reason reason) {
  v1::WorkerMessage message;
  message.mutable_leave()->set_reason(reason);
  return message;
}

inline v1::WorkerMessage AppliedOf(int fragment, int64_t round, uint64_t published_hash) {
  v1::WorkerMessage message;
  message.mutable_applied()->set_fragment(fragment);
  message.mutable_applied()->set_round(round);
  message.mutable_applied()->set_published_hash(published_hash);
  return message;
}

// For whoever does not listen.
class SilentSink final : public SessionSink {
 public:
  void Send(const v1::CoordinatorMessage&) override {}
  void Close(const absl::Status&) override {}
};

// Keeps what the coordinator says. Thread-safe.
class RecordingSink final : public SessionSink {
 public:
  void Send(const v1::CoordinatorMessage& message) override {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(message);
  }
  void Close(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    ++closed_;
    end_.Update(status);
  }
  std::vector<v1::Directive> Directives(v1::Directive::Action action) const {
    std::vector<v1::Directive> all = All(&Message::has_directive, &Message::directive);
    std::erase_if(all, [&](const v1::Directive& one) { return one.action() != action; });
    return all;
  }
  int Count(v1::Directive::Action action) const {
    return static_cast<int>(Directives(action).size());
  }
  std::vector<v1::RoundOutcome> outcomes() const {
    return All(&Message::has_round_outcome, &Message::round_outcome);
  }
  std::vector<std::string> roster() const {  // The last one.
    const auto all = All(&Message::has_roster, &Message::roster);
    if (all.empty()) return {};
    return {all.back().worker_ids().begin(), all.back().worker_ids().end()};
  }
  std::vector<std::string> notices() const {
    std::vector<std::string> texts;
    for (const v1::Notice& notice : All(&Message::has_notice, &Message::notice)) {
      texts.push_back(notice.text());
    }
    return texts;
  }
  v1::LeaseRenewed renewed() const {  // The last one.
    const auto all = All(&Message::has_lease_renewed, &Message::lease_renewed);
    return all.empty() ? v1::LeaseRenewed() : all.back();
  }
  int closed() const {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }
  // The first error that it was closed with.
  absl::Status end() const {
    absl::MutexLock lock(&mutex_);
    return end_;
  }

 private:
  using Message = v1::CoordinatorMessage;
  // Those messages that have this part.
  template <typename Part>
  std::vector<Part> All(bool (Message::*has)() const, const Part& (Message::*part)() const) const {
    absl::MutexLock lock(&mutex_);
    std::vector<Part> parts;
    for (const Message& message : messages_) {
      if ((message.*has)()) parts.push_back((message.*part)());
    }
    return parts;
  }

  mutable absl::Mutex mutex_;
  std::vector<Message> messages_ ABSL_GUARDED_BY(mutex_);
  int closed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace causeway::server
