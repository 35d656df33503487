// What a program that is linked with rcsock asks of a stream, and what the
// stream is (FactsLatched).  Also UsedPastUs, since such a program makes plain
// calls, too.

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
  facts.connected = peer_.connected();
  facts.on_lane = on_lane_.load(std::memory_order_relaxed);
  facts.switching =
      engine && (lane_ != nullptr || stream_->tx() != stream::Tx::kRaw);
  facts.kind = lane_kind_;
  facts.epoch = lane_epoch_;
  facts.reason = search_.reason();
  facts.service = peer_.service();
  facts.sought_ns = remote_.sought_ns();
  facts.demotions = tally_.demotions();
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
                       sock_->search().reason() == Reason::kPolicy &&
                       !state.Never();
    if (unpin) {
      state.Step(LaneState::Event::kUnpin);
      sock_->search().SetReason(Reason::kShortLived);
    }
    if (policy == Policy::kEager) {
      sock_->search().AtOnce();
    } else {
      sock_->search().Later();
    }
    look = unpin && sock_->peer().connected();
  }
  if (look) sock_->search().Allow();
}

int ProgramControl::PromoteNow() {
  LaneState& state = sock_->lane_state();
  if (!sock_->peer().connected()) return ENOTCONN;
  if (sock_->OnLane() || state.Seeking()) return 0;
  {
    Latched latched(sock_);
    // The stream is on a lane, or on its way to or from one.
    if (sock_->mode() == Mode::kEngine) return 0;
    if (sock_->mode() != Mode::kPlain || state.Never() || state.Pinned() ||
        sock_->ending().closed()) {
      return EPERM;
    }
    sock_->search().ForgetAttempts();
  }
  sock_->search().Allow();
  // Another thread may begin the search.
  if (!state.MayLeaveTcp(LaneState::kWeak)) return EPERM;
  sock_->search().Begin();
  return 0;
}

int ProgramControl::DemoteNow(std::uint64_t deadline_ns) {
  constexpr std::uint32_t kPauseNs = 2'000'000;
  if (sock_->way_back().ToPlain(Reason::kPolicy, deadline_ns, kPauseNs)) {
    return 0;
  }
  // A stream that has failed is on no lane, as one that TCP has reset.
  Latched latched(sock_);
  const stream::Stream* const engine = sock_->engine();
  return engine != nullptr && sock_->lane() == nullptr && engine->Failed()
             ? 0
             : ETIMEDOUT;
}

bool Sock::UsedPastUs() {
  // After a first lane TCP has carried frames, too.
  if (tally_.promoted() || search_.attempts() != 0 || stream_ != nullptr)
    return false;
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

}  // namespace rcsock::posix
