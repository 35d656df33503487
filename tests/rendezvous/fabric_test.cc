// What the configuration says of RDMA lanes, and addresses that move under
// them: on a device and an rdma_cm in memory.

#include <set>

#include "lib/base/config.h"
#include "tests/lane/fake_verbs.h"
#include "tests/rendezvous/fake_cm.h"
#include "tests/rendezvous/pretend_device.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;
using lane::test::FakeVerbs;

class Fabric : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "not root";
    verbs::Error error;
    if (!verbs::Load(&error)) GTEST_SKIP() << error.call;
  }
  // `body` in a process of its own, with a device.
  static void Run(const std::function<void()>& body) {
    ExpectSuccess(Spawn([&] {
      if (!PretendThatThereIsADevice()) {
        std::fprintf(stderr, "skipped: no mount namespace can be had\n");
        return;
      }
      ::setenv("RCSOCK_LANES", "rdma", 1);
      base::LoadConfig();
      body();
    }));
  }
  static void Configure(const char* name, const char* value) {
    ::setenv(name, value, 1);
    base::LoadConfig();
  }
};

// The conductor, which ends before what it uses does.
struct Running {
  Conductor* const conductor = GetConductor();
  Running() = default;
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { Conductor::Stop(); }
};

std::set<int> Different(const std::vector<int>& all) {
  return {all.begin(), all.end()};
}

// Both ends of a connection over a lane, and what gives it back.
struct MetPair {
  TcpPair pair = MakeTcpPair();
  std::shared_ptr<TestSeeker> c = ConnectorSeeker(pair.connector);
  std::shared_ptr<TestSeeker> s = AcceptorSeeker(pair.acceptor);
  explicit MetPair(Conductor* conductor) {
    s->Start(conductor);
    c->Start(conductor);
  }
  bool Wait() const { return c->Wait() && s->Wait(); }
  void Return(Conductor* conductor) const {
    for (const auto& end : {c, s}) {
      if (end->lane != nullptr)
        conductor->ReturnLane(end, std::move(end->lane));
    }
  }
};

TEST_F(Fabric, LanesHaveTheTimeOutsOfTheConfiguration) {
  Run([] {
    FakeVerbs device({});
    FakeCmPair cm(&device);
    const Running running;
    Conductor* const conductor = running.conductor;
    struct Case {
      const char* rules;
      int ack;  // 4.096 us * 2^ack
      int retries;
      std::set<int> traffic_classes;
    };
    for (const auto& [rules, ack, retries, traffic_classes] : {
             Case{"", 15, 6, {}},
             Case{"ack=1000,retries=7,tclass=104", 18, 7, {104}},
             Case{"ack=1", 8, 6, {}},
             Case{"ack=33", 13, 6, {}},
             Case{"ack=34", 14, 6, {}},
             Case{"ack=8000,retries=1", 21, 1, {}},
             Case{"tclass=0", 15, 6, {0}},
             Case{"addr=00000000000000000000ffff7f000000/104,ack=2", 9, 6, {}},
             Case{"addr=00000000000000000000ffff0a000000/104,ack=2", 15, 6, {}},
         }) {
      SCOPED_TRACE(rules);
      Configure("RCSOCK_RULES", rules);
      cm.ForgetTold();
      const MetPair met(conductor);
      ASSERT_TRUE(met.Wait()) << base::ReasonKey(met.c->failed) << " "
                              << base::ReasonKey(met.s->failed);
      const FakeCmPair::Told told = cm.told();
      // Of both ends' queue pairs.
      EXPECT_GE(told.ack_timeouts.size(), 2u);
      EXPECT_EQ(Different(told.ack_timeouts), std::set{ack});
      EXPECT_EQ(Different(told.retries), std::set{retries});
      EXPECT_EQ(Different(told.traffic_classes), traffic_classes);
      SayThereAndBack(met.c.get(), met.s.get());
      met.Return(conductor);
      Drain(conductor);
    }
  });
}

// Soft-RoCE would go on for ever.
TEST_F(Fabric, SevenRetriesAreSixOnSoftRoce) {
  Run([] {
    FakeVerbs::Options options;
    options.software = true;
    FakeVerbs device(options);
    FakeCmPair cm(&device);
    const Running running;
    Conductor* const conductor = running.conductor;
    Configure("RCSOCK_ACK_RETRIES", "7");
    const MetPair met(conductor);
    ASSERT_TRUE(met.Wait());
    EXPECT_EQ(Different(cm.told().retries), std::set{6});
    met.Return(conductor);
  });
}

class UrgentSeeker : public TestSeeker {
 public:
  using TestSeeker::TestSeeker;
  std::uint8_t TrafficClass(bool) override { return 0x28; }
};

