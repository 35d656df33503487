#include "tests/posix/pair.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>
#include <vector>

namespace pair {
namespace {

struct Registered {
  const char* name;
  End server;
  End client;
  Options options;
};
std::vector<Registered>& Cases() {
  static auto* cases = new std::vector<Registered>();
  return *cases;
}

bool is_client = false;
// What Warm does where it waits for nothing.
int warm_turns = 20;
// This case's connections warm until they are on a lane.
bool warm_to_lane = false;
int log_fd = 1;
int to_other = -1;
int from_other = -1;

void WriteRaw(int fd, const void* from, std::size_t length) {
  const char* at = static_cast<const char*>(from);
  while (length > 0) {
    const ssize_t n = ::write(fd, at, length);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    at += n;
    length -= static_cast<std::size_t>(n);
  }
}

bool ReadRaw(int fd, void* to, std::size_t length) {
  char* at = static_cast<char*>(to);
  while (length > 0) {
    const ssize_t n = ::read(fd, at, length);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    length -= static_cast<std::size_t>(n);
  }
  return true;
}

std::string Format(const char* format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  return text;
}

}  // namespace

const char* ErrorName(int error) {
  const char* name = ::strerrorname_np(error);
  return name != nullptr ? name : "?";
}

void Log(const char* format, ...) {
  const int saved = errno;
  va_list arguments;
  va_start(arguments, format);
  const std::string line = "  " + Format(format, arguments) + "\n";
  va_end(arguments);
  WriteRaw(log_fd, line.data(), line.size());
  errno = saved;
}

long Result(const char* what, long n) {
  if (n < 0) {
    Log("%s: %s", what, ErrorName(errno));
  } else {
    Log("%s: %ld", what, n);
  }
  return n;
}

void Fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string text = Format(format, arguments);
  va_end(arguments);
  Log("FAILED %s", text.c_str());
  // No destructors: other threads may be anywhere.
  ::_exit(9);
}

void Barrier() {
  const char byte = 'b';
  WriteRaw(to_other, &byte, 1);
  char got = 0;
  if (!ReadRaw(from_other, &got, 1) || got != 'b') Fail("barrier");
}

void Tell(std::int64_t value) { WriteRaw(to_other, &value, sizeof value); }

std::int64_t Hear() {
  std::int64_t value = 0;
  if (!ReadRaw(from_other, &value, sizeof value)) Fail("nobody tells");
  return value;
}

bool IsClient() { return is_client; }

int Scale(int plain) {
  const char* text = std::getenv("PAIR_SCALE");
  const int percent = text != nullptr ? std::atoi(text) : 100;
  const int n = plain * percent / 100;
  return n > 0 ? n : 1;
}

void SendAll(int fd, const void* from, std::size_t length) {
  const char* at = static_cast<const char*>(from);
  while (length > 0) {
    const ssize_t n = ::send(fd, at, length, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      pollfd one{fd, POLLOUT, 0};
      ::poll(&one, 1, -1);
      continue;
    }
    if (n <= 0) Fail("send: %zd %s", n, ErrorName(errno));
    at += n;
    length -= static_cast<std::size_t>(n);
  }
}

void RecvAll(int fd, void* to, std::size_t length) {
  char* at = static_cast<char*>(to);
  while (length > 0) {
    const ssize_t n = ::recv(fd, at, length, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      pollfd one{fd, POLLIN, 0};
      ::poll(&one, 1, -1);
      continue;
    }
    if (n <= 0) Fail("recv: %zd %s", n, ErrorName(n < 0 ? errno : 0));
    at += n;
    length -= static_cast<std::size_t>(n);
  }
}

void Echo(int fd, int count) {
  char text[16];
  for (int i = 0; i < count; ++i) {
    RecvAll(fd, text, sizeof text);
    SendAll(fd, text, sizeof text);
  }
}

void Call(int fd, int count) {
  for (int i = 0; i < count; ++i) {
    char text[16];
    char back[16];
    Pattern(21, static_cast<std::uint64_t>(i) * 16, text, sizeof text);
    SendAll(fd, text, sizeof text);
    RecvAll(fd, back, sizeof back);
    CHECK_THAT(std::memcmp(text, back, sizeof text) == 0);
  }
}

