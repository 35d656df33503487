// Every call with what is wrong for it: rcs_X must answer as libc's X does, on
// descriptors of all kinds and on a stream that is on a lane.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rcsock/rcsock.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

// The calls of one face.
struct Api {
#define CALLS(X)                                                               \
  X(socket)                                                                    \
  X(listen)                                                                    \
  X(accept) X(accept4) X(connect) X(shutdown) X(close) X(bind) X(getsockname)  \
      X(getpeername) X(read) X(readv) X(recv) X(recvfrom) X(recvmsg)           \
          X(recvmmsg) X(write) X(writev) X(send) X(sendto) X(sendmsg)          \
              X(sendmmsg) X(sendfile) X(splice) X(preadv2) X(pwritev2) X(poll) \
                  X(ppoll) X(select) X(pselect) X(epoll_create)                \
                      X(epoll_create1) X(epoll_ctl) X(epoll_wait)              \
                          X(epoll_pwait) X(epoll_pwait2) X(fcntl) X(ioctl)     \
                              X(getsockopt) X(setsockopt) X(dup) X(dup2)       \
                                  X(dup3) X(close_range) X(sigaction)
#define X(name) decltype(&::name) name;
  CALLS(X)
#undef X
};

const Api kPlain = {
#define X(name) &::name,
    CALLS(X)
#undef X
};

// The glibc prototypes differ in nullability and exception specification only.
#define X(name) reinterpret_cast<decltype(&::name)>(&::rcs_##name),
const Api kOurs = {CALLS(X)};
#undef X

// The two ends of one connection.
struct Pair {
  int one = -1;
  int other = -1;
};

