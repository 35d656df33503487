#ifndef RCSOCK_TESTS_RENDEZVOUS_ROGUE_PROGRAMS_H_
#define RCSOCK_TESTS_RENDEZVOUS_ROGUE_PROGRAMS_H_

// The programs of rogue_test, which know sockets and nothing of rcsock.

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/rendezvous/rdma_util.h"

namespace rcsock::rendezvous {

// This program, and the shim.
inline std::string self;
inline std::string shim;

constexpr std::size_t kMessage = 64;

// What stands at `offset` of every stream here; never zero, so that a byte of
// it is seen wherever it lies.
inline char At(std::uint64_t offset) {
  return static_cast<char>(1 + offset % 251);
}

inline void Fill(std::uint64_t offset, char* to, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) to[i] = At(offset + i);
}
inline bool IsIt(std::uint64_t offset, const char* from, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) {
    if (from[i] != At(offset + i)) return false;
  }
  return true;
}

inline bool SendAll(int fd, const char* from, std::size_t length) {
  for (std::size_t done = 0; done < length;) {
    const ssize_t n = ::send(fd, from + done, length - done, MSG_NOSIGNAL);
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}
// How many came before the end.
inline std::size_t RecvAll(int fd, char* to, std::size_t length) {
  std::size_t done = 0;
  while (done < length) {
    const ssize_t n = ::recv(fd, to + done, length - done, 0);
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

// Bytes that the kernel's TCP has carried, both ways.
inline std::uint64_t TcpBytes(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  return info.tcpi_bytes_sent + info.tcpi_bytes_received;
}

inline int ConnectTo(const char* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address =
      DeviceAddress(static_cast<std::uint16_t>(std::atoi(port)));
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) !=
      0) {
    return -1;
  }
  return fd;
}

// Round trips until the server ends the connection, each as it should be.
inline int Chat(const char* port) {
  const int fd = ConnectTo(port);
  if (fd < 0) return 1;
  for (std::uint64_t at = 0;; at += kMessage) {
    char text[kMessage];
    Fill(at, text, sizeof text);
    if (!SendAll(fd, text, sizeof text)) return 2;
    const std::size_t n = RecvAll(fd, text, sizeof text);
    if (n == 0) return 0;
    if (n != sizeof text || !IsIt(at, text, n)) return 3;
  }
}

// More than a ring of 16 KiB takes, and no more than TCP does of a receiver
// that does not read.
constexpr std::size_t kMuch = 80 << 10;

// Round trips until they leave TCP alone; then kMuch at once, which ends when
// somebody has taken it.
inline int Send(const char* port) {
  const int fd = ConnectTo(port);
  if (fd < 0) return 1;
  std::uint64_t at = 0;
  for (int quiet = 0; quiet < 20;) {
    const std::uint64_t before = TcpBytes(fd);
    char text[kMessage];
    Fill(at, text, sizeof text);
    at += sizeof text;
    if (!SendAll(fd, text, sizeof text) ||
        RecvAll(fd, text, sizeof text) != sizeof text) {
      return 2;
    }
    quiet = TcpBytes(fd) - before < kMessage ? quiet + 1 : 0;
  }
  // Its first byte is no chat's: the receiver stops.
  std::vector<char> much(kMuch, '\0');
  Fill(1, &much[1], kMuch - 1);
  const auto start = Clock::now();
  if (!SendAll(fd, much.data(), much.size())) return 3;
  const auto took =
      std::chrono::duration_cast<milliseconds>(Clock::now() - start);
  std::printf("%d\n", static_cast<int>(took.count()));
  std::fflush(stdout);
  char byte;
  return RecvAll(fd, &byte, 1) == 0 ? 0 : 4;
}

// The other end of it: takes no more from the byte 0 on, until its standard
// input ends; then all that there is.
inline int Take() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = DeviceAddress(0);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener, 4) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) !=
          0) {
    return 1;
  }
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  const int fd = ::accept(listener, nullptr, nullptr);
  char text[kMessage];
  for (;;) {
    if (RecvAll(fd, text, sizeof text) != sizeof text) return 2;
    if (text[0] == '\0') break;
    if (!SendAll(fd, text, sizeof text)) return 3;
  }
  char byte;
  while (::read(0, &byte, 1) > 0) {
  }
  std::vector<char> rest(kMuch - kMessage);
  if (RecvAll(fd, rest.data(), rest.size()) != rest.size()) return 4;
  return IsIt(1, text + 1, sizeof text - 1) &&
                 IsIt(kMessage, rest.data(), rest.size())
             ? 0
             : 5;
}

