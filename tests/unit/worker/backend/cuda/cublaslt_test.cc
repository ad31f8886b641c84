#include "worker/backend/cuda/cublaslt.h"
#include "tests/unit/common/base/status_is.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace causeway::worker::cuda {
namespace {

using ::testing::HasSubstr;

TEST(CublasLtLibrary, ALibraryThatIsMissingIsNamedWithWhatToInstall) {
  EXPECT_THAT(
      CublasLtLibrary::Open({"libabsent.so.1", "/nowhere/libabsent.so.1"}),
      StatusIs(kFailedPrecondition,
               ::testing::AllOf(HasSubstr("libabsent.so.1"), HasSubstr("/nowhere/libabsent.so.1"),
                                HasSubstr("libcublas"), HasSubstr("--device=cpu"))));
}

TEST(CublasLtLibrary, ALibraryOfAnotherKindIsRefusedBySymbol) {
  EXPECT_THAT(CublasLtLibrary::Open({"libm.so.6"}),
              StatusIs(kFailedPrecondition,
                       ::testing::AllOf(HasSubstr("libm.so.6"), HasSubstr("cublasLtCreate"))));
}

TEST(CublasLtLibrary, FindsAllItNeedsWhereItIsInstalled) {
  const auto library = CublasLtLibrary::Open();
  if (absl::IsFailedPrecondition(library.status())) GTEST_SKIP() << library.status();
  EXPECT_NE(library->matmul, nullptr);
  EXPECT_TRUE(library->Check(CUBLAS_STATUS_SUCCESS, "a test").ok());
  EXPECT_THAT(library->Check(CUBLAS_STATUS_EXECUTION_FAILED, "a test"), StatusIs(kUnavailable));
}

}  // namespace
}  // namespace causeway::worker::cuda
