// What a test expects of a status: EXPECT_THAT(Load(), StatusIs(kDataLoss, HasSubstr("leaf 3")))
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace causeway {

using enum absl::StatusCode;

inline const absl::Status& StatusIn(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusIn(const absl::StatusOr<T>& result) {
  return result.status();
}

// A status, or what has one in place of a value. `message` matches its message.
MATCHER_P2(StatusIs, code, message,
           absl::StrCat("is ", absl::StatusCodeToString(code), " with a message that ",
                        testing::DescribeMatcher<std::string>(message))) {
  const absl::Status& status = StatusIn(arg);
  *result_listener << status;
  return status.code() == code &&
         testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}
MATCHER_P(StatusIs, code, absl::StrCat("is ", absl::StatusCodeToString(code))) {
  *result_listener << StatusIn(arg);
  return StatusIn(arg).code() == code;
}

}  // namespace causeway
