#ifndef RCSOCK_TESTS_RENDEZVOUS_RDMA_UTIL_H_
#define RCSOCK_TESTS_RENDEZVOUS_RDMA_UTIL_H_

#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "lib/base/config.h"
#include "lib/rendezvous/address.h"
#include "lib/verbs/verbs.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {

inline sockaddr_in DeviceAddress(std::uint16_t port = 0) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  const char* text = std::getenv("RDMA_IP");
  if (text != nullptr) ::inet_pton(AF_INET, text, &address.sin_addr);
  return address;
}

// A connection over the device's address, both ends in this process.
inline TcpPair MakeDevicePair(std::uint16_t port = 0) {
  sockaddr_in address = DeviceAddress(port);
  const int listener = Listen(&address, true);
  TcpPair pair;
  pair.connector = Connect(address);
  pair.acceptor = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  ::close(listener);
  return pair;
}

// (Asked at the start: tests take the device away.)
inline const bool on_iwarp = [] {
  const char* device = std::getenv("RDMA_DEV");
  if (device == nullptr) return false;
  const char* sysfs = std::getenv("SYSFS_PATH");  // tests/device
  std::ifstream type(std::string(sysfs == nullptr ? "/sys" : sysfs) +
                     "/class/infiniband/" + device + "/node_type");
  std::string text;
  std::getline(type, text);
  return text.find("RNIC") != std::string::npos;
}();
inline bool OnIwarp() { return on_iwarp; }

// Where a test may do what it likes with devices and links (tests/guest).
inline bool InGuest() {
  const char* guest = std::getenv("IN_GUEST");
  return guest != nullptr && *guest != '\0';
}

inline std::uint16_t TcpPortOf(const TcpPair& pair) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  ::getsockname(pair.acceptor, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

// The RDMA port that goes with the acceptor's TCP port.
inline std::uint16_t ServicePortOf(const TcpPair& pair) {
  return OnIwarp() ? base::GetConfig().rdma_port : TcpPortOf(pair);
}

// What `rdma resource` counts: "cm_id", "qp", "cq", "pd", "mr", "ctx".
inline int Resources(const std::string& kind) {
  std::FILE* pipe = ::popen("rdma resource show 2>/dev/null", "r");
  if (pipe == nullptr) return -1;
  char line[512];
  int count = -1;
  const std::string device = std::getenv("RDMA_DEV");
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    const std::string text = line;
    const std::size_t at = text.find(" " + kind + " ");
    if (text.find(device) == std::string::npos || at == std::string::npos) {
      continue;
    }
    count = std::atoi(text.c_str() + at + kind.size() + 2);
  }
  ::pclose(pipe);
  return count;
}

// rdma_cm's ids of the device that are connecting or connected.
inline int ConnectingIds() {
  std::FILE* pipe = ::popen("rdma resource show cm_id 2>/dev/null", "r");
  if (pipe == nullptr) return -1;
  char line[512];
  int count = 0;
  const std::string device = std::getenv("RDMA_DEV");
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    const std::string text = line;
    if (text.find(device) != std::string::npos &&
        text.find("state CONNECT") != std::string::npos) {
      ++count;
    }
  }
  ::pclose(pipe);
  return count;
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

