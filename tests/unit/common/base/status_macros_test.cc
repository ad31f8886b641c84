#include "common/base/status_macros.h"

#include <memory>

#include "gtest/gtest.h"

namespace causeway {
namespace {

absl::Status Check(const absl::Status& first, bool* reached) {
  RETURN_IF_ERROR(first);
  *reached = true;
  return absl::OkStatus();
}

absl::StatusOr<int> Sum(const absl::StatusOr<int>& left, const absl::StatusOr<int>& right) {
  ASSIGN_OR_RETURN(const int a, left);
  ASSIGN_OR_RETURN(const int b, right);
  return a + b;
}

absl::StatusOr<std::unique_ptr<int>> Make() { return std::make_unique<int>(7); }

absl::StatusOr<int> Unwrap() {
  ASSIGN_OR_RETURN(const std::unique_ptr<int> made, Make());
  return *made;
}

TEST(ReturnIfError, ReturnsTheErrorAndElseGoesOn) {
  bool reached = false;
  EXPECT_EQ(Check(absl::DataLossError("gone"), &reached), absl::DataLossError("gone"));
  EXPECT_FALSE(reached);
  EXPECT_TRUE(Check(absl::OkStatus(), &reached).ok());
  EXPECT_TRUE(reached);
}

TEST(AssignOrReturn, ReturnsTheFirstErrorAndElseTheValues) {
  EXPECT_EQ(*Sum(2, 3), 5);
  EXPECT_EQ(Sum(absl::AbortedError("a"), absl::DataLossError("b")).status(),
            absl::AbortedError("a"));
  EXPECT_EQ(Sum(1, absl::DataLossError("b")).status(), absl::DataLossError("b"));
}

TEST(AssignOrReturn, TakesValuesThatCanOnlyBeMoved) { EXPECT_EQ(*Unwrap(), 7); }

TEST(Annotate, PutsTheContextFirstAndKeepsCodeAndPayload) {
  EXPECT_TRUE(Annotate(absl::OkStatus(), "context").ok());
  absl::Status status = absl::NotFoundError("no such file");
  status.SetPayload("type", absl::Cord("more"));
  const absl::Status annotated = Annotate(status, "loading the corpus");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(annotated.message(), "loading the corpus: no such file");
  EXPECT_EQ(annotated.GetPayload("type"), absl::Cord("more"));
}

}  // namespace
}  // namespace causeway
