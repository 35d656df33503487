// What a program that is linked with rcsock asks of a stream.  Also the looks
// that are needed because such a program makes plain calls, too.

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/sleep.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;

Sock::Info Sock::Describe() {
  Critical critical;
  Info info;
  Latched latched(this);
  info.on_lane = on_lane_.load(std::memory_order_relaxed);
  info.kind = lane_kind_;
  info.epoch = lane_epoch_;
  info.reason = reason_;
  info.tx_bytes = tx_raw_.load(std::memory_order_relaxed);
  info.rx_bytes = rx_raw_.load(std::memory_order_relaxed);
  if (stream_ != nullptr && mode() == Mode::kEngine) {
    info.tx_bytes = stream_->tx_off();
    info.rx_bytes = stream_->rx_off();
  }
  info.lane_tx_bytes = LaneTx() < info.tx_bytes ? LaneTx() : info.tx_bytes;
  const std::uint64_t from_tcp = anchor_.BytesRead(rx_latch);
  const std::uint64_t by_lane = LaneRx() > from_tcp ? LaneRx() - from_tcp : 0;
  info.lane_rx_bytes = by_lane < info.rx_bytes ? by_lane : info.rx_bytes;
  info.demotions = demotions_;
  return info;
}

void Sock::SetPolicy(Policy policy) {
  const Policy before = policy_.exchange(policy, std::memory_order_relaxed);
  if (policy == Policy::kTcp) {
    // A stream that is pinned for another reason keeps that reason.
    if (!lane_state_.Pinned()) Pin(Reason::kPolicy);
    return;
  }
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  const bool unpin = before == Policy::kTcp && reason_ == Reason::kPolicy &&
                     !lane_state_.Never();
  if (unpin) {
    lane_state_.Step(LaneState::Event::kUnpin);
    reason_ = Reason::kShortLived;
  }
  if (policy == Policy::kEager) {
    next_ops_.store(0, std::memory_order_relaxed);
  } else {
    TryAgainLater();
  }
  const bool look = unpin && connected_.load(std::memory_order_relaxed);
  rx_latch.unlock();
  tx_latch.unlock();
  if (look) AllowLane();
}

int Sock::PromoteNow() {
  if (!connected_.load(std::memory_order_relaxed)) return ENOTCONN;
  if (OnLane() || lane_state_.Seeking()) return 0;
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  const bool may = mode() == Mode::kPlain && !lane_state_.Never() &&
                   !lane_state_.Pinned() &&
                   !closed_.load(std::memory_order_relaxed);
  const bool engine = mode() == Mode::kEngine;
  if (may) attempts_ = 0;
  rx_latch.unlock();
  tx_latch.unlock();
  if (engine) return 0;  // on its way to a lane, or from a lane
  if (!may) return EPERM;
  AllowLane();
  // Another thread may begin the search.
  if (!MayLeaveTcp()) return EPERM;
  StartSeek();
  return 0;
}

