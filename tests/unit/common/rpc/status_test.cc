#include "common/rpc/status.h"

#include <string>

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

TEST(ToGrpcStatus, CodesAreMappedByNameToo) {
  EXPECT_EQ(ToGrpcStatus(absl::AbortedError("")).error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(ToGrpcStatus(absl::DataLossError("")).error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(ToGrpcStatus(absl::FailedPreconditionError("")).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ToGrpcStatus(absl::UnauthenticatedError("")).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
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
  }
}

}  // namespace
}  // namespace causeway
