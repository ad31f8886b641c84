#include "tests/unit/server/store/scripted_run.h"

#include "common/base/checksum.h"
#include "common/base/random.h"
#include "common/params/draws.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/from_text.h"

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
  return FromText<v1::RunIdentity>(R"(
      run_id: "toy-77" config { run_name: "toy" train { seed: 17 } }
      config_hash: 0xfedcba9876543210 plan_hash: 5 initial_hashes: [1, 0xffffffffffffffff])");
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
  auto record = FromText<v1::Round>(R"(
      contributors: ["alice", "bob"] weights: [0.3333333333333333, 0.6666666666666666]
      first_unix_s: 1700000000.1 closed_unix_s: 1700000000.2 bytes_in: 200 bytes_out: 100
      # The clock was set back: times are data only.
      published_unix_s: 1699999999.7 reason: 'every expected worker contributed (2)')");
  record.set_fragment(fragment);
  record.set_round(round);
  record.set_send_step(10 * round + fragment);
  record.set_published_hash(static_cast<uint64_t>(fragment) << 60 | static_cast<uint64_t>(round));
  record.set_answer_hash(TreeHash(ScriptedObject(fragment, round, "answer")));
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
  auto record = FromText<v1::Member>(R"(
      state: ACTIVE data_slot: 1 had_slots: [0, 1] process_nonce: 0x8000000000000001
      active_from_step: 5 was_ready: true step: 40 ordered_pace_milli: 1500 ordered_from_step: 41
      device: "cpu" heartbeat { tokens: 5120 train_loss: 0.1 } draining: 0x8000000000000001
      rejected {} rejected { rounds: [-3, 2] })");
  record.set_worker_id(id);
  record.set_incarnation(incarnation);
  record.set_own_data(id == "bob");
  return record;
}

std::vector<ScriptedStep> ScriptedLife() {
  const auto state = [](const std::string& more) {
    return FromText<v1::State>("started: true started_unix_s: 1.7e9 " + more);
  };
  return {{"the beginning", [](Store& store) { return store.BeginRun(ScriptedIdentity()); }},
          Tell(ScriptedMember("alice", 1)),
          Tell(ScriptedMember("bob", 1)),
          Tell(state("")),
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
          Tell(state("paused: true pause_reason: 'by hand: \"lunch\"'")),
          Snapshot(0, 2),
          Contribute(0, 3, "bob"),
          Publish(0, 3),
          Snapshot(0, 3),
          Tell(state("stop_step: 40 stop_tokens: 1000000000000 finish_recorded: true "
                     "hash_checks: 12 data_fingerprint: 0x8123456789abcdef")),
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
