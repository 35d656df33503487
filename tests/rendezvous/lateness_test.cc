#include "lib/rendezvous/lateness.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace rcsock::rendezvous {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

// A patient thread, at which the conductor looks each millisecond.
class Watched {
 public:
  // The thread has run and waited for so long since the last look.
  bool Look(std::uint64_t runs, std::uint64_t waits) {
    now_ += kMs + waits;
    Count(runs, waits);
    EXPECT_TRUE(lateness.MayLook(now_));
    const bool late = lateness.Look(now_, counts_);
    EXPECT_FALSE(lateness.MayLook(now_ + Lateness::kLookNs - 1));
    return late;
  }
  // Returns how long the prompt thread's shift is.
  std::uint64_t PromptShift() {
    lateness.BeginPrompt(now_);
    const std::uint64_t begun = now_;
    while (!lateness.PromptIsOver(now_)) now_ += kMs;
    lateness.BeginPatient(now_, counts_);
    return now_ - begun;
  }
  // The same, behind an offer that the patient thread has not taken.
  std::uint64_t OfferInVain() {
    lateness.Offer(now_);
    now_ += kMs;
    lateness.BeginPrompt(now_);
    const std::uint64_t begun = now_;
    while (!lateness.PromptIsOver(now_)) now_ += kMs;
    return now_ - begun;
  }
  void Pass(std::uint64_t ns) { now_ += ns; }
  void Count(std::uint64_t runs, std::uint64_t waits) {
    counts_.ran += runs;
    counts_.waited += waits;
  }

  Lateness lateness;

 private:
  std::uint64_t now_ = 1000 * kMs;
  Lateness::Counts counts_;
};

TEST(Lateness, RequestsOfAProgramThatSleeps) {
  Watched patient;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(patient.Look(150'000, 300'000));
    EXPECT_FALSE(patient.Look(0, 0));
  }
}

TEST(Lateness, ALongStretchOfWorkIsInterruptedOften) {
  Watched patient;
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(patient.Look(kMs, 900'000));
}

TEST(Lateness, OneLongWaitIsAnAccident) {
  Watched patient;
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(patient.Look(100'000, kMs));
    EXPECT_FALSE(patient.Look(100'000, 100'000));
  }
}

TEST(Lateness, TwoInARow) {
  Watched patient;
  EXPECT_FALSE(patient.Look(100'000, 500'000));
  EXPECT_TRUE(patient.Look(100'000, 500'000));
  // What it waits for in the prompt thread's shift does not count: an offer
  // that it has lost, for instance.
  patient.Count(0, 10 * kMs);
  patient.PromptShift();
  EXPECT_FALSE(patient.Look(100'000, 500'000));
}

TEST(Lateness, AWholeSlice) {
  Watched patient;
  EXPECT_TRUE(patient.Look(5 * kMs, Lateness::kSliceNs + 1));
}

TEST(Lateness, ShiftsGetLongerWhileItStaysLate) {
  Watched patient;
  patient.Pass(Lateness::kCalmNs);
  std::uint64_t shift = patient.PromptShift();
  EXPECT_EQ(shift, Lateness::kLeastPromptNs);
  while (shift < Lateness::kMostPromptNs) {
    patient.Pass(Lateness::kCalmNs - 1);
    const std::uint64_t next = patient.PromptShift();
    ASSERT_EQ(next, 2 * shift);
    shift = next;
  }
  patient.Pass(Lateness::kCalmNs - 1);
  EXPECT_EQ(patient.PromptShift(), Lateness::kMostPromptNs);
  patient.Pass(Lateness::kCalmNs);
  EXPECT_EQ(patient.PromptShift(), Lateness::kLeastPromptNs);
}

TEST(Lateness, OffersThatNobodyTakes) {
  Watched patient;
  std::uint64_t shift = Lateness::kLeastPromptNs;
  patient.Pass(Lateness::kCalmNs);
  EXPECT_EQ(patient.PromptShift(), shift);
  while (shift < Lateness::kMostPromptNs) {
    const std::uint64_t next = patient.OfferInVain();
    ASSERT_EQ(next, 2 * shift);
    shift = next;
  }
  EXPECT_EQ(patient.OfferInVain(), Lateness::kMostPromptNs);
}

// A wait is no calm, however long it is.
TEST(Lateness, TheLongerItWaitsTheLongerTheShift) {
  Watched patient;
  patient.Pass(Lateness::kCalmNs);
  EXPECT_EQ(patient.PromptShift(), Lateness::kLeastPromptNs);
  EXPECT_TRUE(patient.Look(100'000, 10 * Lateness::kCalmNs));
  EXPECT_EQ(patient.PromptShift(), 2 * Lateness::kLeastPromptNs);
}

TEST(Lateness, AnOfferAtTheStartIsShort) {
  Watched patient;
  patient.lateness.Begin(1000 * kMs);
  EXPECT_EQ(patient.PromptShift(), Lateness::kLeastPromptNs);
}

}  // namespace
}  // namespace rcsock::rendezvous
