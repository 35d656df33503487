#include "lib/rendezvous/address.h"

#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <cstring>

namespace rcsock::rendezvous {
namespace {

// It asks the kernel itself: what libc says is what it must know.
TEST(HostAddresses, AreThoseThatLibcKnows) {
  static constinit HostAddresses host;
  ifaddrs* list = nullptr;
  ASSERT_EQ(::getifaddrs(&list), 0);
  int count = 0;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    sockaddr_storage storage{};
    std::memcpy(&storage, one->ifa_addr,
                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    Address address;
    std::uint16_t port;
    ASSERT_TRUE(Normalise(storage, &address, &port));
    EXPECT_TRUE(host.Has(address)) << one->ifa_name;
    ++count;
  }
  ::freeifaddrs(list);
  EXPECT_GT(count, 0);
  // (Of addresses that are in documents only.)
  const Address foreign{0, 0, 0,    0,    0,   0, 0,   0,
                        0, 0, 0xff, 0xff, 203, 0, 113, 9};
  EXPECT_FALSE(host.Has(foreign));
}

TEST(Scoped, OnlyAddressesOfALink) {
  const Address link{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_NE(Scoped(link, 2), link);
  EXPECT_NE(Scoped(link, 2), Scoped(link, 3));
  EXPECT_EQ(Scoped(link, 2), Scoped(link, 2));
  const Address global{0x20, 1, 0x0d, 0xb8};
  EXPECT_EQ(Scoped(global, 2), global);
}

}  // namespace
}  // namespace rcsock::rendezvous