// One of them, under the shim.
class Program {
 public:
  Program(const char* what, const std::string& argument) {
    char name[] = "/tmp/rogue_test.XXXXXX";
    const int log = ::mkostemp(name, O_CLOEXEC);
    log_ = name;
    int in[2];
    int out[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(kTestSeconds);
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::dup2(log, 2);
      ::setenv("LD_PRELOAD", shim.c_str(), 1);
      ::setenv("RCSOCK_LANES", "rdma", 1);
      ::setenv("RCSOCK_PROMOTE_OPS", "2", 1);
      ::setenv("RCSOCK_LOG", "2", 1);
      ::execl(self.c_str(), self.c_str(), what, argument.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(log);
    ::close(in[0]);
    ::close(out[1]);
    to_ = in[1];
    from_ = ::fdopen(out[0], "r");
  }
  ~Program() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    EndInput();
    std::fclose(from_);
    ::unlink(log_.c_str());
  }
  int Number() {
    int number = -1;
    EXPECT_EQ(std::fscanf(from_, "%d", &number), 1);
    return number;
  }
  void EndInput() {
    if (to_ >= 0) ::close(std::exchange(to_, -1));
  }
  void ExpectEnd() {
    ExpectSuccess(pid_);
    pid_ = -1;
  }
  std::string Log() const {
    std::stringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }
  bool Said(const std::string& what) const {
    return Log().find(what) != std::string::npos;
  }

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  std::FILE* from_ = nullptr;
  std::string log_;
};

// A server without rcsock: gives back what it gets, if that is what the client
// has sent and nothing else.
class PlainServer {
 public:
  PlainServer() {
    sockaddr_in address = DeviceAddress(0);
    listener_ = Listen(&address);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~PlainServer() {
    Stop();
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::uint16_t port() const { return port_; }
  std::uint64_t echoed() const { return echoed_; }
  bool strange() const { return strange_; }
  // After the next message.
  void Stop() { stop_ = true; }
  rendezvous::Tuple TupleOf() const {
    sockaddr_storage local{};
    sockaddr_storage peer{};
    socklen_t length = sizeof local;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&local), &length);
    length = sizeof peer;
    ::getpeername(fd_, reinterpret_cast<sockaddr*>(&peer), &length);
    Address ours;
    Address theirs;
    std::uint16_t our_port = 0;
    std::uint16_t their_port = 0;
    EXPECT_TRUE(Normalise(local, &ours, &our_port));
    EXPECT_TRUE(Normalise(peer, &theirs, &their_port));
    return MakeTuple(stream::Role::kAcceptor, ours, our_port, theirs,
                     their_port);
  }

 private:
  void Run() {
    fd_ = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd_ < 0) return;
    char text[kMessage];
    while (RecvAll(fd_, text, sizeof text) == sizeof text) {
      if (!IsIt(echoed_, text, sizeof text)) {
        strange_ = true;
        break;
      }
      if (stop_ || !SendAll(fd_, text, sizeof text)) break;
      echoed_ += sizeof text;
    }
    ::close(fd_);
  }

  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<int> fd_{-1};
  std::atomic<std::uint64_t> echoed_{0};
  std::atomic<bool> strange_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_TESTS_RENDEZVOUS_ROGUE_PROGRAMS_H_
