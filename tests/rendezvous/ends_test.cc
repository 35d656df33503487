// The end of a connection amid its handshake whose device has gone: on a device
// and an rdma_cm in memory, where to destroy an id takes as long as the test
// says.

#include <sys/eventfd.h>

#include <atomic>
#include <deque>
#include <set>
#include <thread>

#include "lib/base/config.h"
#include "tests/lane/fake_verbs.h"
#include "tests/rendezvous/pretend_device.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

using lane::test::FakeVerbs;

// As much of rdma_cm as a connecting end uses.
class FakeCm {
 public:
  explicit FakeCm(ibv_context* context) : context_(context) {
    g_fake = this;
    context->cmd_fd = ::eventfd(0, EFD_CLOEXEC);
    context->async_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    verbs::Calls& calls = verbs::calls;
    calls.ibv_get_async_event = [](ibv_context*, ibv_async_event*) {
      errno = EAGAIN;
      return -1;
    };
    calls.rdma_create_event_channel = [] {
      g_fake->channel_.fd =
          ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
      return &g_fake->channel_;
    };
    calls.rdma_destroy_event_channel = [](rdma_event_channel*) {};
    calls.rdma_create_id = [](rdma_event_channel* channel, rdma_cm_id** id,
                              void* user, rdma_port_space) {
      *id = new rdma_cm_id{};
      (*id)->channel = channel;
      (*id)->context = user;
      std::scoped_lock hold(g_fake->mutex_);
      g_fake->ids_.insert(*id);
      return 0;
    };
    calls.rdma_destroy_id = [](rdma_cm_id* id) { return g_fake->Destroy(id); };
    calls.rdma_bind_addr = [](rdma_cm_id* id, sockaddr* address) {
      std::memcpy(&id->route.addr.src_storage, address, sizeof(sockaddr_in));
      id->verbs = g_fake->context_;
      return 0;
    };
    calls.rdma_set_option = [](rdma_cm_id*, int, int option, void* value,
                               std::size_t length) {
      if (option == RDMA_OPTION_ID_TOS && length == 1) {
        g_fake->traffic_class_ = *static_cast<std::uint8_t*>(value);
      }
      return 0;
    };
    calls.rdma_resolve_addr = [](rdma_cm_id* id, sockaddr*, sockaddr*, int) {
      g_fake->Say(id, RDMA_CM_EVENT_ADDR_RESOLVED);
      return 0;
    };
    calls.rdma_resolve_route = [](rdma_cm_id* id, int) {
      g_fake->Say(id, RDMA_CM_EVENT_ROUTE_RESOLVED);
      return 0;
    };
    // The peer refuses so often, and then never answers.
    calls.rdma_connect = [](rdma_cm_id* id, rdma_conn_param*) {
      if (g_fake->connects_.fetch_add(1) < g_fake->refuses) {
        constexpr int kNoListener = 8;
        g_fake->Say(id, RDMA_CM_EVENT_REJECTED, kNoListener);
      } else {
        g_fake->connecting_.store(id);
      }
      return 0;
    };
    calls.rdma_get_cm_event = [](rdma_event_channel* channel,
                                 rdma_cm_event** event) {
      std::uint64_t one;
      if (::read(channel->fd, &one, sizeof one) != sizeof one) return -1;
      std::scoped_lock hold(g_fake->mutex_);
      *event = g_fake->events_.front();
      g_fake->events_.pop_front();
      return 0;
    };
    calls.rdma_ack_cm_event = [](rdma_cm_event* event) {
      delete event;
      return 0;
    };
    calls.rdma_event_str = [](rdma_cm_event_type) { return "fake"; };
    calls.rdma_get_devices = [](int*) -> ibv_context** { return nullptr; };
    calls.rdma_free_devices = [](ibv_context**) {};
  }

  int refuses = 0;
  int connects() const { return connects_.load(); }
  rdma_cm_id* connecting() const { return connecting_.load(); }
  int traffic_class() const { return traffic_class_.load(); }
  // Nobody waits where it is destroyed.
  void Forget() { connecting_.store(nullptr); }
  bool blocked() const { return blocked_.load(); }
  void Release() { released_.store(true); }
  // The kernel takes the device away.
  void Remove() {
    std::set<rdma_cm_id*> ids;
    {
      std::scoped_lock hold(mutex_);
      ids = ids_;
    }
    for (rdma_cm_id* id : ids) Say(id, RDMA_CM_EVENT_DEVICE_REMOVAL);
  }
  std::size_t ids() {
    std::scoped_lock hold(mutex_);
    return ids_.size();
  }

 private:
  void Say(rdma_cm_id* id, rdma_cm_event_type type, int status = 0) {
    auto* event = new rdma_cm_event{};
    event->status = status;
    event->id = id;
    event->event = type;
    {
      std::scoped_lock hold(mutex_);
      events_.push_back(event);
    }
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(channel_.fd, &one, sizeof one), 8);
  }
  int Destroy(rdma_cm_id* id) {
    if (id == connecting_.load()) {
      blocked_.store(true);
      while (!released_.load()) std::this_thread::yield();
    }
    {
      std::scoped_lock hold(mutex_);
      ids_.erase(id);
    }
    delete id;
    return 0;
  }

  static FakeCm* g_fake;
  ibv_context* const context_;
  rdma_event_channel channel_{};
  std::mutex mutex_;
  std::set<rdma_cm_id*> ids_;
  std::deque<rdma_cm_event*> events_;
  std::atomic<int> connects_{0};
  std::atomic<rdma_cm_id*> connecting_{nullptr};
  std::atomic<int> traffic_class_{-1};
  std::atomic<bool> blocked_{false};
  std::atomic<bool> released_{false};
};
FakeCm* FakeCm::g_fake = nullptr;