namespace {

// (What is between the parentheses may have anything in it, ")" too.)
void AwaitRunState(pid_t pid, pid_t thread, char wanted) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task/%d/stat",
                static_cast<int>(pid), static_cast<int>(thread));
  for (;;) {
    std::FILE* const file = std::fopen(path, "r");
    CHECK_THAT(file != nullptr);
    char text[256] = {};
    CHECK_THAT(std::fread(text, 1, sizeof text - 1, file) > 0);
    std::fclose(file);
    const char* const name_end = std::strrchr(text, ')');
    CHECK_THAT(name_end != nullptr);
    if (name_end[2] == wanted) return;
    ::sched_yield();
  }
}

}  // namespace

void Stop(pid_t pid) {
  CHECK_THAT(::kill(pid, SIGSTOP) == 0);
  AwaitRunState(pid, pid, 'T');
}

void AwaitAsleep(pid_t pid, pid_t thread) { AwaitRunState(pid, thread, 'S'); }

std::size_t Drain(int fd, int* error) {
  char text[8192];
  std::size_t total = 0;
  *error = 0;
  for (;;) {
    const ssize_t n = ::recv(fd, text, sizeof text, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) *error = errno;
    if (n <= 0) return total;
    total += static_cast<std::size_t>(n);
  }
}

void LogDrain(int fd) {
  int error;
  const std::size_t n = Drain(fd, &error);
  Log("rest %zu, %s", n, error == 0 ? "EOF" : ErrorName(error));
}

void SpeakToCat(int fd) {
  char text[64];
  for (int i = 0; i < 300; ++i) {
    const int n = std::snprintf(text, sizeof text, "line %d\n", i);
    SendAll(fd, text, static_cast<std::size_t>(n));
    char back[64] = {};
    RecvAll(fd, back, static_cast<std::size_t>(n));
    CHECK_THAT(std::memcmp(text, back, static_cast<std::size_t>(n)) == 0);
  }
  ::shutdown(fd, SHUT_WR);
  LogDrain(fd);
}

void LogChild(pid_t child) {
  int status = 0;
  CHECK_THAT(::waitpid(child, &status, 0) == child);
  Log("child: %x", static_cast<unsigned>(status));
}

void AwaitBytes(int fd, int wanted) {
  int n = 0;
  while (::ioctl(fd, FIONREAD, &n) == 0 && n < wanted) ::poll(nullptr, 0, 1);
  Log("FIONREAD %d", n);
}

void AwaitPoll(int fd, short events, short wanted) {
  for (;;) {
    pollfd one{fd, events, 0};
    CHECK_THAT(::poll(&one, 1, -1) == 1);
    if ((one.revents & wanted) == wanted) {
      Log("poll %x", static_cast<unsigned>(one.revents));
      return;
    }
    ::poll(nullptr, 0, 1);
  }
}

std::uint64_t TcpBytes(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) {
    Fail("TCP_INFO: %s", ErrorName(errno));
  }
  return info.tcpi_bytes_received + info.tcpi_bytes_acked;
}

void Warm(int fd) { WarmAs(fd, is_client); }

