#include "tests/unit/server/store/scripted_run.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/params/run_config.h"

namespace causeway::server {
namespace {

constexpr size_t kObjectBytes = 100;
constexpr size_t kValues = 6;

std::vector<float> ScriptedValues(int fragment, int64_t version, int array) {
  std::vector<float> values(kValues);
  for (size_t i = 0; i < kValues; ++i) {
    values[i] = static_cast<float>(RandomNormal(static_cast<uint64_t>(fragment * 10 + array),
                                                static_cast<uint64_t>(version), i));
  }
  return values;
}

absl::Status SaveScriptedSnapshot(Store& store, int fragment, int64_t version) {
  const std::vector<float> theta = ScriptedValues(fragment, version, 0);
  const std::vector<float> published = ScriptedValues(fragment, version, 1);
  const std::vector<float> momentum = ScriptedValues(fragment, version, 2);
  return store.SaveSnapshot({.fragment = fragment,
                             .version = version,
                             .published_hash = TreeHash(std::span<const float>(published)),
                             .theta = theta,
                             .published = published,
                             .optimizer = {{"momentum", momentum}, {"empty", {}}}});
}

ScriptedStep Contribute(int fragment, int64_t round, const std::string& worker_id,
                        bool quarantined = false) {
  return {absl::StrCat("delta of ", worker_id, " for round ", round, " of fragment ", fragment),
          [=](Store& store) {
            ContributionRecord record = ScriptedContribution(fragment, round, worker_id);
            record.quarantined = quarantined;
            return store.SaveContribution(record, ScriptedObject(fragment, round, worker_id));
          }};
}

ScriptedStep Publish(int fragment, int64_t round) {
  return {absl::StrCat("round ", round, " of fragment ", fragment), [=](Store& store) {
            return store.SaveRound(ScriptedRound(fragment, round),
                                   ScriptedObject(fragment, round, "answer"));
          }};
}

ScriptedStep Snapshot(int fragment, int64_t version) {
  return {absl::StrCat("snapshot of fragment ", fragment, " at version ", version),
          [=](Store& store) { return SaveScriptedSnapshot(store, fragment, version); }};
}

ScriptedStep Forget(int fragment, int64_t before_round) {
  return {absl::StrCat("forgotten answers before ", before_round, " of fragment ", fragment),
          [=](Store& store) { return store.ForgetAnswers(fragment, before_round); }};
}

ScriptedStep Tell(MemberRecord member) {
  return {absl::StrCat("member ", member.member.id),
          [=](Store& store) { return store.SaveMember(member); }};
}

ScriptedStep Tell(RunState state) {
  return {"state of the run", [=](Store& store) { return store.SaveRunState(state); }};
}

std::string Hex(uint64_t value) { return HashToHex(value); }

std::string HashOf(const FloatBuffer& values) {
  return Hex(TreeHash(std::span<const float>(values)));
}

std::string HashOf(const absl::StatusOr<std::vector<uint8_t>>& bytes) {
  return bytes.ok() ? Hex(TreeHash(*bytes)) : "none";
}

std::string Line(const MemberRecord& record) {
  const Member& member = record.member;
  return absl::StrCat("member ", member.id, " ", static_cast<int>(member.state), " ",
                      member.incarnation, " ", member.data_slot, " ", member.own_data, " ",
                      Hex(member.process_nonce), " ", member.active_from_step, " ",
                      member.was_ready, " ", member.step, " ", member.ordered_pace_milli, " ",
                      member.ordered_from_step, " ", AccountToJson(record).dump(), "\n");
}

std::string Line(const ContributionRecord& record) {
  return absl::StrCat("delta ", record.fragment, " ", record.round, " ", record.worker_id, " ",
                      record.incarnation, " ", static_cast<int>(record.codec), " ", record.bytes,
                      " ", Hex(record.object_hash), " ", record.tokens, " ",
                      FormatDraws(record.draws), " ", record.send_step, " ", record.unix_s, " ",
                      record.norm, " ", record.quarantined);
}

std::string Line(const RoundRecord& record) {
  return absl::StrCat("round ", record.fragment, " ", record.round, " ",
                      absl::StrJoin(record.contributors, ","), " ",
                      absl::StrJoin(record.weights, ","), " ", record.send_step, " ",
                      record.first_unix_s, " ", record.closed_unix_s, " ", record.published_unix_s,
                      " ", record.bytes_in, " ", record.bytes_out, " ", Hex(record.published_hash),
                      " ", Hex(record.answer_hash), " ", record.reason);
}

}  // namespace

RunIdentity ScriptedIdentity() {
  RunIdentity identity;
  identity.run_id = "toy-77";
  identity.config.set_run_name("toy");
  identity.config.mutable_train()->set_seed(17);
  identity.config_hash = 0xfedcba9876543210;
  identity.plan_hash = 5;
  identity.initial_hashes = {1, 0xffffffffffffffff};
  return identity;
}

ContributionRecord ScriptedContribution(int fragment, int64_t round, const std::string& worker_id) {
  ContributionRecord record;
  record.fragment = fragment;
  record.round = round;
  record.worker_id = worker_id;
  record.incarnation = 3;
  record.codec = v1::INT4;
  record.bytes = static_cast<int64_t>(kObjectBytes);
  record.object_hash = TreeHash(ScriptedObject(fragment, round, worker_id));
  record.tokens = 1000 * round;
  record.draws = {{1, 5 * round, 5 * round + 5}, {kOwnData, round, 2 * round + 1}};
  record.send_step = 10 * round + fragment;
  record.unix_s = 1.7e9 + static_cast<double>(round) / 3;
  record.norm = 0.1 * static_cast<double>(round);
  return record;
}

RoundRecord ScriptedRound(int fragment, int64_t round) {
  RoundRecord record;
  record.fragment = fragment;
  record.round = round;
  record.contributors = {"alice", "bob"};
  record.weights = {1.0 / 3, 2.0 / 3};
  record.send_step = 10 * round + fragment;
  record.first_unix_s = 1.7e9 + 0.1;
  record.closed_unix_s = 1.7e9 + 0.2;
  record.published_unix_s = 1.7e9 - 0.3;  // The clock was set back: times are data only.
  record.bytes_in = 200;
  record.bytes_out = 100;
  record.published_hash = static_cast<uint64_t>(fragment) << 60 | static_cast<uint64_t>(round);
  record.answer_hash = TreeHash(ScriptedObject(fragment, round, "answer"));
  record.reason = "every expected worker contributed (2)";
  return record;
}

std::vector<uint8_t> ScriptedObject(int fragment, int64_t round, const std::string& worker_id) {
  std::vector<uint8_t> bytes(kObjectBytes);
  const uint64_t seed = Checksum64(absl::string_view(worker_id)) + static_cast<uint64_t>(fragment);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(RandomBits(seed, static_cast<uint64_t>(round), i));
  }
  return bytes;
}

