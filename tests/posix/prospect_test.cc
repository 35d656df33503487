#include "lib/posix/policy/prospect.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

namespace rcsock::posix {
namespace {

using Promise = Prospect::Promise;

std::uint16_t Service(std::uint16_t port, stream::Role role) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return Prospect::ServiceAt(reinterpret_cast<const sockaddr*>(&address),
                             sizeof address, role);
}

void Learn(std::uint16_t service, int times, std::uint64_t bytes,
           std::uint64_t calls, bool promoted) {
  for (int i = 0; i < times; ++i) {
    Prospect::Learn(service, bytes, calls, promoted);
  }
}

TEST(Prospect, NothingIsTakenForARuleAtFirst) {
  const std::uint16_t service = Service(1, stream::Role::kAcceptor);
  EXPECT_EQ(Prospect::Of(service), Promise::kUnknown);
  Learn(service, 3, 1024, 2, false);
  EXPECT_EQ(Prospect::Of(service), Promise::kUnknown);
  Learn(service, 1, 1024, 2, false);
  EXPECT_EQ(Prospect::Of(service), Promise::kLittle);
}

TEST(Prospect, LongOnesAreWorthALaneIfTheyGetOne) {
  const std::uint16_t service = Service(2, stream::Role::kConnector);
  Learn(service, 20, 2 << 20, 500, false);
  EXPECT_EQ(Prospect::Of(service), Promise::kUnknown);
  Learn(service, 10, 2 << 20, 500, true);
  EXPECT_EQ(Prospect::Of(service), Promise::kMuch);
  // Peers that have none are noticed.
  Learn(service, 100, 2 << 20, 500, false);
  EXPECT_EQ(Prospect::Of(service), Promise::kUnknown);
}

TEST(Prospect, ManySmallCallsAreMuchToo) {
  const std::uint16_t service = Service(3, stream::Role::kConnector);
  Learn(service, 8, 5000, 1000, true);
  EXPECT_EQ(Prospect::Of(service), Promise::kMuch);
}

TEST(Prospect, OneLargeAmongManySmallDoesNotCountForAll) {
  const std::uint16_t service = Service(4, stream::Role::kConnector);
  for (int i = 0; i < 10; ++i) {
    Learn(service, 9, 1024, 2, false);
    Learn(service, 1, std::uint64_t{1} << 30, 100'000, true);
  }
  EXPECT_NE(Prospect::Of(service), Promise::kMuch);
}

TEST(Prospect, ExtremesAreNoOverflow) {
  const std::uint16_t service = Service(5, stream::Role::kConnector);
  Learn(service, 300, ~std::uint64_t{0} >> 2, ~std::uint64_t{0}, true);
  EXPECT_EQ(Prospect::Of(service), Promise::kMuch);
  Learn(service, 300, 0, 0, false);
  EXPECT_EQ(Prospect::Of(service), Promise::kLittle);
}

// How many of 160 connections wait for more traffic than others, before they
// look for a lane.
int Late(std::uint16_t service) {
  int late = 0;
  for (int i = 0; i < 160; ++i) {
    late += Prospect::Of(service) == Promise::kLate ? 1 : 0;
  }
  return late;
}

TEST(Prospect, ShortOnesWhoseThreadsSleepWait) {
  constexpr std::uint64_t kMs = 1'000'000;
  const std::uint16_t service = Service(9, stream::Role::kAcceptor);
  const auto end = [service](int times, std::uint64_t bytes,
                             std::uint64_t calls, std::uint64_t ns) {
    for (int i = 0; i < times; ++i) {
      Prospect::Learn(service, bytes, calls, true);
      Prospect::LearnPace(service, bytes, calls, ns);
    }
  };
  // A few make no rule.
  end(4, 1300, 200, 200 * kMs);
  EXPECT_EQ(Late(service), 0);
  end(20, 1300, 200, 200 * kMs);
  // One of sixteen does not wait: the service may have changed.
  EXPECT_EQ(Late(service), 150);
  // A closed loop, ...
  end(20, 1300, 200, 10 * kMs);
  EXPECT_EQ(Late(service), 0);
  // ... a long life, ...
  end(20, 13000, 2000, 2000 * kMs);
  EXPECT_EQ(Late(service), 0);
  // ... and large messages are worth a lane.
  end(20, 4 << 20, 200, 200 * kMs);
  EXPECT_EQ(Late(service), 0);
}

// How many of so many connections are held, if each hold ends so.
int Holds(std::uint16_t service, int connections, bool vain) {
  int holds = 0;
  for (int i = 0; i < connections; ++i) {
    if (Prospect::HoldNs(service) == 0) continue;
    ++holds;
    Prospect::Held(service, 100'000, vain);
  }
  return holds;
}

TEST(Prospect, HoldsThatAreInVainBecomeRare) {
  const std::uint16_t service = Service(6, stream::Role::kAcceptor);
  EXPECT_EQ(Holds(service, 1000, true), 10);  // 1, 2, 4, ... without one
  // It has not been given up for ever.
  EXPECT_GT(Holds(service, 1000, false), 400);
  EXPECT_EQ(Holds(service, 100, false), 100);
}

TEST(Prospect, OneHoldInVainAmongManyIsForgiven) {
  const std::uint16_t service = Service(7, stream::Role::kAcceptor);
  EXPECT_EQ(Holds(service, 100, false), 100);
  EXPECT_EQ(Holds(service, 3, true), 3);
  EXPECT_EQ(Holds(service, 100, false), 100);
  // A hundred that were not count for no more than a few.
  EXPECT_LT(Holds(service, 100, true), 12);
}

TEST(Prospect, AHoldIsShort) {
  const std::uint16_t service = Service(8, stream::Role::kAcceptor);
  for (const std::uint64_t took : {std::uint64_t{1}, ~std::uint64_t{0}}) {
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t limit = Prospect::HoldNs(service);
      EXPECT_GE(limit, 200'000u);
      EXPECT_LE(limit, 1'000'000u);
      Prospect::Held(service, took, false);
    }
  }
}

TEST(Prospect, ServicesAreApart) {
  EXPECT_NE(Service(80, stream::Role::kAcceptor),
            Service(80, stream::Role::kConnector));
  EXPECT_NE(Service(80, stream::Role::kAcceptor),
            Service(81, stream::Role::kAcceptor));
  sockaddr_in none{};
  EXPECT_EQ(Prospect::ServiceAt(reinterpret_cast<const sockaddr*>(&none),
                                sizeof none, stream::Role::kAcceptor),
            0);
  EXPECT_EQ(Prospect::Of(0), Promise::kUnknown);
}

TEST(Prospect, WaitsLongerForReadersThatAreSlowOverTcpToo) {
  const std::uint16_t service = Service(20, stream::Role::kAcceptor);
  EXPECT_EQ(Prospect::StarvedLooks(service), 1);
  Prospect::Starved(service, true);
  EXPECT_EQ(Prospect::StarvedLooks(service), 4);
  for (int i = 0; i < 100; ++i) Prospect::Starved(service, true);
  EXPECT_EQ(Prospect::StarvedLooks(service), 16);
  // One that only needed room is not to wait so long again.
  Prospect::Starved(service, false);
  EXPECT_EQ(Prospect::StarvedLooks(service), 4);
  for (int i = 0; i < 2; ++i) Prospect::Starved(service, false);
  EXPECT_EQ(Prospect::StarvedLooks(service), 1);
  EXPECT_EQ(Prospect::StarvedLooks(0), 1);
}

TEST(Prospect, OneTriesWhetherTcpHasMoreRoom) {
  const std::uint16_t service = Service(21, stream::Role::kAcceptor);
  constexpr std::uint64_t kMs = 1'000'000;
  EXPECT_TRUE(Prospect::MayLeaveStarved(service, 0));
  EXPECT_FALSE(Prospect::MayLeaveStarved(service, 0));
  EXPECT_FALSE(Prospect::MayLeaveStarved(service, 500 * kMs));
  // What that was good for was never told.
  EXPECT_TRUE(Prospect::MayLeaveStarved(service, 1500 * kMs));
  EXPECT_FALSE(Prospect::MayLeaveStarved(service, 2400 * kMs));
  // Where it was in vain the next one is a trial as well, ...
  Prospect::Starved(service, true);
  EXPECT_TRUE(Prospect::MayLeaveStarved(service, 2500 * kMs));
  EXPECT_FALSE(Prospect::MayLeaveStarved(service, 2500 * kMs));
  // ... and where it was not nobody waits.
  Prospect::Starved(service, false);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Prospect::MayLeaveStarved(service, 2600 * kMs));
  }
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Prospect::MayLeaveStarved(0, 0));
}

}  // namespace
}  // namespace rcsock::posix