void WarmAs(int fd, bool asks) {
  const char* warm = std::getenv("PAIR_WARM");
  const bool lane =
      warm_to_lane || (warm != nullptr && std::strcmp(warm, "lane") == 0);
  char message[8] = "warming";
  if (!asks) {
    do {
      RecvAll(fd, message, sizeof message);
      SendAll(fd, message, sizeof message);
    } while (message[0] != 'g');
    return;
  }
  const std::uint64_t start = NowMs();
  int still = 0;
  std::uint64_t before = 0;
  for (int i = 0; lane ? still < 3 : i < warm_turns; ++i) {
    SendAll(fd, message, sizeof message);
    RecvAll(fd, message, sizeof message);
    if (i % 10 != 9) continue;
    const std::uint64_t now = TcpBytes(fd);
    still = now == before ? still + 1 : 0;
    before = now;
    if (lane && NowMs() - start > 10'000) Fail("still on TCP");
  }
  message[0] = 'g';
  SendAll(fd, message, sizeof message);
  RecvAll(fd, message, sizeof message);
}

void SetNonblock(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  CHECK_THAT(
      ::fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0);
}

void AwaitStamps() {
  int port;
  const int listener = Listen(&port);
  const int from = Connect(port);
  const int to = ::accept(listener, nullptr, nullptr);
  const int on = 1;
  CHECK_THAT(::setsockopt(to, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) == 0);
  for (;;) {
    SendAll(from, "x", 1);
    char byte;
    iovec iov{&byte, 1};
    alignas(cmsghdr) char control[64];
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    CHECK_THAT(::recvmsg(to, &message, 0) == 1);
    if (message.msg_controllen != 0) break;
    ::poll(nullptr, 0, 1);
  }
  ::close(from);
  ::close(to);
  ::close(listener);
}

void Pattern(std::uint64_t seed, std::uint64_t offset, void* to,
             std::size_t length) {
  auto* at = static_cast<unsigned char*>(to);
  for (std::size_t i = 0; i < length; ++i)
    at[i] = posix_test::ByteAt(seed, offset + i);
}

bool IsPattern(std::uint64_t seed, std::uint64_t offset, const void* from,
               std::size_t length) {
  const auto* at = static_cast<const unsigned char*>(from);
  for (std::size_t i = 0; i < length; ++i) {
    if (at[i] != posix_test::ByteAt(seed, offset + i)) return false;
  }
  return true;
}

std::uint64_t Seed() {
  const char* text = std::getenv("PAIR_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

Case::Case(const char* name, End server, End client, Options options) {
  Cases().push_back({name, std::move(server), std::move(client), options});
}

int Listen(int* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  CHECK_THAT(fd >= 0);
  sockaddr_in address = posix_test::Loopback(0);
  socklen_t length = sizeof address;
  CHECK_THAT(::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0);
  CHECK_THAT(::listen(fd, 512) == 0);
  CHECK_THAT(
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  *port = ntohs(address.sin_port);
  return fd;
}

int Connect(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  CHECK_THAT(fd >= 0);
  sockaddr_in address = posix_test::Loopback(port);
  CHECK_THAT(::connect(fd, reinterpret_cast<sockaddr*>(&address),
                       sizeof address) == 0);
  return fd;
}

int ListenAndTell() {
  int port;
  const int listener = Listen(&port);
  Tell(port);
  return listener;
}

int HearPort() { return static_cast<int>(Hear()); }

int Accept(int listener) {
  const int fd = ::accept(listener, nullptr, nullptr);
  CHECK_THAT(fd >= 0);
  return fd;
}

namespace {

// PAIR_TURNS: one number of its upper two thirds for each case, always the
// same.
int WarmTurns(const char* name) {
  const char* most = std::getenv("PAIR_TURNS");
  if (most == nullptr) return 20;
  std::uint64_t seed = Seed();
  for (const char* c = name; *c != 0; ++c) {
    seed = seed * 131 + static_cast<unsigned char>(*c);
  }
  const auto turns = static_cast<std::uint64_t>(std::atoi(most));
  return static_cast<int>(turns / 3 + Random{seed}.Below(turns * 2 / 3 + 1));
}

void RunEnd(const Registered& one) {
  warm_turns = WarmTurns(one.name);
  int fd = -1;
  if (one.options.connect) {
    if (is_client) {
      fd = Connect(HearPort());
    } else {
      const int listener = ListenAndTell();
      fd = Accept(listener);
      ::close(listener);
    }
    if (one.options.warm) Warm(fd);
  }
  (is_client ? one.client : one.server)(fd);
}

std::string Status(int status) {
  if (WIFEXITED(status)) return "exit " + std::to_string(WEXITSTATUS(status));
  return "signal " + std::to_string(WTERMSIG(status));
}

// Both ends as children, so that no case inherits anything from the one before.
bool Run(const Registered& one) {
  int across[2][2];
  int logs[2][2];
  pid_t pids[2];
  for (int i = 0; i < 2; ++i) {
    if (::pipe(across[i]) != 0 || ::pipe(logs[i]) != 0) return false;
  }
  std::fflush(nullptr);
  for (int end = 0; end < 2; ++end) {
    pids[end] = ::fork();
    if (pids[end] > 0) ::setpgid(pids[end], pids[end]);
    if (pids[end] == 0) {
      ::setpgid(0, 0);
      is_client = end == 1;
      log_fd = logs[end][1];
      to_other = across[end][1];
      from_other = across[1 - end][0];
      ::close(across[end][0]);
      ::close(across[1 - end][1]);
      ::close(logs[1 - end][1]);
      RunEnd(one);
      ::exit(0);
    }
  }
  for (int i = 0; i < 2; ++i) {
    ::close(across[i][0]);
    ::close(across[i][1]);
    ::close(logs[i][1]);
  }
  // Until both logs have ended: grandchildren may hold them too.
  std::string text[2];
  bool open[2] = {true, true};
  bool hang = false;
  // A safety net only: PAIR_PATIENCE is how much slower than usual all may be.
  static const char* const patience = std::getenv("PAIR_PATIENCE");
  const std::uint64_t times =
      patience != nullptr ? std::strtoull(patience, nullptr, 10) : 2;
  const std::uint64_t start = NowMs();
  const std::uint64_t end =
      start + static_cast<std::uint64_t>(one.options.seconds) * 1000 * times;
  while (open[0] || open[1]) {
    pollfd fds[2] = {{open[0] ? logs[0][0] : -1, POLLIN, 0},
                     {open[1] ? logs[1][0] : -1, POLLIN, 0}};
    const std::uint64_t now = NowMs();
    if (now >= end) {
      hang = true;
      if (std::getenv("PAIR_STAY") != nullptr) {
        std::printf("%s hangs: pids %d %d\n", one.name, pids[0], pids[1]);
        std::fflush(nullptr);
        ::pause();
      }
      for (const pid_t pid : pids) ::kill(-pid, SIGKILL);
      break;
    }
    ::poll(fds, 2, static_cast<int>(end - now));
    for (int i = 0; i < 2; ++i) {
      if (fds[i].revents == 0) continue;
      char piece[4096];
      const ssize_t n = ::read(logs[i][0], piece, sizeof piece);
      if (n <= 0) {
        open[i] = false;
      } else {
        text[i].append(piece, static_cast<std::size_t>(n));
      }
    }
  }
  std::string statuses[2];
  for (int i = 0; i < 2; ++i) {
    int status = 0;
    ::waitpid(pids[i], &status, 0);
    ::kill(-pids[i], SIGKILL);  // what it has left behind
    statuses[i] = Status(status);
    ::close(logs[i][0]);
  }
  const char* names[2] = {"server", "client"};
  bool ok = !hang;
  for (int i = 0; i < 2; ++i) {
    std::printf("%s %s: %s\n%s", one.name, names[i], statuses[i].c_str(),
                text[i].c_str());
    if (text[i].find("FAILED") != std::string::npos) ok = false;
  }
  if (hang) std::printf("%s HANGS\n", one.name);
  if (std::getenv("PAIR_TIMES") != nullptr) {
    std::fprintf(stderr, "%s: %llu ms\n", one.name,
                 static_cast<unsigned long long>(NowMs() - start));
  }
  std::fflush(nullptr);
  return ok;
}

}  // namespace

namespace {

// Whether `name` is one of `list`, with commas between.
bool Lists(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    if (list.substr(0, end) == name) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

}  // namespace

int Main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--list") == 0) {
    for (const Registered& one : Cases()) std::puts(one.name);
    return 0;
  }
  bool ok = true;
  int ran = 0;
  const char* spare = std::getenv("PAIR_SKIP");
  // PAIR_FIRST=lane: the first case that warms does so to the lane.
  const char* first = std::getenv("PAIR_FIRST");
  bool sought = first != nullptr && std::strcmp(first, "lane") == 0;
  for (const Registered& one : Cases()) {
    if (argc > 1 && std::strstr(one.name, argv[1]) == nullptr) continue;
    if (spare != nullptr && Lists(spare, one.name)) continue;
    ++ran;
    warm_to_lane = sought && one.options.warm && one.options.connect;
    sought = sought && !warm_to_lane;
    ok = Run(one) && ok;
  }
  if (ran == 0) {
    std::fprintf(stderr, "no case named so\n");
    return 2;
  }
  return ok ? 0 : 1;
}

}  // namespace pair

int main(int argc, char** argv) { return pair::Main(argc, argv); }

#if defined(__SANITIZE_ADDRESS__)
// Asio keeps the memory of its operations by the stack of the thread that runs
// them.  In a forked child there is no such thread, and nobody looks at its
// stack: what the parent's conductor had at hand seems lost, and a task that it
// had still to run with its hold on a stream.
extern "C" [[gnu::visibility("default")]] const char*
__lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:boost::asio::detail::thread_info_base::allocate\n"
         "leak:rcsock::posix::Sock::Share\n";
}
#endif
