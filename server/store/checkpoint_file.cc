#include "server/store/checkpoint_file.h"

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/checksum.h"
#include "common/base/status_macros.h"
#include "common/files/array_file.h"
#include "common/files/json_integer.h"
#include "common/params/run_config.h"

namespace causeway::server {
namespace {

using nlohmann::json;

constexpr ArrayFileKind kKind = {'C', 'W', 'A', 'Y', 'C', 'O', 'R', 'D'};
constexpr uint32_t kFormatVersion = 1;

std::string ArrayName(int fragment, absl::string_view array) {
  return absl::StrCat(fragment, "/", array);
}

bool ReadHex(const json& value, uint64_t& out) {
  return absl::SimpleHexAtoi(value.get<std::string>(), &out);
}

bool ReadArray(const ArrayFile& file, const std::string& name, std::vector<float>& out) {
  const NamedBytes* const array = file.Find(name);
  if (array == nullptr || array->bytes.size() % sizeof(float) != 0) return false;
  out.resize(array->bytes.size() / sizeof(float));
  if (!out.empty()) std::memcpy(out.data(), array->bytes.data(), array->bytes.size());
  return true;
}

// False if the metadata and the arrays do not fit together. nlohmann's accessors throw on a wrong
// type; the caller turns that into the same answer.
bool ReadFragment(const ArrayFile& file, const json& entry, FragmentSnapshot& fragment) {
  if (!ReadInteger(entry.at("fragment"), fragment.fragment) ||
      !ReadInteger(entry.at("version"), fragment.version) ||
      !ReadHex(entry.at("published_hash"), fragment.published_hash) ||
      !ReadArray(file, ArrayName(fragment.fragment, "theta"), fragment.theta) ||
      !ReadArray(file, ArrayName(fragment.fragment, "published"), fragment.published) ||
      fragment.theta.size() != fragment.published.size()) {
    return false;
  }
  for (const json& name : entry.at("optimizer")) {
    auto& [array_name, values] = fragment.optimizer.emplace_back();
    array_name = name.get<std::string>();
    if (!ReadArray(file, ArrayName(fragment.fragment, array_name), values)) return false;
  }
  return true;
}

}  // namespace

FragmentSnapshot CopyFragment(const FragmentView& view) {
  FragmentSnapshot copy;
  copy.fragment = view.fragment;
  copy.version = view.version;
  copy.published_hash = view.published_hash;
  copy.theta.assign(view.theta.begin(), view.theta.end());
  copy.published.assign(view.published.begin(), view.published.end());
  for (const NamedArray& array : view.optimizer) {
    copy.optimizer.emplace_back(array.name,
                                std::vector<float>(array.values.begin(), array.values.end()));
  }
  return copy;
}

absl::Status WriteCheckpoint(FileSystem& file_system, const std::string& path,
                             const RunIdentity& identity, std::span<const FragmentView> fragments) {
  json metadata = {{"run_id", identity.run_id},
                   {"config", FormatRunConfig(identity.config)},
                   {"config_hash", HashToHex(identity.config_hash)},
                   {"plan_hash", HashToHex(identity.plan_hash)},
                   {"fragments", json::array()}};
  std::vector<NamedBytes> arrays;
  for (const FragmentView& view : fragments) {
    json optimizer = json::array();
    arrays.push_back(NameBytes(ArrayName(view.fragment, "theta"), view.theta));
    arrays.push_back(NameBytes(ArrayName(view.fragment, "published"), view.published));
    for (const NamedArray& array : view.optimizer) {
      optimizer.push_back(array.name);
      arrays.push_back(NameBytes(ArrayName(view.fragment, array.name), array.values));
    }
    metadata["fragments"].push_back({{"fragment", view.fragment},
                                     {"version", view.version},
                                     {"published_hash", HashToHex(view.published_hash)},
                                     {"optimizer", optimizer}});
  }
  return WriteArrayFile(file_system, path, kKind, kFormatVersion, metadata, arrays);
}

absl::StatusOr<RunSnapshot> ReadCheckpoint(FileSystem& file_system, const std::string& path) {
  ASSIGN_OR_RETURN(const ArrayFile file, ArrayFile::Read(file_system, path, kKind, kFormatVersion));
  const json& metadata = file.metadata();
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("checkpoint ", path, " is damaged: ", what));
  };
  RunSnapshot snapshot;
  try {
    snapshot.identity.run_id = metadata.at("run_id").get<std::string>();
    bool whole = ReadHex(metadata.at("config_hash"), snapshot.identity.config_hash) &&
                 ReadHex(metadata.at("plan_hash"), snapshot.identity.plan_hash);
    for (const json& entry : metadata.at("fragments")) {
      whole = whole && ReadFragment(file, entry, snapshot.fragments.emplace_back());
    }
    if (!whole) return damaged("its header does not describe its content");
    ASSIGN_OR_RETURN(snapshot.identity.config,
                     ParseRunConfig(metadata.at("config").get<std::string>(), path));
  } catch (const json::exception& error) {
    return damaged(error.what());
  }
  return snapshot;
}

}  // namespace causeway::server
