#include "lib/posix/socket/sock.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/base/pool.h"
#include "lib/base/start_data.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/policy/prospect.h"
#include "lib/posix/socket/budget.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/call_marks.h"
#include "lib/posix/thread/signals.h"
#include "lib/posix/thread/spin.h"
#include "lib/rendezvous/address.h"
#include "lib/rendezvous/near_network.h"

namespace rcsock::posix {

using base::Reason;
using stream::Stream;

// --- Pool

// The pool of Socks.  Any thread may call it.
struct SockPool {
  static inline base::Latch latch;
  // Linked through pool_next_.
  static inline Sock* free RC_GUARDED_BY(latch) = nullptr;
  // Objects given back lately, oldest first.  Calls may still be inside the
  // kernel with them, and count what they have moved when they come out.  That
  // is not the next connection's.  So the objects lie here until no call is
  // inside (Sift).
  static inline Sock* late RC_GUARDED_BY(latch) = nullptr;
  static inline Sock* late_end RC_GUARDED_BY(latch) = nullptr;
  static inline std::uint32_t late_count RC_GUARDED_BY(latch) = 0;
  // A look fences for all threads, so one look serves many objects.
  static constexpr std::uint32_t kBatch = 16;
  static inline std::uint32_t enough RC_GUARDED_BY(latch) = kBatch;
  static inline std::uint32_t looks RC_GUARDED_BY(latch) = 0;
  // A handler may have jumped out of a call without a mark, which then never
  // comes out.  The object's life tells such a call that it is late.
  static constexpr std::uint64_t kLateNs = 10'000'000'000;

  static void Append(Sock* sock) RC_REQUIRES(latch) {
    sock->pool_next_ = nullptr;
    (late_end != nullptr ? late_end->pool_next_ : late) = sock;
    late_end = sock;
    ++late_count;
  }

  // Frees the objects that no call is inside with.  A call that has found one
  // in the table but has not marked it yet asks the table again, after this
  // fence.  It then finds that its number is not that stream's any more: the
  // stream left the table before it came here.
  static void Sift() RC_REQUIRES(latch) {
    Sock* sock = late;
    late = late_end = nullptr;
    late_count = 0;
    const bool exact = FenceCalls();
    ++looks;
    ForEachCall([](void* in) RC_REQUIRES(latch) {
      static_cast<Sock*>(in)->found_in_ = looks;
    });
    const std::uint64_t now = base::NowNs();
    while (sock != nullptr) {
      Sock* const next = sock->pool_next_;
      const bool old = sock->given_ns_ + kLateNs < now;
      if (sock->found_in_ == looks ||
          ((!exact || sock->calls_.Inside()) && !old)) {
        Append(sock);
      } else {
        sock->pool_next_ = free;
        free = sock;
      }
      sock = next;
    }
    enough = 2 * late_count + kBatch;
  }

