#include "lib/posix/prospect.h"

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

}  // namespace
}  // namespace rcsock::posix
