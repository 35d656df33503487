// An epoll set inside an event loop of the program's.  rcsock/asio.hpp has such
// a set in Asio's reactor.  The loop looks at the lanes while they are busy,
// and arms the set before it sleeps in its own way.

#include <sched.h>

#include <cerrno>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/lane/shm/shm_poller.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/thread/signals.h"
#include "lib/posix/thread/spin.h"

namespace rcsock::posix {

int EpollSet::LookFor(epoll_event* out, int capacity, std::uint64_t ticks,
                      std::uint64_t* now) {
  Critical critical;
  const bool crowded = crowded_.load(std::memory_order_relaxed);
  if (__builtin_expect(crowded, 0) && !heats_.load(std::memory_order_relaxed)) {
    LeaveDirect();
  }
  const base::LatchGuard hold(wait_latch_);
  ++wait_number_;
  if (crowded && CoolDue()) Cool();
  int filled = 0;
  std::uint64_t start = 0;
  std::uint64_t last = 0;
  for (unsigned turns = 1;; ++turns) {
    Rebuild();
    const int room = DirectRoom(capacity);
    filled = TellDirect(out, room);
    if (crowded) hot_hits_ += static_cast<std::uint32_t>(filled);
    if (direct_count_ == 0 || ++undrained_ >= 8 || ticks == 0 ||
        ready_count_.load(std::memory_order_relaxed) > 0) {
      undrained_ = 0;
      DrainPoller();
      if (ready_count_.load(std::memory_order_relaxed) > 0) {
        filled += Collect(out + filled, capacity - filled);
      }
      if (filled == 0 && room == 0) filled = TellDirect(out, capacity);
    }
    if (filled > 0 || ticks == 0) break;
    if ((turns & 15) != 0) continue;
    base::CpuRelax();
    if (wait_latch_.Contended()) wait_latch_.Yield();
    *now = base::Ticks();
    if (start == 0) {
      start = *now;
    } else {
      tls_spin.Lost(*now - last, *now);
    }
    last = *now;
    if (*now - start >= ticks || !HasUser() || tls_spin.Held(*now)) break;
  }
  if (filled > 0) EndIdle(true);
  return filled;
}

// All looks of a loop that has found nothing meanwhile are one spin.
void EpollSet::EndIdle(bool found, bool allowed) {
  BeginThread();
  const std::uint64_t since = idle_since_.load(std::memory_order_relaxed);
  if (since == 0) return;
  idle_since_.store(0, std::memory_order_relaxed);
  if (!found && !allowed) return;
  tls_spin.Spun(base::Ticks() - since, found, base::GetConfig().spin_us);
}

int EpollSet::Look(epoll_event* out, int capacity, std::uint32_t spin_us) {
  constexpr std::uint64_t kPureUs = 10;
  if (!HasUser()) {
    errno = ENODATA;
    return -1;
  }
  BeginThread();
  std::uint64_t now = 0;
  const bool held = tls_spin.held && tls_spin.Held(base::Ticks());
  const std::uint64_t ticks = spin_us * base::ticks_per_us;
  // One tick makes sixteen looks.
  int filled = LookFor(out, capacity, held && ticks != 0 ? 1 : ticks, &now);
  if (filled > 0 || now == 0) return filled;
  if (idle_since_.load(std::memory_order_relaxed) == 0) {
    idle_since_.store(now, std::memory_order_relaxed);
  }
  const std::uint64_t idle = now - idle_since_.load(std::memory_order_relaxed);
  // The yield may take that away.
  const bool allowed = tls_spin.us != 0;
  bool over = idle >= tls_spin.us * base::ticks_per_us;
  if (!over && idle > kPureUs * base::ticks_per_us) {
    ::sched_yield();
    const std::uint64_t after = base::Ticks();
    if (tls_spin.Yielded(after - now, after)) {
      filled = LookFor(out, capacity, 0, &now);
      if (filled > 0) return filled;
      over = true;
    }
  }
  if (!over) return 0;
  EndIdle(false, allowed);
  errno = EAGAIN;
  return -1;
}

bool EpollSet::ArmOutside() {
  if (!outside_.exchange(true, std::memory_order_relaxed)) timer_.Refuse();
  if (armed_outside_) return true;
  armed_outside_ = true;
  armed_since_ = base::Ticks();
  // Arm, look, sleep, as in Wait.  The count is seq_cst, and Arm() is a full
  // fence.  A thread that makes something ready after this look sees the count,
  // or the armed word.  That thread then rings the bell, which is in the
  // kernel's set.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  armed_poller_ = poller_ != nullptr;
  if (armed_poller_) poller_->Arm();
  armed_sources_ = source_count_.load(std::memory_order_seq_cst);
  for (int i = 0; i < armed_sources_; ++i) {
    (armed_source_[i] = source(i))->Arm();
  }
  bool ready = false;
  {
    Critical critical;
    wait_latch_.lock();
    Rebuild();
    ready = HasUser() && SomethingReady();
    // A first stream has come since.  Its bell was not armed.
    ready |= !armed_poller_ && poller_ != nullptr;
    wait_latch_.unlock();
  }
  if (!ready) return true;
  DisarmOutside();
  return false;
}

void EpollSet::DisarmOutside() {
  if (!armed_outside_) return;
  armed_outside_ = false;
  idle_since_.store(0, std::memory_order_relaxed);
  // The bell comes first: what the sources drain need not ring for this thread.
  // Only the caller's loop knows whether a source has rung, so this assumes
  // that it has.
  if (armed_poller_) poller_->Disarm();
  for (int i = 0; i < armed_sources_; ++i) armed_source_[i]->Disarm(true);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  if (HasUser()) Spinner::Slept(armed_since_, true);
}

}  // namespace rcsock::posix
