// rsocket's calls of a stream: what Debian's programs do not try.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <rcsock/rsocket.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/capi/rsocket_pair.h"

namespace {

TEST_F(RsocketTest, WithoutMapsItIsAStream) {
  Listen(0);
  // A peer that knows nothing of us.
  const int peer = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(
      ::connect(peer, reinterpret_cast<sockaddr*>(&address_), sizeof address_),
      0);
  other_ = raccept(listener_, nullptr, nullptr);
  ASSERT_GE(other_, 0);
  char memory[100];
  EXPECT_EQ(riomap(other_, memory, 100, PROT_WRITE, 0, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(::write(peer, "abc", 3), 3);
  std::thread later([&] {
    // Once the receiver has what there is, and wants more.
    int left = 1;
    while (::ioctl(other_, FIONREAD, &left) == 0 && left > 0) {
      ::sched_yield();
    }
    EXPECT_EQ(::write(peer, "def", 3), 3);
  });
  EXPECT_EQ(rrecv(other_, memory, 6, MSG_WAITALL), 6);
  later.join();
  EXPECT_EQ(std::string(memory, 6), "abcdef");
  EXPECT_EQ(rsend(other_, "xyz", 3, 0), 3);
  EXPECT_EQ(::read(peer, memory, 100), 3);
  ::close(peer);
  EXPECT_EQ(rrecv(other_, memory, 6, 0), 0);
}

TEST_F(RsocketTest, PollAndSelect) {
  Connect(2);
  pollfd one{other_, POLLIN | POLLOUT, 0};
  ASSERT_EQ(rpoll(&one, 1, 1000), 1);
  EXPECT_EQ(one.revents, POLLOUT);
  one.events = POLLIN;
  EXPECT_EQ(rpoll(&one, 1, 10), 0);
  // A mapping is nothing to read.
  char memory[100];
  ASSERT_EQ(riomap(one_, memory, 100, PROT_WRITE, 0, 0), 0);
  EXPECT_EQ(rpoll(&one, 1, 10), 0);
  ASSERT_EQ(rsend(one_, "x", 1, 0), 1);
  EXPECT_EQ(rpoll(&one, 1, 5000), 1);
  EXPECT_EQ(one.revents, POLLIN);
  fd_set in;
  FD_ZERO(&in);
  FD_SET(other_, &in);
  timeval limit{5, 0};
  EXPECT_EQ(rselect(other_ + 1, &in, nullptr, nullptr, &limit), 1);
  EXPECT_TRUE(FD_ISSET(other_, &in));
  char byte;
  EXPECT_EQ(rrecv(other_, &byte, 1, 0), 1);
  limit = {0, 10'000};
  EXPECT_EQ(rselect(other_ + 1, &in, nullptr, nullptr, &limit), 0);
  EXPECT_EQ(rrecv(other_, &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(RsocketTest, PiecesThatAreEmptyDoNotCount) {
  Connect(1);
  char byte;
  std::vector<iovec> pieces(100, iovec{&byte, 0});
  pieces[99].iov_len = 1;
  ASSERT_EQ(rsend(one_, "x", 1, 0), 1);
  EXPECT_EQ(rreadv(other_, pieces.data(), 100), 1);
  EXPECT_EQ(byte, 'x');
}

TEST_F(RsocketTest, SelectWaitsLongerThanAnIntHasMilliseconds) {
  Connect(1);
  std::thread later([this, waits = ::gettid()] {
    AwaitAsleep(waits);
    EXPECT_EQ(rsend(one_, "x", 1, 0), 1);
  });
  fd_set in;
  FD_ZERO(&in);
  FD_SET(other_, &in);
  timeval long_time{4'294'968, 0};
  EXPECT_EQ(rselect(other_ + 1, &in, nullptr, nullptr, &long_time), 1);
  later.join();
}

TEST_F(RsocketTest, ASendThatIsCutShortInTheHandshakeSaysSo) {
  const int plain = ::socket(AF_INET, SOCK_STREAM, 0);
  address_.sin_family = AF_INET;
  address_.sin_addr.s_addr = inet_addr(Address());
  socklen_t size = sizeof address_;
  auto* const name = reinterpret_cast<sockaddr*>(&address_);
  ASSERT_EQ(::bind(plain, name, size), 0);
  ASSERT_EQ(::listen(plain, 1), 0);
  ASSERT_EQ(::getsockname(plain, name, &size), 0);
  one_ = rsocket(AF_INET, SOCK_STREAM, 0);
  Allow(one_, 1);
  ASSERT_EQ(rfcntl(one_, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(rconnect(one_, name, size), -1);
  EXPECT_EQ(errno, EINPROGRESS);
  const int peer = ::accept(plain, nullptr, nullptr);
  ASSERT_EQ(::send(peer, "plain", 5, 0), 5);
  ASSERT_EQ(rfcntl(one_, F_SETFL, 0L), 0);
  const timeval brief{0, 50'000};
  ASSERT_EQ(rsetsockopt(one_, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief),
            0);
  std::vector<unsigned char> bytes(64 << 20);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>((i * 2654435761u) >> 16);
  const ssize_t sent = rsend(one_, bytes.data(), bytes.size(), 0);
  EXPECT_GT(sent, 0);
  EXPECT_LT(sent, static_cast<ssize_t>(bytes.size()));
  char plain_bytes[5];
  EXPECT_EQ(rrecv(one_, plain_bytes, 5, MSG_WAITALL), 5);
  rclose(std::exchange(one_, -1));
  std::vector<unsigned char> got(bytes.size());
  std::size_t n = 0;
  for (ssize_t more;
       (more = ::recv(peer, got.data() + n, got.size() - n, 0)) > 0;)
    n += static_cast<std::size_t>(more);
  const std::size_t hello = 56;
  EXPECT_EQ(n, hello + static_cast<std::size_t>(sent));
  EXPECT_EQ(std::memcmp(got.data() + hello, bytes.data(), n - hello), 0);
  ::close(peer);
  ::close(plain);
}

}  // namespace
