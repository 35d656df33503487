#ifndef RCSOCK_TESTS_GPU_STREAMS_H_
#define RCSOCK_TESTS_GPU_STREAMS_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rcsock/rcsock.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/gpu/gpu.h"

namespace gpu_test {

inline bool Rdma() { return std::getenv("RDMA_IP") != nullptr; }

// Bytes that differ by place and by `seed`.
inline std::vector<char> Pattern(std::size_t bytes, unsigned seed) {
  std::vector<char> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    made[i] = static_cast<char>(i * 13 + i / 251 + seed * 7);
  }
  return made;
}

// Memory of the GPU that is registered while this lives.
class Buffer {
 public:
  // kMapped: by cuMemMap. kUnshared: likewise, but it cannot be exported.
  enum class Kind { kAllocated, kMapped, kUnshared };
  explicit Buffer(std::size_t bytes, Kind kind = Kind::kAllocated)
      : kind_(kind),
        at_(kind == Kind::kAllocated
                ? Gpu::Get().Alloc(bytes)
                : Gpu::Get().AllocMapped(bytes, kind == Kind::kMapped)),
        bytes_(bytes) {
    EXPECT_EQ(rcs_register_buffer(at_, bytes_), 0) << std::strerror(errno);
  }
  ~Buffer() {
    if (at_ == nullptr) return;
    // A lane that a stream has left goes a little later.
    const time_t end = time(nullptr) + 20;
    int result = -1;
    while ((result = rcs_unregister_buffer(at_, bytes_)) != 0 &&
           errno == EBUSY && time(nullptr) < end) {
    }
    EXPECT_EQ(result, 0) << std::strerror(errno);
    if (kind_ == Kind::kAllocated) {
      Gpu::Get().Free(at_);
    } else {
      Gpu::Get().FreeMapped(at_, bytes_);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* at() const { return at_; }
  void Forget() { at_ = nullptr; }

 private:
  const Kind kind_;
  char* at_;
  const std::size_t bytes_;
};

// Listens on a port of the kernel's choice, at this address of the host.
inline void Listen(const char* host, int* listener, sockaddr_in* address) {
  *listener = rcs_socket(AF_INET, SOCK_STREAM, 0);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = inet_addr(host);
  socklen_t size = sizeof *address;
  auto* const at = reinterpret_cast<sockaddr*>(address);
  ASSERT_EQ(rcs_bind(*listener, at, size), 0);
  ASSERT_EQ(rcs_listen(*listener, 5), 0);
  ASSERT_EQ(rcs_getsockname(*listener, at, &size), 0);
}

// Makes a stream on TCP, by a listener of its own.
inline void MakeStream(int* listener, int* one, int* other) {
  sockaddr_in address{};
  Listen(Rdma() ? std::getenv("RDMA_IP") : "127.0.0.1", listener, &address);
  *one = rcs_socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(
      rcs_connect(*one, reinterpret_cast<sockaddr*>(&address), sizeof address),
      0);
  *other = rcs_accept(*listener, nullptr, nullptr);
  ASSERT_GE(*other, 0);
}

enum class Path { kTcp, kLane };

// Two ends of a stream, on TCP or on the lane of this test's machine.
class StreamTest : public testing::TestWithParam<Path> {
 protected:
  void SetUp() override {
    Gpu::Get();
    ASSERT_NO_FATAL_FAILURE(MakeStream(&listener_, &one_, &other_));
    if (GetParam() == Path::kTcp) {
      ASSERT_EQ(rcs_set_policy(one_, RCS_POLICY_TCP), 0);
    } else {
      ASSERT_TRUE(Promoted()) << rcs_get_reason(one_);
    }
  }
  void TearDown() override {
    for (int fd : {one_, other_, listener_}) {
      if (fd >= 0) {
        EXPECT_EQ(rcs_close(fd), 0);
      }
    }
  }
  void PingPong() {
    char byte = 'x';
    ASSERT_EQ(rcs_send(one_, &byte, 1, 0), 1);
    ASSERT_EQ(rcs_recv(other_, &byte, 1, 0), 1);
    ASSERT_EQ(rcs_send(other_, &byte, 1, 0), 1);
    ASSERT_EQ(rcs_recv(one_, &byte, 1, 0), 1);
  }
  bool Promoted() {
    const time_t end = time(nullptr) + 20;
    const int lane = Rdma() ? RCS_RDMA : RCS_SHM;
    while (rcs_get_lane(one_) != lane || rcs_get_lane(other_) != lane) {
      PingPong();
      if (HasFatalFailure() || time(nullptr) > end) return false;
    }
    return true;
  }
  // Waits until the program has the memory back.
  void AwaitDone(rcs_sent* sent) {
    const time_t end = time(nullptr) + 20;
    while (rcs_sent_done(one_, sent, 1) != 1) {
      ASSERT_LT(time(nullptr), end);
    }
  }
  // Receives so many bytes by plain calls.
  std::vector<char> Receive(std::size_t bytes) {
    std::vector<char> got(bytes);
    const ssize_t n = rcs_recv(other_, got.data(), bytes, MSG_WAITALL);
    got.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return got;
  }

  int listener_ = -1;
  int one_ = -1;
  int other_ = -1;
};

}  // namespace gpu_test

#endif  // RCSOCK_TESTS_GPU_STREAMS_H_
