#include "worker/backend/cuda/cublaslt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace causeway::worker::cuda {
namespace {

using ::testing::HasSubstr;

TEST(CublasLtLibrary, ALibraryThatIsMissingIsNamedWithWhatToInstall) {
  const absl::Status status =
      CublasLtLibrary::Open({"libabsent.so.1", "/nowhere/libabsent.so.1"}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("libabsent.so.1"), HasSubstr("/nowhere/libabsent.so.1"),
                               HasSubstr("libcublas"), HasSubstr("--device=cpu")));
}

TEST(CublasLtLibrary, ALibraryOfAnotherKindIsRefusedBySymbol) {
  const absl::Status status = CublasLtLibrary::Open({"libm.so.6"}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("libm.so.6"), HasSubstr("cublasLtCreate")));
}

TEST(CublasLtLibrary, FindsAllItNeedsWhereItIsInstalled) {
  const auto library = CublasLtLibrary::Open();
  if (absl::IsFailedPrecondition(library.status())) GTEST_SKIP() << library.status();
  EXPECT_NE(library->matmul, nullptr);
  EXPECT_TRUE(library->Check(CUBLAS_STATUS_SUCCESS, "a test").ok());
  EXPECT_TRUE(absl::IsUnavailable(library->Check(CUBLAS_STATUS_EXECUTION_FAILED, "a test")));
}

}  // namespace
}  // namespace causeway::worker::cuda
