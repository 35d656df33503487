#include "lib/posix/sock.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/pool.h"
#include "lib/base/real.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/epoll.h"
#include "lib/posix/poll.h"
#include "lib/posix/process.h"
#include "lib/posix/signals.h"
#include "lib/posix/spin.h"
#include "lib/rendezvous/address.h"

namespace rcsock::posix {

using base::Reason;
using rendezvous::Conductor;
using stream::Stream;

std::atomic<File*> fd_table[kMaxFds];
std::atomic<int> fd_high{-1};

thread_local constinit SpinBudget tls_spin;

// --- Pool
// ------------------------------------------------------------------------

struct SockPool {
  static inline base::Latch latch;
  static inline Sock* free = nullptr;  // linked through pool_next_
  static Sock* Take() {
    Critical critical;
    latch.lock();
    Sock* sock = free;
    if (sock != nullptr) free = sock->pool_next_;
    latch.unlock();
    if (sock == nullptr) return new (std::nothrow) Sock();
    return sock;
  }
  static void Give(Sock* sock) {
    Critical critical;
    latch.lock();
    sock->pool_next_ = free;
    free = sock;
    latch.unlock();
  }
};

namespace {
constinit base::Pool socks(sizeof(Sock));
}  // namespace

void* Sock::operator new(std::size_t, const std::nothrow_t&) noexcept {
  return socks.Take();
}

Sock::Sock() : File(FileKind::kSock) {}

Sock* Sock::New(stream::Role role, bool is_nonblock) {
  Sock* sock = SockPool::Take();
  if (sock == nullptr) return nullptr;
  sock->Reset();
  sock->role_ = role;
  sock->nonblock.store(is_nonblock, std::memory_order_relaxed);
  sock->refs_.store(1, std::memory_order_relaxed);
  return sock;
}

void Sock::Reset() {
  const base::Config& config = base::GetConfig();
  interests_user = false;
  listening.store(false, std::memory_order_relaxed);
  rcv_timeout_ns.store(0, std::memory_order_relaxed);
  snd_timeout_ns.store(0, std::memory_order_relaxed);
  mode_.store(Mode::kPlain, std::memory_order_relaxed);
  wanted_.store(false, std::memory_order_relaxed);
  eligible_.store(false, std::memory_order_relaxed);
  may_adopt_.store(false, std::memory_order_relaxed);
  never_.store(false, std::memory_order_relaxed);
  pinned_.store(false, std::memory_order_relaxed);
  option_pinned_.store(false, std::memory_order_relaxed);
  exec_pinned_ = false;
  exec_left_ = false;
  seeking_.store(false, std::memory_order_relaxed);
  closed_.store(false, std::memory_order_relaxed);
  fd_.store(-1, std::memory_order_relaxed);
  tx_raw_.store(0, std::memory_order_relaxed);
  rx_raw_.store(0, std::memory_order_relaxed);
  ops_.store(0, std::memory_order_relaxed);
  next_ops_ = config.promote_ops;
  next_bytes_ = config.promote_bytes;
  attempts_ = 0;
  local_peer_.store(false, std::memory_order_relaxed);
  stream_.reset();
  lane_.reset();
  link_.reset();
  index_ = -1;
  notify_.store(0, std::memory_order_relaxed);
  bell_.store(0, std::memory_order_relaxed);
  watched_ = false;
  starve_timer_ = false;
  tx_wait_ = false;
  watch_events_ = 0;
  timer_ = 0;
  close_timer_ = 0;
  settle_posted_ = false;
  settle_wait_ms_ = 1;
  kept_options_ = 0;
  rd_shut_ = false;
  promoted_ = false;
  accounted_ = false;
  on_lane_.store(false, std::memory_order_relaxed);
  finished_ = false;
  finish_done_ = false;
  settled_ = false;
  reset_ = false;
  connected_.store(false, std::memory_order_relaxed);
  demotions_ = 0;
  holders_ = -1;
  inherited_ = false;
  account_tx_ = account_rx_ = 0;
  reason_ = Reason::kShortLived;
  lane_tx_ = 0;
  lane_rx_ = 0;
  anchor_rx_ = 0;
  // Not the counts of threads that sleep: each takes back its own, maybe late.
}

void Sock::Unref() {
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  Account();
  Critical outer;  // what ends here goes back to pools
  std::unique_ptr<Stream> stream;
  std::unique_ptr<lane::Lane> lane;
  std::shared_ptr<lane::shm::Link> link;
  {
    // A call that came late, by a number that is closed, may still look.
    Critical critical;
    tx_latch.lock();
    rx_latch.lock();
    mode_.store(Mode::kPlain, std::memory_order_seq_cst);
    stream = std::move(stream_);
    lane = std::move(lane_);
    link = std::move(link_);
    rx_latch.unlock();
    tx_latch.unlock();
  }
  SockPool::Give(this);
}

std::shared_ptr<Sock> Sock::Share() {
  Ref();
  return std::shared_ptr<Sock>(this, [](Sock* sock) { sock->Unref(); });
}

namespace {
base::Latch hosts_latch;
}  // namespace

void SockForkLock() {
  SockPool::latch.lock();
  hosts_latch.lock();
  base::PoolsForkLock();
}

void SockForkUnlock(bool child) {
  base::PoolsForkUnlock(child);
  if (child) {
    hosts_latch.Reset();
    SockPool::latch.Reset();
  } else {
    hosts_latch.unlock();
    SockPool::latch.unlock();
  }
}

bool LocalAddress(const sockaddr* address) {
  sockaddr_storage copy{};
  std::memcpy(&copy, address,
              address->sa_family == AF_INET ? sizeof(sockaddr_in)
                                            : sizeof(sockaddr_in6));
  rendezvous::Address normal;
  std::uint16_t port;
  if (!rendezvous::Normalise(copy, &normal, &port)) return false;
  if (rendezvous::IsLoopback(normal)) return true;
  static auto* hosts = new (std::nothrow) rendezvous::HostAddresses();
  if (hosts == nullptr) return false;
  Critical critical;
  hosts_latch.lock();
  const bool local = hosts->Has(normal);
  hosts_latch.unlock();
  return local;
}

// --- What the hooks tell
// -----------------------------------------------------------

void Sock::SetPeer(const sockaddr* address, socklen_t length) {
  // Shorter than its family's address: an unnamed or foreign one.
  if (address == nullptr || length < sizeof(sockaddr_in) ||
      (address->sa_family != AF_INET &&
       (address->sa_family != AF_INET6 || length < sizeof(sockaddr_in6)))) {
    return;
  }
  local_peer_.store(LocalAddress(address), std::memory_order_relaxed);
}

void Sock::SetEligible(bool eligible) {
  if (eligible) connected_.store(true, std::memory_order_relaxed);
  const base::Config& config = base::GetConfig();
  if (eligible && never_.load(std::memory_order_relaxed)) return;
  if (eligible && !config.enabled) {
    reason_ = Reason::kPolicy;
    never_.store(true, std::memory_order_relaxed);
    return;
  }
  if (eligible &&
      (!local_peer_.load(std::memory_order_relaxed) || !config.shm)) {
    reason_ = config.shm ? Reason::kNoDevice : Reason::kPolicy;
    return;
  }
  if (eligible && pinned_.load(std::memory_order_relaxed)) return;
  may_adopt_.store(eligible, std::memory_order_seq_cst);
  eligible_.store(eligible, std::memory_order_relaxed);
}

void Sock::Inherit(const Sock& listener) {
  rcv_timeout_ns.store(listener.rcv_timeout_ns.load());
  snd_timeout_ns.store(listener.snd_timeout_ns.load());
  if (listener.option_pinned_.load(std::memory_order_relaxed)) PinByOption();
}

void Sock::TryAgainLater() {
  next_ops_ =
      ops_.load(std::memory_order_relaxed) + base::GetConfig().promote_ops;
  next_bytes_ = tx_raw_.load(std::memory_order_relaxed) +
                rx_raw_.load(std::memory_order_relaxed) +
                base::GetConfig().promote_bytes;
}

// --- Looking for a lane
// ----------------------------------------------------------------

void Sock::StartSeek() {
  if (!SoleHolder()) {
    // Another process may still use the connection: look again later.
    reason_ = Reason::kPinnedFork;
    TryAgainLater();
    return;
  }
  if (!eligible_.exchange(false, std::memory_order_relaxed)) return;
  if (seeking_.exchange(true, std::memory_order_acq_rel)) return;
  Critical critical;
  Reason why = Reason::kNone;
  Conductor* conductor = Conductor::Get(&why);
  if (conductor == nullptr) {
    reason_ = why;
    may_adopt_.store(false, std::memory_order_seq_cst);
    seeking_.store(false, std::memory_order_release);
    return;
  }
  static std::atomic<Conductor*> known{nullptr};
  if (known.exchange(conductor) != conductor) {
    base::InitClock();
    conductor->SetCompletionHandler([](const lane::Completion& completion) {
      static_cast<Sock*>(completion.cookie)->OnCompletion(completion.flags);
    });
  }
  // While it looks again, what it found the last time stands.
  if (attempts_ == 0) reason_ = Reason::kPending;
  RCSOCK_LOG(2, "fd %d: looking for its peer", fd());
  conductor->Seek(Share());
}

bool Sock::Names(sockaddr_storage* local, sockaddr_storage* peer) {
  const int number = fd();
  if (closed_.load(std::memory_order_acquire) || number < 0) return false;
  socklen_t length = sizeof *local;
  if (::getsockname(number, reinterpret_cast<sockaddr*>(local), &length) != 0) {
    return false;
  }
  length = sizeof *peer;
  return ::getpeername(number, reinterpret_cast<sockaddr*>(peer), &length) == 0;
}

void Sock::SeekFailed(Reason reason, bool final) {
  Critical critical;
  RCSOCK_LOG(2, "fd %d: no lane: %s", fd(), base::ReasonKey(reason));
  tx_latch.lock();
  rx_latch.lock();
  reason_ = reason;
  wanted_.store(false, std::memory_order_seq_cst);
  seeking_.store(false, std::memory_order_release);
  ++attempts_;
  // The peer may only have been slow: the next look is at eight times the
  // traffic, which both ends reach together; five looks in all.
  if (!final && attempts_ < 5 && !pinned_.load(std::memory_order_relaxed) &&
      !closed_.load(std::memory_order_relaxed)) {
    next_ops_ = ops_.load(std::memory_order_relaxed) * 8;
    next_bytes_ = (tx_raw_.load(std::memory_order_relaxed) +
                   rx_raw_.load(std::memory_order_relaxed)) *
                  8;
    eligible_.store(true, std::memory_order_relaxed);
  } else {
    may_adopt_.store(false, std::memory_order_seq_cst);
    // A pin may end, a look that was the last one does not.
    if (mode() == Mode::kPlain && (final || attempts_ >= 5)) {
      never_.store(true, std::memory_order_relaxed);
    }
  }
  const bool engine = mode() == Mode::kEngine;
  rx_latch.unlock();
  tx_latch.unlock();
  if (engine) PostSettle();
}

void Sock::CancelSeek() {
  if (!seeking_.load(std::memory_order_acquire)) return;
  if (Conductor* conductor = Conductor::IfRunning()) conductor->Cancel(this);
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  // What of the seek is running at this moment finds it given up: TryAdopt and
  // LaneOpen look under the latches.
  if (seeking_.exchange(false) && !pinned_.load() && !closed_.load()) {
    TryAgainLater();
    eligible_.store(true, std::memory_order_relaxed);
  }
  wanted_.store(false, std::memory_order_seq_cst);
  rx_latch.unlock();
  tx_latch.unlock();
}

void Sock::Adopt() {
  {
    Critical critical;
    tx_latch.lock();
    rx_latch.lock();
    wanted_.store(seeking_.load(std::memory_order_relaxed),
                  std::memory_order_seq_cst);
    rx_latch.unlock();
    tx_latch.unlock();
  }
  if (mode() == Mode::kEngine) {
    if (Conductor* conductor = Conductor::IfRunning()) conductor->Adopted(this);
    return;
  }
  TryAdopt();
}

bool Sock::TryAdopt() {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  bool adopted = false;
  if (wanted_.load(std::memory_order_seq_cst) && mode() == Mode::kPlain &&
      seeking_.load(std::memory_order_relaxed) &&
      !closed_.load(std::memory_order_relaxed) &&
      !pinned_.load(std::memory_order_relaxed) && SoleHolder()) {
    // seq_cst: a call that enters the kernel counts itself and then looks at
    // mode_; here mode_ is set first and the count looked at after, so one of
    // the two sees the other.
    mode_.store(Mode::kEngine, std::memory_order_seq_cst);
    if (inflight_.load(std::memory_order_seq_cst) != 0) {
      mode_.store(Mode::kPlain, std::memory_order_seq_cst);
    } else {
      stream_.reset(new (std::nothrow) Stream(role_, this, stream::Limits{}));
      if (stream_ == nullptr) {
        mode_.store(Mode::kPlain, std::memory_order_seq_cst);
      } else {
        stream_->Adopt(tx_raw_.load(std::memory_order_relaxed),
                       rx_raw_.load(std::memory_order_relaxed));
        adopted = true;
        wanted_.store(false, std::memory_order_relaxed);
        if (Conductor* conductor = Conductor::IfRunning()) {
          // Nothing is read yet: until the registrations have left the kernel's
          // epoll sets, these must see what is there.
          watch_events_ = 0;
          watched_ = conductor->Watch(
              fd(), std::shared_ptr<AnchorWatcher>(Share()), watch_events_);
        }
      }
    }
  }
  rx_latch.unlock();
  tx_latch.unlock();
  if (!adopted) return false;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return false;
  InterestsToUser(this);
  tx_latch.lock();
  rx_latch.lock();
  if (mode() == Mode::kEngine && stream_ != nullptr) UpdateWatch();
  rx_latch.unlock();
  tx_latch.unlock();
  conductor->Adopted(this);
  return true;
}

void Sock::OnLink(std::shared_ptr<lane::shm::Link> link, int index) {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  link_.swap(link);
  index_ = index;
  link_->SetCookie(index, this);
  rx_latch.unlock();
  tx_latch.unlock();
}

void Sock::LaneOpen(std::unique_ptr<lane::Lane> lane, std::uint32_t epoch,
                    const stream::Nonce& mine, const stream::Nonce& peers) {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  const bool sought = seeking_.exchange(false, std::memory_order_acq_rel);
  if (!sought || mode() != Mode::kEngine || stream_ == nullptr ||
      closed_.load(std::memory_order_relaxed) ||
      pinned_.load(std::memory_order_relaxed) || lane_ != nullptr ||
      !SoleHolder()) {
    if (mode() == Mode::kEngine && stream_ != nullptr && lane_ == nullptr) {
      PostSettle();
    }
    rx_latch.unlock();
    tx_latch.unlock();
    if (Conductor* conductor = Conductor::IfRunning()) {
      conductor->ReturnLane(Share(), std::move(lane));
    }
    return;
  }
  lane_ = std::move(lane);
  // During the switch the conductor takes the control messages.
  notify_.store(lane::kNotifyRxPoller | lane::kNotifyRxBits |
                lane::kNotifyTxPoller);
  bell_.store(0);
  lane_->SetNotify(notify_.load(), 0);
  RCSOCK_LOG(2, "fd %d: lane open, epoch %u", fd(), epoch);
  stream_->LaneUp(lane_.get(), epoch, mine, peers, true);
  stream_->Progress(true);
  HandleChanges();
  rx_latch.unlock();
  tx_latch.unlock();
}

// --- Events
// ------------------------------------------------------------------------------

void Sock::OnAnchor(std::uint32_t events) {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  if (mode() == Mode::kEngine && stream_ != nullptr) {
    if (tx_wait_ && (events & ~EPOLLIN) != 0) {
      tx_wait_ = false;
      WakeTx();
    }
    stream_->Progress(true);
    HandleChanges();
    if ((events & (EPOLLHUP | EPOLLERR)) != 0 && watched_ &&
        !stream_->WantsAnchorRead()) {
      // HUP and ERR are level-triggered and can't be masked.
      if (Conductor* conductor = Conductor::IfRunning()) {
        conductor->Unwatch(fd());
      }
      watched_ = false;
    }
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

void Sock::OnCompletion(std::uint32_t flags) {
  (void)flags;
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  if (mode() == Mode::kEngine && stream_ != nullptr) {
    stream_->Progress(true);
    HandleChanges();
    if (lane_ != nullptr) {
      WakeRx();
      WakeTx();
    }
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

void Sock::LinkLost(Reason reason) {
  (void)reason;  // the lane says it
  OnCompletion(lane::kCompletionError);
}

void Sock::OnTimer() {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  timer_ = 0;
  if (mode() == Mode::kEngine && stream_ != nullptr) {
    stream_->Timer();
    stream_->Progress(true);
    HandleChanges();
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

void Sock::HandleChanges() {
  const std::uint32_t changes = stream_->TakeChanges();
  if (changes != 0) {
    RCSOCK_LOG(2, "fd %d: changes %x, tx %d rx %d, offsets %llu %llu", fd(),
               changes, static_cast<int>(stream_->tx()),
               static_cast<int>(stream_->rx()),
               static_cast<unsigned long long>(stream_->tx_off()),
               static_cast<unsigned long long>(stream_->rx_off()));
  }
  Conductor* conductor = Conductor::IfRunning();
  if (changes & (stream::kPromotedTx | stream::kPromotedRx)) {
    if (!promoted_) {
      promoted_ = true;
      stats.promoted.fetch_add(1, std::memory_order_relaxed);
    }
    reason_ = Reason::kNone;
    if (!on_lane_.load(std::memory_order_relaxed) && stream_->FastTx() &&
        stream_->rx() == stream::Rx::kFrames) {
      RCSOCK_LOG(1, "fd %d: promoted to shm", fd());
      on_lane_.store(true, std::memory_order_release);
      InterestsNotifyLatched(this);
      InterestsReady(this);
    }
  }
  if (changes & stream::kLeftLane) {
    on_lane_.store(false, std::memory_order_release);
    InterestsRefresh(this, false);
    ++demotions_;
    reason_ = stream_->why_left();
    if (promoted_ && !closed_.load(std::memory_order_relaxed) &&
        (stream_->Readiness() & (POLLRDHUP | POLLHUP)) == 0) {
      const bool failover = reason_ == Reason::kLaneError ||
                            reason_ == Reason::kPeerGone ||
                            reason_ == Reason::kProtocol;
      (failover ? stats.failovers : stats.demotions)
          .fetch_add(1, std::memory_order_relaxed);
    }
    RCSOCK_LOG(1, "fd %d: left its lane: %s", fd(), base::ReasonKey(reason_));
  }
  if (changes & stream::kRxReady) WakeRx();
  if (changes & stream::kTxReady) WakeTx();
  if ((changes & stream::kTimerOff) && timer_ != 0 && conductor != nullptr) {
    conductor->CancelTimer(timer_);
    timer_ = 0;
  }
  if ((changes & stream::kTimerOn) && timer_ == 0 && conductor != nullptr) {
    // Rule 23: for liveness only; any value is safe.
    timer_ = conductor->After(200, [self = Share()] { self->OnTimer(); });
  }
  if (changes & stream::kMustReset) reset_ = true;
  if (changes & stream::kFinished) finished_ = true;
  if (changes & stream::kSettled) settled_ = true;
  if (changes & (stream::kSettled | stream::kFinished)) PostSettle();
  UpdateWatch();
}

void Sock::UpdateWatch() {
  if (!watched_) return;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  const std::uint32_t wanted =
      (stream_->WantsAnchorRead() ? EPOLLIN : 0u) |
      (tx_wait_ || stream_->WantsAnchorWrite() ? EPOLLOUT : 0u);
  if (wanted != watch_events_) {
    watch_events_ = wanted;
    conductor->Rewatch(fd(), wanted);
  }
}

void Sock::KickPollers() {
  if (poll_sleepers.load(std::memory_order_seq_cst) > 0) {
    if (Conductor* conductor = Conductor::IfRunning()) {
      conductor->bells()->Kick(kPollBell);
    }
  }
}

void Sock::WakeRx() {
  // seq_cst on both sides: a sleeper counts itself before it looks at the word
  // for the last time, and the word changes before the count is looked at here.
  rx_seq_.fetch_add(1, std::memory_order_seq_cst);
  if (rx_sleepers_.load(std::memory_order_seq_cst) > 0) {
    base::FutexWake(&rx_seq_, 1 << 30, false);
  }
  if (lane_ != nullptr && pins_.load(std::memory_order_seq_cst) > 0) {
    lane_->WakeLocal();
  }
  InterestsReady(this);
  KickPollers();
}

void Sock::WakeTx() {
  tx_seq_.fetch_add(1, std::memory_order_seq_cst);
  if (tx_sleepers_.load(std::memory_order_seq_cst) > 0) {
    base::FutexWake(&tx_seq_, 1 << 30, false);
  }
  if (lane_ != nullptr && pins_.load(std::memory_order_seq_cst) > 0) {
    lane_->WakeLocal();
  }
  InterestsReady(this);
  KickPollers();
}

void Sock::SetNotify(std::uint32_t bits, int number) {
  notify_.store(bits, std::memory_order_relaxed);
  bell_.store(number, std::memory_order_relaxed);
  if (lane_ != nullptr) lane_->SetNotify(bits, number);
  // A thread in poll() sleeps on the bell that was.
  KickPollers();
}

void Sock::RingForPoll(int number) {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  if (lane_ != nullptr && OnLane() && notify_bits() == 0) {
    // It has rung nobody until now, so nobody sleeps on another bell.
    notify_.store(lane::kNotifyRxPoller | lane::kNotifyTxPoller,
                  std::memory_order_relaxed);
    bell_.store(number, std::memory_order_relaxed);
    lane_->SetNotify(notify_bits(), number);
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

namespace {

// Counters that outlive a fork and are common to both sides.  Bit 31: somebody
// who has gone since used the connection after the fork, so the offsets that
// the others keep are wrong for ever.
constexpr int kHolders = 1 << 20;
constexpr std::uint32_t kTainted = 1u << 31;
std::atomic<std::uint32_t>* holders = nullptr;
int next_holder = 0;

}  // namespace

// --- Leaving a lane
// --------------------------------------------------------------------------

void Sock::PostSettle() {
  if (settle_posted_) return;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  settle_posted_ = true;
  conductor->Post([self = Share()] { self->Settle(); });
}

void Sock::Settle() {
  Critical critical;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  tx_latch.lock();
  rx_latch.lock();
  settle_posted_ = false;
  const bool settled = settled_ || finished_;
  rx_latch.unlock();
  tx_latch.unlock();
  if (settled && lane_ != nullptr) {
    InterestsRefresh(this, true);
    std::unique_ptr<lane::Lane> lane;
    tx_latch.lock();
    rx_latch.lock();
    if (pins_.load(std::memory_order_seq_cst) != 0) {
      lane_->WakeLocal();
      settle_posted_ = true;
      const std::uint32_t wait = settle_wait_ms_;
      // A thread that has jumped out of its sleep may take its time.
      if (wait < 64) settle_wait_ms_ = 2 * wait;
      rx_latch.unlock();
      tx_latch.unlock();
      conductor->After(wait, [self = Share()] { self->Settle(); });
      return;
    }
    settle_wait_ms_ = 1;
    stream_->ReleaseLane();
    settled_ = false;
    lane = std::move(lane_);
    notify_.store(0);
    rx_latch.unlock();
    tx_latch.unlock();
    if (link_ != nullptr) link_->SetCookie(index_, nullptr);
    conductor->ReturnLane(Share(), std::move(lane));
  }
  if (finished_) {
    Finish(reset_);
    return;
  }
  BackToPlain();
}

bool Sock::BackToPlain() {
  Critical critical;
  Conductor* conductor = Conductor::IfRunning();
  tx_latch.lock();
  rx_latch.lock();
  const bool back = mode() == Mode::kEngine && stream_ != nullptr &&
                    lane_ == nullptr && stream_->Idle() &&
                    !closed_.load(std::memory_order_relaxed) &&
                    !seeking_.load(std::memory_order_relaxed);
  if (back) {
    tx_raw_.store(stream_->tx_off(), std::memory_order_relaxed);
    rx_raw_.store(stream_->rx_off(), std::memory_order_relaxed);
    if (watched_ && conductor != nullptr) conductor->Unwatch(fd());
    watched_ = false;
    if (timer_ != 0 && conductor != nullptr) conductor->CancelTimer(timer_);
    timer_ = 0;
    PushOptions();
    mode_.store(Mode::kPlain, std::memory_order_seq_cst);
    if (!pinned_.load(std::memory_order_relaxed) && attempts_ < 5) {
      // Each demotion makes the next promotion eight times as far away.
      const std::uint32_t shift = 3 * (demotions_ < 6 ? demotions_ : 6);
      next_ops_ = ops_.load(std::memory_order_relaxed) +
                  (base::GetConfig().promote_ops << shift);
      next_bytes_ = tx_raw_.load() + rx_raw_.load() +
                    (base::GetConfig().promote_bytes << shift);
      eligible_.store(true, std::memory_order_relaxed);
    } else {
      may_adopt_.store(false, std::memory_order_seq_cst);
    }
  }
  rx_latch.unlock();
  tx_latch.unlock();
  if (!back) return false;
  InterestsToKernel(this);
  tx_latch.lock();
  rx_latch.lock();
  WakeRx();
  WakeTx();
  rx_latch.unlock();
  tx_latch.unlock();
  return true;
}

void Sock::AskToPlain(Reason reason) {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  wanted_.store(false, std::memory_order_seq_cst);
  if (mode() == Mode::kEngine && stream_ != nullptr) {
    stream_->Demote(reason);
    stream_->Progress(true);
    HandleChanges();
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

bool Sock::ToPlain(Reason reason) {
  for (int i = 0; i < 200; ++i) {
    if (mode() == Mode::kPlain && !seeking_.load(std::memory_order_acquire)) {
      return true;
    }
    CancelSeek();
    AskToPlain(reason);
    if (mode() == Mode::kPlain) return true;
    if (lane_ == nullptr) BackToPlain();
    if (mode() == Mode::kPlain) return true;
    if (lane_ == nullptr && OnlyStash()) return false;
    // The peer's background thread answers within a round trip or two.
    timespec brief{0, i < 50 ? 100'000 : 10'000'000};
    ::nanosleep(&brief, nullptr);
  }
  return false;
}

bool Sock::OnlyStash() {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  const bool only = mode() == Mode::kEngine && stream_ != nullptr &&
                    stream_->tx() == stream::Tx::kRaw &&
                    stream_->rx() == stream::Rx::kRaw &&
                    !stream_->WantsAnchorWrite() && stream_->Readable() > 0;
  rx_latch.unlock();
  tx_latch.unlock();
  return only;
}

bool Sock::Pin(Reason reason) {
  pinned_.store(true, std::memory_order_seq_cst);
  eligible_.store(false, std::memory_order_seq_cst);
  may_adopt_.store(false, std::memory_order_seq_cst);
  const bool ok = ToPlain(reason);
  reason_ = reason;
  return ok;
}

bool Sock::PinForExec() {
  if (!pinned_.load()) {
    exec_pinned_ = true;
    exec_reason_ = reason_;
  }
  return Pin(Reason::kPinnedExec);
}

void Sock::Unpin() {
  if (exec_left_) {
    exec_left_ = false;
    if (holders_ >= 0) holders[holders_].fetch_add(1);
  }
  if (!exec_pinned_) return;
  exec_pinned_ = false;
  reason_ = exec_reason_;
  pinned_.store(false, std::memory_order_seq_cst);
  if (connected_.load() && attempts_ < 5) {
    TryAgainLater();
    SetEligible(true);
  }
}

// --- The end
// ------------------------------------------------------------------------------------

int Sock::CloseLast(int number) {
  Critical critical;
  closed_.store(true, std::memory_order_seq_cst);
  eligible_.store(false, std::memory_order_relaxed);
  Conductor* conductor = Conductor::IfRunning();
  InterestsDrop(this, -1);
  if (seeking_.exchange(false) && conductor != nullptr) conductor->Cancel(this);
  tx_latch.lock();
  rx_latch.lock();
  wanted_.store(false, std::memory_order_seq_cst);
  int result;
  if (mode() == Mode::kEngine && stream_ != nullptr && conductor != nullptr &&
      !SoleHolder() && lane_ == nullptr && stream_->tx() == stream::Tx::kRaw &&
      stream_->rx() == stream::Rx::kRaw && !stream_->WantsAnchorWrite()) {
    // Another process holds the connection too: this close ends nothing, and
    // neither a reset nor a shutdown may come of what was read ahead here.
    if (watched_) conductor->Unwatch(number);
    watched_ = false;
    result = real::close(number);
    fd_.store(-1, std::memory_order_relaxed);
    Ref();  // until Finish
    finished_ = true;
    PostSettle();
  } else if (mode() == Mode::kEngine && stream_ != nullptr &&
             conductor != nullptr) {
    // The kernel's close would end the stream before the peer has everything:
    // the conductor keeps the connection under another number until then.
    linger option{};
    socklen_t length = sizeof option;
    ::getsockopt(number, SOL_SOCKET, SO_LINGER, &option, &length);
    const bool reset = option.l_onoff != 0 && option.l_linger == 0;
    if (watched_) conductor->Unwatch(number);
    watched_ = false;
    const int kept = base::RelocateHigh(
        static_cast<int>(::syscall(SYS_fcntl, number, F_DUPFD_CLOEXEC, 0)));
    result = real::close(number);
    fd_.store(kept, std::memory_order_relaxed);
    Ref();  // until Finish
    if (kept >= 0) {
      watch_events_ = EPOLLIN;
      watched_ = conductor->Watch(kept, std::shared_ptr<AnchorWatcher>(Share()),
                                  watch_events_);
    }
    notify_.store(lane::kNotifyRxPoller | lane::kNotifyRxBits |
                  lane::kNotifyTxPoller);
    bell_.store(0);
    if (lane_ != nullptr) lane_->SetNotify(notify_.load(), 0);
    stream_->Close(reset || stream_->Readable() > 0);
    stream_->Progress(true);
    HandleChanges();
    WakeRx();
    WakeTx();
    if (kept < 0) {
      // Out of descriptors: the connection ends now; the peer takes what has
      // landed in its ring, as after a kill.
      finished_ = true;
      PostSettle();
    } else {
      // A peer that never reads must not keep the connection for ever.
      close_timer_ =
          conductor->After(60'000, [self = Share()] { self->OnLinger(); });
    }
  } else {
    result = real::close(number);
    fd_.store(-1, std::memory_order_relaxed);
  }
  rx_latch.unlock();
  tx_latch.unlock();
  Account();
  Unref();
  return result;
}

void Sock::LoseFd(int number, int other) {
  Critical critical;
  // A registration belongs to the open description: it outlives its number.  In
  // the kernel's set it could then not be moved: such a stream stays on TCP.
  if (mode() == Mode::kPlain && InterestsNamed(this, number)) {
    pinned_.store(true, std::memory_order_seq_cst);
    eligible_.store(false, std::memory_order_seq_cst);
    wanted_.store(false, std::memory_order_seq_cst);
    reason_ = Reason::kPinnedOption;
  }
  if (fd() != number) return;
  tx_latch.lock();
  rx_latch.lock();
  Conductor* conductor = Conductor::IfRunning();
  if (watched_ && conductor != nullptr) conductor->Unwatch(number);
  set_fd(other);
  if (watched_ && conductor != nullptr) {
    watched_ = conductor->Watch(other, std::shared_ptr<AnchorWatcher>(Share()),
                                watch_events_);
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

void Sock::Vanished() {
  Critical critical;
  InterestsDrop(this, -1);
  closed_.store(true, std::memory_order_seq_cst);
  eligible_.store(false, std::memory_order_relaxed);
  Conductor* conductor = Conductor::IfRunning();
  if (seeking_.exchange(false) && conductor != nullptr) conductor->Cancel(this);
  tx_latch.lock();
  rx_latch.lock();
  if (watched_ && conductor != nullptr) conductor->Unwatch(fd());
  watched_ = false;
  set_fd(-1);
  if (mode() == Mode::kEngine && conductor != nullptr) {
    Ref();
    finished_ = true;
    PostSettle();
  }
  rx_latch.unlock();
  tx_latch.unlock();
  Account();
  Unref();
}

void Sock::OnLinger() {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  close_timer_ = 0;
  const bool late = closed_.load() && !finished_;
  if (late) finished_ = reset_ = true;
  rx_latch.unlock();
  tx_latch.unlock();
  if (late) Settle();
}

void Sock::Finish(bool reset) {
  Critical critical;
  Conductor* conductor = Conductor::IfRunning();
  tx_latch.lock();
  rx_latch.lock();
  const int number = fd_.exchange(-1);
  const bool mine = closed_.load() && number >= 0;
  if (watched_ && conductor != nullptr && number >= 0) {
    conductor->Unwatch(number);
  }
  watched_ = false;
  if (timer_ != 0 && conductor != nullptr) conductor->CancelTimer(timer_);
  timer_ = 0;
  if (close_timer_ != 0 && conductor != nullptr) {
    conductor->CancelTimer(close_timer_);
  }
  close_timer_ = 0;
  if (mode() == Mode::kEngine) {
    // Whoever still comes with the closed number is the kernel's to answer.
    if (stream_ != nullptr) {
      tx_raw_.store(stream_->tx_off(), std::memory_order_relaxed);
      rx_raw_.store(stream_->rx_off(), std::memory_order_relaxed);
    }
    mode_.store(Mode::kPlain, std::memory_order_seq_cst);
    WakeRx();
    WakeTx();
  }
  const bool last = !finish_done_;
  finish_done_ = true;
  rx_latch.unlock();
  tx_latch.unlock();
  if (mine) {
    if (reset) {
      linger now{1, 0};
      ::syscall(SYS_setsockopt, number, SOL_SOCKET, SO_LINGER, &now,
                sizeof now);
    }
    base::CloseRaw(number);
  }
  if (last) Unref();
}

void Sock::Account() { Fold(&stats, true); }

void Sock::Fold(Stats* to, bool last) {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  if (!accounted_) {
    if (!listening.load(std::memory_order_relaxed)) FoldLatched(to);
    if (last) {
      accounted_ = true;
      LeaveHolders();
    }
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

void Sock::FoldLatched(Stats* to) const {
  std::uint64_t tx = tx_raw_.load(std::memory_order_relaxed);
  std::uint64_t rx = rx_raw_.load(std::memory_order_relaxed);
  if (stream_ != nullptr && mode() == Mode::kEngine) {
    tx = stream_->tx_off();
    rx = stream_->rx_off();
  }
  tx -= account_tx_ < tx ? account_tx_ : tx;
  rx -= account_rx_ < rx ? account_rx_ : rx;
  if (inherited_ && tx == 0 && rx == 0) return;
  const std::uint64_t lane_tx = lane_tx_ < tx ? lane_tx_ : tx;
  // What the engine delivered, less what it read from TCP.
  const std::uint64_t by_lane =
      lane_rx_ > anchor_rx_ ? lane_rx_ - anchor_rx_ : 0;
  const std::uint64_t lane_rx = by_lane < rx ? by_lane : rx;
  to->shm.tx_bytes.fetch_add(lane_tx, std::memory_order_relaxed);
  to->shm.rx_bytes.fetch_add(lane_rx, std::memory_order_relaxed);
  to->tcp.tx_bytes.fetch_add(tx - lane_tx, std::memory_order_relaxed);
  to->tcp.rx_bytes.fetch_add(rx - lane_rx, std::memory_order_relaxed);
  if (!connected_.load(std::memory_order_relaxed)) return;
  to->streams.fetch_add(1, std::memory_order_relaxed);
  if (promoted_) {
    to->shm.streams.fetch_add(1, std::memory_order_relaxed);
  } else {
    to->tcp.streams.fetch_add(1, std::memory_order_relaxed);
    to->reasons[static_cast<int>(reason_)].fetch_add(1,
                                                     std::memory_order_relaxed);
  }
}

void Sock::FlushAtExit(std::uint64_t deadline_ns) {
  Critical critical;
  for (;;) {
    tx_latch.lock();
    rx_latch.lock();
    bool owed = false;
    if (mode() == Mode::kEngine && stream_ != nullptr && fd() >= 0) {
      stream_->Progress(false);
      owed = stream_->WantsAnchorWrite();
    }
    rx_latch.unlock();
    tx_latch.unlock();
    const std::uint64_t now = base::NowNs();
    if (!owed || now >= deadline_ns) return;
    pollfd one{fd(), POLLOUT, 0};
    timespec left{0, 10'000'000};
    ::syscall(SYS_ppoll, &one, 1, &left, nullptr, 8);
  }
}

// --- Fork
// ---------------------------------------------------------------------------------------

void Sock::ShareByFork() {
  if (holders == nullptr) {
    void* page =
        ::mmap(nullptr, kHolders * sizeof *holders, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (page == MAP_FAILED) {
      pinned_.store(true);
      return;
    }
    holders = static_cast<std::atomic<std::uint32_t>*>(page);
  }
  if (holders_ < 0) {
    for (int i = 0; i < kHolders && holders_ < 0; ++i) {
      const int at = (next_holder + i) % kHolders;
      std::uint32_t free = 0;
      if (holders[at].compare_exchange_strong(free, 1)) {
        holders_ = at;
        next_holder = at + 1;
      }
    }
    if (holders_ < 0) {
      pinned_.store(true);
      return;
    }
  }
  holders[holders_].fetch_add(1);
}

void Sock::MarkFork() {
  fork_tx_ = tx_raw_.load(std::memory_order_relaxed);
  fork_rx_ = rx_raw_.load(std::memory_order_relaxed);
}

bool Sock::SoleHolder() const {
  return holders_ < 0 || holders[holders_].load() == 1;
}

void Sock::LeaveHolders() {
  if (holders_ < 0) return;
  std::atomic<std::uint32_t>& count = holders[holders_];
  if (tx_raw_.load() != fork_tx_ || rx_raw_.load() != fork_rx_) {
    count.fetch_or(kTainted);
  }
  if ((count.fetch_sub(1) & ~kTainted) == 1) count.store(0);
  holders_ = -1;
}

void Sock::LeaveForExec() {
  if (holders_ < 0 || exec_left_) return;
  std::atomic<std::uint32_t>& count = holders[holders_];
  if ((count.load() & ~kTainted) < 2) return;  // nobody else is left to see it
  exec_left_ = true;
  if (tx_raw_.load() != fork_tx_ || rx_raw_.load() != fork_rx_) {
    count.fetch_or(kTainted);
  }
  count.fetch_sub(1);
}

void Sock::ForkChild() {
  tx_latch.Reset();
  rx_latch.Reset();
  inflight_.store(0, std::memory_order_relaxed);
  rx_sleepers_.store(0, std::memory_order_relaxed);
  tx_sleepers_.store(0, std::memory_order_relaxed);
  pins_.store(0, std::memory_order_relaxed);
  poll_sleepers.store(0, std::memory_order_relaxed);
  close_timer_ = 0;
  if (seeking_.exchange(false, std::memory_order_relaxed)) {
    eligible_.store(true, std::memory_order_relaxed);
  }
  wanted_.store(false, std::memory_order_relaxed);
  watched_ = false;
  timer_ = 0;
  settle_posted_ = false;
  starve_timer_ = false;
  if (mode() == Mode::kEngine) {
    // It could not be made plain before the fork: the lane, and what was read
    // ahead, are the parent's.
    (void)lane_.release();
    (void)stream_.release();
    pinned_.store(true);
    may_adopt_.store(false);
    reason_ = Reason::kPinnedFork;
    mode_.store(Mode::kPlain);
  }
  on_lane_.store(false);
  // The parent counts what it did.
  lane_tx_ = lane_rx_ = anchor_rx_ = 0;
  account_tx_ = tx_raw_.load();
  account_rx_ = rx_raw_.load();
  inherited_ = true;
  promoted_ = false;
  refs_.store(1);
}

}  // namespace rcsock::posix
