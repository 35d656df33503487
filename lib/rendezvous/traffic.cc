#include "lib/rendezvous/traffic.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace rcsock::rendezvous {
namespace {

constexpr std::uint64_t kUnknown = ~std::uint64_t{0};
// SYN and FIN count as a byte each at one end, and not always at the other.
constexpr std::uint64_t kControl = 2;
// The kernel notes times by its tick, 10 ms at most (HZ=100).  Each of the two
// times may be one tick off.
constexpr std::uint64_t kTicksMs = 20;

std::uint64_t NowMs() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

bool Known(const Traffic& traffic) { return traffic.acked != kUnknown; }

// Whether `a` is at most `b`, but for the control bytes.
bool AtMost(std::uint64_t a, std::uint64_t b) {
  return a <= kControl || a - kControl <= b;
}

// Returns whether one end received no earlier than the other end sent its last
// bytes.  `received_all` says that nothing was under way.
bool InOrder(bool received_all, std::uint64_t sent_ms,
             std::uint64_t received_ms) {
  return !received_all || received_ms + kTicksMs >= sent_ms;
}

}  // namespace

Traffic TrafficOf(int fd) {
  const int saved = errno;
  Traffic traffic{};
  traffic.acked = kUnknown;
  tcp_info info{};
  socklen_t length = sizeof info;
  // This thread may be preempted around the call.  The times must err to one
  // side: sent_ms is no later than the truth, received_ms no earlier.
  const std::uint64_t begun = NowMs();
  const long r =
      ::syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &length);
  // Linux 4.19 added tcpi_bytes_sent, behind the other fields.
  if (r == 0 && length >= offsetof(tcp_info, tcpi_bytes_sent) +
                              sizeof info.tcpi_bytes_sent) {
    const std::uint64_t now = NowMs();
    traffic.acked = info.tcpi_bytes_acked;
    traffic.received = info.tcpi_bytes_received;
    traffic.sent = info.tcpi_bytes_sent;
    traffic.sent_ms = begun - info.tcpi_last_data_sent;
    traffic.received_ms = now - info.tcpi_last_data_recv;
  }
  errno = saved;
  return traffic;
}

bool CanBeOne(const Traffic* before, const Traffic& now,
              const Traffic& theirs) {
  if (!Known(now) || !Known(theirs)) return true;
  // What the peer had received when it counted, this end has sent now.  What
  // the peer knew to be received, this end has received now.
  if (!AtMost(theirs.received, now.sent) ||
      !AtMost(theirs.acked, now.received)) {
    return false;
  }
  // What this end had received at `before`, the peer had sent by its sample.
  // What this end knew to be received, the peer had received.
  if (before != nullptr && Known(*before) &&
      (!AtMost(before->received, theirs.sent) ||
       !AtMost(before->acked, theirs.received))) {
    return false;
  }
  return InOrder(now.sent != 0 && theirs.received >= now.sent, now.sent_ms,
                 theirs.received_ms) &&
         InOrder(theirs.sent != 0 && now.received >= theirs.sent,
                 theirs.sent_ms, now.received_ms);
}

}  // namespace rcsock::rendezvous
