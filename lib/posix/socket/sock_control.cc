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

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/tcp_info.h"
#include "lib/posix/sys/user_arguments.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using base::Reason;

StreamFacts Sock::FactsLatched() const {
  StreamFacts facts;
  const bool engine = mode() == Mode::kEngine && stream_ != nullptr;
  facts.connected = connected_.load(std::memory_order_relaxed);
  facts.on_lane = on_lane_.load(std::memory_order_relaxed);
  facts.switching =
      engine && (lane_ != nullptr || stream_->tx() != stream::Tx::kRaw);
  facts.kind = lane_kind_;
  facts.epoch = lane_epoch_;
  facts.reason = reason_;
  facts.service = service_.load(std::memory_order_relaxed);
  facts.sought_ns = remote_.sought_ns;
  facts.demotions = demotions_;
  facts.tx_bytes = engine ? stream_->tx_off() : calls_.tx();
  facts.rx_bytes = engine ? stream_->rx_off() : calls_.rx();
  // What the engine delivered, less what the engine read from TCP.
  const std::uint64_t rx = lane_rx_ + quick_.rx;
  const std::uint64_t from_tcp = anchor_.BytesRead(rx_latch);
  facts.lane_tx_bytes = std::min(lane_tx_ + quick_.tx, facts.tx_bytes);
  facts.lane_rx_bytes = std::min(rx - std::min(rx, from_tcp), facts.rx_bytes);
  return facts;
}

void ProgramControl::SetPolicy(Policy policy) {
  const Policy before = policy_.exchange(policy, std::memory_order_relaxed);
  LaneState& state = sock_->lane_state();
  if (policy == Policy::kTcp) {
    // A stream that is pinned for another reason keeps that reason.
    if (!state.Pinned()) sock_->way_back().Pin(Reason::kPolicy);
    return;
  }
  bool look;
  {
    Latched latched(sock_);
    const bool unpin = before == Policy::kTcp &&
                       sock_->reason_ == Reason::kPolicy && !state.Never();
    if (unpin) {
      state.Step(LaneState::Event::kUnpin);
      sock_->reason_ = Reason::kShortLived;
    }
    if (policy == Policy::kEager) {
      sock_->next_ops_.store(0, std::memory_order_relaxed);
    } else {
      sock_->TryAgainLater();
    }
    look = unpin && sock_->connected_.load(std::memory_order_relaxed);
  }
  if (look) sock_->AllowLane();
}

int ProgramControl::PromoteNow() {
  LaneState& state = sock_->lane_state();
  if (!sock_->connected_.load(std::memory_order_relaxed)) return ENOTCONN;
  if (sock_->OnLane() || state.Seeking()) return 0;
  {
    Latched latched(sock_);
    // On its way to a lane, or from a lane.
    if (sock_->mode() == Mode::kEngine) return 0;
    if (sock_->mode() != Mode::kPlain || state.Never() || state.Pinned() ||
        sock_->Closed()) {
      return EPERM;
    }
    sock_->attempts_ = 0;
  }
  sock_->AllowLane();
  // Another thread may begin the search.
  if (!state.MayLeaveTcp(LaneState::kWeak)) return EPERM;
  sock_->StartSeek();
  return 0;
}

int ProgramControl::DemoteNow(std::uint64_t deadline_ns) {
  constexpr std::uint32_t kPauseNs = 2'000'000;
  return sock_->way_back().ToPlain(Reason::kPolicy, deadline_ns, kPauseNs)
             ? 0
             : ETIMEDOUT;
}

bool Sock::UsedPastUs() {
  // After a first lane TCP has carried frames, too.
  if (tally_.promoted() || attempts_ != 0 || stream_ != nullptr) return false;
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
    if (!differ(tx, calls_.tx()) && !differ(rx, calls_.rx())) {
      return false;
    }
    RCSOCK_LOG(1, "fd %d: %llu bytes went out and %llu in, %llu and %llu by us",
               fd(), static_cast<unsigned long long>(tx),
               static_cast<unsigned long long>(rx),
               static_cast<unsigned long long>(calls_.tx()),
               static_cast<unsigned long long>(calls_.rx()));
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
  if (OptionsPin(number)) way_back_.PinByOption();
}

}  // namespace rcsock::posix
