#include "common/params/draws.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/base/status_is.h"

namespace causeway {
namespace {

using ::testing::ElementsAre;

TEST(Draws, WhatGoesOnWhereTheLastEndedIsOneRange) {
  Draws draws;
  AddDraws({3, 0, 8}, draws);
  AddDraws({3, 8, 16}, draws);
  AddDraws({3, 16, 16}, draws);
  EXPECT_THAT(draws, ElementsAre(DrawRange{3, 0, 16}));
}

TEST(Draws, AnotherPartAGapOrAStepBackBeginsAnotherRange) {
  Draws draws;
  AddDraws({3, 0, 8}, draws);
  AddDraws({4, 8, 16}, draws);
  AddDraws({4, 20, 24}, draws);
  AddDraws({4, 0, 4}, draws);
  EXPECT_THAT(draws, ElementsAre(DrawRange{3, 0, 8}, DrawRange{4, 8, 16}, DrawRange{4, 20, 24},
                                 DrawRange{4, 0, 4}));
}

TEST(Draws, TextComesBackAsItWas) {
  for (const Draws& draws :
       {Draws{}, Draws{{0, 0, 1}}, Draws{{kOwnData, 5, kMaxDraw}, {12, 0, 64}, {12, 7, 9}}}) {
    const auto read = ParseDraws(FormatDraws(draws)).value();
    EXPECT_EQ(read, draws);
  }
  EXPECT_EQ(FormatDraws({{kOwnData, 5, 6}, {12, 0, 64}}), "-1:5-6 12:0-64");
}

TEST(Draws, TextThatNobodyWroteIsRefused) {
  for (const char* text : {"3", "3:", "3:4", "3:4-", "3:5-4", "3:4-4", "-2:0-1", "3:-1-4", "3:0-4 ",
                           " 3:0-4", "3:0-4  3:8-9", "+3:0-4", "03:0-4", "3:0-281474976710657",
                           "3:0-99999999999999999999", "x:0-1"}) {
    EXPECT_THAT(ParseDraws(text), StatusIs(kInvalidArgument)) << text;
  }
}

TEST(Draws, AMessageIsBelievedOnlyWithinTheRun) {
  google::protobuf::RepeatedPtrField<v1::DrawRange> message;
  const Draws draws = {{kOwnData, 0, 4}, {7, 2, 3}};
  DrawsToProto(draws, &message);
  EXPECT_EQ(DrawsFromProto(message, 8).value(), draws);
  EXPECT_THAT(DrawsFromProto(message, 7), StatusIs(kInvalidArgument)) << "part 7 of 7";
  message.at(1).set_end(2);
  EXPECT_THAT(DrawsFromProto(message, 8), StatusIs(kInvalidArgument)) << "an empty range";
  DrawsToProto(Draws(kMaxDrawRanges + 1, {0, 0, 1}), &message);
  EXPECT_THAT(DrawsFromProto(message, 8), StatusIs(kInvalidArgument)) << "too many";
}

}  // namespace
}  // namespace causeway