Pair Connect(const Api& api) {
  const int listener = api.socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(api.bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(api.listen(listener, 1), 0);
  api.getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  Pair pair;
  pair.one = api.socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(api.connect(pair.one, reinterpret_cast<sockaddr*>(&address), size),
            0);
  pair.other = api.accept(listener, nullptr, nullptr);
  EXPECT_GE(pair.other, 0);
  api.close(listener);
  return pair;
}

void PingPong(const Api& api, const Pair& pair) {
  char byte = 'x';
  ASSERT_EQ(api.send(pair.one, &byte, 1, 0), 1);
  ASSERT_EQ(api.recv(pair.other, &byte, 1, 0), 1);
  ASSERT_EQ(api.send(pair.other, &byte, 1, 0), 1);
  ASSERT_EQ(api.recv(pair.one, &byte, 1, 0), 1);
}

// What each call answers: "name: result errno".
std::vector<std::string> Results(const Api& api, int fd, bool stream,
                                 bool lane = false) {
  std::vector<std::string> all;
  char buffer[64] = {};
  auto* const nowhere = reinterpret_cast<char*>(8);
  const auto say = [&](const std::string& name, long long result) {
    all.push_back(
        name + ": " + std::to_string(result) +
        (result < 0 ? std::string(" ") + strerrorname_np(errno) : ""));
  };
#define SAY(...)                                            \
  do {                                                      \
    errno = 0;                                              \
    say(#__VA_ARGS__, static_cast<long long>(__VA_ARGS__)); \
  } while (false)
  iovec good{buffer, 4};
  iovec bad{nowhere, 4};
  iovec huge[2] = {{buffer, SIZE_MAX / 2}, {buffer, SIZE_MAX / 2}};
  msghdr message{};
  message.msg_iov = &good;
  message.msg_iovlen = 1;
  msghdr bad_message = message;
  bad_message.msg_iov = &bad;
  msghdr long_message = message;
  long_message.msg_iovlen = 2000;
  mmsghdr several[2] = {{message, 0}, {bad_message, 0}};
  socklen_t length = 0;
  int number = 0;
  const timespec wrong{0, 2'000'000'000};
  const timespec now{0, 0};
  epoll_event event{};
  sockaddr_storage name{};

  // Data; nothing blocks: there is nothing to read.
  const int wait = MSG_DONTWAIT;
  SAY(api.recv(fd, buffer, 4, wait));
  // A lane gives nothing at once to who asks for nothing.
  if (!lane) SAY(api.recv(fd, buffer, 0, wait));
  SAY(api.recv(fd, nullptr, 4, wait));
  SAY(api.recv(fd, buffer, 4, wait | MSG_PEEK));
  SAY(api.recv(fd, buffer, 4, wait | MSG_WAITALL));
  SAY(api.recv(fd, buffer, 4, wait | MSG_ERRQUEUE));
  SAY(api.recvfrom(fd, buffer, 4, wait, nullptr, nullptr));
  SAY(api.recvmsg(fd, &message, wait));
  SAY(api.recvmsg(fd, nullptr, wait));
  SAY(api.recvmsg(fd, &long_message, wait));
  SAY(api.recvmmsg(fd, several, 2, wait, nullptr));
  SAY(api.recvmmsg(fd, several, 0, wait, nullptr));
  SAY(api.readv(fd, &good, -1));
  SAY(api.readv(fd, &good, 2000));
  SAY(api.readv(fd, huge, 2));
  SAY(api.writev(fd, &good, -1));
  SAY(api.writev(fd, &good, 2000));
  SAY(api.writev(fd, &good, 0));
  SAY(api.writev(fd, huge, 2));
  SAY(api.writev(fd, nullptr, 1));
  const int quiet = wait | MSG_NOSIGNAL;
  SAY(api.send(fd, nullptr, 4, quiet));
  SAY(api.send(fd, nowhere, 4, quiet));
  SAY(api.sendto(fd, nowhere, 4, quiet, nullptr, 0));
  SAY(api.sendmsg(fd, nullptr, quiet));
  SAY(api.sendmsg(fd, &bad_message, quiet));
  SAY(api.sendmsg(fd, &long_message, quiet));
  SAY(api.sendmmsg(fd, several + 1, 1, quiet));
  SAY(api.sendmmsg(fd, several, 0, quiet));
  if (stream) {
    SAY(api.read(fd, buffer, 0));
    SAY(api.write(fd, buffer, 0));
    SAY(api.write(fd, nowhere, 4));
    SAY(api.send(fd, buffer, 0, quiet));
    SAY(api.pwritev2(fd, &bad, 1, -1, 0));
    SAY(api.preadv2(fd, &good, 1, -1, RWF_NOWAIT));
  }
  SAY(api.preadv2(fd, &good, 1, 0, 0));
  SAY(api.preadv2(fd, &good, -1, -1, 0));
  SAY(api.pwritev2(fd, &bad, 1, 5, 0));
  SAY(api.sendfile(fd, -1, nullptr, 4));
  SAY(api.splice(-1, nullptr, fd, nullptr, 4, 0));
  // Waiting
  SAY(api.poll(nullptr, 1, 0));
  pollfd one{fd, POLLIN, 0};
  SAY(api.ppoll(&one, 1, &wrong, nullptr));
  if (fd >= 0) {
    SAY(api.poll(&one, 1, 0));
    SAY(one.revents);
  }
  fd_set set;
  FD_ZERO(&set);
  timeval none{0, 0};
  SAY(api.select(-1, &set, nullptr, nullptr, &none));
  SAY(api.pselect(1, &set, nullptr, nullptr, &wrong, nullptr));
  SAY(api.epoll_create(0));
  SAY(api.epoll_create1(12345));
  SAY(api.epoll_wait(fd, &event, 1, 0));
  SAY(api.epoll_wait(-1, &event, 1, 0));
  const int watcher = api.epoll_create1(EPOLL_CLOEXEC);
  event.events = EPOLLIN;
  SAY(api.epoll_wait(watcher, &event, 0, 0));
  SAY(api.epoll_wait(watcher, &event, -1, 0));
  SAY(api.epoll_pwait(watcher, &event, 0, 0, nullptr));
  SAY(api.epoll_pwait2(watcher, &event, 1, &wrong, nullptr));
  SAY(api.epoll_pwait2(watcher, &event, 1, &now, nullptr));
  SAY(api.epoll_ctl(watcher, EPOLL_CTL_MOD, fd, &event));
  SAY(api.epoll_ctl(watcher, EPOLL_CTL_DEL, fd, &event));
  SAY(api.epoll_ctl(watcher, 77, fd, &event));
  SAY(api.epoll_ctl(watcher, EPOLL_CTL_ADD, fd, nullptr));
  SAY(api.epoll_ctl(watcher, EPOLL_CTL_ADD, watcher, &event));
  SAY(api.epoll_ctl(fd, EPOLL_CTL_ADD, watcher, &event));
  if (fd >= 0) {
    SAY(api.epoll_ctl(watcher, EPOLL_CTL_ADD, fd, &event));
    SAY(api.epoll_ctl(watcher, EPOLL_CTL_ADD, fd, &event));
    SAY(api.epoll_ctl(watcher, EPOLL_CTL_MOD, fd, &event));
    SAY(api.epoll_ctl(watcher, EPOLL_CTL_DEL, fd, nullptr));
  }
  api.close(watcher);
  // Options and copies
  SAY(api.getsockopt(fd, SOL_SOCKET, SO_TYPE, nullptr, nullptr));
  SAY(api.getsockopt(fd, SOL_SOCKET, 9999, &number, &(length = 4)));
  SAY(api.getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &(length = 4)));
  SAY(api.getsockopt(fd, SOL_SOCKET, SO_TYPE, &number, &(length = 1)));
  SAY(static_cast<int>(length));
  SAY(api.setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &number, 1));
  SAY(api.setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, nullptr, 4));
  SAY(api.setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &number, 1));
  SAY(api.setsockopt(fd, IPPROTO_TCP, TCP_CORK, nullptr, 4));
  SAY(api.setsockopt(fd, 77, 77, &number, 4));
  SAY(api.getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &number, nullptr));
  SAY(api.fcntl(fd, 9999, 0));
  SAY(api.fcntl(fd, F_DUPFD, -1));
  SAY(api.ioctl(fd, 0xdead, &number));
  SAY(api.ioctl(fd, FIONREAD, nullptr));
  SAY(api.dup2(fd, -1));
  SAY(api.dup2(fd, 1 << 30));
  SAY(api.dup3(fd, fd, 0));
  SAY(api.dup3(fd, 100, 12345));
  // Connections
  SAY(api.listen(fd, -1));
  if (!stream) {
    // (On a connection that is left for tests of its own.)
    SAY(api.shutdown(fd, SHUT_RDWR));
  }
  SAY(api.shutdown(fd, 99));
  SAY(api.accept(fd, nullptr, nullptr));
  SAY(api.accept4(fd, nullptr, nullptr, 12345));
  SAY(api.accept(fd, reinterpret_cast<sockaddr*>(&name), nullptr));
  SAY(api.connect(fd, nullptr, 16));
  SAY(api.connect(fd, reinterpret_cast<sockaddr*>(&name), 1));
  SAY(api.bind(fd, nullptr, 16));
  SAY(api.getsockname(fd, nullptr, nullptr));
  SAY(api.getpeername(fd, reinterpret_cast<sockaddr*>(&name), nullptr));
  SAY(api.socket(99, SOCK_STREAM, 0));
  SAY(api.socket(AF_INET, 99, 0));
  SAY(api.socket(AF_INET, SOCK_STREAM, 99));
  SAY(api.close_range(5, 4, 0));
  SAY(api.close_range(1000000, 1000001, 77));
  SAY(api.sigaction(99, nullptr, nullptr));
  SAY(api.sigaction(SIGKILL, nullptr, nullptr));
  SAY(api.close(-1));
