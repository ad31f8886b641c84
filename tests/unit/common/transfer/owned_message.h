// A message of a lane in one piece, which it keeps, as tests without gRPC hand it over.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "common/transfer/chunk_message.h"

namespace causeway {

inline MessageBytes OwnedMessage(std::string bytes) {
  const auto kept = std::make_shared<const std::string>(std::move(bytes));
  return {.pieces = {{reinterpret_cast<const uint8_t*>(kept->data()), kept->size()}},
          .owner = kept};
}

}  // namespace causeway
