#include "lib/posix/socket/sock_zero_copy.h"

#include <cerrno>
#include <new>

#include "lib/base/real.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/zero_copy.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

void ZeroCopyUse::Set(bool on) {
  if (on && its() == nullptr) {
    auto* made = new (std::nothrow) ZeroCopy;
    ZeroCopy* none = nullptr;
    if (made == nullptr) return sock_->way_back().PinByOption();
    if (!calls_.compare_exchange_strong(none, made)) delete made;
  }
  on_.store(on, std::memory_order_release);
}

ZeroCopy* ZeroCopyUse::ForCall() {
  if (!on_.load(std::memory_order_acquire)) {
    // The option was set before this program had the socket, or past rcsock.
    // Calls may have been made that nothing here has counted.
    int on = 0;
    socklen_t size = sizeof on;
    if (real::getsockopt(sock_->fd(), SOL_SOCKET, SO_ZEROCOPY, &on, &size) ==
            0 &&
        on != 0) {
      sock_->way_back().Pin(base::Reason::kPinnedOption);
    }
    return nullptr;
  }
  // All processes share one row of numbers.
  if (sock_->tally().inherited() || !sock_->holders().Sole())
    sock_->way_back().Pin(base::Reason::kPinnedOption);
  return its();
}

void ZeroCopyUse::Changed() {
  sock_->rx_latch.AssertHeld();
  SetCompletions(!its()->empty());
}

void ZeroCopyUse::Forget() {
  sock_->rx_latch.AssertHeld();
  if (its() == nullptr) return;
  its()->Reset();
  Changed();
}

void ZeroCopyUse::CopiedInstead() {
  const bool ok = its()->Copied();
  {
    Latched latched(sock_);
    Changed();
    sock_->Wake(false);
    // The stream has gone back to the kernel, which does not know of the
    // completion.
    if (sock_->mode() != Mode::kEngine) Registrations::Get().Kick(sock_);
  }
  // The program does not read completions, or not in order.
  if (!ok) sock_->way_back().Pin(base::Reason::kPinnedOption);
}

void ZeroCopyUse::TakeErrors() {
  sock_->rx_latch.AssertHeld();
  if (its() == nullptr || !its()->Drain(sock_->fd())) return;
  Changed();
  sock_->Wake(false);
}

ssize_t ZeroCopyUse::RecvErrors(int number, msghdr* message, int flags) {
  if (its() == nullptr) return real::recvmsg(number, message, flags);
  if (its()->empty()) its()->Drain(number);
  const bool any = its()->Take(number, message);
  {
    Critical critical;
    const base::LatchGuard hold(sock_->rx_latch);
    Changed();
  }
  return any ? 0 : real::recvmsg(number, message, flags);
}

void ZeroCopyUse::OnForkChild() {
  if (its() == nullptr) return;
  its()->ForkChild();
  sock_->rx_latch.AssertUnshared();
  SetCompletions(!its()->empty());
}

void ZeroCopyUse::SetCompletions(bool some) {
  if (completions_.exchange(some, std::memory_order_relaxed) == some) return;
  unread_streams.fetch_add(some ? 1 : -1, std::memory_order_relaxed);
}

}  // namespace rcsock::posix
