// Every call with what is wrong for it: rcs_X must answer as libc's X does, on
// descriptors of all kinds and on a stream that is on a lane.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rcsock/rcsock.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

// The calls of one face.
struct Api {
// (One that rcsock.h declares and that is in no table fails EveryCallIsTried.)
// clang-format off
#define CALLS(X) \
  X(socket) X(listen) X(accept) X(accept4) X(connect) X(shutdown) X(close) \
  X(bind) X(getsockname) X(getpeername) X(read) X(readv) X(recv) X(recvfrom) \
  X(recvmsg) X(recvmmsg) X(write) X(writev) X(send) X(sendto) X(sendmsg) \
  X(sendmmsg) X(sendfile) X(splice) X(preadv2) X(pwritev2) X(poll) X(ppoll) \
  X(select) X(pselect) X(epoll_create) X(epoll_create1) X(epoll_ctl) \
  X(epoll_wait) X(epoll_pwait) X(epoll_pwait2) X(fcntl) X(ioctl) \
  X(getsockopt) X(setsockopt) X(dup) X(dup2) X(dup3) X(close_range) \
  X(sigaction) X(closefrom) X(dprintf) X(vdprintf) X(eventfd) \
  X(timerfd_create) X(execl) X(execle) X(execlp) X(execv) X(execve) X(execvp) \
  X(execvpe) X(fexecve) X(fdopen) X(popen) X(posix_spawn) X(posix_spawnp) \
  X(posix_spawn_file_actions_adddup2) X(signal) X(siginterrupt) X(system)
// clang-format on
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
struct Say {
  std::vector<std::string>* all;
  void operator()(const std::string& name, long long result) const {
    all->push_back(
        name + ": " + std::to_string(result) +
        (result < 0 ? std::string(" ") + strerrorname_np(errno) : ""));
  }
};
#define SAY(...)                                            \
  do {                                                      \
    errno = 0;                                              \
    say(#__VA_ARGS__, static_cast<long long>(__VA_ARGS__)); \
  } while (false)

std::vector<std::string> Results(const Api& api, int fd, bool stream,
                                 bool lane = false) {
  std::vector<std::string> all;
  const Say say{&all};
  char buffer[64] = {};
  auto* const nowhere = reinterpret_cast<char*>(8);
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
  return all;
}

int Vdprintf(const Api& api, int fd, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = api.vdprintf(fd, format, arguments);
  va_end(arguments);
  return result;
}

// Those about programs and signals.  (An exec that fails moves streams to TCP
// for its time.)
std::vector<std::string> ProcessResults(const Api& api, int fd) {
  std::vector<std::string> all;
  const Say say{&all};
  char none[] = "none";
  char* argv[] = {none, nullptr};
  char* const* const nowhere = reinterpret_cast<char* const*>(8);
  const char* const last = nullptr;
  pid_t child = 0;
  for (const char* path : {"/nowhere/nothing", "", "/", "/dev/null"}) {
    SAY(api.execv(path, argv));
    SAY(api.execve(path, argv, argv));
    SAY(api.execl(path, "none", last));
    SAY(api.execle(path, "none", last, argv));
    SAY(api.execvp(path, argv));
    SAY(api.execvpe(path, argv, argv));
    SAY(api.execlp(path, "none", last));
    SAY(api.posix_spawn(&child, path, nullptr, nullptr, argv, argv));
    SAY(api.posix_spawnp(&child, path, nullptr, nullptr, argv, argv));
  }
  // (Where a path is searched for, glibc itself reads it.)
  SAY(api.execv(nullptr, argv));
  SAY(api.execve(nullptr, argv, argv));
  SAY(api.execl(nullptr, "none", last));
  SAY(api.execle(nullptr, "none", last, argv));
  SAY(api.posix_spawn(&child, nullptr, nullptr, nullptr, argv, argv));
  SAY(api.execve("/bin/true", nowhere, argv));
  SAY(api.fexecve(fd, argv, argv));
  SAY(api.fexecve(fd, nullptr, argv));
  SAY(api.fexecve(-1, argv, argv));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  SAY(api.posix_spawn_file_actions_adddup2(&actions, -1, 0));
  SAY(api.posix_spawn_file_actions_adddup2(&actions, 0, 1 << 30));
  posix_spawn_file_actions_destroy(&actions);
  SAY(api.system(nullptr));
  SAY(api.popen("true", "wrong") == nullptr ? -1 : 0);
  SAY(api.fdopen(fd, "wrong") == nullptr ? -1 : 0);
  SAY(api.fdopen(-1, "r") == nullptr ? -1 : 0);
  SAY(api.dprintf(-1, "%d", 1));
  SAY(Vdprintf(api, -1, "%d", 1));
  SAY(api.dprintf(1 << 29, "%d", 1));
  SAY(reinterpret_cast<std::intptr_t>(api.signal(99, SIG_IGN)));
  SAY(reinterpret_cast<std::intptr_t>(api.signal(SIGKILL, SIG_IGN)));
  SAY(reinterpret_cast<std::intptr_t>(api.signal(-1, SIG_DFL)));
  SAY(api.siginterrupt(99, 1));
  SAY(api.siginterrupt(SIGSTOP, 0));
  SAY(api.eventfd(0, 12345));
  SAY(api.timerfd_create(99, 0));
  SAY(api.timerfd_create(CLOCK_MONOTONIC, 12345));
  SAY((api.closefrom(1 << 28), 0));
  return all;
}

// What rcsock.h has beyond POSIX: what a descriptor is, the kernel says; of a
// socket that is no stream, EOPNOTSUPP.
#define OWN_CALLS(X)                                 \
  X(rcs_get_lane(fd))                                \
  X(rcs_get_reason(fd) == nullptr ? -1 : 0)          \
  X(rcs_get_stream_info(fd, nullptr, 0))             \
  X(rcs_get_stream_info(fd, &info, sizeof info))     \
  X(rcs_set_policy(fd, RCS_POLICY_TCP))              \
  X(rcs_set_policy(fd, 99))                          \
  X(rcs_get_policy(fd))                              \
  X(rcs_promote(fd))                                 \
  X(rcs_demote(fd, 0))                               \
  X(rcs_send_registered(fd, nullptr, 1, 0, nullptr)) \
  X(rcs_sent_done(fd, nullptr, 0))                   \
  X(rcs_recv_registered(fd, nullptr, 1, 0))          \
  X(rcs_expose(fd, nullptr, 1, nullptr))             \
  X(rcs_hide(fd, nullptr))                           \
  X(rcs_place(fd, nullptr, 0, nullptr, 1))           \
  X(rcs_placed(fd, nullptr, 1))

// Those are about sets, memory and the process: control_test and the like; or
// there is nothing to do wrong.
const char* const kElsewhere[] = {
    "epoll_arm",         "epoll_disarm",   "epoll_look", "fork",
    "get_process_info",  "immediate_exit", "quick_exit", "register_buffer",
    "unregister_buffer", "version",
};

TEST(ErrorsTest, OwnCalls) {
  rcs_stream_info info{};
  const int udp = rcs_socket(AF_INET, SOCK_DGRAM, 0);
  const int file = ::open("/dev/null", O_RDWR);
  for (const int fd : {-1, 1 << 29, file, udp}) {
    int type = 0;
    socklen_t size = sizeof type;
    errno = EOPNOTSUPP;
    ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size);
    const int expected = errno;
#define X(...)                  \
  errno = 0;                    \
  EXPECT_EQ((__VA_ARGS__), -1); \
  EXPECT_EQ(strerrorname_np(errno), strerrorname_np(expected)) << #__VA_ARGS__;
    OWN_CALLS(X)
#undef X
  }
  // Of what is not a set, the kernel's too.
  epoll_event event{};
  for (const int fd : {-1, 1 << 29, file, udp}) {
    EXPECT_EQ(::epoll_wait(fd, &event, 1, 0), -1);
    const int expected = errno;
    EXPECT_EQ(rcs_epoll_look(fd, &event, 1, 0), -1);
    EXPECT_EQ(errno, expected) << fd;
    EXPECT_EQ(rcs_epoll_arm(fd), -1);
    EXPECT_EQ(errno, expected) << fd;
  }
  EXPECT_EQ(rcs_get_process_info(nullptr, 8), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(rcs_register_buffer(nullptr, 4096), -1);
  EXPECT_EQ(rcs_unregister_buffer(&info, 4096), -1);
  kPlain.close(udp);
  kPlain.close(file);
}

// A call that is new in rcsock.h must come into one of the tables.
TEST(ErrorsTest, EveryCallIsTried) {
  std::ifstream header("lib/include/rcsock/rcsock.h");
  ASSERT_TRUE(header.is_open());
  const std::string text((std::istreambuf_iterator<char>(header)), {});
  std::set<std::string> tried(std::begin(kElsewhere), std::end(kElsewhere));
#define X(name) tried.insert(#name);
  CALLS(X)
#undef X
  const std::regex call("rcs_([a-z0-9_]+)\\(");
#define X(...)                                        \
  {                                                   \
    const std::string one = #__VA_ARGS__;             \
    std::smatch match;                                \
    ASSERT_TRUE(std::regex_search(one, match, call)); \
    tried.insert(match[1]);                           \
  }
  OWN_CALLS(X)
#undef X
  int count = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), call), end; at != end;
       ++at, ++count) {
    EXPECT_EQ(tried.count((*at)[1]), 1u) << (*at)[0];
  }
  EXPECT_GT(count, 80);
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
  Compare(kernel, ours);
  Compare(ProcessResults(kPlain, fd), ProcessResults(kOurs, fd));
  if (fd > 2) kOurs.close(fd);
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
  Compare(ProcessResults(kPlain, plain.one), ProcessResults(kOurs, mine.one));
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
  Compare(ProcessResults(kPlain, plain.one), ProcessResults(kOurs, mine.one));
  for (int fd : {plain.one, plain.other}) kPlain.close(fd);
  for (int fd : {mine.one, mine.other}) kOurs.close(fd);
}

}  // namespace
