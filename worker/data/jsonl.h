// JSON Lines: a JSON object per line, of which one field is a document's text.
#ifndef CAUSEWAY_WORKER_DATA_JSONL_H_
#define CAUSEWAY_WORKER_DATA_JSONL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace causeway::worker {

// The text of a field of the object in `line`; of a key that is there twice, the last counts.
// INVALID_ARGUMENT if the line is not one JSON object in UTF-8, nests more than 64 deep, has no
// such field, or the field is no text.
absl::Status ReadJsonLine(absl::string_view line, const std::string& field, std::string& text);

}  // namespace causeway::worker

#endif  // CAUSEWAY_WORKER_DATA_JSONL_H_
