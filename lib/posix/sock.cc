#include "lib/posix/sock.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/no_cancel.h"
#include "lib/base/pool.h"
#include "lib/base/real.h"
#include "lib/base/unique_fd.h"
#include "lib/lane/rdma/rdma_lane.h"
#include "lib/posix/epoll.h"
#include "lib/posix/poll.h"
#include "lib/posix/process.h"
#include "lib/posix/prospect.h"
#include "lib/posix/signals.h"
#include "lib/posix/snapshot.h"
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
// The thresholds at which streams look: first, 8 * first, 64 * first...  The
// two ends may have learnt different things and begin at different ones, but
// those that come later are the same for both.  The first above `now`.
std::uint64_t NextPoint(std::uint64_t first, std::uint64_t now) {
  std::uint64_t point = first > 0 ? first : 1;
  while (point <= now) {
    if (point > ~std::uint64_t{0} / 8) return ~std::uint64_t{0};
    point *= 8;
  }
  return point;
}

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
  // release: TryRef may find it by a number that was its.
  sock->refs_.store(1, std::memory_order_release);
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
  zero_copy_on_.store(false, std::memory_order_relaxed);
  policy_.store(Policy::kAuto, std::memory_order_relaxed);
  leaving_.store(false, std::memory_order_relaxed);
  given_away_.store(false, std::memory_order_relaxed);
  inode_.store(0, std::memory_order_relaxed);
  exec_pinned_ = false;
  half_closed_ = false;
  exec_left_ = false;
  seeking_.store(false, std::memory_order_relaxed);
  closed_.store(false, std::memory_order_relaxed);
  fd_.store(-1, std::memory_order_relaxed);
  tx_raw_.store(0, std::memory_order_relaxed);
  rx_raw_.store(0, std::memory_order_relaxed);
  // What is inside stays counted: each call takes back its own, maybe late.
  gate_.fetch_and(kInside, std::memory_order_relaxed);
  terms_ = config.terms;
  next_ops_ = terms_.promote_ops;
  next_bytes_ = terms_.promote_bytes;
  service_.store(0, std::memory_order_relaxed);
  at_once_.store(false, std::memory_order_relaxed);
  agreed_.store(false, std::memory_order_relaxed);
  attempts_ = 0;
  local_peer_.store(false, std::memory_order_relaxed);
  stream_.reset();
  lane_.reset();
  lane_is_shm_ = false;
  link_.reset();
  index_ = -1;
  notify_.store(0, std::memory_order_relaxed);
  bell_.store(0, std::memory_order_relaxed);
  source_.store(nullptr, std::memory_order_relaxed);
  source_wanted_ = false;
  remote_ = Remote();
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
  promotions_ = left_ = failed_over_ = 0;
  leave_uncounted_ = false;
  holders_.store(-1, std::memory_order_relaxed);
  fork_ = 0;
  told_tx_ = told_rx_ = 0;
  in_spawn_actions.store(false, std::memory_order_relaxed);
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
    EndUnreadLatched();
    ForgetCompletions();
    mode_.store(Mode::kPlain, std::memory_order_seq_cst);
    stream = std::move(stream_);
    lane = std::move(lane_);
    lane_is_shm_ = false;
    UnlistRemote();
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
  RemoteForkLock();
  hosts_latch.lock();
  base::PoolsForkLock();
}

