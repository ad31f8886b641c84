#include "tests/unit/server/store/memory_store.h"

#include "tests/unit/server/store/store_conformance.h"

namespace causeway::server {
namespace {

// The object is what outlives its users.
class MemoryHarness final : public StoreHarness {
 public:
  Store& store() override { return store_; }
  void Reopen() override {}

 private:
  MemoryStore store_;
};

INSTANTIATE_TEST_SUITE_P(MemoryStore, StoreConformanceTest,
                         testing::Values([] { return std::make_unique<MemoryHarness>(); }));

}  // namespace
}  // namespace causeway::server
