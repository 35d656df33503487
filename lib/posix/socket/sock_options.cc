#include "lib/posix/socket/sock_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "lib/base/dcheck.h"
#include "lib/posix/socket/sock_anchor.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

constexpr int kNames[] = {TCP_CORK, TCP_NODELAY};

// Two bits for each name: whether the option is kept here, and its value.
constexpr unsigned IsKept(int i) { return 1u << (2 * i); }
constexpr unsigned Value(int i) { return 2u << (2 * i); }

int IndexOf(int name) {
  return name == TCP_CORK ? 0 : name == TCP_NODELAY ? 1 : -1;
}

void Tell(int number, int i, int value) {
  ::syscall(SYS_setsockopt, number, IPPROTO_TCP, kNames[i], &value,
            sizeof value);
}

}  // namespace

void KeptOptions::Note(int i, bool on) {
  bits_ = static_cast<std::uint8_t>((bits_ & ~Value(i)) | IsKept(i) |
                                    (on ? Value(i) : 0u));
}

bool KeptOptions::Keep(int name, bool on, const TcpAnchor& anchor) {
  const int i = IndexOf(name);
  if (i < 0) return false;
  Critical critical;
  const base::LatchGuard hold(tx_);
  if (!engine_) return false;
  if (name == TCP_CORK && (bits_ & IsKept(i)) == 0) {
    // What was corked before the stream came here flows now.
    const int saved = errno;
    // Under the latch: another thread may close this number of several.
    Tell(anchor.number(), i, 0);
    errno = saved;
  }
  Note(i, on);
  return true;
}

bool KeptOptions::Kept(int name, int* value) {
  const int i = IndexOf(name);
  if (i < 0) return false;
  Critical critical;
  const base::LatchGuard hold(tx_);
  *value = (bits_ & Value(i)) != 0 ? 1 : 0;
  return (bits_ & IsKept(i)) != 0;
}

void KeptOptions::Take(int number) {
  tx_.AssertHeld();
  RC_DCHECK(!engine_ && bits_ == 0);
  engine_ = true;
  const int saved = errno;
  for (int i = 0; i < 2; ++i) {
    const int flowing = kNames[i] == TCP_NODELAY ? 1 : 0;
    int value = flowing;
    socklen_t size = sizeof value;
    ::syscall(SYS_getsockopt, number, IPPROTO_TCP, kNames[i], &value, &size);
    if ((value != 0) == (flowing != 0)) continue;
    Tell(number, i, flowing);
    Note(i, value != 0);
  }
  errno = saved;
}

void KeptOptions::Push(int number) {
  tx_.AssertHeld();
  RC_DCHECK(engine_);
  const int saved = errno;
  for (int i = 0; i < 2; ++i) {
    if ((bits_ & IsKept(i)) != 0) {
      Tell(number, i, (bits_ & Value(i)) != 0 ? 1 : 0);
    }
  }
  engine_ = false;
  bits_ = 0;
  errno = saved;
}

void KeptOptions::Drop() {
  tx_.AssertHeld();
  engine_ = false;
  bits_ = 0;
}

}  // namespace rcsock::posix
