#include "lib/rendezvous/address.h"

#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/rendezvous/refuse_netlink.h"

namespace rcsock::rendezvous {
namespace {

// Those of this host, as libc says.
std::vector<Address> FromLibc() {
  std::vector<Address> found;
  ifaddrs* list = nullptr;
  EXPECT_EQ(::getifaddrs(&list), 0);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    sockaddr_storage storage{};
    std::memcpy(&storage, one->ifa_addr,
                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    std::uint16_t port;
    EXPECT_TRUE(Normalise(storage, &found.emplace_back(), &port));
  }
  ::freeifaddrs(list);
  EXPECT_FALSE(found.empty());
  return found;
}

// (Of addresses that are in documents only.)
constexpr Address kForeign{0, 0, 0,    0,    0,   0, 0,   0,
                           0, 0, 0xff, 0xff, 203, 0, 113, 9};

// It asks the kernel itself: what libc says is what it must know.
TEST(HostAddresses, AreThoseThatLibcKnows) {
  static constinit HostAddresses host;
  for (const Address& address : FromLibc()) EXPECT_TRUE(host.Has(address));
  EXPECT_FALSE(host.Has(kForeign));
}

// (A host with nothing but a loopback shows little here.)
TEST(HostAddresses, AreKnownWhereNetlinkIsRefused) {
  const std::vector<Address> all = FromLibc();
  std::thread([&all] {
    ASSERT_TRUE(RefuseNetlink());
    static constinit HostAddresses host;
    for (const Address& address : all) {
      const bool scoped = address[0] == 0xfe && (address[1] & 0xc0) == 0x80;
      EXPECT_TRUE(scoped || host.Has(address));
    }
    EXPECT_FALSE(host.Has(kForeign));
    errno = 7;
    EXPECT_FALSE(host.Has(kForeign));
    EXPECT_EQ(errno, 7);
  }).join();
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
