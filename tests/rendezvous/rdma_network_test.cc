// What happens to the network and its devices.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/lane/rdma/rdma_lane.h"
#include "tests/rendezvous/rdma_util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

// `guestctl` does things to the guest that a test must not do to a host.
bool Guest(const char* command) {
  return std::system((std::string("guestctl ") + command).c_str()) == 0;
}

TEST_F(RdmaTest, BlackHole) {
  if (!InGuest()) GTEST_SKIP() << "not in a guest";
  if (!OnIwarp()) GTEST_SKIP() << "rxe's own host is beyond any filter";
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair();
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    Drain(conductor);
    ASSERT_TRUE(Guest("cut rdma"));
    auto c = ConnectorSeeker(pair.connector);
    const auto start = Clock::now();
    c->Start(conductor);
    // Nothing else waits for it.
    while (c->answers() == 0 && Clock::now() - start < milliseconds(10'000)) {
      const auto before = Clock::now();
      Drain(conductor);
      EXPECT_LT(Clock::now() - before, milliseconds(300));
      ::usleep(10'000);
    }
    EXPECT_EQ(c->failed, Reason::kRdmaTimeout) << base::ReasonKey(c->failed);
    EXPECT_LT(Clock::now() - start, milliseconds(4000));
    s->Wait();
    EXPECT_TRUE(Guest("mend"));
    // Once a pause is over.
    const auto mended = Clock::now();
    bool met = false;
    while (!met && Clock::now() - mended < milliseconds(20'000)) {
      s->Start(conductor);
      met = c->Seek(conductor);
    }
    EXPECT_TRUE(met) << base::ReasonKey(c->failed);
    EXPECT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
  }));
}

// An end of a connection to a host of which nothing is heard by RDMA.
class SilentSeeker : public TestSeeker {
 public:
  explicit SilentSeeker(int fd) : TestSeeker(fd, stream::Role::kConnector) {}
  bool Names(sockaddr_storage* local, sockaddr_storage* peer) override {
    if (!TestSeeker::Names(local, peer)) return false;
    ::inet_pton(AF_INET, "10.77.0.99",
                &reinterpret_cast<sockaddr_in*>(peer)->sin_addr);
    return true;
  }
};

