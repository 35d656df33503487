// A call that has found a stream by its number, and comes late: the number has
// been closed meanwhile, and the object is another connection.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <string_view>
#include <thread>
#include <vector>

#include "lib/posix/hooks.h"
#include "lib/posix/process.h"
#include "lib/posix/sock_quick.h"
#include "lib/posix/table.h"

namespace rcsock::posix {
namespace {

using Clock = std::chrono::steady_clock;

sockaddr_in address{};

int Listen() {
  const int fd = hook::socket(AF_INET, SOCK_STREAM, 0);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(fd, at, length), 0);
  EXPECT_EQ(hook::listen(fd, 8), 0);
  EXPECT_EQ(::getsockname(fd, at, &length), 0);
  return fd;
}

// Connects it, and makes calls until both ends are on a lane.  The other end.
int OnLane(int fd, int listener) {
  EXPECT_EQ(hook::connect(fd, reinterpret_cast<const sockaddr*>(&address),
                          sizeof address),
            0);
  const int peer = hook::accept(listener, nullptr, nullptr);
  EXPECT_GE(peer, 0);
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (!LookupSock(fd)->OnLane() || !LookupSock(peer)->OnLane()) {
    char byte = 'x';
    EXPECT_EQ(hook::send(fd, &byte, 1, 0), 1);
    EXPECT_EQ(hook::recv(peer, &byte, 1, 0), 1);
    EXPECT_EQ(hook::send(peer, &byte, 1, 0), 1);
    EXPECT_EQ(hook::recv(fd, &byte, 1, 0), 1);
    if (Clock::now() > end) {
      ADD_FAILURE() << "no lane";
      break;
    }
  }
  return peer;
}

// A new number of the object; -1: it is not free yet.  (What is closed is
// looked at again when some of it has come together.)
int NewNumberOf(const Sock* sock) {
  std::vector<int> fds;
  int found = -1;
  for (int i = 0; i < 100 && found < 0; ++i) {
    const int fd = hook::socket(AF_INET, SOCK_STREAM, 0);
    if (LookupSock(fd) == sock) {
      found = fd;
    } else {
      fds.push_back(fd);
    }
  }
  for (const int fd : fds) hook::close(fd);
  return found;
}

TEST(ReusedTest, ALateCallMovesNothingOfAnotherConnection) {
  InitProcess(Face::kLibrary);
  const int listener = Listen();
  const int number = hook::socket(AF_INET, SOCK_STREAM, 0);
  const int first_peer = OnLane(number, listener);
  ASSERT_FALSE(HasFailure());
  Sock* const late = LookupSock(number);

  ASSERT_EQ(hook::close(number), 0);
  ASSERT_EQ(hook::close(first_peer), 0);
  // The number is not followed from now on.
  const int other = ::open("/dev/null", O_RDWR);
  ASSERT_GE(::dup2(other, number), 0);
  int again = -1;
  const auto end = Clock::now() + std::chrono::seconds(20);
  while ((again = NewNumberOf(late)) < 0) {
    ASSERT_LT(Clock::now(), end) << "the object is not used again";
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_NE(again, number);
  const int peer = OnLane(again, listener);
  ASSERT_FALSE(HasFailure());
  ASSERT_EQ(LookupSock(again), late);
  constexpr std::string_view kBytes = "bytes";
  ASSERT_EQ(hook::send(peer, kBytes.data(), kBytes.size(), 0),
            static_cast<ssize_t>(kBytes.size()));

  char text[64];
  iovec iov{text, sizeof text};
  constexpr ssize_t kKernels = -77;
  const auto raw = [] { return kKernels; };
  EXPECT_EQ(late->QuickRecv(number, text, sizeof text, MSG_DONTWAIT), 0);
  EXPECT_EQ(late->Recv(number, &iov, 1, sizeof text, MSG_DONTWAIT, raw),
            kKernels);
  EXPECT_EQ(
      late->Recv(number, &iov, 1, sizeof text, MSG_DONTWAIT | MSG_PEEK, raw),
      kKernels);
  EXPECT_EQ(late->QuickSend(number, "x", 1), 0);
  iov = {text, 1};
  EXPECT_EQ(late->Send(number, &iov, 1, 1, MSG_DONTWAIT, raw), kKernels);
  // An address that no lane can look at.
  iov = {nullptr, 1};
  EXPECT_EQ(late->Recv(number, &iov, 1, 1, MSG_DONTWAIT, raw), kKernels);
  EXPECT_EQ(late->Send(number, &iov, 1, 1, MSG_DONTWAIT, raw), kKernels);

  // By its own number it is all there, and nothing was sent.
  EXPECT_EQ(hook::recv(again, text, sizeof text, MSG_DONTWAIT),
            static_cast<ssize_t>(kBytes.size()));
  EXPECT_EQ(std::string_view(text, kBytes.size()), kBytes);
  EXPECT_EQ(hook::recv(peer, text, sizeof text, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);

  ::close(number);
  ::close(other);
  for (const int fd : {again, peer, listener}) hook::close(fd);
}

}  // namespace
}  // namespace rcsock::posix