#undef SAY
  return all;
}

void Compare(const std::vector<std::string>& kernel,
             const std::vector<std::string>& ours) {
  ASSERT_EQ(kernel.size(), ours.size());
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    EXPECT_EQ(kernel[i], ours[i]);
  }
}

struct Kind {
  const char* name;
  std::function<int(const Api&)> make;
};

class ErrorsTest : public testing::TestWithParam<Kind> {};

TEST_P(ErrorsTest, AsLibc) {
  const int plain = GetParam().make(kPlain);
  const auto kernel = Results(kPlain, plain, false);
  if (plain > 2) kPlain.close(plain);
  const int fd = GetParam().make(kOurs);
  const auto ours = Results(kOurs, fd, false);
  if (fd > 2) kOurs.close(fd);
  Compare(kernel, ours);
}

const Kind kKinds[] = {
    {"none", [](const Api&) { return -1; }},
    {"closed",
     [](const Api& api) {
       const int fd = api.socket(AF_INET, SOCK_STREAM, 0);
       api.close(fd);
       return fd;
     }},
    {"far", [](const Api&) { return 1 << 29; }},
    {"file", [](const Api&) { return ::open("/dev/null", O_RDWR); }},
    {"directory", [](const Api&) { return ::open("/", O_RDONLY); }},
    {"path", [](const Api&) { return ::open("/", O_PATH); }},
    {"epoll", [](const Api& api) { return api.epoll_create1(0); }},
    {"udp", [](const Api& api) { return api.socket(AF_INET, SOCK_DGRAM, 0); }},
    {"unix",
     [](const Api& api) { return api.socket(AF_UNIX, SOCK_STREAM, 0); }},
    {"unconnected",
     [](const Api& api) {
       return api.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
     }},
    {"unconnected6",
     [](const Api& api) {
       return api.socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0);
     }},
    {"listener",
     [](const Api& api) {
       const int fd = api.socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
       api.listen(fd, 1);
       return fd;
     }},
};

INSTANTIATE_TEST_SUITE_P(Kinds, ErrorsTest, testing::ValuesIn(kKinds),
                         [](const auto& param) { return param.param.name; });

TEST(ErrorsTest, Connected) {
  const Pair plain = Connect(kPlain);
  const auto kernel = Results(kPlain, plain.one, true);
  const Pair mine = Connect(kOurs);
  Compare(kernel, Results(kOurs, mine.one, true));
  for (int fd : {plain.one, plain.other}) kPlain.close(fd);
  for (int fd : {mine.one, mine.other}) kOurs.close(fd);
}

TEST(ErrorsTest, OnALane) {
  const Pair plain = Connect(kPlain);
  PingPong(kPlain, plain);
  const auto kernel = Results(kPlain, plain.one, true, true);
  const Pair mine = Connect(kOurs);
  const time_t end = time(nullptr) + 20;
  while (rcs_get_lane(mine.one) != RCS_SHM ||
         rcs_get_lane(mine.other) != RCS_SHM) {
    PingPong(kOurs, mine);
    ASSERT_LT(time(nullptr), end) << rcs_get_reason(mine.one);
  }
  Compare(kernel, Results(kOurs, mine.one, true, true));
  for (int fd : {plain.one, plain.other}) kPlain.close(fd);
  for (int fd : {mine.one, mine.other}) kOurs.close(fd);
}

}  // namespace