void SockForkUnlock(bool child) {
  base::PoolsForkUnlock(child);
  if (child) {
    hosts_latch.Reset();
    RemoteForkUnlock(true);
    SockPool::latch.Reset();
  } else {
    hosts_latch.unlock();
    RemoteForkUnlock(false);
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
  // Who connects to no address in particular is connected to this host.
  rendezvous::Address none{};
  if (rendezvous::IsMapped(normal)) none[10] = none[11] = 0xff;
  if (normal == none) return true;
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

void Sock::SetPeer(int fd, const sockaddr* address, socklen_t length) {
  // Shorter than its family's address: an unnamed or foreign one.
  if (address == nullptr || length < sizeof(sockaddr_in) ||
      (address->sa_family != AF_INET &&
       (address->sa_family != AF_INET6 || length < sizeof(sockaddr_in6)))) {
    return;
  }
  local_peer_.store(LocalAddress(address), std::memory_order_relaxed);
  if (role_ == stream::Role::kConnector) {
    service_.store(Prospect::ServiceAt(address, length, role_),
                   std::memory_order_relaxed);
  }
  if (base::GetConfig().rules.count > 0) ApplyRules(fd, address);
}

void Sock::ApplyRules(int fd, const sockaddr* address) {
  sockaddr_storage copy{};
  std::memcpy(&copy, address,
              address->sa_family == AF_INET ? sizeof(sockaddr_in)
                                            : sizeof(sockaddr_in6));
  rendezvous::Address peer;
  std::uint16_t port;
  if (!rendezvous::Normalise(copy, &peer, &port)) return;
  const bool accepted = role_ == stream::Role::kAcceptor;
  if (accepted) {
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    rendezvous::Address address_of_ours;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
        !rendezvous::Normalise(own, &address_of_ours, &port)) {
      return;
    }
  }
  terms_ = base::TermsFor(base::GetConfig(), peer.data(), port, accepted);
  next_ops_ = terms_.promote_ops;
  next_bytes_ = terms_.promote_bytes;
}

void Sock::SetEligible(bool eligible) {
  if (eligible) connected_.store(true, std::memory_order_relaxed);
  if (eligible && never_.load(std::memory_order_relaxed)) return;
  if (eligible && ProcessPinned() != Reason::kNone) {
    reason_ = ProcessPinned();
    never_.store(true, std::memory_order_relaxed);
    return;
  }
  if (eligible && !terms_.shm && !terms_.rdma) {
    reason_ = Reason::kPolicy;
    never_.store(true, std::memory_order_relaxed);
    return;
  }
  if (eligible && SeeksRemote()) {
    // A local peer that shm may not reach: rdma is what the user asked for.
    if (!terms_.rdma) {
      reason_ = Reason::kPolicy;
      return;
    }
    if (!rendezvous::RdmaPossible()) {
      reason_ = Reason::kNoDevice;
      return;
    }
  }
  if (eligible && pinned_.load(std::memory_order_relaxed)) return;
  if (eligible) Foresee();
  may_adopt_.store(eligible, std::memory_order_seq_cst);
  eligible_.store(eligible, std::memory_order_relaxed);
}

void Sock::SetListening(int fd) {
  listening.store(true);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  auto* address = reinterpret_cast<sockaddr*>(&own);
  if (::getsockname(fd, address, &length) == 0) {
    service_.store(
        Prospect::ServiceAt(address, length, stream::Role::kAcceptor),
        std::memory_order_relaxed);
  }
}

// (Who asks for it by hand, or for another host's, is not second-guessed.)
void Sock::Foresee() {
  const base::Config& config = base::GetConfig();
  if (config.promote_given || terms_.promote_ops != config.terms.promote_ops ||
      policy() != Policy::kAuto || SeeksRemote() || ops() != 0) {
    return;
  }
  switch (Prospect::Of(service_.load(std::memory_order_relaxed))) {
    case Prospect::Promise::kLittle:
      NextLook(terms_.promote_ops, terms_.promote_bytes);
      break;
    case Prospect::Promise::kMuch:
      next_ops_.store(1, std::memory_order_relaxed);
      at_once_.store(true, std::memory_order_relaxed);
      break;
    case Prospect::Promise::kUnknown:
      break;
  }
}

void Sock::NextLook(std::uint32_t ops, std::uint64_t bytes) {
  next_ops_.store(static_cast<std::uint32_t>(std::min<std::uint64_t>(
                      NextPoint(terms_.promote_ops, ops), ~std::uint32_t{0})),
                  std::memory_order_relaxed);
  next_bytes_.store(NextPoint(terms_.promote_bytes, bytes),
                    std::memory_order_relaxed);
}

int Sock::Bell() { return InterestsBell(this); }

void Sock::Inherit(const Sock& listener) {
  service_.store(listener.service_.load(std::memory_order_relaxed),
                 std::memory_order_relaxed);
  rcv_timeout_ns.store(listener.rcv_timeout_ns.load());
  snd_timeout_ns.store(listener.snd_timeout_ns.load());
  if (listener.option_pinned_.load(std::memory_order_relaxed)) PinByOption();
  if (listener.zero_copy_on_.load(std::memory_order_relaxed)) SetZeroCopy(true);
  if (listener.policy() != Policy::kAuto) SetPolicy(listener.policy());
}

void Sock::TryAgainLater() {
  next_ops_ = ops() + terms_.promote_ops;
  next_bytes_ = RawBytes() + terms_.promote_bytes;
}

// --- Looking for a lane
// ----------------------------------------------------------------

bool Sock::SeeksRemote() const {
  return !(terms_.shm && local_peer_.load(std::memory_order_relaxed));
}

void Sock::LookForAnswer() {
  const int saved = errno;
  Critical critical;
  if (Conductor* conductor = Conductor::IfRunning()) conductor->Look(this);
  errno = saved;
}

void Sock::LastOut() {
  const int saved = errno;
  if (!agreed_.load(std::memory_order_relaxed)) LookForAnswer();
  TryAdopt();
  errno = saved;
}

void Sock::SeekAfterCall() {
  const int saved = errno;
  StartSeek();
  errno = saved;
}

void Sock::StartSeek() {
  if (!SoleHolder()) {
    // Another process may still use the connection: look again later.
    reason_ = Reason::kPinnedFork;
    TryAgainLater();
    return;
  }
  if (!eligible_.exchange(false, std::memory_order_relaxed)) return;
  if (seeking_.exchange(true, std::memory_order_acq_rel)) return;
  if (SeeksRemote() && !RoomForRemote()) {
    // (An accepting end only waits, and is asked again when it has been found.)
    reason_ = Reason::kBudget;
    TryAgainLater();
    seeking_.store(false, std::memory_order_release);
    eligible_.store(true, std::memory_order_relaxed);
    return;
  }
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
    conductor->SetInspector(&TakeSnapshot);
    conductor->SetCompletionHandler([](const lane::Completion& completion) {
      static_cast<Sock*>(completion.cookie)->OnCompletion(completion.flags);
    });
  }
  // While it looks again, what it found the last time stands.
  if (attempts_ == 0) reason_ = Reason::kPending;
  RCSOCK_LOG(2, "fd %d: looking for its peer", fd());
  remote_.sought_ns = base::NowNs();
  remote_.sought_bytes = RawBytes();
  agreed_.store(false, std::memory_order_relaxed);
  if (at_once_.load(std::memory_order_relaxed)) {
    wanted_.store(true, std::memory_order_seq_cst);
  }
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
  const bool remote = SeeksRemote();
  // A look that a guess had begun is not one of the five.
  const bool guessed = at_once_.exchange(false, std::memory_order_relaxed);
  const bool again = !final && !pinned_.load(std::memory_order_relaxed) &&
                     !closed_.load(std::memory_order_relaxed);
  if (again && remote) {
    // A peer on another host may have its own limits, and a link its own
    // troubles: it is asked again for as long as the connection lives, after
    // ever more traffic.
    // (The end that accepted only waits to be asked, which costs nothing.)
    // (One that lacks nothing but room may have it as soon as it earns it.)
    if (attempts_ < 4 && reason != Reason::kBudget) ++attempts_;
    const int shift = role_ == stream::Role::kAcceptor || attempts_ == 0
                          ? 0
                          : 2 * (attempts_ - 1);
    next_ops_ = ops() + (terms_.promote_ops << shift);
    next_bytes_ = RawBytes() + (terms_.promote_bytes << shift);
    eligible_.store(true, std::memory_order_relaxed);
  } else if (attempts_ += guessed ? 0 : 1; again && attempts_ < 5) {
    // The peer may only have been slow, or be in no hurry: five looks in all.
    NextLook(ops(), RawBytes());
    eligible_.store(true, std::memory_order_relaxed);
  } else {
    may_adopt_.store(false, std::memory_order_seq_cst);
    // A pin may end, a look that was the last one does not.
    if (mode() == Mode::kPlain && (final || attempts_ >= 5)) {
      never_.store(true, std::memory_order_relaxed);
    }
  }
  if (mode() == Mode::kEngine) {
    WakeRx();  // HoldsEnd
    PostSettle();
  }
  rx_latch.unlock();
  tx_latch.unlock();
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
  if (mode() == Mode::kEngine) WakeRx();  // HoldsEnd
  rx_latch.unlock();
  tx_latch.unlock();
}

