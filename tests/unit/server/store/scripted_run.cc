#include "tests/unit/server/store/scripted_run.h"

#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/params/draws.h"
#include "gtest/gtest.h"

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
            v1::Contribution record = ScriptedContribution(fragment, round, worker_id);
            record.set_quarantined(quarantined);
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

ScriptedStep Tell(v1::Member member) {
  return {absl::StrCat("member ", member.worker_id()), [=](Store& store) {
            return store.SaveMembers({&member, 1});
          }};
}

ScriptedStep Tell(v1::State state) {
  return {"state of the run", [=](Store& store) { return store.SaveRunState(state); }};
}

std::string Hex(uint64_t value) { return HashToHex(value); }

std::string HashOf(const FloatBuffer& values) {
  return Hex(TreeHash(std::span<const float>(values)));
}

std::string HashOf(const absl::StatusOr<std::vector<uint8_t>>& bytes) {
  return bytes.ok() ? Hex(TreeHash(*bytes)) : "none";
}

// Every field of the record, one after the other.
std::string Line(const google::protobuf::Message& record) {
  return absl::StrCat(record.GetDescriptor()->name(), " ", record.ShortDebugString());
}

}  // namespace

v1::RunIdentity ScriptedIdentity() {
  v1::RunIdentity identity;
  identity.set_run_id("toy-77");
  identity.mutable_config()->set_run_name("toy");
  identity.mutable_config()->mutable_train()->set_seed(17);
  identity.set_config_hash(0xfedcba9876543210);
  identity.set_plan_hash(5);
  identity.add_initial_hashes(1);
  identity.add_initial_hashes(0xffffffffffffffff);
  return identity;
}

v1::Contribution ScriptedContribution(int fragment, int64_t round, const std::string& worker_id) {
  v1::Contribution record;
  v1::PushHeader& header = *record.mutable_header();
  header.set_fragment(fragment);
  header.set_round(round);
  header.set_worker_id(worker_id);
  header.set_incarnation(3);
  header.set_codec(v1::INT4);
  header.set_total_bytes(static_cast<int64_t>(kObjectBytes));
  header.set_object_hash(TreeHash(ScriptedObject(fragment, round, worker_id)));
  header.set_tokens(1000 * round);
  DrawsToProto({{1, 5 * round, 5 * round + 5}, {kOwnData, round, 2 * round + 1}},
               header.mutable_draws());
  header.set_send_step(10 * round + fragment);
  record.set_unix_s(1.7e9 + static_cast<double>(round) / 3);
  record.set_norm(0.1 * static_cast<double>(round));
  return record;
}

v1::Round ScriptedRound(int fragment, int64_t round) {
  v1::Round record;
  record.set_fragment(fragment);
  record.set_round(round);
  record.add_contributors("alice");
  record.add_contributors("bob");
  record.add_weights(1.0 / 3);
  record.add_weights(2.0 / 3);
  record.set_send_step(10 * round + fragment);
  record.set_first_unix_s(1.7e9 + 0.1);
  record.set_closed_unix_s(1.7e9 + 0.2);
  record.set_published_unix_s(1.7e9 - 0.3);  // The clock was set back: times are data only.
  record.set_bytes_in(200);
  record.set_bytes_out(100);
  record.set_published_hash(static_cast<uint64_t>(fragment) << 60 | static_cast<uint64_t>(round));
  record.set_answer_hash(TreeHash(ScriptedObject(fragment, round, "answer")));
  record.set_reason("every expected worker contributed (2)");
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

absl::Status SaveDelta(Store& store, int fragment, int64_t round, const std::string& worker_id) {
  return store.SaveContribution(ScriptedContribution(fragment, round, worker_id),
                                ScriptedObject(fragment, round, worker_id));
}

absl::Status SaveMerged(Store& store, int fragment, int64_t round) {
  return store.SaveRound(ScriptedRound(fragment, round), ScriptedObject(fragment, round, "answer"));
}

absl::Status SaveTinySnapshot(Store& store, int fragment, int64_t version) {
  const std::vector<float> values = {static_cast<float>(version), 2};
  return store.SaveSnapshot(
      {.fragment = fragment, .version = version, .theta = values, .published = values});
}

std::unique_ptr<RunDirectoryStore> BeginScriptedRun(FileSystem& disk, const std::string& folder,
                                                    const RunDirectoryStore::Options& options) {
  auto store = RunDirectoryStore::Open(disk, folder, options).value();
  EXPECT_FALSE(store->Recover().value().has_value());
  EXPECT_EQ(store->BeginRun(ScriptedIdentity()), absl::OkStatus());
  return store;
}

v1::Member ScriptedMember(const std::string& id, uint64_t incarnation) {
  v1::Member record;
  record.set_worker_id(id);
  record.set_state(v1::Member::ACTIVE);
  record.set_incarnation(incarnation);
  record.set_data_slot(1);
  record.add_had_slots(0);
  record.add_had_slots(1);
  record.set_own_data(id == "bob");
  record.set_process_nonce(0x8000000000000001);
  record.set_active_from_step(5);
  record.set_was_ready(true);
  record.set_step(40);
  record.set_ordered_pace_milli(1500);
  record.set_ordered_from_step(41);
  record.set_device("cpu");
  record.mutable_heartbeat()->set_tokens(5120);
  record.mutable_heartbeat()->set_train_loss(0.1);
  record.set_draining(record.process_nonce());
  record.add_rejected();
  record.add_rejected()->add_rounds(-3);
  record.mutable_rejected(1)->add_rounds(2);
  return record;
}

std::vector<ScriptedStep> ScriptedLife() {
  v1::State started;
  started.set_started(true);
  started.set_started_unix_s(1.7e9);
  v1::State paused = started;
  paused.set_paused(true);
  paused.set_pause_reason("by hand: \"lunch\"");
  v1::State finished = started;
  finished.set_stop_step(40);
  finished.set_stop_tokens(1'000'000'000'000);
  finished.set_finish_recorded(true);
  finished.set_hash_checks(12);
  finished.set_data_fingerprint(0x8123456789abcdef);
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
  std::string text = absl::StrCat(Line(run->identity), "\n", Line(run->state), "\n");
  // A missing file is gone on purpose: damage is an error of its own.
  const auto readable = [](const absl::Status& status) {
    return status.ok() || absl::IsNotFound(status);
  };
  for (const v1::Member& record : run->members) absl::StrAppend(&text, Line(record), "\n");
  for (v1::Contribution record : run->contributions) {
    const v1::PushHeader& header = record.header();
    const auto object =
        store.ReadContribution(header.fragment(), header.round(), header.worker_id());
    if (!readable(object.status())) return object.status();
    // Where a store keeps it, and since which commit, is its own.
    record.clear_delta();
    record.clear_commit();
    absl::StrAppend(&text, Line(record), " ", HashOf(object), "\n");
  }
  for (v1::Round record : run->rounds) {
    const auto answer = store.ReadAnswer(record.fragment(), record.round());
    if (!readable(answer.status())) return answer.status();
    record.clear_answer();
    record.clear_commit();
    absl::StrAppend(&text, Line(record), " ", HashOf(answer), "\n");
  }
  for (const v1::Snapshot& record : run->snapshots) {
    ASSIGN_OR_RETURN(const FragmentSnapshot snapshot,
                     store.ReadSnapshot(record.fragment(), record.version()));
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
