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

}  // namespace
}  // namespace rcsock::rendezvous
