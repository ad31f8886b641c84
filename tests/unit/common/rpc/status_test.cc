#include "common/rpc/status.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace causeway {
namespace {

TEST(ToGrpcStatus, EveryCodeGoesOverAndComesBack) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "what, and what to do");
    const grpc::Status over = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(over.error_code()), code);
    EXPECT_EQ(over.error_message(), "what, and what to do");
    EXPECT_EQ(FromGrpcStatus(over), status) << status;
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

grpc::Status OnTheWay(absl::StatusCode code, const std::string& message = "no words") {
  return {static_cast<grpc::StatusCode>(code), message};
}

TEST(FromGrpcStatus, WithoutTheMarkEveryCodePassesAndWhatProxiesDoNotMakeMayBeSomebodyElses) {
  using enum absl::StatusCode;
  const std::set<absl::StatusCode> pass = {kCancelled, kDeadlineExceeded, kResourceExhausted,
                                           kUnavailable};
  const std::set<absl::StatusCode> strange = {
      kInvalidArgument, kNotFound,   kAlreadyExists, kFailedPrecondition,
      kAborted,         kOutOfRange, kDataLoss};
  for (int number = 1; number <= 16; ++number) {
    const auto code = static_cast<absl::StatusCode>(number);
    const absl::Status status = FromGrpcStatus(OnTheWay(code));
    EXPECT_TRUE(MadeOnTheWay(status)) << status;
    EXPECT_TRUE(IsRetryable(status)) << status;
    EXPECT_EQ(status.code(), pass.contains(code) ? code : kUnavailable) << status;
    EXPECT_EQ(MayBeAnothers(status), strange.contains(code)) << status;
    if (!pass.contains(code)) {
      EXPECT_THAT(
          std::string(status.message()),
          testing::StartsWith(absl::StrCat(absl::StatusCodeToString(code), ": no words; ")));
    }
    EXPECT_FALSE(MadeOnTheWay(FromGrpcStatus(ToGrpcStatus({code, "no words"}))));
  }
}

TEST(FromGrpcStatus, TheMarkIsThatOfTheCodeAndNobodyElsesDetails) {
  // google.rpc.Status {code: 13, message: "causeway"}.
  EXPECT_EQ(ToGrpcStatus(absl::InternalError("")).error_details(),
            absl::StrCat("\x08\x0d\x12\x08", "causeway"));
  const std::vector<std::string> others = {absl::StrCat("\x08\x0c\x12\x08", "causeway"),
                                           absl::StrCat("\x08\x0d\x12\x05", "envoy"), ""};
  for (const std::string& details : others) {
    EXPECT_TRUE(MadeOnTheWay(FromGrpcStatus({grpc::StatusCode::INTERNAL, "", details})));
  }
}

TEST(FromGrpcStatus, WhatTheWayMadeSaysWhatToLookAt) {
  using ::testing::HasSubstr;
  const auto text = [](absl::StatusCode code, const std::string& words) {
    return std::string(FromGrpcStatus(OnTheWay(code, words)).message());
  };
  EXPECT_THAT(text(absl::StatusCode::kUnknown, "Received http2 header with status: 413"),
              testing::AllOf(HasSubstr("UNKNOWN"), HasSubstr("client_max_body_size 0")));
  EXPECT_THAT(text(absl::StatusCode::kInternal, "Received RST_STREAM with error code 2"),
              testing::AllOf(HasSubstr("INTERNAL"), HasSubstr("its connection to the coordinator"),
                             HasSubstr("client_max_body_size 0")));
  EXPECT_THAT(text(absl::StatusCode::kUnimplemented, "Received http2 header with status: 404"),
              HasSubstr("no coordinator"));
  EXPECT_THAT(text(absl::StatusCode::kUnauthenticated, "a certificate, please"),
              testing::AllOf(HasSubstr("UNAUTHENTICATED: a certificate, please"),
                             HasSubstr("an older release")));
}

TEST(ToGrpcStatus, ALongMessageIsCutToWhatTrailersCarry) {
  const std::string message(100'000, 'm');
  const grpc::Status over = ToGrpcStatus(absl::InternalError(message));
  EXPECT_EQ(over.error_message(), message.substr(0, 2048));
  const std::string fits(2048, 'f');
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(fits)).error_message(), fits);
}

TEST(IsRetryable, HoldsForErrorsThatPassAndForNoOthers) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "");
    const bool passes = absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
                        absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
    EXPECT_EQ(IsRetryable(status), passes) << status;
    EXPECT_EQ(NextStartMayPass(status),
              passes || absl::IsInternal(status) || absl::IsAlreadyExists(status))
        << status;
  }
}

}  // namespace
}  // namespace causeway
