#ifndef RCSOCK_TESTS_CAPI_RSOCKET_PAIR_H_
#define RCSOCK_TESTS_CAPI_RSOCKET_PAIR_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rcsock/rcsock.h>
#include <rcsock/rsocket.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

// In a guest (rdma_test.sh), the device's.
inline const char* Address() {
  const char* rdma = std::getenv("RDMA_IP");
  return rdma != nullptr ? rdma : "127.0.0.1";
}
inline bool Rdma() { return std::getenv("RDMA_IP") != nullptr; }

// Returns when a thread of this process sleeps.
inline void AwaitAsleep(pid_t thread) {
  const std::string path =
      "/proc/self/task/" + std::to_string(thread) + "/stat";
  for (;;) {
    std::string text;
    std::getline(std::ifstream(path), text);
    const std::size_t name_end = text.rfind(") ");
    ASSERT_NE(name_end, std::string::npos) << path;
    if (text[name_end + 2] == 'S') return;
    std::this_thread::yield();
  }
}

// Two ends in this process.
class RsocketTest : public testing::Test {
 protected:
  void Listen(int maps) {
    listener_ = rsocket(AF_INET, SOCK_STREAM, 0);
    address_ = {};
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = inet_addr(Address());
    socklen_t size = sizeof address_;
    auto* const name = reinterpret_cast<sockaddr*>(&address_);
    ASSERT_EQ(rbind(listener_, name, size), 0);
    ASSERT_EQ(rlisten(listener_, 5), 0);
    ASSERT_EQ(rgetsockname(listener_, name, &size), 0);
    Allow(listener_, maps);
  }

  static void Allow(int fd, int maps) {
    ASSERT_EQ(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &maps, sizeof maps), 0);
  }

  void Connect(int maps, int policy = RCS_POLICY_AUTO) {
    Listen(maps);
    ASSERT_EQ(rcs_set_policy(listener_, policy), 0);
    one_ = rsocket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(rcs_set_policy(one_, policy), 0);
    Allow(one_, maps);
    std::thread accept(
        [this] { other_ = raccept(listener_, nullptr, nullptr); });
    const int result =
        rconnect(one_, reinterpret_cast<sockaddr*>(&address_), sizeof address_);
    accept.join();
    ASSERT_EQ(result, 0) << std::strerror(errno);
    ASSERT_GE(other_, 0);
  }

  void Sync() {
    char byte = 's';
    ASSERT_EQ(rsend(other_, &byte, 1, 0), 1);
    ASSERT_EQ(rrecv(one_, &byte, 1, MSG_WAITALL), 1);
    ASSERT_EQ(rsend(one_, &byte, 1, 0), 1);
    ASSERT_EQ(rrecv(other_, &byte, 1, MSG_WAITALL), 1);
  }

  // Until both are on a lane; false after 20 s.
  bool Promoted() {
    const time_t end = std::time(nullptr) + 20;
    const int lane = Rdma() ? RCS_RDMA : RCS_SHM;
    while (rcs_get_lane(one_) != lane || rcs_get_lane(other_) != lane) {
      Sync();
      if (HasFatalFailure() || std::time(nullptr) > end) return false;
    }
    return true;
  }

  std::uint64_t Sent() const {
    rcs_stream_info info{};
    EXPECT_GT(rcs_get_stream_info(one_, &info, sizeof info), 0);
    return info.tx_bytes;
  }

  // Maps `memory` of other_'s at 0, and writes there until the bytes do not go
  // by the stream any more; false after 20 s.
  bool MapUntilDirect(std::vector<unsigned char>* memory) {
    EXPECT_EQ(riomap(other_, memory->data(), memory->size(), PROT_WRITE, 0, 0),
              0);
    const time_t end = std::time(nullptr) + 20;
    std::vector<unsigned char> from(memory->size(), 1);
    do {
      Sync();
      if (HasFatalFailure() || std::time(nullptr) > end) return false;
      const std::uint64_t before = Sent();
      EXPECT_EQ(riowrite(one_, from.data(), from.size(), 0, 0), from.size());
      if (Sent() - before < from.size()) return true;
    } while (true);
  }

  struct Unmapped {
    RsocketTest* test;
    std::vector<unsigned char>* memory;
    ~Unmapped() { riounmap(test->other_, memory->data(), memory->size()); }
  };

  // Writes by `one_` into memory that `other_` has mapped, many times.
  void WriteAndLook() {
    std::vector<unsigned char> memory(100'000), from(memory.size());
    ASSERT_EQ(riomap(other_, memory.data(), memory.size(), PROT_WRITE, 0, 1000),
              1000);
    Sync();
    for (int round = 1; round < 40; ++round) {
      std::fill(from.begin(), from.end(), static_cast<unsigned char>(round));
      ASSERT_EQ(riowrite(one_, from.data(), from.size(), 1000, 0), from.size());
      Sync();
      ASSERT_EQ(memory, from) << round;
    }
    // A part, in the middle.
    const char text[] = "text";
    ASSERT_EQ(riowrite(one_, text, sizeof text, 1500, 0), sizeof text);
    Sync();
    EXPECT_EQ(std::memcmp(memory.data() + 500, text, sizeof text), 0);
    ASSERT_EQ(riounmap(other_, memory.data(), memory.size()), 0);
    EXPECT_EQ(riounmap(other_, memory.data(), memory.size()), -1);
    const auto before = memory;
    // Perhaps it has not heard yet; then nothing comes of it.
    std::fill(from.begin(), from.end(), 77);
    riowrite(one_, from.data(), from.size(), 1000, 0);
    Sync();
    EXPECT_EQ(memory, before);
    EXPECT_EQ(riowrite(one_, from.data(), 1, 1000, 0), ~std::size_t{0});
    EXPECT_EQ(errno, EINVAL);
  }

  void TearDown() override {
    for (int fd : {one_, other_, listener_}) {
      if (fd >= 0) {
        EXPECT_EQ(rclose(fd), 0);
      }
    }
  }

  sockaddr_in address_{};
  int listener_ = -1;
  int one_ = -1;
  int other_ = -1;
};

#endif  // RCSOCK_TESTS_CAPI_RSOCKET_PAIR_H_
