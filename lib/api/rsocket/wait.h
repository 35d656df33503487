#ifndef RCSOCK_LIB_API_RSOCKET_WAIT_H_
#define RCSOCK_LIB_API_RSOCKET_WAIT_H_

#include <poll.h>
#include <sys/time.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "lib/api/rsocket/call.h"

namespace rcsock::rsocket {

// How a call waits for its stream.

bool Nonblocking(int fd, int flags);

std::int64_t NowMs();

// Sleeps a moment. Bytes that may be the beginning of a hello are there to be
// read, so a poll for more would not wait.
void Nap();

// Waits for the stream itself. Returns false with errno (EINTR).
bool WaitFor(int fd, short events, int timeout);

// For poll. A time beyond its range is as good as for ever (24 days).
int Milliseconds(const timeval& time);

// Waits until there is something to read, as the stream itself waits in a read:
// with the stream's time-out, and going on after a signal if the handler says
// so. Returns false with errno, which may be the stream's own error.
bool WaitToRead(int fd);

// Waits with the time-out of a send. Returns false with errno (EINTR, EAGAIN).
bool WaitToSend(int fd, short events = POLLOUT);

// Waits until the peer has answered the hello, or `timeout` is over. Returns
// false with errno (EINTR).
bool Shake(const Shared& channel, int timeout);

// Sends all, as the flags allow. `once()` is a send that does not sleep.
template <class Once>
ssize_t Repeat(int fd, int flags, std::size_t total, Once&& once) {
  std::size_t done = 0;
  for (;;) {
    const ssize_t n = once(done);
    if (n > 0) {
      done += static_cast<std::size_t>(n);
      if (done >= total) return static_cast<ssize_t>(done);
      continue;
    }
    if (n == 0) return static_cast<ssize_t>(done);
    if (errno != EAGAIN || Nonblocking(fd, flags) || !WaitToSend(fd)) {
      return done > 0 ? static_cast<ssize_t>(done) : -1;
    }
  }
}

}  // namespace rcsock::rsocket

#endif  // RCSOCK_LIB_API_RSOCKET_WAIT_H_