MemberRecord ScriptedMember(const std::string& id, uint64_t incarnation) {
  MemberRecord record;
  record.member.id = id;
  record.member.state = MemberState::kActive;
  record.member.incarnation = incarnation;
  record.member.data_slot = 1;
  record.member.own_data = id == "bob";
  record.member.process_nonce = 0x8000000000000001;
  record.member.active_from_step = 5;
  record.member.was_ready = true;
  record.member.step = 40;
  record.member.ordered_pace_milli = 1500;
  record.member.ordered_from_step = 41;
  record.account.device = "cpu";
  record.account.heartbeat.set_tokens(5120);
  record.account.heartbeat.set_train_loss(0.1);
  record.account.draining = record.member.process_nonce;
  record.member.had_slots = {0, 1};
  record.rejected = {{}, {-3, 2}};
  return record;
}

std::vector<ScriptedStep> ScriptedLife() {
  RunState started;
  started.started = true;
  started.started_unix_s = 1.7e9;
  RunState paused = started;
  paused.paused = true;
  paused.pause_reason = "by hand: \"lunch\"";
  RunState finished = started;
  finished.stop_step = 40;
  finished.stop_tokens = 1'000'000'000'000;
  finished.finish_recorded = true;
  finished.hash_checks = 12;
  finished.data_fingerprint = 0x8123456789abcdef;
  return {{"the beginning", [](Store& store) { return store.BeginRun(ScriptedIdentity()); }},
          Tell(ScriptedMember("alice", 1)),
          Tell(ScriptedMember("bob", 1)),
          Tell(started),
          Snapshot(0, 0),
          Contribute(0, 1, "alice"),
          Contribute(0, 1, "bob"),
          Publish(0, 1),
          Snapshot(0, 1),
          Contribute(1, 1, "alice"),
          Tell(ScriptedMember("bob", 2)),
          Publish(1, 1),
          Contribute(0, 2, "alice"),
          Contribute(0, 2, "mallory", /*quarantined=*/true),
          Publish(0, 2),
          Forget(0, 2),
          Tell(paused),
          Snapshot(0, 2),
          Contribute(0, 3, "bob"),
          Publish(0, 3),
          Snapshot(0, 3),
          Tell(finished),
          {"summary", [](Store& store) {
             return store.SaveSummary({{"rounds", 4}});
           }}};
}

absl::StatusOr<std::string> Fingerprint(Store& store, const std::optional<RecoveredRun>& run) {
  if (!run) return std::string("no run");
  std::string text =
      absl::StrCat("run ", run->identity.run_id, " ", FormatRunConfig(run->identity.config), " ",
                   Hex(run->identity.config_hash), " ", Hex(run->identity.plan_hash), " ",
                   absl::StrJoin(run->identity.initial_hashes, ","), "\nstate ", run->state.started,
                   " ", run->state.started_unix_s, " ", run->state.paused, " ",
                   run->state.pause_reason, " ", run->state.stop_step, " ", run->state.stop_tokens,
                   " ", run->state.finish_recorded, " ", run->state.hash_checks, " ",
                   run->state.hash_mismatches, " ", Hex(run->state.data_fingerprint), "\n");
  // A missing file is gone on purpose: damage is an error of its own.
  const auto readable = [](const absl::Status& status) {
    return status.ok() || absl::IsNotFound(status);
  };
  for (const MemberRecord& record : run->members) text += Line(record);
  for (const ContributionRecord& record : run->contributions) {
    const auto object = store.ReadContribution(record.fragment, record.round, record.worker_id);
    if (!readable(object.status())) return object.status();
    absl::StrAppend(&text, Line(record), " ", HashOf(object), "\n");
  }
  for (const RoundRecord& record : run->rounds) {
    const auto answer = store.ReadAnswer(record.fragment, record.round);
    if (!readable(answer.status())) return answer.status();
    absl::StrAppend(&text, Line(record), " ", HashOf(answer), "\n");
  }
  for (const SnapshotRecord& record : run->snapshots) {
    ASSIGN_OR_RETURN(const FragmentSnapshot snapshot,
                     store.ReadSnapshot(record.fragment, record.version));
    absl::StrAppend(&text, "snapshot ", snapshot.fragment, " ", snapshot.version, " ",
                    Hex(snapshot.published_hash), " ", HashOf(snapshot.theta), " ",
                    HashOf(snapshot.published));
    for (const auto& [name, values] : snapshot.optimizer) {
      absl::StrAppend(&text, " ", name, " ", HashOf(values));
    }
    text += "\n";
  }
  return text;
}

}  // namespace causeway::server
