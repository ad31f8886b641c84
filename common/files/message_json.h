// A protobuf message as JSON for people's scripts. Unlike protobuf's own JSON form, integers are
// numbers, not text, and hashes are the 16 hexadecimal digits that logs and files show.
#ifndef CAUSEWAY_COMMON_FILES_MESSAGE_JSON_H_
#define CAUSEWAY_COMMON_FILES_MESSAGE_JSON_H_

#include <google/protobuf/message.h>

#include "nlohmann/json.hpp"

namespace causeway {

// Every field under its name in the .proto, those that are not set with their defaults; enumerators
// by name, fixed64 as hexadecimal text, a message that is not set as null. Numbers that JSON cannot
// say (infinite, not a number) are null.
nlohmann::json MessageToJson(const google::protobuf::Message& message);

}  // namespace causeway

#endif  // CAUSEWAY_COMMON_FILES_MESSAGE_JSON_H_
