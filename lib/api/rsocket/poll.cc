// Waiting: rpoll and rselect.

#include <poll.h>
#include <sys/select.h>

#include <algorithm>
#include <vector>

#include "lib/api/rsocket/call.h"
#include "lib/api/rsocket/channels.h"
#include "lib/api/rsocket/wait.h"
#include "lib/include/rcsock/rcsock.h"
#include "lib/include/rcsock/rsocket.h"

namespace rcsock::rsocket {

RCSOCK_EXPORT int rpoll(pollfd* fds, nfds_t count, int timeout) {
  if (fds == nullptr || std::none_of(fds, fds + count, [](const pollfd& one) {
        return Channels::Has(one.fd);
      })) {
    return rcs_poll(fds, count, timeout);
  }
  return Guarded([&] {
    const std::int64_t end = NowMs() + timeout;
    std::vector<pollfd> asked(fds, fds + count);
    std::vector<Shared> channels(count);
    for (;;) {
      for (nfds_t i = 0; i < count; ++i) {
        asked[i] = fds[i];
        channels[i] = ForData(fds[i].fd);
        if (channels[i] == nullptr) continue;
        channels[i]->Progress();
        switch (channels[i]->phase()) {
          case Phase::kConnecting:
            asked[i].events = POLLOUT;
            break;
          case Phase::kHello:
            asked[i].events = POLLIN;
            break;
          default:
            break;
        }
      }
      const std::int64_t left =
          timeout <= 0 ? timeout : std::max<std::int64_t>(0, end - NowMs());
      const int n = rcs_poll(asked.data(), count, static_cast<int>(left));
      if (n < 0) return n;
      int ready = 0;
      for (nfds_t i = 0; i < count; ++i) {
        short got = asked[i].revents;
        if (const Shared& channel = channels[i]; channel != nullptr) {
          const bool shaking = channel->handshaking();
          if (got != 0 && !channel->framed()) {
            const bool spoken = channel->phase() == Phase::kSpoken;
            channel->Step();
            if (channel->undecided()) Nap();
            if (spoken && channel->phase() != Phase::kSpoken) {
              // The bytes that poll saw may have been a hello, and are gone.
              pollfd again{fds[i].fd, asked[i].events, 0};
              if (rcs_poll(&again, 1, 0) >= 0) got = again.revents;
            }
          }
          channel->Progress();
          if (shaking) {
            // POLLOUT says here that the stream is connected.
            got = static_cast<short>(got & ~(POLLIN | POLLOUT));
            if (!channel->handshaking()) {
              got = static_cast<short>(got | (fds[i].events & POLLOUT));
            }
          } else if (channel->framed()) {
            if ((got & POLLIN) != 0 && !channel->Readable()) {
              got = static_cast<short>(got & ~(POLLIN | POLLRDNORM));
            }
            if ((got & POLLOUT) != 0 && channel->SendOwed()) {
              got = static_cast<short>(got & ~(POLLOUT | POLLWRNORM));
            }
          }
        }
        fds[i].revents = got;
        if (got != 0) ++ready;
      }
      if (ready > 0 || timeout == 0) return ready;
      if (timeout > 0 && NowMs() >= end) return 0;
    }
  });
}

RCSOCK_EXPORT int rselect(int count, fd_set* in, fd_set* out, fd_set* except,
                          timeval* timeout) {
  bool any = false;
  const auto has = [](const fd_set* set, int fd) {
    return set != nullptr && FD_ISSET(fd, set);
  };
  if (count < 0 || count > FD_SETSIZE ||
      (timeout != nullptr && (timeout->tv_sec < 0 || timeout->tv_usec < 0))) {
    return Fail(EINVAL);
  }
  for (int fd = 0; fd < count && !any; ++fd) {
    any = (has(in, fd) || has(out, fd) || has(except, fd)) && Channels::Has(fd);
  }
  if (!any) return rcs_select(count, in, out, except, timeout);
  return Guarded([&] {
    std::vector<pollfd> fds;
    for (int fd = 0; fd < count; ++fd) {
      const int events = (has(in, fd) ? POLLIN : 0) |
                         (has(out, fd) ? POLLOUT : 0) |
                         (has(except, fd) ? POLLPRI : 0);
      if (events != 0) fds.push_back({fd, static_cast<short>(events), 0});
    }
    const int n = rpoll(fds.data(), fds.size(),
                        timeout == nullptr ? -1 : Milliseconds(*timeout));
    if (n < 0) return n;
    int bits = 0;
    for (fd_set* set : {in, out, except}) {
      if (set != nullptr) FD_ZERO(set);
    }
    for (const pollfd& one : fds) {
      if ((one.revents & POLLNVAL) != 0) return Fail(EBADF);
      const auto tell = [&](fd_set* set, int asked, int means) {
        if ((one.events & asked) == 0 || (one.revents & means) == 0) return;
        FD_SET(one.fd, set);
        ++bits;
      };
      tell(in, POLLIN, POLLIN | POLLHUP | POLLERR);
      tell(out, POLLOUT, POLLOUT | POLLERR);
      tell(except, POLLPRI, POLLPRI);
    }
    return bits;
  });
}

}  // namespace rcsock::rsocket
