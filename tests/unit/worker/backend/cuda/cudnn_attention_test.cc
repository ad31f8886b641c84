// Attention by cuDNN: that it is refused where it is not installed, what it plans for GPUs that are
// only described, and, on a GPU, that its numbers and bits are as attention_test.cc wants them.
#include "worker/backend/cuda/cudnn_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/backend/cuda/cudnn_graphs.h"
#include "worker/backend/cuda/cudnn_library.h"

namespace causeway::worker::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The first two before the library is open.
TEST(CudnnLibrary, ALibraryThatIsMissingIsNamedWithWhatToInstall) {
  const absl::Status status = OpenCudnn({"libabsent.so.1", "/nowhere/libabsent.so.1"});
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("libabsent.so.1"), HasSubstr("/nowhere/libabsent.so.1"),
                    HasSubstr("install cuDNN"), HasSubstr("LD_LIBRARY_PATH")));
}

TEST(CudnnLibrary, ALibraryOfAnotherKindIsRefusedBySymbol) {
  const absl::Status status = OpenCudnn({"libm.so.6"});
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("libm.so.6"), HasSubstr("cudnnBackendCreateDescriptor")));
}

}  // namespace
}  // namespace causeway::worker::cuda
