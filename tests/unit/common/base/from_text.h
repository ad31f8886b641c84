// A message that a test has as text.
#pragma once

#include <string>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace causeway {

// Reads a message from its textproto. A text that is none fails the test.
template <typename Message>
Message FromText(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

}  // namespace causeway