TEST_F(Fabric, ConfiguredTrafficClassIsStrongerThanTheSockets) {
  Run([] {
    FakeVerbs device({});
    FakeCmPair cm(&device);
    const Running running;
    Conductor* const conductor = running.conductor;
    for (const char* configured : {"", "104"}) {
      Configure("RCSOCK_TRAFFIC_CLASS", configured);
      cm.ForgetTold();
      const TcpPair pair = MakeTcpPair();
      auto s = AcceptorSeeker(pair.acceptor);
      auto c = std::make_shared<UrgentSeeker>(pair.connector,
                                              stream::Role::kConnector);
      s->Start(conductor);
      c->Start(conductor);
      ASSERT_TRUE(c->Wait() && s->Wait());
      EXPECT_EQ(Different(cm.told().traffic_classes),
                std::set{*configured == '\0' ? 0x28 : 104});
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
    }
  });
}

TEST_F(Fabric, DeviceThatIsLeftAlone) {
  Run([] {
    FakeVerbs device({});
    FakeCmPair cm(&device);
    const Running running;
    Conductor* const conductor = running.conductor;
    for (const char* devices : {"-fake*", "mlx5_0", "fake0:2", "-fake0:1"}) {
      SCOPED_TRACE(devices);
      Configure("RCSOCK_DEVICES", devices);
      const TcpPair pair = MakeTcpPair();
      for (const auto& end :
           {AcceptorSeeker(pair.acceptor), ConnectorSeeker(pair.connector)}) {
        EXPECT_FALSE(end->Seek(conductor));
        EXPECT_EQ(end->failed, Reason::kDeviceLeftAlone);
        EXPECT_TRUE(end->final);
      }
      // Nothing of the device is used.
      EXPECT_EQ(device.counts().objects, 0);
      EXPECT_TRUE(cm.listening().empty());
    }
    for (const char* devices : {"fake0", "-mlx5_0", "fake0:1,-fake0:2", ""}) {
      SCOPED_TRACE(devices);
      Configure("RCSOCK_DEVICES", devices);
      const MetPair met(conductor);
      ASSERT_TRUE(met.Wait());
      met.Return(conductor);
    }
  });
}

// An end whose peer is on another host: shared memory is allowed, and no way.
// The session asks first whether shared memory is a way.
class FarSeeker : public TestSeeker {
 public:
  using TestSeeker::TestSeeker;
  bool MayShm() const override { return std::exchange(asked_, true); }

 private:
  mutable bool asked_ = false;
};

// TCP is faster than a device without hardware: somebody must ask for it.
TEST_F(Fabric, DeviceWithoutHardware) {
  Run([] {
    FakeVerbs device({.software = true});
    FakeCmPair cm(&device);
    const Running running;
    Conductor* const conductor = running.conductor;
    const auto far = [](int fd, stream::Role role) {
      return std::make_shared<FarSeeker>(fd, role);
    };
    for (const char* devices : {"", "-mlx5_0", "-fake0:2"}) {
      SCOPED_TRACE(devices);
      Configure("RCSOCK_DEVICES", devices);
      const TcpPair pair = MakeTcpPair();
      for (const auto& end : {far(pair.acceptor, stream::Role::kAcceptor),
                              far(pair.connector, stream::Role::kConnector)}) {
        EXPECT_FALSE(end->Seek(conductor));
        EXPECT_EQ(end->failed, Reason::kDeviceLeftAlone);
        EXPECT_TRUE(end->final);
      }
      EXPECT_EQ(device.counts().objects, 0);
      EXPECT_TRUE(cm.listening().empty());
    }
    for (const char* devices : {"*", "fake0", "mlx5_0,fake0:1"}) {
      SCOPED_TRACE(devices);
      Configure("RCSOCK_DEVICES", devices);
      const TcpPair pair = MakeTcpPair();
      const auto s = far(pair.acceptor, stream::Role::kAcceptor);
      const auto c = far(pair.connector, stream::Role::kConnector);
      s->Start(conductor);
      c->Start(conductor);
      ASSERT_TRUE(c->Wait() && s->Wait());
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
    }
    // RDMA is all that these streams may have.
    Configure("RCSOCK_DEVICES", "");
    const MetPair met(conductor);
    ASSERT_TRUE(met.Wait());
    met.Return(conductor);
  });
}

// One rule for one peer's port; all other streams use the device.
TEST_F(Fabric, DeviceThatARuleLeavesAlone) {
  Run([] {
    FakeVerbs device({});
    FakeCmPair cm(&device);
    const Running running;
    Conductor* const conductor = running.conductor;
    sockaddr_in address{};
    const int listener = Listen(&address);
    const std::string port = std::to_string(ntohs(address.sin_port));
    Configure("RCSOCK_RULES",
              ("dir=out,port=" + port + "-" + port + ",devices=-*").c_str());
    auto c = ConnectorSeeker(Connect(address));
    EXPECT_FALSE(c->Seek(conductor));
    EXPECT_EQ(c->failed, Reason::kDeviceLeftAlone);
    const MetPair met(conductor);
    ASSERT_TRUE(met.Wait());
    met.Return(conductor);
    ::close(listener);
  });
}

