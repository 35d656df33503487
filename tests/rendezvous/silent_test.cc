#include "lib/rendezvous/silent.h"

#include <gtest/gtest.h>

namespace rcsock::rendezvous {
namespace {

constexpr std::uint64_t kEver = 3'600'000'000'000;
constexpr Address kHost{0x20, 1, 0x0d, 0xb8};
constexpr Address kOther{0x20, 1, 0x0d, 0xb9};

TEST(Silent, OneServiceForAPause) {
  Silent silent(kEver, kEver);
  EXPECT_TRUE(silent.MayTry(kHost, 80));
  silent.Note(kHost, 80);
  EXPECT_FALSE(silent.MayTry(kHost, 80));
  EXPECT_TRUE(silent.MayTry(kHost, 81));
  EXPECT_TRUE(silent.MayTry(kOther, 80));
  silent.Answered(kHost, 80);
  EXPECT_TRUE(silent.MayTry(kHost, 80));
  EXPECT_TRUE(silent.MayTry(kHost, 80));
}

TEST(Silent, ThenOneAtATime) {
  Silent silent(0, kEver);
  silent.Note(kHost, 80);
  EXPECT_TRUE(silent.MayTry(kHost, 80));
  EXPECT_FALSE(silent.MayTry(kHost, 80));
  silent.Note(kHost, 80);
  EXPECT_TRUE(silent.MayTry(kHost, 80));
  silent.Answered(kHost, 80);
  EXPECT_TRUE(silent.MayTry(kHost, 80));
}

TEST(Silent, WhoHasAnsweredIsRemembered) {
  Silent silent(kEver, kEver);
  EXPECT_FALSE(silent.Answers(kHost, 80));
  silent.Answered(kHost, 80);
  silent.Note(kHost, 80);
  EXPECT_TRUE(silent.Answers(kHost, 80));
  EXPECT_FALSE(silent.Answers(kHost, 81));
  EXPECT_FALSE(silent.Answers(kOther, 80));
}

}  // namespace
}  // namespace rcsock::rendezvous
