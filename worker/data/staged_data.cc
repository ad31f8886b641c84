#include "worker/data/staged_data.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace causeway::worker {
namespace {

constexpr char kLockName[] = "LOCK";

bool IsShardName(absl::string_view name, absl::string_view prefix) {
  return absl::StartsWith(name, absl::StrCat(prefix, "_")) && absl::EndsWith(name, ".bin");
}

bool IsDataName(absl::string_view name) {
  for (const char* const prefix : {kTrainPrefix, kHeldOutPrefix}) {
    if (IsShardName(name, prefix) || name == absl::StrCat(prefix, kDocumentIndexEnding)) {
      return true;
    }
  }
  return false;
}

// Whether `tokenize` writes a file of this name, or was writing it when it was killed.
bool IsStagedName(absl::string_view name) {
  absl::ConsumeSuffix(&name, ".tmp");
  return IsDataName(name) || name == kDataJsonName || name == kLockName ||
         name == "tokenizer.json" || name == "tokenizer.model" || name == kTokenizerConfigName;
}

}  // namespace

std::string StagedData::FolderOf(const std::string& folder) {
  return JoinPath(folder, kUnfinishedFolder);
}

StagedData::StagedData(FileSystem& file_system, std::string folder, bool is_new)
    : file_system_(file_system),
      folder_(std::move(folder)),
      staged_(FolderOf(folder_)),
      is_new_(is_new) {}

StagedData::~StagedData() {
  if (lock_ == nullptr || is_whole_) return;
  // The error that led here is worth more than one of these.
  Clear().IgnoreError();
  if (is_new_) file_system_.Remove(folder_).IgnoreError();
}

absl::StatusOr<std::unique_ptr<StagedData>> StagedData::Create(FileSystem& file_system,
                                                               const std::string& folder,
                                                               bool replace) {
  const bool is_new = !file_system.IsFolder(folder);
  std::unique_ptr<StagedData> staged(new StagedData(file_system, folder, is_new));
  const bool was_left = file_system.IsFolder(staged->staged_);
  // Who cannot write there leaves nothing behind.
  if (!was_left && !is_new) RETURN_IF_ERROR(staged->CheckVacant(replace));
  if (was_left) RETURN_IF_ERROR(staged->CheckOwn());
  RETURN_IF_ERROR(CreateFoldersDurably(file_system, staged->staged_));
  ASSIGN_OR_RETURN(staged->lock_, file_system.Lock(staged->staged_));
  if (was_left) {
    if (file_system.Exists(JoinPath(staged->staged_, kDataJsonName))) {
      ASSIGN_OR_RETURN(const DataDescription description,
                       ReadDataJson(file_system, staged->staged_));
      staged->is_whole_ = true;
      RETURN_IF_ERROR(staged->MoveUp(description));
      return Create(file_system, folder, replace);
    }
    RETURN_IF_ERROR(staged->Clear());
    RETURN_IF_ERROR(staged->CheckVacant(replace));
    staged->lock_ = nullptr;
    return Create(file_system, folder, replace);
  }
  return staged;
}

absl::Status StagedData::CheckOwn() const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system_.List(staged_));
  for (const std::string& name : names) {
    if (IsStagedName(name)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(staged_, " holds ", name,
                     ", which tokenizing does not write and would remove: move it "
                     "elsewhere, or choose another folder than ",
                     folder_));
  }
  return absl::OkStatus();
}

absl::Status StagedData::CheckVacant(bool replace) const {
  if (replace) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system_.List(folder_));
  const auto is_data = [](const std::string& name) {
    return name == kDataJsonName || IsDataName(name);
  };
  const auto found = std::find_if(names.begin(), names.end(), is_data);
  if (found == names.end()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(folder_, " holds data already (", *found,
                                               "); choose another folder, or give --replace"));
}

absl::Status StagedData::Finish(const DataDescription& description) {
  RETURN_IF_ERROR(WriteDataJson(file_system_, staged_, description));
  is_whole_ = true;
  return MoveUp(description);
}

absl::Status StagedData::MoveUp(const DataDescription& description) {
  std::set<std::string> own(description.train_shards.begin(), description.train_shards.end());
  own.insert(description.held_out_shards.begin(), description.held_out_shards.end());
  own.insert({description.train_documents, description.held_out_documents});
  if (description.tokenizer != "bytes") own.insert({description.tokenizer, kTokenizerConfigName});
  ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system_.List(staged_));
  // A moved file replaces its like; after an interruption some are here already.
  std::erase_if(own, [&](const std::string& name) {
    return name == kTokenizerConfigName &&
           std::find(names.begin(), names.end(), name) == names.end();
  });
  RETURN_IF_ERROR(RemoveOld(own));
  const auto move = [&](const std::string& name) {
    return file_system_.Rename(JoinPath(staged_, name), JoinPath(folder_, name));
  };
  for (const std::string& name : names) {
    if (own.contains(name)) RETURN_IF_ERROR(move(name));
  }
  // Here first: a power loss must not take a name from both folders.
  RETURN_IF_ERROR(file_system_.SyncFolder(folder_));
  RETURN_IF_ERROR(move(kDataJsonName));
  RETURN_IF_ERROR(file_system_.SyncFolder(folder_));
  RETURN_IF_ERROR(Clear());
  lock_ = nullptr;
  return absl::OkStatus();
}

absl::Status StagedData::RemoveOld(const std::set<std::string>& kept) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system_.List(folder_));
  std::set<std::string> copied;
  if (file_system_.Exists(JoinPath(folder_, kDataJsonName))) {
    // Only the tokenizer that was copied along goes. A description that cannot be read names none.
    const absl::StatusOr<DataDescription> before = ReadDataJson(file_system_, folder_);
    if (before.ok() && before->tokenizer != "bytes") {
      copied = {before->tokenizer, kTokenizerConfigName};
    }
    // First, so that at no moment it describes shards that are not there.
    RETURN_IF_ERROR(file_system_.Remove(JoinPath(folder_, kDataJsonName)));
    RETURN_IF_ERROR(file_system_.SyncFolder(folder_));
  }
  for (const std::string& name : names) {
    if ((IsDataName(name) || copied.contains(name)) && !kept.contains(name)) {
      RETURN_IF_ERROR(file_system_.Remove(JoinPath(folder_, name)));
    }
  }
  return absl::OkStatus();
}

absl::Status StagedData::Clear() {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, file_system_.List(staged_));
  for (const std::string& name : names) {
    if (name != kLockName) RETURN_IF_ERROR(file_system_.Remove(JoinPath(staged_, name)));
  }
  const std::string lock = JoinPath(staged_, kLockName);
  if (file_system_.Exists(lock)) RETURN_IF_ERROR(file_system_.Remove(lock));
  RETURN_IF_ERROR(file_system_.Remove(staged_));
  return file_system_.SyncFolder(folder_);
}

}  // namespace causeway::worker