// rdma_cm without any rendezvous, one step after the other.
class RawCm {
 public:
  explicit RawCm(std::uint32_t depth = 8) : depth_(depth) {
    verbs::Error error;
    EXPECT_TRUE(verbs::Load(&error));
    channel_ = verbs::calls.rdma_create_event_channel();
    EXPECT_NE(channel_, nullptr);
    verbs::calls.rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP);
  }
  ~RawCm() {
    Drop();
    StopListening();
    verbs::calls.rdma_destroy_event_channel(channel_);
  }
  void Drop() {
    if (id_ == nullptr) return;
    if (id_->qp != nullptr) verbs::calls.rdma_destroy_qp(id_);
    verbs::calls.rdma_destroy_id(id_);
    id_ = nullptr;
  }

  void StopListening() {
    if (listener_ != nullptr) verbs::calls.rdma_destroy_id(listener_);
    listener_ = nullptr;
  }

  rdma_cm_id* id() const { return id_; }

  struct Event {
    int type = -1;  // -1: none within the time
    int status = 0;
    std::string data;
  };
  Event Next(int ms = 5000) {
    Event result;
    pollfd wait{channel_->fd, POLLIN, 0};
    if (::poll(&wait, 1, ms) <= 0) return result;
    rdma_cm_event* event = nullptr;
    if (verbs::calls.rdma_get_cm_event(channel_, &event) != 0) return result;
    result.type = event->event;
    result.status = event->status;
    if (event->param.conn.private_data != nullptr) {
      result.data.assign(
          static_cast<const char*>(event->param.conn.private_data),
          event->param.conn.private_data_len);
    }
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) id_ = event->id;
    verbs::calls.rdma_ack_cm_event(event);
    return result;
  }
  bool Expect(int type) {
    const Event event = Next();
    EXPECT_EQ(event.type, type) << "status " << event.status;
    return event.type == type;
  }

  // Connects to the device's own address, and returns what comes of it.
  Event Connect(std::uint16_t port, const void* data, std::size_t length) {
    return Ask(port, data, length) ? Next()
                                   : Event{RDMA_CM_EVENT_REJECTED, -errno, {}};
  }
  // The same up to the REQ.  (On InfiniBand and RoCE librdmacm answers a REP
  // when its event is read.)
  bool Ask(std::uint16_t port, const void* data, std::size_t length) {
    sockaddr_in address = DeviceAddress(port);
    EXPECT_EQ(verbs::calls.rdma_resolve_addr(
                  id_, nullptr, reinterpret_cast<sockaddr*>(&address), 2000),
              0);
    if (!Expect(RDMA_CM_EVENT_ADDR_RESOLVED)) return false;
    EXPECT_EQ(verbs::calls.rdma_resolve_route(id_, 2000), 0);
    if (!Expect(RDMA_CM_EVENT_ROUTE_RESOLVED)) return false;
    MakeQp();
    rdma_conn_param parameters = Parameters(data, length);
    return verbs::calls.rdma_connect(id_, &parameters) == 0;
  }
  // Whether there is an event to be read, within five seconds.
  bool Heard() const {
    pollfd wait{channel_->fd, POLLIN, 0};
    return ::poll(&wait, 1, 5000) == 1;
  }
  bool Listen(std::uint16_t port) {
    sockaddr_in address = DeviceAddress(port);
    if (verbs::calls.rdma_bind_addr(
            id_, reinterpret_cast<sockaddr*>(&address)) != 0 ||
        verbs::calls.rdma_listen(id_, 16) != 0) {
      return false;
    }
    listener_ = id_;
    id_ = nullptr;
    return true;
  }
  std::uint16_t Port() {
    return ntohs(verbs::calls.rdma_get_src_port(listener_));
  }
  // On a QP of its own, unless there is one.
  void Accept(const void* data, std::size_t length) {
    if (id_->qp == nullptr) MakeQp();
    rdma_conn_param parameters = Parameters(data, length);
    EXPECT_EQ(verbs::calls.rdma_accept(id_, &parameters), 0);
  }
  void MakeQp() {
    ibv_qp_init_attr attr{};
    attr.qp_type = IBV_QPT_RC;
    attr.cap = {depth_, depth_, 1, 1, 0};
    EXPECT_EQ(verbs::calls.rdma_create_qp(id_, nullptr, &attr), 0);
  }
  void Reject(const void* data, std::size_t length) {
    EXPECT_EQ(
        verbs::calls.rdma_reject(id_, data, static_cast<std::uint8_t>(length)),
        0);
  }

 private:
  static rdma_conn_param Parameters(const void* data, std::size_t length) {
    rdma_conn_param parameters{};
    parameters.private_data = data;
    parameters.private_data_len = static_cast<std::uint8_t>(length);
    parameters.responder_resources = parameters.initiator_depth = 1;
    parameters.retry_count = parameters.rnr_retry_count = 7;
    return parameters;
  }

  const std::uint32_t depth_;
  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  rdma_cm_id* listener_ = nullptr;
};

// As ExchangeNonces, by RDMA.
inline void UseLane(TestSeeker* seeker) {
  EXPECT_EQ(seeker->lane->kind(), lane::Kind::kRdma);
  ExchangeNonces(seeker);
}

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_TESTS_RENDEZVOUS_RDMA_UTIL_H_