// Those that stood in line for it do not each take their turn in vain, and
// others' turns come.
TEST_F(RdmaTest, HostThatDoesNotAnswer) {
  if (!InGuest()) GTEST_SKIP() << "not in a guest";
  ExpectSuccess(Spawn([] {
    ASSERT_EQ(std::system("ip neigh replace 10.77.0.99 lladdr "
                          "02:00:0a:4d:00:99 dev $RDMA_NETDEV"),
              0);
    Conductor* conductor = GetConductor();
    // One service, so that what is learnt of one is known of the others.
    sockaddr_in address = DeviceAddress();
    const int listener = Listen(&address, true);
    std::vector<std::shared_ptr<SilentSeeker>> silent;
    for (int i = 0; i < 48; ++i) {
      silent.push_back(std::make_shared<SilentSeeker>(Connect(address)));
      ::close(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    }
    const auto start = Clock::now();
    for (auto& one : silent) one->Start(conductor);
    Drain(conductor);
    const TcpPair pair = MakeDevicePair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    EXPECT_TRUE(c->Seek(conductor)) << base::ReasonKey(c->failed);
    EXPECT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
    // A handshake in vain takes three seconds, and there are 16 at a time.
    EXPECT_LT(Clock::now() - start, milliseconds(6000));
    for (auto& one : silent) {
      EXPECT_FALSE(one->Wait());
      EXPECT_EQ(one->failed, Reason::kRdmaTimeout)
          << base::ReasonKey(one->failed);
    }
    EXPECT_LT(Clock::now() - start, milliseconds(6000));
    // From now on one finds out for all.
    const auto again = Clock::now();
    for (auto& one : silent) one->Start(conductor);
    for (auto& one : silent) EXPECT_FALSE(one->Wait());
    EXPECT_LT(Clock::now() - again, milliseconds(2900));
  }));
}

// A filter that lets the probe through, and then swallows what the kernel sends
// inside rdma_connect.
TEST_F(RdmaTest, ConnectThatBlocks) {
  if (!InGuest()) GTEST_SKIP() << "not in a guest";
  if (!OnIwarp()) GTEST_SKIP() << "rxe's rdma_connect does not block";
  ExpectSuccess(Spawn([] {
    const int before = Resources("cm_id");
    Conductor* conductor = GetConductor();
    ASSERT_TRUE(Guest("cut rdma-connect"));
    std::vector<TcpPair> pairs;
    std::vector<std::shared_ptr<TestSeeker>> cs;
    std::vector<std::shared_ptr<TestSeeker>> ss;
    // More than may block at a time.
    for (int i = 0; i < 6; ++i) {
      pairs.push_back(MakeDevicePair());
      cs.push_back(ConnectorSeeker(pairs[i].connector));
      ss.push_back(AcceptorSeeker(pairs[i].acceptor));
      ss[i]->Start(conductor);
      cs[i]->Start(conductor);
    }
    const auto blocked = [] {
      return std::system("test $(ss -Htn state syn-sent | wc -l) -ge 4") == 0;
    };
    const auto limit = Clock::now() + milliseconds(30'000);
    while (!blocked() && Clock::now() < limit) ::usleep(10'000);
    ASSERT_TRUE(blocked());

    // Other streams' lanes go on meanwhile, and a fork.
    ::setenv("RCSOCK_LANES", "shm", 1);
    base::LoadConfig();
    const TcpPair local = MakeDevicePair();
    auto shm_c = ConnectorSeeker(local.connector);
    auto shm_s = AcceptorSeeker(local.acceptor);
    shm_s->Start(conductor);
    shm_c->Start(conductor);
    EXPECT_TRUE(shm_c->Wait()) << base::ReasonKey(shm_c->failed);
    EXPECT_TRUE(shm_s->Wait()) << base::ReasonKey(shm_s->failed);
    Conductor::ForkPrepare();
    const pid_t child = ::fork();
    if (child == 0) {
      Conductor::ForkChild();
      ::_exit(0);
    }
    Conductor::ForkParent();
    ExpectSuccess(child);
    ::setenv("RCSOCK_LANES", "rdma", 1);
    base::LoadConfig();
    for (auto& c : cs) {
      EXPECT_FALSE(c->Wait());
      EXPECT_EQ(c->failed, Reason::kRdmaTimeout) << base::ReasonKey(c->failed);
    }
    EXPECT_TRUE(blocked());  // nobody has waited for it
    // As many as there may be hang: the next is not even tried.
    EXPECT_FALSE(cs[0]->Seek(conductor));
    EXPECT_EQ(cs[0]->failed, Reason::kRdmaTimeout);
    ASSERT_TRUE(Guest("mend"));
    for (auto& s : ss) s->Wait();
    // Once the kernel has tried again.
    const auto mended = Clock::now() + milliseconds(100'000);
    bool met = false;
    while (!met && Clock::now() < mended) {
      ss[1]->Start(conductor);
      met = cs[1]->Seek(conductor);
    }
    EXPECT_TRUE(met) << base::ReasonKey(cs[1]->failed);
    EXPECT_TRUE(ss[1]->Wait()) << base::ReasonKey(ss[1]->failed);
    // Nothing is left of those that nobody wanted any more: two listeners, the
    // device's own, and both ends of one lane.
    while (Resources("cm_id") - before > 5 && Clock::now() < mended) {
      ::usleep(10'000);
    }
    EXPECT_LE(Resources("cm_id") - before, 5);
    // To end while one hangs takes no time.
    ASSERT_TRUE(Guest("cut rdma-connect"));
    ss[2]->Start(conductor);
    cs[2]->Start(conductor);
    const auto again = Clock::now() + milliseconds(30'000);
    const char* one = "test $(ss -Htn state syn-sent | wc -l) -ge 1";
    while (std::system(one) != 0 && Clock::now() < again) ::usleep(10'000);
    Conductor::Stop();
    EXPECT_EQ(std::system(one), 0);
    EXPECT_TRUE(Guest("mend"));
  }));
}

TEST_F(RdmaTest, DeviceGoesAndComesBack) {
  if (!InGuest()) GTEST_SKIP() << "not in a guest";
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    for (int round = 0; round < 2; ++round) {
      const TcpPair pair = MakeDevicePair();
      auto c = ConnectorSeeker(pair.connector);
      auto s = AcceptorSeeker(pair.acceptor);
      ASSERT_TRUE(Met(conductor, s, c));
      // rxe's cannot go while its context is open: whoever has the lanes gives
      // them back, and the context is closed with the last one.
      const pid_t remover = ::fork();
      if (remover == 0) {
        ::execlp("guestctl", "guestctl", "device", "del", nullptr);
        ::_exit(1);
      }
      ASSERT_TRUE(c->WaitLost());
      ASSERT_TRUE(s->WaitLost());
      // siw ends its connections first.
      EXPECT_TRUE(c->lost == Reason::kDeviceLost ||
                  (OnIwarp() && c->lost == Reason::kPeerGone))
          << base::ReasonKey(c->lost);
      c->lost = s->lost = Reason::kNone;
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
      ExpectSuccess(remover);
      auto none = ConnectorSeeker(pair.connector);
      EXPECT_FALSE(none->Seek(conductor));
      EXPECT_TRUE(none->failed == Reason::kNoRoute ||
                  none->failed == Reason::kNoDevice)
          << base::ReasonKey(none->failed);
      ASSERT_TRUE(Guest("device add"));
    }
  }));
}

// Each connection has a lane on the device that it runs over; one device goes
// amid a transfer, and the other's lane does not notice.
TEST_F(RdmaTest, TwoDevices) {
  if (!InGuest()) GTEST_SKIP() << "not in a guest";
  ExpectSuccess(Spawn([] {
    const std::string driver = OnIwarp() ? "siw" : "rxe";
    ASSERT_EQ(
        std::system(("ip link add link0 type dummy && "
                     "ip addr add 10.78.0.1/24 dev link0 && "
                     "ip link set link0 up && rdma link add second7 type " +
                     driver + " netdev link0")
                        .c_str()),
        0);
    Conductor* conductor = GetConductor();
    const char* const addresses[] = {std::getenv("RDMA_IP"), "10.78.0.1"};
    const char* const devices[] = {std::getenv("RDMA_DEV"), "second7"};
    std::shared_ptr<TestSeeker> c[2];
    std::shared_ptr<TestSeeker> s[2];
    for (int i = 0; i < 2; ++i) {
      SCOPED_TRACE(devices[i]);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      ASSERT_EQ(::inet_pton(AF_INET, addresses[i], &address.sin_addr), 1);
      const int listener = Listen(&address);
      c[i] = ConnectorSeeker(Connect(address));
      s[i] =
          AcceptorSeeker(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
      ::close(listener);
      s[i]->Start(conductor);
      ASSERT_TRUE(c[i]->Meet(conductor)) << base::ReasonKey(c[i]->failed);
      ASSERT_TRUE(s[i]->Wait()) << base::ReasonKey(s[i]->failed);
      for (const auto& end : {c[i], s[i]}) {
        EXPECT_STREQ(
            static_cast<lane::rdma::RdmaLane*>(end->lane.get())->device(),
            devices[i]);
      }
    }
    // Half of a message of each is under way.
    const std::string bytes(200'000, 'x');
    for (const auto& end : c) {
      iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
      ASSERT_GT(end->lane->Post(&iov, 1, 0, bytes.size() / 2), 0u);
    }
    const pid_t remover = ::fork();
    if (remover == 0) {
      ::execlp("rdma", "rdma", "link", "del", "second7", nullptr);
      ::_exit(1);
    }
    ASSERT_TRUE(c[1]->WaitLost());
    ASSERT_TRUE(s[1]->WaitLost());
    for (const auto& end : {c[1], s[1]}) {
      EXPECT_TRUE(end->lost == Reason::kDeviceLost ||
                  (OnIwarp() && end->lost == Reason::kPeerGone))
          << base::ReasonKey(end->lost);
      end->lost = Reason::kNone;
      conductor->ReturnLane(end, std::move(end->lane));
    }
    ExpectSuccess(remover);
    // The other's bytes all come, and more of them.
    EXPECT_EQ(c[0]->lost, Reason::kNone);
    EXPECT_EQ(s[0]->lost, Reason::kNone);
    std::size_t sent = 0;
    std::size_t got = 0;
    std::string into(bytes.size(), 0);
    const auto end = Clock::now() + milliseconds(20'000);
    iovec from{const_cast<char*>(bytes.data()), bytes.size()};
    iovec to{into.data(), into.size()};
    while (got < 10 * bytes.size() && Clock::now() < end) {
      c[0]->lane->source()->Drain();
      sent += c[0]->lane->Post(&from, 1, 0, bytes.size());
      if (s[0]->lane->Peek() == lane::Head::kData) {
        got += s[0]->lane->Read(&to, 1, 0, into.size(), false);
      }
    }
    EXPECT_GE(got, 10 * bytes.size()) << "of " << sent;
    conductor->ReturnLane(c[0], std::move(c[0]->lane));
    conductor->ReturnLane(s[0], std::move(s[0]->lane));
    EXPECT_EQ(std::system("ip link del link0"), 0);
  }));
}

// A lane that is idle hears of it by GID_CHANGE alone.  (iWARP has no GIDs of
// addresses: there the kernel's or the card's TCP goes on.)
TEST_F(RdmaTest, AddressThatGoesEndsItsLanes) {
  if (std::getenv("IN_GUEST") == nullptr) GTEST_SKIP() << "not in a guest";
  if (OnIwarp()) GTEST_SKIP() << "iWARP";
  ExpectSuccess(Spawn([] {
    const std::string netdev = std::getenv("RDMA_NETDEV");
    const auto address = [&netdev](const char* what) {
      ASSERT_EQ(std::system(("ip addr " + std::string(what) +
                             " 10.79.0.1/24 dev " + netdev)
                                .c_str()),
                0);
      // The table of GIDs follows.
      ::usleep(500'000);
    };
    address("add");
    Conductor* conductor = GetConductor();
    sockaddr_in at{};
    at.sin_family = AF_INET;
    ASSERT_EQ(::inet_pton(AF_INET, "10.79.0.1", &at.sin_addr), 1);
    const int listener = Listen(&at);
    const auto accept = [listener] {
      return AcceptorSeeker(
          ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    };
    // One over the device's other address notices nothing.
    const TcpPair other = MakeDevicePair();
    auto other_c = ConnectorSeeker(other.connector);
    auto other_s = AcceptorSeeker(other.acceptor);
    ASSERT_TRUE(Met(conductor, other_s, other_c));
    for (int round = 0; round < 2; ++round) {
      auto c = ConnectorSeeker(Connect(at));
      auto s = accept();
      ASSERT_TRUE(Met(conductor, s, c));
      address("del");
      ASSERT_TRUE(c->WaitLost());
      ASSERT_TRUE(s->WaitLost());
      EXPECT_EQ(c->lost, Reason::kDeviceLost);
      EXPECT_EQ(s->lost, Reason::kDeviceLost);
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
      // Its listeners hear again when it is back.
      address("add");
    }
    EXPECT_EQ(other_c->lost, Reason::kNone);
    EXPECT_EQ(other_s->lost, Reason::kNone);
    SayThereAndBack(other_c.get(), other_s.get());
    conductor->ReturnLane(other_c, std::move(other_c->lane));
    conductor->ReturnLane(other_s, std::move(other_s->lane));
    address("del");
    ::close(listener);
  }));
}

// librdmacm itself does not look, where there is none left, which have gone.
TEST_F(RdmaTest, LastDeviceLeavesNothing) {
  if (!InGuest()) GTEST_SKIP() << "not in a guest";
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const auto of_devices = [] {
      int count = 0;
      for (const auto& [fd, what] : OpenFds()) {
        count += what.find("infiniband/uverbs") != std::string::npos ||
                 what.find("[infiniband") != std::string::npos;
      }
      return count;
    };
    const auto all = [] {
      std::map<std::string, int> counts;
      for (const char* kind : {"cm_id", "qp", "cq", "pd", "mr", "ctx", "srq"}) {
        counts[kind] = Resources(kind);
      }
      // (A probe of siw's port is kept for two seconds.)
      for (const auto& [fd, what] : OpenFds()) {
        if (what.rfind("socket:", 0) != 0) ++counts["fd"];
      }
      return counts;
    };
    std::map<std::string, int> before;
    std::map<std::string, int> now;
    const auto none_more = [&] {
      now = all();
      for (const auto& [kind, count] : now) {
        if (count > before[kind]) return false;
      }
      return true;
    };
    const TcpPair pair = MakeDevicePair();
    for (int round = 0; round < 3; ++round) {
      {
        auto c = ConnectorSeeker(pair.connector);
        auto s = AcceptorSeeker(pair.acceptor);
        ASSERT_TRUE(Met(conductor, s, c));
        EXPECT_GT(of_devices(), 0);
        // (The first round finds what every process makes but once.)
        if (round == 1) {
          before = all();
        } else if (round == 2) {
          // (The conductor's thread may have a file open at this moment.)
          EXPECT_TRUE(Eventually(none_more))
              << testing::PrintToString(now) << " for "
              << testing::PrintToString(before);
        }
        ASSERT_TRUE(Guest("device del"));
        ASSERT_TRUE(c->WaitLost());
        ASSERT_TRUE(s->WaitLost());
        conductor->ReturnLane(c, std::move(c->lane));
        conductor->ReturnLane(s, std::move(s->lane));
      }
      EXPECT_TRUE(Eventually([&] { return of_devices() == 0; }))
          << of_devices();
      ASSERT_TRUE(Guest("device add"));
    }
  }));
}

// The device goes while this process only listens.
TEST_F(RdmaTest, DeviceOfAListenerGoesAndComesBack) {
  if (!InGuest()) GTEST_SKIP() << "not in a guest";
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair();
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    Drain(conductor);
    ASSERT_TRUE(Guest("device del"));
    ASSERT_TRUE(Guest("device add"));
    EXPECT_FALSE(s->Wait());
    auto c = ConnectorSeeker(pair.connector);
    s->Start(conductor);
    c->Start(conductor);
    EXPECT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
    EXPECT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
  }));
}

// A device has the name that an administrator gives it, and may get it while it
// is in use: what is loaded for it by its name is then loaded otherwise, and
// nothing is found by a name that was seen before.
class Renamed : public RdmaTest {
 protected:
  void TearDown() override {
    if (renamed_) {
      EXPECT_TRUE(Rename(kOther, device_));
    }
  }
  bool Rename(const std::string& from, const std::string& to) {
    renamed_ = to == kOther;
    return std::system(("rdma dev set " + from + " name " + to).c_str()) == 0;
  }
  void Meet(Conductor* conductor) {
    const TcpPair pair = MakeDevicePair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    ASSERT_TRUE(Met(conductor, s, c));
    EXPECT_EQ(c->lane->kind(), lane::Kind::kRdma);
    SayThereAndBack(c.get(), s.get());
    conductor->ReturnLane(c, std::move(c->lane));
    conductor->ReturnLane(s, std::move(s->lane));
  }

  static constexpr const char* kOther = "storage_net7";
  const std::string device_ = std::getenv("RDMA_DEV") ?: "";
  bool renamed_ = false;
};

TEST_F(Renamed, BeforeItIsUsed) {
  if (!InGuest()) GTEST_SKIP() << "not in a guest";
  ASSERT_TRUE(Rename(device_, kOther));
  ExpectSuccess(Spawn([this] { Meet(GetConductor()); }));
}

TEST_F(Renamed, WhileItIsInUse) {
  if (!InGuest()) GTEST_SKIP() << "not in a guest";
  Barrier barrier;
  const pid_t other = Spawn([&] {
    EXPECT_TRUE(barrier.Meet(1));
    Meet(GetConductor());
  });
  const pid_t user = Spawn([&] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    ASSERT_TRUE(Met(conductor, s, c));
    ASSERT_TRUE(Rename(device_, kOther));
    // The lane that there is, and one more.
    SendAll(c->lane.get(), "still", 5);
    EXPECT_EQ(ReceiveAll(s->lane.get(), 5), "still");
    Meet(conductor);
    EXPECT_TRUE(barrier.Meet(0));
    conductor->ReturnLane(c, std::move(c->lane));
    conductor->ReturnLane(s, std::move(s->lane));
  });
  renamed_ = true;
  ExpectSuccess(user);
  ExpectSuccess(other);
}

}  // namespace
}  // namespace rcsock::rendezvous
