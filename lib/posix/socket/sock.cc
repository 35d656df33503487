#include "lib/posix/socket/sock.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "lib/base/alone.h"
#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/internal.h"
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
  // Objects given back lately, oldest first.  A call may still be inside the
  // kernel with such an object, and counts what it has moved when it comes out.
  // Those bytes are not the next connection's.  So the objects lie here until
  // no call is inside (Sift).
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
  static void Free(Sock* sock) RC_REQUIRES(latch) {
    sock->pool_next_ = free;
    free = sock;
  }

  // Returns whether no call of the program is inside with the object, where
  // that can be told without a fence: the program has one thread, and this is
  // it.  The next connection then gets the object at once, while the cache
  // still has it.  Not for a handler: the call that it has interrupted may be
  // between two looks, with no mark and no count, and goes on where it finds
  // its stream at its number.  Marks and counts are of calls that handlers have
  // jumped out of, and of the conductor's.
  static bool FreeAtOnce(const Sock* sock) {
    return base::Alone() && !base::tls_internal && !InHandler() &&
           !sock->calls_.Inside() && !sock->sleepers_.Any() && !MayBeIn(sock);
  }

  // Frees the objects that no call is inside with.  A call may have found such
  // an object in the table, and not have marked it yet.  After this fence the
  // call asks the table again.  It finds that its number is not that stream's
  // any more, since the object left the table before it came here.
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
      if (sock->late_ns_ == 0) sock->late_ns_ = now;
      const bool old = sock->late_ns_ + kLateNs < now;
      if (sock->found_in_ == looks ||
          ((!exact || sock->calls_.Inside()) && !old)) {
        Append(sock);
      } else {
        Free(sock);
      }
      sock = next;
    }
    // Where a look is not exact, all that came since the last look stays for
    // another one.  With a factor of two the list would grow with each look.
    enough = late_count + late_count / 2 + kBatch;
  }

  // Returns null if there is no free object.  Requires base::Lone() and a
  // critical section, as GiveLone does.
  static Sock* TakeLone() {
    latch.AssertUnshared();
    Sock* const sock = free;
    if (sock != nullptr) free = sock->pool_next_;
    RC_DCHECK(sock == nullptr || sock->refs_.load() == 0);  // I-LIFE-1
    return sock;
  }
  static Sock* Take() {
    Critical critical;
    if (base::Lone()) {
      if (Sock* const sock = TakeLone(); sock != nullptr) return sock;
    }
    latch.lock();
    if (free == nullptr && late_count >= enough) Sift();
    Sock* sock = free;
    if (sock != nullptr) free = sock->pool_next_;
    RC_DCHECK(sock == nullptr || sock->refs_.load() == 0);  // I-LIFE-1
    latch.unlock();
    if (sock == nullptr) return new (std::nothrow) Sock();
    return sock;
  }
  // Runs in the child of a fork: a late call of the parent may have held a
  // latch of such an object.
  static void FreeLatches() {
    latch.AssertUnshared();
    for (Sock* list : {free, late}) {
      for (Sock* sock = list; sock != nullptr; sock = sock->pool_next_) {
        for (base::Latch* one : {&sock->tx_latch, &sock->rx_latch}) {
          // A latch is written to only if need be: the parent has these pages,
          // too.
          if (one->Held() || one->Contended()) one->Reset();
        }
      }
    }
  }
  static void GiveLone(Sock* sock) {
    latch.AssertUnshared();
    Free(sock);
  }
  static void Give(Sock* sock) {
    Critical critical;
    latch.lock();
    sock->late_ns_ = 0;
    FreeAtOnce(sock) ? Free(sock) : Append(sock);
    latch.unlock();
  }
};

namespace {
constinit base::Pool socks(sizeof(Sock));
}  // namespace

