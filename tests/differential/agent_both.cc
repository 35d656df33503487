// What both ends do at once: round trips, warming up, bulk.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/differential/agent.h"
#include "tests/posix/common.h"

namespace differential {

using posix_test::NowMs;

namespace {

bool Move(int fd, bool send, char* bytes, std::size_t length) {
  const std::uint64_t end = NowMs() + 20'000;
  std::size_t at = 0;
  int tries = 0;
  // TCP wakes nobody for less than SO_RCVLOWAT, whatever is asked for.
  int mark = 1;
  socklen_t size = sizeof mark;
  ::getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, &size);
  const int flags = mark > 1 ? MSG_DONTWAIT : 0;
  while (at < length) {
    const ssize_t n = send ? ::send(fd, bytes + at, length - at, MSG_NOSIGNAL)
                           : ::recv(fd, bytes + at, length - at, flags);
    if (n > 0) {
      at += static_cast<std::size_t>(n);
      tries = 0;
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    if (NowMs() > end) return false;
    if (++tries > 50) {
      Brief();
    } else {
      ::sched_yield();
    }
  }
  return true;
}

std::uint64_t TcpBytes(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
  return info.tcpi_bytes_received + info.tcpi_bytes_acked;
}

}  // namespace

bool RoundTrips(int fd, bool first, int count) {
  char message[8] = "warming";
  for (int i = 0; i < count; ++i) {
    if (first && !Move(fd, true, message, sizeof message)) return false;
    if (!Move(fd, false, message, sizeof message)) return false;
    if (!first && !Move(fd, true, message, sizeof message)) return false;
  }
  return true;
}

std::string Warm(int fd, bool lane) {
  char message[8] = "warming";
  if (accepts) {
    do {
      if (!Move(fd, false, message, sizeof message) ||
          !Move(fd, true, message, sizeof message)) {
        return "the connection ended";
      }
    } while (message[0] != 'g');
    return "warm";
  }
  const std::uint64_t end = NowMs() + 10'000;
  int still = 0;
  std::uint64_t before = 0;
  while (lane ? still < 2 : still < 1) {
    if (!RoundTrips(fd, true, 10)) return "the connection ended";
    const std::uint64_t now = TcpBytes(fd);
    still = now == before || !lane ? still + 1 : 0;
    before = now;
    if (NowMs() > end) return "still on TCP";
  }
  message[0] = 'g';
  Move(fd, true, message, sizeof message);
  Move(fd, false, message, sizeof message);
  return "warm";
}

std::string DoBulk(const Slot& slot, bool sends, std::uint8_t index) {
  const std::size_t length = 200'000u << (index % 4);
  std::vector<char> bytes(length);
  if (sends) bytes = Bytes(slot.connection, length);
  if (!Move(slot.fd, sends, bytes.data(), length)) return "ended early";
  if (sends) tx_at[slot.connection] += length;
  return sends ? "sent"
               : "came" + Hash(bytes.data(), static_cast<long>(length));
}

}  // namespace differential