int Sock::DemoteNow(std::uint64_t deadline_ns) {
  for (int i = 0;; ++i) {
    if (StepToPlain(Reason::kPolicy)) return 0;
    if (StuckOnStash() || base::NowNs() >= deadline_ns) break;
    base::SleepThrough(i < 50 ? 100'000 : 2'000'000);
  }
  StopLeaving();
  return mode() != Mode::kEngine ? 0 : ETIMEDOUT;
}

bool Sock::UsedPastUs() {
  // After a first lane TCP has carried frames, too.
  if (promoted_ || attempts_ != 0 || stream_ != nullptr) return false;
  const auto queued = [&](unsigned long what) {
    int bytes = 0;
    return ::syscall(SYS_ioctl, fd(), what, &bytes) == 0 ? bytes : -1;
  };
  for (int i = 0; i < 8; ++i) {
    const int unread = queued(SIOCINQ);
    const int unsent = queued(SIOCOUTQ);
    struct tcp_info info {};
    if (unread < 0 || unsent < 0 ||
        AskTcpInfo(fd(), &info) <
            offsetof(struct tcp_info, tcpi_bytes_received) + 8) {
      return false;
    }
    // Bytes may come and be acknowledged meanwhile, so this looks until none
    // do.
    if (queued(SIOCINQ) != unread || queued(SIOCOUTQ) != unsent) continue;
    // The kernel counts SYN and FIN as a byte in some states.
    const auto differ = [](std::uint64_t kernel, std::uint64_t ours) {
      return kernel + 1 < ours || kernel > ours + 2;
    };
    const std::uint64_t tx =
        info.tcpi_bytes_acked + static_cast<unsigned>(unsent);
    const std::uint64_t rx =
        info.tcpi_bytes_received - static_cast<unsigned>(unread);
    if (!differ(tx, tx_raw_.load(std::memory_order_relaxed)) &&
        !differ(rx, rx_raw_.load(std::memory_order_relaxed))) {
      return false;
    }
    RCSOCK_LOG(1, "fd %d: %llu bytes went out and %llu in, %llu and %llu by us",
               fd(), static_cast<unsigned long long>(tx),
               static_cast<unsigned long long>(rx),
               static_cast<unsigned long long>(tx_raw_.load()),
               static_cast<unsigned long long>(rx_raw_.load()));
    return true;
  }
  return false;
}

namespace {

int OptionOf(int fd, int level, int name, int otherwise = 0) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::syscall(SYS_getsockopt, fd, level, name, &value, &size) == 0
             ? value
             : otherwise;
}

// A filter that only its maker can read counts, too.
bool HasFilter(int fd) {
  socklen_t instructions = 0;
  return ::syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_GET_FILTER, nullptr,
                   &instructions) == 0
             ? instructions > 0
             : errno == EACCES;
}

// kTLS, for instance.
bool HasUpperProtocol(int fd) {
  char name[16];
  socklen_t size = sizeof name;
  return ::syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_ULP, name, &size) ==
             0 &&
         size > 0;
}

}  // namespace

void Sock::LearnOptions(int number) {
  const long flags = ::syscall(SYS_fcntl, number, F_GETFL);
  if (flags >= 0) {
    nonblock.store((flags & O_NONBLOCK) != 0, std::memory_order_relaxed);
  }
  const auto learn = [&](int name, std::atomic<std::uint64_t>* to) {
    timeval time{};
    socklen_t size = sizeof time;
    if (::syscall(SYS_getsockopt, number, SOL_SOCKET, name, &time, &size) ==
        0) {
      to->store(TimeoutNs(time), std::memory_order_relaxed);
    }
  };
  learn(SO_RCVTIMEO, &rcv_timeout_ns);
  learn(SO_SNDTIMEO, &snd_timeout_ns);
  const auto is_on = [&](int level, int name) {
    return OptionOf(number, level, name) != 0;
  };
  ancillary_.Set(Ancillary::kLeft, is_on(IPPROTO_TCP, TCP_INQ));
  ancillary_.Set(Ancillary::kTime, is_on(SOL_SOCKET, SO_TIMESTAMP) ||
                                       is_on(SOL_SOCKET, SO_TIMESTAMPNS));
}

bool OptionsPin(int number) {
  return OptionOf(number, SOL_SOCKET, SO_RCVLOWAT) > 1 ||
         OptionOf(number, SOL_SOCKET, SO_TIMESTAMPING) != 0 ||
         OptionOf(number, SOL_SOCKET, SO_PEEK_OFF, -1) >= 0 ||
         OptionOf(number, SOL_SOCKET, SO_MAX_PACING_RATE, -1) != -1 ||
         HasFilter(number) || HasUpperProtocol(number);
}

bool IsTcp(int number) {
  return OptionOf(number, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP;
}

void Sock::InheritFromUnknown(int number) {
  LearnOptions(number);
  if (OptionsPin(number)) PinByOption();
}

}  // namespace rcsock::posix