TEST(Ends, DeviceGoesAmidAHandshake) {
  if (::geteuid() != 0) GTEST_SKIP() << "not root";
  verbs::Error error;
  if (!verbs::Load(&error)) GTEST_SKIP() << error.call;
  ExpectSuccess(Spawn([] {
    if (!PretendThatThereIsADevice()) {
      std::fprintf(stderr, "skipped: no mount namespace can be had\n");
      return;
    }
    ::setenv("RCSOCK_LANES", "rdma", 1);
    base::LoadConfig();
    FakeVerbs::Options options;
    options.iwarp = true;
    FakeVerbs device(options);
    FakeCm cm(device.context());
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeTcpPair();
    auto c = ConnectorSeeker(pair.connector);
    c->Start(conductor);
    ASSERT_TRUE(Eventually([&] { return cm.connecting() != nullptr; }));
    // Nobody wants it any more, but its handshake is under way.
    conductor->Cancel(c.get());
    Drain(conductor);
    EXPECT_FALSE(cm.blocked());
    EXPECT_GT(device.counts().objects, 0);
    cm.Remove();
    EXPECT_TRUE(Eventually([&] { return cm.blocked(); }));
    // Nobody waits for it.
    Drain(conductor);
    cm.Release();
    EXPECT_TRUE(Eventually([&] { return cm.ids() == 0; })) << cm.ids();
    EXPECT_TRUE(Eventually([&] { return device.counts().objects == 0; }))
        << device.counts().objects;
    Conductor::Stop();
  }));
}

class UrgentSeeker : public TestSeeker {
 public:
  using TestSeeker::TestSeeker;
  std::uint8_t TrafficClass(bool v4) override { return v4 ? 0x28 : 0x30; }
};

TEST(Ends, LaneHasTheTrafficClassOfItsStream) {
  if (::geteuid() != 0) GTEST_SKIP() << "not root";
  verbs::Error error;
  if (!verbs::Load(&error)) GTEST_SKIP() << error.call;
  ExpectSuccess(Spawn([] {
    if (!PretendThatThereIsADevice()) {
      std::fprintf(stderr, "skipped: no mount namespace can be had\n");
      return;
    }
    ::setenv("RCSOCK_LANES", "rdma", 1);
    base::LoadConfig();
    FakeVerbs device({});
    FakeCm cm(device.context());
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeTcpPair();
    // One that has asked for nothing leaves it to the administrator.
    for (const bool urgent : {false, true}) {
      auto c = urgent ? std::make_shared<UrgentSeeker>(pair.connector,
                                                       stream::Role::kConnector)
                      : ConnectorSeeker(pair.connector);
      c->Start(conductor);
      ASSERT_TRUE(Eventually([&] { return cm.connecting() != nullptr; }));
      EXPECT_EQ(cm.traffic_class(), urgent ? 0x28 : -1);
      cm.Forget();
      conductor->Cancel(c.get());
      Drain(conductor);
    }
    Conductor::Stop();
  }));
}

// Handshakes with a host of which nothing is heard: one while it has never
// answered, another when it has.  On siw each tries its TCP port first.
void AskInVain(bool siw) {
  if (!PretendThatThereIsADevice()) {
    std::fprintf(stderr, "skipped: no mount namespace can be had\n");
    return;
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int listener = Listen(&address);
  ::setenv("RCSOCK_RDMA_PORT", std::to_string(ntohs(address.sin_port)).c_str(),
           1);
  ::setenv("RCSOCK_LANES", "rdma", 1);
  base::LoadConfig();
  FakeVerbs::Options options;
  options.iwarp = options.software = siw;
  FakeVerbs device(options);
  FakeCm cm(device.context());
  cm.Release();
  Conductor* conductor = GetConductor();
  int before = 0;
  for (const int refused : {0, 1}) {
    cm.refuses = before + refused;
    const TcpPair pair = MakeTcpPair();
    auto c = ConnectorSeeker(pair.connector);
    EXPECT_FALSE(c->Seek(conductor));
    EXPECT_EQ(c->failed, base::Reason::kRdmaTimeout);
    EXPECT_EQ(cm.connects() - before, refused == 0 ? 1 : 4);
    before = cm.connects();
  }
  Conductor::Stop();
  ::close(listener);
}

// A packet of the handshake may be lost; a host that has never answered may be
// without a device.
TEST(Ends, HostThatAnswersIsAskedTwiceMore) {
  if (::geteuid() != 0) GTEST_SKIP() << "not root";
  verbs::Error error;
  if (!verbs::Load(&error)) GTEST_SKIP() << error.call;
  ExpectSuccess(Spawn([] { AskInVain(false); }));
}

TEST(Ends, HostThatAnswersOnIwarpIsAskedTwiceMore) {
  if (::geteuid() != 0) GTEST_SKIP() << "not root";
  verbs::Error error;
  if (!verbs::Load(&error)) GTEST_SKIP() << error.call;
  ExpectSuccess(Spawn([] { AskInVain(true); }));
}

}  // namespace
}  // namespace rcsock::rendezvous
