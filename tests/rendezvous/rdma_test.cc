// Rendezvous over rdma_cm.  Needs a device: $RDMA_IP is its address (see
// tests/guest).

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

#include "lib/base/config.h"
#include "lib/rendezvous/address.h"
#include "lib/verbs/verbs.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

sockaddr_in DeviceAddress() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  const char* text = std::getenv("RDMA_IP");
  if (text != nullptr) ::inet_pton(AF_INET, text, &address.sin_addr);
  return address;
}

// A connection over the device's address, both ends in this process.
TcpPair MakeDevicePair() {
  sockaddr_in address = DeviceAddress();
  const int listener = Listen(&address);
  TcpPair pair;
  pair.connector = Connect(address);
  pair.acceptor = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  ::close(listener);
  return pair;
}

class RdmaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* device = std::getenv("RDMA_DEV");
    if (device == nullptr || *device == '\0') {
      GTEST_SKIP() << "no RDMA device: run it by tests/guest";
    }
    ::setenv("RCSOCK_LANES", "rdma", 1);
    ::unsetenv("RCSOCK_KEY_FILE");
    base::LoadConfig();
  }
};

void UseLane(TestSeeker* seeker) {
  EXPECT_EQ(seeker->lane->kind(), lane::Kind::kRdma);
  ExchangeNonces(seeker);
}

pid_t SpawnEnd(int fd, stream::Role role, Barrier* barrier) {
  return Spawn([=] {
    auto seeker = std::make_shared<TestSeeker>(fd, role);
    if (!seeker->Meet(GetConductor())) {
      ADD_FAILURE() << base::ReasonKey(seeker->failed);
      return;
    }
    UseLane(seeker.get());
    EXPECT_TRUE(barrier->Meet(static_cast<int>(role)));
  });
}

TEST_F(RdmaTest, TwoProcesses) {
  for (int round = 0; round < 3; ++round) {
    Barrier barrier;
    const TcpPair pair = MakeDevicePair();
    const pid_t a =
        SpawnEnd(pair.connector, stream::Role::kConnector, &barrier);
    const pid_t b = SpawnEnd(pair.acceptor, stream::Role::kAcceptor, &barrier);
    ExpectSuccess(a);
    ExpectSuccess(b);
    char byte;
    EXPECT_EQ(::recv(pair.connector, &byte, 1, MSG_DONTWAIT), -1);
    EXPECT_EQ(::recv(pair.acceptor, &byte, 1, MSG_DONTWAIT), -1);
    ::close(pair.connector);
    ::close(pair.acceptor);
  }
}

TEST_F(RdmaTest, OneProcessWithItself) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    for (int i = 0; i < 5; ++i) {
      const TcpPair pair = MakeDevicePair();
      auto c = ConnectorSeeker(pair.connector);
      auto s = AcceptorSeeker(pair.acceptor);
      s->Start(conductor);
      c->Start(conductor);
      ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
      ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
      EXPECT_EQ(c->epoch, s->epoch);
      EXPECT_EQ(c->mine, s->peers);
      EXPECT_EQ(s->mine, c->peers);
      EXPECT_FALSE(c->authenticated);
      EXPECT_FALSE(s->authenticated);
      SendAll(c->lane.get(), "there", 5);
      EXPECT_EQ(ReceiveAll(s->lane.get(), 5), "there");
      SendAll(s->lane.get(), "back", 4);
      EXPECT_EQ(ReceiveAll(c->lane.get(), 4), "back");
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
    }
  }));
}

}  // namespace
}  // namespace rcsock::rendezvous