  static Sock* Take() {
    Critical critical;
    latch.lock();
    if (free == nullptr && late_count >= enough) Sift();
    Sock* sock = free;
    if (sock != nullptr) free = sock->pool_next_;
    RC_DCHECK(sock == nullptr || sock->refs_.load() == 0);  // I-LIFE-1
    latch.unlock();
    if (sock == nullptr) return new (std::nothrow) Sock();
    return sock;
  }
  // In a child of fork: a late call of the parent may have held a latch of
  // these.
  static void FreeLatches() {
    latch.AssertUnshared();
    for (Sock* list : {free, late}) {
      for (Sock* sock = list; sock != nullptr; sock = sock->pool_next_) {
        for (base::Latch* one : {&sock->tx_latch, &sock->rx_latch}) {
          // Written to only if need be: the parent has these pages, too.
          if (one->Held() || one->Contended()) one->Reset();
        }
      }
    }
  }
  static void Give(Sock* sock) {
    Critical critical;
    latch.lock();
    sock->given_ns_ = base::NowNs();
    Append(sock);
    latch.unlock();
  }
};

namespace {
constinit base::Pool socks(sizeof(Sock));
// Returns the first threshold above `now`.  Streams look at the thresholds
// first, 8 * first, 64 * first...  The two ends may have learnt different
// things, and begin at different thresholds, but the later ones are equal for
// both.
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

Sock::Sock() : SockLayout(this) {}

Sock* Sock::New(stream::Role role, bool is_nonblock) {
  Sock* sock = SockPool::Take();
  if (sock == nullptr) return nullptr;
  sock->Reset();
  sock->role_ = role;
  sock->nonblock.store(is_nonblock, std::memory_order_relaxed);
  // release: TryRef may find the object by a number that it had before.
  sock->refs_.store(1, std::memory_order_release);
  return sock;
}

// The counts of sleeping threads stay: each thread takes back its own, maybe
// late.
void Sock::Reset() {
  tx_latch.AssertUnshared();
  rx_latch.AssertUnshared();
  ResetSettings();
  ResetPath();
  ResetEngine();
  ResetLife();
  ResetSharing();
}

// What the program and the rules have set.
void Sock::ResetSettings() {
  interest_latch.AssertUnshared();
  interests_user = false;
  interests_stay = base::Reason::kNone;
  listening.store(false, std::memory_order_relaxed);
  rcv_timeout_ns.store(0, std::memory_order_relaxed);
  snd_timeout_ns.store(0, std::memory_order_relaxed);
  ancillary_.Reset();
  options_.Reset();
  zero_copy_.Reset();
  control_.Reset();
  in_spawn_actions.store(false, std::memory_order_relaxed);
  terms_ = base::GetConfig().terms;
  service_.store(0, std::memory_order_relaxed);
}

// The way to a lane and back, and what calls on TCP are counted for.
void Sock::ResetPath() {
  mode_.Write(tx_latch, rx_latch)
      .store(Mode::kPlain, std::memory_order_relaxed);
  lane_state_.Reset();
  way_back_.Reset();
  calls_.Reset();
  next_ops_ = terms_.promote_ops;
  next_bytes_ = terms_.promote_bytes;
  send_gate_.Reset();
  attempts_ = 0;
  local_peer_.store(false, std::memory_order_relaxed);
  remote_ = Remote();
  reason_ = Reason::kShortLived;
}

// What the engine keeps of a stream.
void Sock::ResetEngine() {
  stream_.Write(tx_latch, rx_latch).reset();
  lane_.Write(tx_latch, rx_latch).reset();
  lane_is_shm_.Write(tx_latch, rx_latch) = false;
  quick_ = stream::Quick();
  lane_tx_ = lane_rx_ = 0;
  notice_.Reset();
  on_lane_.store(false, std::memory_order_relaxed);
  input_alone_.store(false, std::memory_order_relaxed);
  rd_shut_.Write(tx_latch, rx_latch) = false;
  lane_kind_ = lane::Kind::kShm;
  lane_epoch_ = 0;
  starvation_.Reset();
  timer_ = 0;
  settle_posted_ = false;
  settle_wait_ms_ = 1;
  settled_ = false;
  demotions_ = 0;
  leave_uncounted_ = false;
}

void Sock::ResetLife() {
  anchor_.Reset();
  watch_.Reset();
  connected_.store(false, std::memory_order_relaxed);
  closed_.store(false, std::memory_order_relaxed);
  half_closed_.Write(tx_latch, rx_latch) = false;
  left_fd_.Write(tx_latch, rx_latch) = -1;
  close_timer_ = 0;
  finished_ = finish_done_ = reset_ = false;
  across_exec_.Reset();
}

// What this process and others know of each other.
void Sock::ResetSharing() {
  holders_.Reset();
  claim_.Reset();
  copy_.Reset();
  tally_.Reset();
  noted_.Reset();
}

bool Sock::TryRef() {
  int refs = refs_.load(std::memory_order_relaxed);
  while (refs > 0) {
    if (refs_.compare_exchange_weak(refs, refs + 1,
                                    std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

void Sock::Unref() {
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  tally_.Account();
  Critical outer;  // what ends here goes back to pools
  std::unique_ptr<Stream> stream;
  std::unique_ptr<lane::Lane> lane, parked;
  std::shared_ptr<lane::shm::Link> link;
  {
    // A late call, by a number that is closed, may still look.
    Latched latched(this);
    EndUnreadLatched();
    zero_copy_.Forget();
    SetMode(Mode::kPlain);
    lane_state_.Step(LaneState::Event::kStay);
    stream = std::move(stream_.Write(tx_latch, rx_latch));
    quick_.may_send = quick_.may_receive = false;
    lane = std::move(lane_.Write(tx_latch, rx_latch));
    parked = std::move(parked_.Write(tx_latch, rx_latch));
    lane_is_shm_.Write(tx_latch, rx_latch) = false;
    UnlistRemote();
    link = notice_.TakeLink();
  }
  copy_.Show();
  SockPool::Give(this);
}

std::shared_ptr<Sock> Sock::Share() {
  Ref();
  return std::shared_ptr<Sock>(this, [](Sock* sock) { sock->Unref(); });
}

namespace {
base::Latch hosts_latch;
constinit rendezvous::HostAddresses hosts RC_GUARDED_BY(hosts_latch);
}  // namespace

void SockForkLock() {
  SockPool::latch.LockForFork();
  RemoteForkLock();
  hosts_latch.LockForFork();
  TableForkLock();
  ClosedStreams::ForkLock();
  base::PoolsForkLock();
}

void SockForkUnlock(bool child) {
  base::PoolsForkUnlock(child);
  ClosedStreams::ForkUnlock(child);
  TableForkUnlock(child);
  hosts_latch.UnlockAfterFork(child);
  RemoteForkUnlock(child);
  if (child) SockPool::FreeLatches();
  SockPool::latch.UnlockAfterFork(child);
}

// --- What the hooks tell
namespace {

// Returns whether `address` is one of this host's own at this moment.
bool LocalAddress(const sockaddr* address) {
  sockaddr_storage copy{};
  std::memcpy(&copy, address,
              address->sa_family == AF_INET ? sizeof(sockaddr_in)
                                            : sizeof(sockaddr_in6));
  rendezvous::Address normal;
  std::uint16_t port;
  if (!rendezvous::Normalise(copy, &normal, &port)) return false;
  if (rendezvous::IsLoopback(normal)) return true;
  // A program that connects to no address in particular is connected to this
  // host.
  rendezvous::Address none{};
  if (rendezvous::IsMapped(normal)) none[10] = none[11] = 0xff;
  if (normal == none) return true;
  Critical critical;
  hosts_latch.lock();
  const bool local = hosts.Has(normal);
  hosts_latch.unlock();
  return local;
}

}  // namespace

void Sock::SetPeer(int fd, const sockaddr* address, socklen_t length) {
  // A length below the family's: an unnamed or foreign address.
  if (address == nullptr || length < sizeof(sockaddr_in) ||
      (address->sa_family != AF_INET &&
       (address->sa_family != AF_INET6 || length < sizeof(sockaddr_in6)))) {
    return;
  }
  local_peer_.store(LocalAddress(address), std::memory_order_relaxed);
  Registrations::Get().PeerKnown(this);
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

void Sock::NeverLeavesTcp(Reason reason) {
  RCSOCK_LOG(1, "fd %d: stays on TCP: %s", fd(), base::ReasonKey(reason));
  reason_ = reason;
  lane_state_.Step(LaneState::Event::kForbid);
}

void Sock::AllowLane() {
  connected_.store(true, std::memory_order_relaxed);
  if (lane_state_.Never()) return;
  if (ProcessPinned() != Reason::kNone) {
    NeverLeavesTcp(ProcessPinned());
    return;
  }
  if (!terms_.shm && !terms_.rdma) {
    NeverLeavesTcp(Reason::kPolicy);
    return;
  }
  if (SeeksRemote()) {
    // The rules forbid shm to this local peer: the user asked for rdma.
    if (!terms_.rdma && !MayMeetFar()) {
      reason_ = Reason::kPolicy;
      return;
    }
    if (!MayMeetFar() && !rendezvous::RdmaPossible()) {
      sockaddr_storage own{};
      sockaddr_storage peer{};
      const bool beside =
          terms_.shm && Names(&own, &peer) &&
          rendezvous::PlaceOf(peer) != rendezvous::Place::kUnknown;
      reason_ = beside ? Reason::kOtherNamespace : Reason::kNoDevice;
      return;
    }
  }
  if (lane_state_.Pinned()) return;
  Foresee();
  lane_state_.Step(LaneState::Event::kConnect);
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

// A program that asks for a lane by hand, or for one to another host, is not
// second-guessed.
void Sock::Foresee() {
  const base::Config& config = base::GetConfig();
  if (control_.policy() != ProgramControl::Policy::kAuto || SeeksRemote() ||
      calls_.count() != 0)
    return;
  const Prospect::Promise promise =
      Prospect::Of(service_.load(std::memory_order_relaxed));
  lane_state_.SetHopeful(promise == Prospect::Promise::kMuch);
  if (config.promote_given || terms_.promote_ops != config.terms.promote_ops) {
    return;
  }
  switch (promise) {
    case Prospect::Promise::kLittle:
      NextLook(terms_.promote_ops, terms_.promote_bytes);
      break;
    case Prospect::Promise::kMuch:
      next_ops_.store(1, std::memory_order_relaxed);
      lane_state_.SetAtOnce();
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

// One thread's idle connection is not to be woken for another thread's
// messages, nor to wake that thread.  Threads that block share a completion
// queue only if there are more of them than queues.
int Sock::Bell() {
  int queue;
  {
    Latched latched(this);
    queue = remote_.queue;
  }
  return Registrations::Get().Bell(this, queue);
}

void Sock::Inherit(const Sock& listener) {
  service_.store(listener.service_.load(std::memory_order_relaxed),
                 std::memory_order_relaxed);
  rcv_timeout_ns.store(listener.rcv_timeout_ns.load());
  snd_timeout_ns.store(listener.snd_timeout_ns.load());
  ancillary_.Inherit(listener.ancillary_);
  if (listener.lane_state_.PinnedByOption()) way_back_.PinByOption();
  if (listener.zero_copy_.on()) zero_copy_.Set(true);
  if (const auto policy = listener.control_.policy();
      policy != ProgramControl::Policy::kAuto) {
    control_.SetPolicy(policy);
  }
}

// Puts the next look behind as much traffic as there has been.  From now that
// is at most 64 Ki calls that move bytes, or 64 MiB.
void Sock::LookAfterAsMuch() {
  constexpr std::uint32_t kMostOps = 1u << 16;
  constexpr std::uint64_t kMostBytes = 1u << 26;
  const std::uint32_t calls = calls_.count();
  const std::uint64_t bytes = calls_.bytes();
  next_ops_ = calls + std::max(std::min(calls, kMostOps), terms_.promote_ops);
  next_bytes_ =
      bytes + std::max(std::min(bytes, kMostBytes), terms_.promote_bytes);
}

void Sock::TryAgainLater() {
  next_ops_ = calls_.count() + terms_.promote_ops;
  next_bytes_ = calls_.bytes() + terms_.promote_bytes;
}

}  // namespace rcsock::posix