void Sock::Adopt() {
  {
    Critical critical;
    tx_latch.lock();
    rx_latch.lock();
    // (Read after wanted_ has been, or under the latches.)
    agreed_.store(true, std::memory_order_seq_cst);
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
  const bool wanted = wanted_.load(std::memory_order_seq_cst) &&
                      agreed_.load(std::memory_order_seq_cst) &&
                      mode() == Mode::kPlain;
  // The peer is not to wait for an adoption that does not come.
  const bool refused = wanted && (pinned_.load(std::memory_order_relaxed) ||
                                  half_closed_ || !SoleHolder());
  bool foreign = false;
  if (wanted && !refused && seeking_.load(std::memory_order_relaxed) &&
      !closed_.load(std::memory_order_relaxed)) {
    // seq_cst: a call that enters the kernel counts itself and then looks at
    // mode_; here mode_ is set first and the count looked at after, so one of
    // the two sees the other.
    mode_.store(Mode::kEngine, std::memory_order_seq_cst);
    const bool alone = !Inside() && SoleHolder();
    if (alone) HearMovedLatched();
    if (!alone) {
      mode_.store(Mode::kPlain, std::memory_order_seq_cst);
    } else if (OwnFace() == Face::kLibrary && UsedPastUs()) {
      mode_.store(Mode::kPlain, std::memory_order_seq_cst);
      pinned_.store(true, std::memory_order_seq_cst);
      may_adopt_.store(false, std::memory_order_seq_cst);
      reason_ = Reason::kPinnedSyscall;
      foreign = true;
    } else {
      stream_.reset(new (std::nothrow) Stream(role_, this, stream::Limits{}));
      if (stream_ == nullptr) {
        mode_.store(Mode::kPlain, std::memory_order_seq_cst);
      } else {
        stream_->Adopt(tx_raw_.load(std::memory_order_relaxed),
                       rx_raw_.load(std::memory_order_relaxed));
        adopted = true;
        TakeOptions();
        if (OwnFace() == Face::kLibrary) LearnOptions();
        inode_.store(SocketInode(fd()), std::memory_order_relaxed);
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
  if (foreign || refused) CancelSeek();
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
                    const stream::Nonce& mine, const stream::Nonce& peers,
                    bool authenticated) {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  const bool sought = seeking_.exchange(false, std::memory_order_acq_rel);
  if (!sought || mode() != Mode::kEngine || stream_ == nullptr ||
      closed_.load(std::memory_order_relaxed) ||
      pinned_.load(std::memory_order_relaxed) || lane_ != nullptr ||
      !SoleHolder()) {
    if (mode() == Mode::kEngine && stream_ != nullptr && lane_ == nullptr) {
      WakeRx();  // HoldsEnd
      PostSettle();
    }
    rx_latch.unlock();
    tx_latch.unlock();
    Stream::Refuse(lane.get(), epoch);
    if (Conductor* conductor = Conductor::IfRunning()) {
      conductor->ReturnLane(Share(), std::move(lane));
    }
    return;
  }
  lane_ = std::move(lane);
  lane_is_shm_ = lane_->kind() == lane::Kind::kShm;
  lane_kind_ = lane_->kind();
  lane_epoch_ = epoch;
  attempts_ = 0;
  if (lane_kind_ == lane::Kind::kRdma) {
    link_.reset();
    // Until the switch: it may never come, if this end or the other one does
    // not send.
    if (!authenticated && !promoted_) reason_ = Reason::kUnproven;
    static_cast<lane::rdma::RdmaLane*>(lane_.get())->SetCookie(this);
    ListRemote();
  }
  source_.store(lane_->source(), std::memory_order_release);
  // During the switch the conductor takes the control messages.
  TellLane(lane::kNotifyRxPoller | lane::kNotifyRxBits | lane::kNotifyTxPoller,
           0);
  RCSOCK_LOG(2, "fd %d: lane open, epoch %u", fd(), epoch);
  // Rule 2; and who answers on an unauthenticated lane must know more of the
  // connection than what anybody on its host can see.
  constexpr std::uint8_t kMinTail = 16;
  stream_->LaneUp(lane_.get(), epoch, mine, peers,
                  authenticated || role_ == stream::Role::kConnector,
                  authenticated ? std::uint8_t{0} : kMinTail);
  stream_->Progress();
  HandleChanges();
  WakeRx();  // HoldsEnd
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
    if (stream_->AtKernel() && (events & ~EPOLLOUT) != 0) WakeRx();
    if ((events & EPOLLERR) != 0) LookForErrorsLatched();
    stream_->Progress();
    HandleChanges();
    if ((events & (EPOLLHUP | EPOLLERR)) != 0 && watched_ &&
        !stream_->WantsAnchorRead() && !stream_->AtKernel()) {
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
    stream_->Progress();
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
    stream_->Progress();
    HandleChanges();
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

namespace {

// How long a switch may take, in a process and on a host as busy as they are:
// all switches under way share their conductors, and each of its steps waits
// for threads that hold the stream's latches and have lost their CPU.
class Patience {
 public:
  constexpr Patience(std::uint32_t least_ms, std::uint32_t most_ms)
      : least_ms_(least_ms), most_ms_(most_ms), ms_(least_ms) {}
  std::uint32_t ms() const { return ms_.load(std::memory_order_relaxed); }
  void Lost() {
    ms_.store(std::min(2 * ms(), most_ms_), std::memory_order_relaxed);
  }
  void Kept() {
    ms_.store(std::max(ms() * 63 / 64, least_ms_), std::memory_order_relaxed);
  }

 private:
  const std::uint32_t least_ms_;
  const std::uint32_t most_ms_;
  std::atomic<std::uint32_t> ms_;
};

constinit Patience shm_patience(300, 4000);
constinit Patience rdma_patience(2000, 8000);

Patience& PatienceFor(lane::Kind kind) {
  return kind == lane::Kind::kRdma ? rdma_patience : shm_patience;
}

}  // namespace

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
      RCSOCK_LOG(1, "fd %d: promoted to %s", fd(),
                 lane_kind_ == lane::Kind::kRdma ? "rdma" : "shm");
      on_lane_.store(true, std::memory_order_release);
      ++promotions_;
      PatienceFor(lane_kind_).Kept();
      InterestsNotifyLatched(this);
      InterestsReady(this);
    }
  }
  if (changes & stream::kLeftLane) {
    on_lane_.store(false, std::memory_order_release);
    InterestsRefresh(this, false);
    if (promoted_ || reason_ != Reason::kUnproven) {
      reason_ = stream_->why_left();
    }
    // One that made room for others is as welcome as before; who asks for that
    // is the end whose limit it was.
    if (lane_kind_ == lane::Kind::kRdma) {
      LeavesRemote();
    }
    if (reason_ == Reason::kTimeout) PatienceFor(lane_kind_).Lost();
    // Whether the peer has left or the lane has failed is known for certain
    // when the stream is back on TCP: see Stream::OnLaneDown.
    leave_uncounted_ =
        lane_kind_ == lane::Kind::kRdma &&
        (reason_ == Reason::kPeerGone || reason_ == Reason::kLaneError);
    if (!leave_uncounted_) CountLeave();
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
    timer_ = conductor->After(PatienceFor(lane_kind_).ms(),
                              [self = Share()] { self->OnTimer(); });
  }
  if (changes & stream::kMustReset) reset_ = true;
  if (changes & stream::kFinished) finished_ = true;
  if (changes & stream::kSettled) {
    settled_ = true;
    if (std::exchange(leave_uncounted_, false)) {
      reason_ = stream_->why_left();
      CountLeave();
    }
  }
  if (changes & (stream::kSettled | stream::kFinished)) PostSettle();
  UpdateWatch();
}

void Sock::CountLeave() {
  if (lane_kind_ != lane::Kind::kRdma ||
      (reason_ != Reason::kBudget && reason_ != Reason::kPeerDemoted &&
       reason_ != Reason::kIdleRings)) {
    ++demotions_;
  }
  if (promoted_ && !closed_.load(std::memory_order_relaxed) &&
      (stream_->Readiness() & (POLLRDHUP | POLLHUP)) == 0) {
    const bool failover = stream::IsFailover(reason_);
    ++(failover ? failed_over_ : left_);
    (failover ? stats.failovers : stats.demotions)
        .fetch_add(1, std::memory_order_relaxed);
  }
}

void Sock::UpdateWatch() {
  if (!watched_) return;
  Conductor* conductor = Conductor::IfRunning();
  if (conductor == nullptr) return;
  std::uint32_t wanted =
      tx_wait_ || stream_->WantsAnchorWrite() ? EPOLLOUT : 0u;
  if (stream_->WantsAnchorRead()) {
    wanted |= EPOLLIN;
  } else if (stream_->AtKernel()) {
    // The application reads, when it likes; whoever waits for it here, or for
    // an edge, is told of each arrival as the kernel would.  (Nothing is lost:
    // the change of the registration reports what is there already, and all
    // that is done for EPOLLOUT ends with EAGAIN.)
    wanted |=
        EPOLLIN | EPOLLPRI | EPOLLRDHUP | static_cast<std::uint32_t>(EPOLLET);
  }
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

// A source is drained by whoever waits for its lanes; for those that ring the
// conductor's bell, by the conductor.
void Sock::WantSource(bool wanted) {
  lane::Source* source = source_.load(std::memory_order_relaxed);
  if (source == nullptr || wanted == source_wanted_) return;
  source_wanted_ = wanted;
  if (Conductor* conductor = Conductor::IfRunning()) {
    conductor->SourceWanted(source, wanted ? 1 : -1);
  }
}

void Sock::TellLane(std::uint32_t bits, int number) {
  notify_.store(bits, std::memory_order_relaxed);
  bell_.store(number, std::memory_order_relaxed);
  if (lane_ == nullptr) return;
  WantSource(bits != 0 && number == 0);
  lane_->SetNotify(bits, number);
}

void Sock::SetNotify(std::uint32_t bits, int number) {
  TellLane(bits, number);
  // A thread in poll() sleeps on the bell that was.
  KickPollers();
}

void Sock::RingForPoll(int number) {
  // Who takes the wish back looks at poll_sleepers after that.
  if (notify_.load(std::memory_order_seq_cst) != 0) return;
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  if (lane_ != nullptr && OnLane() && notify_bits() == 0) {
    // It has rung nobody until now, so nobody sleeps on another bell.
    TellLane(lane::kNotifyRxPoller | lane::kNotifyTxPoller, number);
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

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
  // What comes later has posted another call.
  const bool finished = finished_;
  const bool reset = reset_;
  const bool settled = settled_ || finished;
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
    WantSource(false);
    source_.store(nullptr, std::memory_order_release);
    UnlistRemote();
    lane = std::move(lane_);
    lane_is_shm_ = false;
    notify_.store(0);
    rx_latch.unlock();
    tx_latch.unlock();
    if (link_ != nullptr) link_->SetCookie(index_, nullptr);
    conductor->ReturnLane(Share(), std::move(lane));
  }
  if (finished) {
    Finish(reset);
    return;
  }
  BackToPlain();
}

// A stream that is half closed in the kernel may not be promoted any more: the
// switch would take that end for the end of the peer (rule 1).
void Sock::HalfClosed() {
  Spoil();
  half_closed_ = true;
  pinned_.store(true, std::memory_order_seq_cst);
  eligible_.store(false, std::memory_order_seq_cst);
  wanted_.store(false, std::memory_order_seq_cst);
}

bool Sock::BackToPlain() {
  Critical critical;
  Conductor* conductor = Conductor::IfRunning();
  tx_latch.lock();
  rx_latch.lock();
  bool back = mode() == Mode::kEngine && stream_ != nullptr &&
              lane_ == nullptr && !closed_.load(std::memory_order_relaxed) &&
              !seeking_.load(std::memory_order_relaxed);
  bool spilled = false;
  const bool leaving = leaving_.load(std::memory_order_relaxed);
  if (back && !stream_->Idle()) {
    back = spilled = leaving && SpillLatched();
  } else if (back && stream_->TxBroken() && !leaving) {
    back = false;  // what the application has been told must stay true
  }
  if (back) {
    tx_raw_.store(stream_->tx_off(), std::memory_order_relaxed);
    rx_raw_.store(stream_->rx_off(), std::memory_order_relaxed);
    if (watched_ && conductor != nullptr) conductor->Unwatch(fd());
    watched_ = false;
    if (timer_ != 0 && conductor != nullptr) conductor->CancelTimer(timer_);
    timer_ = 0;
    PushOptions();
    // The kernel has not been told: it would let a reader sleep.
    if (rd_shut_) ::syscall(SYS_shutdown, fd(), SHUT_RD);
    leaving_.store(false, std::memory_order_relaxed);
    // The next Stream would not know of it.
    if (rd_shut_ || stream_->Shut() ||
        (stream_->Readiness() & POLLRDHUP) != 0) {
      HalfClosed();
    }
    mode_.store(spilled ? Mode::kUnread : Mode::kPlain,
                std::memory_order_seq_cst);
    if (spilled) {
      // Not adopted while the offset of what TCP brings is ahead of the
      // application's; EndUnreadLatched allows it again.
      may_adopt_.store(false, std::memory_order_seq_cst);
    } else if (!pinned_.load(std::memory_order_relaxed) &&
               (attempts_ < 5 || SeeksRemote())) {
      // Each demotion makes the next promotion eight times as far away.
      std::uint32_t shift = 3 * (demotions_ < 6 ? demotions_ : 6);
      if (SeeksRemote()) {
        shift = role_ == stream::Role::kAcceptor ? 0
                : demotions_ < 4                 ? 2 * demotions_
                                                 : 8;
      }
      next_ops_ = ops() + (terms_.promote_ops << shift);
      next_bytes_ = RawBytes() + (terms_.promote_bytes << shift);
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

bool Sock::StepToPlain(Reason reason) {
  if (Engaged()) {
    CancelSeek();
    Critical critical;
    tx_latch.lock();
    rx_latch.lock();
    wanted_.store(false, std::memory_order_seq_cst);
    if (mode() == Mode::kEngine && stream_ != nullptr) {
      leaving_.store(true, std::memory_order_relaxed);
      stream_->Demote(reason, true);
      stream_->Progress();
      HandleChanges();
    }
    rx_latch.unlock();
    tx_latch.unlock();
    if (mode() == Mode::kEngine) BackToPlain();
  }
  return mode() != Mode::kEngine;
}

bool Sock::ToPlain(Reason reason) {
  for (int i = 0; i < 200; ++i) {
    if (StepToPlain(reason)) return true;
    if (StuckOnStash()) break;
    // The peer's background thread answers within a round trip or two.
    timespec brief{0, i < 50 ? 100'000 : 10'000'000};
    ::nanosleep(&brief, nullptr);
  }
  StopLeaving();
  return mode() != Mode::kEngine;
}

void Sock::StopLeaving() {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  leaving_.store(false, std::memory_order_relaxed);
  rx_latch.unlock();
  tx_latch.unlock();
}

// There was no memory to share it in.
bool Sock::StuckOnStash() {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  const bool stuck = mode() == Mode::kEngine && stream_ != nullptr &&
                     lane_ == nullptr && stream_->OnlyStash();
  rx_latch.unlock();
  tx_latch.unlock();
  return stuck;
}

void Sock::KeepPlain() {
  pinned_.store(true, std::memory_order_seq_cst);
  eligible_.store(false, std::memory_order_seq_cst);
  may_adopt_.store(false, std::memory_order_seq_cst);
}

void Sock::LeaveForGood(Reason reason) {
  Spoil();
  KeepPlain();
  StepToPlain(reason);
}

bool Sock::Pin(Reason reason) {
  Spoil();
  KeepPlain();
  const bool ok = ToPlain(reason);
  reason_ = reason;
  return ok;
}

// --- The end
// ------------------------------------------------------------------------------------

namespace {

// Unread data at close is a reset, and the kernel does not know of it.
void ResetOnClose(int number) {
  linger now{1, 0};
  ::syscall(SYS_setsockopt, number, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

}  // namespace

int Sock::CloseLast(int number) {
  Critical critical;
  const base::NoCancel no_cancel;
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
    // (Bytes that nobody has read, also where they are the kernel's still: a
    // FIN would come before the reset that its close makes of them.)
    int unread = 0;
    if (stream_->AtKernel() && SoleHolder()) {
      ::syscall(SYS_ioctl, number, FIONREAD, &unread);
    }
    const bool reset =
        (option.l_onoff != 0 && option.l_linger == 0) || unread > 0;
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
    TellLane(
        lane::kNotifyRxPoller | lane::kNotifyRxBits | lane::kNotifyTxPoller, 0);
    stream_->Close(reset);
    stream_->Progress();
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
    if (mode() == Mode::kUnread && unread_.size() > 0 && SoleHolder()) {
      ResetOnClose(number);
    }
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
    if (reset) ResetOnClose(number);
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
    // A look for the peer that was not even over.
    if (last && reason_ == Reason::kPending &&
        base::NowNs() - remote_.sought_ns < 1'000'000'000) {
      reason_ = Reason::kShortLived;
    }
    const bool connection = !listening.load(std::memory_order_relaxed);
    if (connection) FoldLatched(to);
    if (last) {
      accounted_ = true;
      if (connection) LearnLatched();
      LeaveHolders();
    }
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

void Sock::LearnLatched() const {
  // What others do with it is not seen here.
  if (!connected_.load(std::memory_order_relaxed) || !SoleHolder() ||
      given_away_.load(std::memory_order_relaxed)) {
    return;
  }
  const auto [tx, rx, lane_tx, lane_rx] = TrafficLatched();
  if (tx + rx == 0) return;
  // Calls on a lane are not counted; most are small ones, if any are.
  Prospect::Learn(service_.load(std::memory_order_relaxed), tx + rx,
                  ops() + (lane_tx + lane_rx) / 1024, promoted_);
}

Sock::Traffic Sock::TrafficLatched() const {
  std::uint64_t tx = tx_raw_.load(std::memory_order_relaxed);
  std::uint64_t rx = rx_raw_.load(std::memory_order_relaxed);
  if (stream_ != nullptr && mode() == Mode::kEngine) {
    tx = stream_->tx_off();
    rx = stream_->rx_off();
  }
  tx -= account_tx_ < tx ? account_tx_ : tx;
  rx -= account_rx_ < rx ? account_rx_ : rx;
  // What the engine delivered, less what it read from TCP.
  const std::uint64_t by_lane =
      lane_rx_ > anchor_rx_ ? lane_rx_ - anchor_rx_ : 0;
  return {tx, rx, lane_tx_ < tx ? lane_tx_ : tx, by_lane < rx ? by_lane : rx};
}

void Sock::FoldLatched(Stats* to) const {
  const auto [tx, rx, lane_tx, lane_rx] = TrafficLatched();
  if (inherited_ && tx == 0 && rx == 0) return;
  LaneCounts& counts = lane_kind_ == lane::Kind::kRdma ? to->rdma : to->shm;
  counts.tx_bytes.fetch_add(lane_tx, std::memory_order_relaxed);
  counts.rx_bytes.fetch_add(lane_rx, std::memory_order_relaxed);
  to->tcp.tx_bytes.fetch_add(tx - lane_tx, std::memory_order_relaxed);
  to->tcp.rx_bytes.fetch_add(rx - lane_rx, std::memory_order_relaxed);
  if (!connected_.load(std::memory_order_relaxed)) return;
  to->streams.fetch_add(1, std::memory_order_relaxed);
  if (promoted_) {
    counts.streams.fetch_add(1, std::memory_order_relaxed);
  } else {
    to->tcp.streams.fetch_add(1, std::memory_order_relaxed);
    to->reasons[static_cast<int>(reason_.load())].fetch_add(
        1, std::memory_order_relaxed);
  }
}

void Sock::ResetAtExit() {
  Critical critical;
  tx_latch.lock();
  rx_latch.lock();
  const bool untaken = mode() == Mode::kEngine
                           ? stream_ != nullptr && stream_->Untaken()
                           : mode() == Mode::kUnread && unread_.size() > 0;
  if (untaken && SoleHolder()) {
    if (mode() == Mode::kEngine) stream_->TellReset();
    ResetOnClose(fd());
  }
  rx_latch.unlock();
  tx_latch.unlock();
}

void Sock::FlushAtExit(std::uint64_t deadline_ns) {
  Critical critical;
  for (;;) {
    tx_latch.lock();
    rx_latch.lock();
    bool owed = false;
    if (mode() == Mode::kEngine && stream_ != nullptr && fd() >= 0) {
      // What is staged for a peer that has not agreed yet, and may never have
      // had the lane, is still TCP's to deliver.
      if (stream_->tx() == stream::Tx::kProp) {
        stream_->Demote(Reason::kShortLived, false);
      }
      stream_->Progress();
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

}  // namespace rcsock::posix
