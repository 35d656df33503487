// MSG_ZEROCOPY on a stream: completions of the kernel, and of what a lane has
// copied.

#include <cerrno>
#include <new>

#include "lib/base/real.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/zero_copy.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

void Sock::SetZeroCopy(bool on) {
  if (on && zero_copy_.load(std::memory_order_acquire) == nullptr) {
    auto* made = new (std::nothrow) ZeroCopy;
    ZeroCopy* none = nullptr;
    if (made == nullptr) return PinByOption();
    if (!zero_copy_.compare_exchange_strong(none, made)) delete made;
  }
  zero_copy_on_.store(on, std::memory_order_release);
}

ZeroCopy* Sock::ForZeroCopy() {
  if (!zero_copy_on_.load(std::memory_order_acquire)) {
    // The option was set before this program had the socket, or past rcsock.
    // Calls may have been made that nothing here has counted.
    int on = 0;
    socklen_t size = sizeof on;
    if (real::getsockopt(fd(), SOL_SOCKET, SO_ZEROCOPY, &on, &size) == 0 &&
        on != 0) {
      Pin(base::Reason::kPinnedOption);
    }
    return nullptr;
  }
  // All processes share one row of numbers.
  if (inherited_ || !SoleHolder()) Pin(base::Reason::kPinnedOption);
  return zero_copy_.load(std::memory_order_acquire);
}

void Sock::CompletionsChanged() {
  ZeroCopy* const zero_copy = zero_copy_.load(std::memory_order_acquire);
  const bool some = zero_copy != nullptr && !zero_copy->empty();
  if (completions_.exchange(some, std::memory_order_relaxed) == some) return;
  unread_streams.fetch_add(some ? 1 : -1, std::memory_order_relaxed);
}

void Sock::ForgetCompletions() {
  ZeroCopy* const zero_copy = zero_copy_.load(std::memory_order_acquire);
  if (zero_copy == nullptr) return;
  zero_copy->Reset();
  CompletionsChanged();
}

void Sock::CopiedInstead() {
  const bool ok = zero_copy_.load(std::memory_order_acquire)->Copied();
  {
    Latched latched(this);
    CompletionsChanged();
    WakeRx();
    // The stream has gone back to the kernel, which does not know of the
    // completion.
    if (mode() != Mode::kEngine) Registrations::Get().Kick(this);
  }
  // The program does not read completions, or not in order.
  if (!ok) Pin(base::Reason::kPinnedOption);
}

// Runs on the conductor's thread.  Takes what the kernel still owed when the
// stream left it.
void Sock::LookForErrorsLatched() {
  ZeroCopy* const zero_copy = zero_copy_.load(std::memory_order_acquire);
  if (zero_copy == nullptr || !zero_copy->Drain(fd())) return;
  CompletionsChanged();
  WakeRx();
}

ssize_t Sock::RecvErrors(int number, msghdr* message, int flags) {
  ZeroCopy* const zero_copy = zero_copy_.load(std::memory_order_acquire);
  if (zero_copy == nullptr) return real::recvmsg(number, message, flags);
  if (zero_copy->empty()) zero_copy->Drain(number);
  const bool any = zero_copy->Take(number, message);
  {
    Critical critical;
    rx_latch.lock();
    CompletionsChanged();
    rx_latch.unlock();
  }
  return any ? 0 : real::recvmsg(number, message, flags);
}

}  // namespace rcsock::posix
