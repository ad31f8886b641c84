// Data that appear in their folder as a whole: written into FOLDER/unfinished, data.json last, and
// then moved up, data.json last again. So a folder holds, at every moment,
//
//   data.json                what it says is whole, whatever else lies about
//   unfinished, no data.json nothing to train on yet: Dataset::Open refuses the folder
//   unfinished/data.json     new data that are whole; moving them up ends what was begun
//
// Old data are removed only when the new are whole.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_system.h"
#include "worker/data/data_json.h"

namespace causeway::worker {

inline constexpr char kUnfinishedFolder[] = "unfinished";
inline constexpr char kTrainPrefix[] = "train";  // Shards are train_000000.bin and so on.
inline constexpr char kHeldOutPrefix[] = "held_out";
inline constexpr char kDocumentIndexEnding[] = ".documents";
// Beside the copy of a tokenizer.
inline constexpr char kTokenizerConfigName[] = "tokenizer_config.json";

// Not thread-safe; one process at a time. Destroyed before Finish, it removes what was written.
class StagedData {
 public:
  // Creates `folder` if need be. What another process left unfinished when it died is removed, or
  // moved up if it is whole. ALREADY_EXISTS, with its pid, while another process writes there,
  // or if there are data already and `replace` is false. FAILED_PRECONDITION, with a name, if a
  // folder of somebody else's has the name that data are written under.
  static absl::StatusOr<std::unique_ptr<StagedData>> Create(FileSystem& file_system,
                                                            const std::string& folder,
                                                            bool replace);
  // Where Create has its files written.
  static std::string FolderOf(const std::string& folder);
  ~StagedData();

  // All files of the description are written: writes its data.json, removes the old data, moves the
  // new ones up. Names in the folder that `tokenize` does not give stay. After an error the new
  // data or the old ones are whole; the next Create goes on from there.
  absl::Status Finish(const DataDescription& description);

 private:
  StagedData(FileSystem& file_system, std::string folder, bool is_new);

  // FAILED_PRECONDITION, with its name, if something lies in `staged_` that nobody wrote here.
  absl::Status CheckOwn() const;
  absl::Status CheckVacant(bool replace) const;
  absl::Status MoveUp(const DataDescription& description);
  absl::Status RemoveOld(const std::set<std::string>& kept);
  absl::Status Clear();

  FileSystem& file_system_;
  const std::string folder_;
  const std::string staged_;
  const bool is_new_;  // The folder was not there before.
  std::unique_ptr<FolderLock> lock_;
  bool is_whole_ = false;
};

}  // namespace causeway::worker