// --- Addresses and ports

// The peer's hardware address has moved: nothing of this end's device changes,
// and the lane ends before its retries do.
TEST_F(Fabric, UnreachablePeerEndsALaneAtOnce) {
  Run([] {
    FakeVerbs device({});
    FakeCmPair cm(&device);
    const Running running;
    Conductor* const conductor = running.conductor;
    const MetPair met(conductor);
    ASSERT_TRUE(met.Wait());
    cm.Say(cm.connector(), RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
    ASSERT_TRUE(met.c->WaitLost());
    EXPECT_EQ(met.c->lost, Reason::kLaneError);
    EXPECT_EQ(met.s->lost, Reason::kNone);
    cm.Say(cm.acceptor(), RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
    ASSERT_TRUE(met.s->WaitLost());
    EXPECT_EQ(met.s->lost, Reason::kLaneError);
    met.Return(conductor);
  });
}

TEST_F(Fabric, OwnHardwareAddressEndsALaneAtOnce) {
  Run([] {
    FakeVerbs device({});
    FakeCmPair cm(&device);
    const Running running;
    Conductor* const conductor = running.conductor;
    const MetPair met(conductor);
    ASSERT_TRUE(met.Wait());
    cm.Say(cm.connector(), RDMA_CM_EVENT_ADDR_CHANGE);
    ASSERT_TRUE(met.c->WaitLost());
    EXPECT_EQ(met.c->lost, Reason::kDeviceLost);
    met.Return(conductor);
  });
}

std::set<std::uint16_t> PortsOn(FakeCmPair* cm, const std::string& name) {
  std::set<std::uint16_t> ports;
  for (const auto& one : cm->listening()) {
    if (one.device == name) ports.insert(one.port);
  }
  return ports;
}

// fail_over_mac: the device stays, its address is another.
TEST_F(Fabric, ListenersFollowTheirHardwareAddress) {
  Run([] {
    FakeVerbs device({});
    FakeCmPair cm(&device);
    const Running running;
    Conductor* const conductor = running.conductor;
    const TcpPair pair = MakeTcpPair();
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    // The process's own port, and the service's.
    ASSERT_TRUE(Eventually([&] { return cm.listening().size() == 2; }));
    const auto ports = PortsOn(&cm, "fake0");
    EXPECT_EQ(cm.listens(), 2);
    for (const auto& one : cm.listening()) {
      cm.Say(one.id, RDMA_CM_EVENT_ADDR_CHANGE);
    }
    EXPECT_TRUE(Eventually([&] { return cm.listens() == 4; }));
    EXPECT_EQ(PortsOn(&cm, "fake0"), ports);
    // The stream that waits there is found.
    auto c = ConnectorSeeker(pair.connector);
    EXPECT_TRUE(c->Seek(conductor)) << base::ReasonKey(c->failed);
    ASSERT_TRUE(s->Wait());
    conductor->ReturnLane(c, std::move(c->lane));
    conductor->ReturnLane(s, std::move(s->lane));
  });
}

// A REQ that is held until its stream waits is the old listener's: its events
// would go there.
TEST_F(Fabric, HeldRequestGoesWithItsListener) {
  Run([] {
    FakeVerbs device({});
    FakeCmPair cm(&device);
    const Running running;
    Conductor* const conductor = running.conductor;
    // Both of one service.
    const std::vector<TcpPair> pairs = MakeTcpPairs(2);
    auto first = AcceptorSeeker(pairs[0].acceptor);
    first->Start(conductor);
    ASSERT_TRUE(Eventually([&] { return cm.listens() == 2; }));
    auto c = ConnectorSeeker(pairs[1].connector);
    c->Start(conductor);
    ASSERT_TRUE(Eventually([&] { return cm.request() != nullptr; }));
    rdma_cm_id* const held = cm.request();
    for (const auto& one : cm.listening()) {
      cm.Say(one.id, RDMA_CM_EVENT_ADDR_CHANGE);
    }
    ASSERT_TRUE(Eventually([&] { return cm.listens() == 4; }));
    EXPECT_FALSE(cm.Exists(held));
    // It is refused, and asked again.
    auto s = AcceptorSeeker(pairs[1].acceptor);
    EXPECT_TRUE(s->Seek(conductor)) << base::ReasonKey(s->failed);
    ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
    conductor->ReturnLane(c, std::move(c->lane));
    conductor->ReturnLane(s, std::move(s->lane));
    conductor->Cancel(first.get());
    Drain(conductor);
  });
}

// A bond without RoCE LAG: the address leads to the other port's device.
TEST_F(Fabric, AddressMovesToAnotherDevice) {
  Run([] {
    FakeVerbs device({});
    FakeCmPair cm(&device);
    ibv_context* const second = cm.Second();
    const Running running;
    Conductor* const conductor = running.conductor;
    const MetPair met(conductor);
    ASSERT_TRUE(met.Wait());
    const TcpPair pair = MakeTcpPair();
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    // The own port, and those of two services.
    ASSERT_TRUE(Eventually([&] { return cm.listening().size() == 3; }));
    const auto ports = PortsOn(&cm, "fake0");
    ASSERT_EQ(ports.size(), 3u);
    // Nothing has moved: nothing happens.
    cm.Async(device.context(), IBV_EVENT_GID_CHANGE);
    cm.Async(device.context(), IBV_EVENT_PORT_ACTIVE);
    cm.Async(device.context(), IBV_EVENT_CLIENT_REREGISTER);
    cm.Async(device.context(), IBV_EVENT_SM_CHANGE);
    ::usleep(200'000);
    EXPECT_EQ(met.c->lost, Reason::kNone);
    EXPECT_EQ(PortsOn(&cm, "fake0"), ports);
    // For a moment it leads nowhere: the lanes end, the ports stay.
    cm.Lead(nullptr);
    cm.Async(device.context(), IBV_EVENT_GID_CHANGE);
    ASSERT_TRUE(met.c->WaitLost());
    ASSERT_TRUE(met.s->WaitLost());
    EXPECT_EQ(met.c->lost, Reason::kDeviceLost);
    EXPECT_EQ(PortsOn(&cm, "fake0"), ports);
    met.Return(conductor);
    // Of the other device, which is not in use, no event comes.
    cm.Lead(second);
    EXPECT_TRUE(Eventually([&] { return PortsOn(&cm, "fake1") == ports; }));
    EXPECT_TRUE(PortsOn(&cm, "fake0").empty());
    auto c = ConnectorSeeker(pair.connector);
    EXPECT_TRUE(c->Seek(conductor)) << base::ReasonKey(c->failed);
    ASSERT_TRUE(s->Wait());
    SayThereAndBack(c.get(), s.get());
    // And back: that device is watched now.
    cm.Lead(device.context());
    cm.Async(second, IBV_EVENT_GID_CHANGE);
    ASSERT_TRUE(c->WaitLost());
    EXPECT_TRUE(Eventually([&] { return PortsOn(&cm, "fake0") == ports; }));
    conductor->ReturnLane(c, std::move(c->lane));
    conductor->ReturnLane(s, std::move(s->lane));
  });
}

// Where it leads nowhere for long, the next stream that waits looks once more.
TEST_F(Fabric, AddressComesBackLate) {
  Run([] {
    FakeVerbs device({});
    FakeCmPair cm(&device);
    ibv_context* const second = cm.Second();
    const Running running;
    Conductor* const conductor = running.conductor;
    const TcpPair pair = MakeTcpPair();
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    ASSERT_TRUE(Eventually([&] { return cm.listening().size() == 2; }));
    cm.Lead(nullptr);
    cm.Async(device.context(), IBV_EVENT_GID_CHANGE);
    ::usleep(3'500'000);
    EXPECT_EQ(PortsOn(&cm, "fake0").size(), 2u);
    cm.Lead(second);
    const MetPair met(conductor);
    ASSERT_TRUE(met.Wait()) << base::ReasonKey(met.c->failed) << " "
                            << base::ReasonKey(met.s->failed);
    EXPECT_EQ(PortsOn(&cm, "fake1").size(), 2u);
    met.Return(conductor);
    conductor->Cancel(s.get());
    Drain(conductor);
  });
}

TEST_F(Fabric, NewNameOfAPortEndsItsLanes) {
  Run([] {
    FakeVerbs device({});
    FakeCmPair cm(&device);
    const Running running;
    Conductor* const conductor = running.conductor;
    const MetPair met(conductor);
    ASSERT_TRUE(met.Wait());
    cm.Async(device.context(), IBV_EVENT_LID_CHANGE, 2);
    cm.Async(device.context(), IBV_EVENT_PKEY_CHANGE, 1);
    ::usleep(200'000);
    EXPECT_EQ(met.c->lost, Reason::kNone);
    cm.Async(device.context(), IBV_EVENT_LID_CHANGE, 1);
    ASSERT_TRUE(met.c->WaitLost());
    ASSERT_TRUE(met.s->WaitLost());
    EXPECT_EQ(met.c->lost, Reason::kDeviceLost);
    met.Return(conductor);
  });
}

}  // namespace
}  // namespace rcsock::rendezvous