void* Sock::operator new(std::size_t, const std::nothrow_t&) noexcept {
  return socks.Take();
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
Sock::Sock() : SockLayout(this) {
  // The cache lines that sock_layout.h promises.
  constexpr std::size_t kLine = 64;
  const auto in_line = [](std::size_t first, std::size_t last) {
    return first / kLine == last / kLine;
  };
  static_assert(in_line(0, offsetof(Sock, lane_state_)));
  static_assert(in_line(offsetof(Sock, lane_), offsetof(Sock, nonblock)));
  // A latch that is checked is larger.
  static_assert(sizeof(base::Latch) != 8 ||
                in_line(offsetof(Sock, lane_), offsetof(Sock, next_line)));
  static_assert(in_line(offsetof(Sock, sleepers_), offsetof(Sock, left_)));
}
#pragma GCC diagnostic pop

[[gnu::hot]] Sock* Sock::New(stream::Role role, bool is_nonblock) {
  Sock* sock = SockPool::Take();
  if (sock == nullptr) return nullptr;
  sock->Reset();
  sock->peer_.SetRole(role);
  sock->nonblock.store(is_nonblock, std::memory_order_relaxed);
  // release: TryRef may find the object by a number that it had before.
  sock->refs_.store(1, std::memory_order_release);
  return sock;
}

// The counts of sleeping threads stay: each thread takes back its own, maybe
// late.
[[gnu::hot]] void Sock::Reset() {
  tx_latch.AssertUnshared();
  rx_latch.AssertUnshared();
  const bool engaged = remote_.sought_ns() != 0 || tally_.inherited();
  ResetSettings();
  ResetPath();
  notice_.Reset();
  if (engaged) ResetEngine();
  // The engine has nothing of a stream that has never looked for a lane.
  RC_DCHECK(stream_ == nullptr && lane_ == nullptr && !on_lane_.load() &&
            !quick_.may_send && !quick_.may_receive && timer_ == 0 &&
            (lane_tx_ | lane_rx_) == 0 && !rd_shut_ && !lane_is_shm_);
  ResetLife();
  ResetSharing();
}

// Resets what the program and the rules have set.
[[gnu::hot]] void Sock::ResetSettings() {
  interest_latch.AssertUnshared();
  interests_user = false;
  interests_stay = base::Reason::kNone;
  listening.store(false, std::memory_order_relaxed);
  status_known.store(0, std::memory_order_relaxed);
  rcv_timeout_ns.store(0, std::memory_order_relaxed);
  snd_timeout_ns.store(0, std::memory_order_relaxed);
  ancillary_.Reset();
  options_.Reset();
  zero_copy_.Reset();
  control_.Reset();
  in_spawn_actions.store(false, std::memory_order_relaxed);
  peer_.Reset();
}

// Resets the way to a lane and back, and what calls on TCP are counted for.
[[gnu::hot]] void Sock::ResetPath() {
  mode_.Write(tx_latch, rx_latch)
      .store(Mode::kPlain, std::memory_order_relaxed);
  lane_state_.Reset();
  way_back_.Reset();
  calls_.Reset();
  search_.Reset();
  send_gate_.Reset();
  remote_.Reset();
}

// Resets what the engine keeps of a stream.
void Sock::ResetEngine() {
  stream_.Write(tx_latch, rx_latch).reset();
  lane_.Write(tx_latch, rx_latch).reset();
  lane_is_shm_.Write(tx_latch, rx_latch) = false;
  quick_ = stream::Quick();
  lane_tx_ = lane_rx_ = 0;
  on_lane_.store(false, std::memory_order_relaxed);
  input_alone_.store(false, std::memory_order_relaxed);
  rd_shut_.Write(tx_latch, rx_latch) = false;
  lane_kind_ = lane::Kind::kShm;
  lane_epoch_ = 0;
  starvation_.Reset();
  timer_ = 0;
  settling_.Reset();
  leave_uncounted_ = false;
}

[[gnu::hot]] void Sock::ResetLife() {
  anchor_.Reset();
  watch_.Reset();
  left_.Reset();
  ending_.Reset();
  across_exec_.Reset();
}

// Resets what this process and others know of each other.
[[gnu::hot]] void Sock::ResetSharing() {
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

[[gnu::hot]] void Sock::Unref() {
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (!EndsOnTcp()) EndLast();
  SockPool::Give(this);
}

// A stream that has never looked for a lane has nothing of the engine's, and
// none that another process knows.
[[gnu::hot]] bool Sock::EndsLone(int number) const {
  using State = LaneState::State;
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const State state = lane_state_.state();
  const bool ends =
      WholeEntry(number) ==
          reinterpret_cast<std::uintptr_t>(static_cast<const File*>(this)) &&
      fds.load(kRelaxed) == 1 && refs_.load(kRelaxed) == 1 &&
      mode(kRelaxed) == Mode::kPlain &&
      (state == State::kIdle || state == State::kOff ||
       state == State::kNever) &&
      !listening.load(kRelaxed) && remote_.sought_ns() == 0 &&
      !tally_.inherited() && holders_.Unshared() && !noted_.Travels() &&
      !zero_copy_.Any() && !sleepers_.Any() && !calls_.Inside() &&
      !InHandler() && !MayBeIn(this);
  RC_DCHECK(!ends || (stream_ == nullptr && lane() == nullptr &&
                      notice_.link() == nullptr &&
                      copy_.state() == UnusedCopy::State::kNo));
  return ends;
}

[[gnu::hot]] void Sock::GiveLone() {
  fds.store(0, std::memory_order_relaxed);
  refs_.store(0, std::memory_order_relaxed);
  SockPool::GiveLone(this);
}

[[gnu::hot]] bool Sock::EndsOnTcp() const {
  return tally_.accounted() && mode() == Mode::kPlain && stream_ == nullptr &&
         notice_.link() == nullptr && !zero_copy_.Any() &&
         copy_.state() == UnusedCopy::State::kNo;
}

void Sock::EndLast() {
  Critical outer;  // what ends here goes back to pools
  std::unique_ptr<Stream> stream;
  std::unique_ptr<lane::Lane> lane, parked;
  std::shared_ptr<lane::shm::Link> link;
  {
    // A late call, by a number that is closed, may still look.
    Latched latched(this);
    tally_.AccountLatched();
    read_ahead_.EndLatched();
    zero_copy_.Forget();
    SetMode(Mode::kPlain);
    lane_state_.Step(LaneState::Event::kStay);
    stream = std::move(stream_.Write(tx_latch, rx_latch));
    quick_.may_send = quick_.may_receive = false;
    lane = std::move(lane_.Write(tx_latch, rx_latch));
    parked = settling_.TakeParked();
    lane_is_shm_.Write(tx_latch, rx_latch) = false;
    remote_.Unlist();
    link = notice_.TakeLink();
  }
  copy_.Show();
}

std::shared_ptr<Sock> Share(Sock* sock) {
  sock->Ref();
  return std::shared_ptr<Sock>(sock, [](Sock* held) { held->Unref(); });
}

std::shared_ptr<Sock> Hold(Sock* sock) {
  if (!sock->TryRef()) return nullptr;
  return std::shared_ptr<Sock>(sock, [](Sock* held) { held->Unref(); });
}

void SockForkLock() {
  SockPool::latch.LockForFork();
  RemoteForkLock();
  PeerFacts::ForkLock();
  TableForkLock();
  ClosedStreams::ForkLock();
  base::PoolsForkLock();
}

void SockForkUnlock(bool child) {
  base::PoolsForkUnlock(child);
  ClosedStreams::ForkUnlock(child);
  TableForkUnlock(child);
  PeerFacts::ForkUnlock(child);
  RemoteForkUnlock(child);
  if (child) SockPool::FreeLatches();
  SockPool::latch.UnlockAfterFork(child);
}

// One thread's idle connection is not to be woken for another thread's
// messages, nor to wake that thread.  Threads that block share a completion
// queue only if there are more of them than queues.
int Sock::Bell() {
  int queue;
  {
    Latched latched(this);
    queue = remote_.queue();
  }
  return Registrations::Get().Bell(this, queue);
}

}  // namespace rcsock::posix
