#include "common/codec/entropy_stage.h"

#include <zstd.h>

#include <memory>

#include "absl/strings/str_cat.h"

namespace causeway {
namespace {

constexpr int kLevel = 1;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

}  // namespace

bool EntropyPack(std::span<const uint8_t> plain, std::string& packed) {
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
  packed.resize(plain.size() - plain.size() * 3 / 100);
  if (context == nullptr || packed.empty()) return false;
  const size_t size = ZSTD_compressCCtx(context.get(), packed.data(), packed.size(), plain.data(),
                                        plain.size(), kLevel);
  if (ZSTD_isError(size) != 0) return false;  // It does not fit, as a rule.
  packed.resize(size);
  return true;
}

absl::Status EntropyUnpack(absl::string_view packed, std::span<uint8_t> plain) {
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  if (context == nullptr) return absl::ResourceExhaustedError("no memory to unpack with");
  const size_t size =
      ZSTD_decompressDCtx(context.get(), plain.data(), plain.size(), packed.data(), packed.size());
  if (ZSTD_isError(size) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("bytes that should unpack to ", plain.size(),
                                                   " do not: ", ZSTD_getErrorName(size)));
  }
  if (size != plain.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes that should unpack to ", plain.size(), " unpack to ", size));
  }
  return absl::OkStatus();
}

}  // namespace causeway
