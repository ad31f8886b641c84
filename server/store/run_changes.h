// Says what a copy of a run directory lacks, for whoever keeps one (server/standby).
//
// A copy says at which commit it stands. The changes since then bring it to a later commit, in one
// step. There is no log of changes: rows carry the number of their commit, or the book below has
// it; deltas and answers go, per fragment, up to a round. So a copy is served alike after a moment
// and after a week away, and a slow one costs its original nothing.
//
// The digest of each commit (run_tables.h) proves that a copy has the same rows.
#ifndef CAUSEWAY_SERVER_STORE_RUN_CHANGES_H_
#define CAUSEWAY_SERVER_STORE_RUN_CHANGES_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/run_tables.h"

namespace causeway::server {

// Where a copy stands.
struct RunPosition {
  std::string run_id = {};  // Empty: it has nothing yet.
  int64_t commits = 0;
  uint64_t digest = 0;                    // Digest of the last commit.
  std::vector<int64_t> last_rounds = {};  // By fragment; those that are left out have none.

  int64_t last_round(int fragment) const {
    const auto index = static_cast<size_t>(fragment);
    return index < last_rounds.size() ? std::max<int64_t>(0, last_rounds[index]) : 0;
  }
};

struct RunChanges {
  int64_t from = 0;  // Commits of the copy before, and after.
  int64_t to = 0;
  uint64_t digest = 0;  // Digest of commit `to`.
  // PackRow of rows that are new or replace others.
  std::vector<std::string> rows = {};
  // `rows` has every snapshot that there is: others of the copy go.
  bool all_snapshots = false;
  // Holds, for a fragment, the rounds up to which deltas are gone, and before which answers are.
  struct Gone {
    int fragment = 0;
    int64_t deltas = 0;
    int64_t answers = 0;
  };
  std::vector<Gone> gone = {};
  // Files that new rows name.
  std::vector<BlobRef> blobs = {};

  bool empty() const { return from == to; }
};

// A book of the last commit that changed each thing. Not thread-safe.
class ChangeBook {
 public:
  static constexpr char kState[] = "state";
  static constexpr char kSnapshots[] = "snapshots";
  static std::string Member(const std::string& id) { return absl::StrCat("member ", id); }
  static std::string Fragment(int fragment) { return absl::StrCat("fragment ", fragment); }

  // Begins the book: it knows nothing of changes up to that commit.
  void Begin(int64_t commits) { begin_ = commits; }
  void Note(const std::string& what, int64_t commit) { last_[what] = commit; }
  // True if it may have changed after that commit.
  bool ChangedSince(const std::string& what, int64_t commit) const {
    const auto found = last_.find(what);
    return std::max(begin_, found == last_.end() ? 0 : found->second) > commit;
  }

 private:
  int64_t begin_ = 0;
  std::map<std::string, int64_t> last_;
};

}  // namespace causeway::server

#endif  // CAUSEWAY_SERVER_STORE_RUN_CHANGES_H_
