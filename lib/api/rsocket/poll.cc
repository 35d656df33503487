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

namespace {

// One call of rpoll, some of whose descriptors have a channel.
class PollCall {
 public:
  PollCall(pollfd* fds, nfds_t count)
      : fds_(fds), asked_(fds, fds + count), channels_(count) {}

  int Wait(int timeout) {
    const std::int64_t end = NowMs() + timeout;
    for (;;) {
      for (std::size_t i = 0; i < asked_.size(); ++i) Ask(i);
      const std::int64_t left =
          timeout <= 0 ? timeout : std::max<std::int64_t>(0, end - NowMs());
      const int n =
          rcs_poll(asked_.data(), asked_.size(), static_cast<int>(left));
      if (n < 0) return n;
      int ready = 0;
      for (std::size_t i = 0; i < asked_.size(); ++i) {
        fds_[i].revents = Got(i);
        if (fds_[i].revents != 0) ++ready;
      }
      if (ready > 0 || timeout == 0) return ready;
      if (timeout > 0 && NowMs() >= end) return 0;
    }
  }

 private:
  // Sets what is asked of the stream itself.
  void Ask(std::size_t i) {
    asked_[i] = fds_[i];
    channels_[i] = ForData(fds_[i].fd);
    if (channels_[i] == nullptr) return;
    channels_[i]->Progress();
    switch (channels_[i]->phase()) {
      case Phase::kConnecting:
        asked_[i].events = POLLOUT;
        break;
      case Phase::kHello:
        asked_[i].events = POLLIN;
        break;
      default:
        break;
    }
  }

  // Returns the events of the rsocket, once poll has answered for the stream
  // itself.
  short Got(std::size_t i) {
    short got = asked_[i].revents;
    const Shared& channel = channels_[i];
    if (channel == nullptr) return got;
    const bool shaking = channel->handshaking();
    if (got != 0 && !channel->framed()) got = Step(i, got);
    channel->Progress();
    if (shaking) {
      // POLLOUT says here that the stream is connected.
      got = static_cast<short>(got & ~(POLLIN | POLLOUT));
      if (!channel->handshaking()) {
        got = static_cast<short>(got | (fds_[i].events & POLLOUT));
      }
    } else if (channel->framed()) {
      if ((got & POLLIN) != 0 && !channel->Readable()) {
        got = static_cast<short>(got & ~(POLLIN | POLLRDNORM));
      }
      if ((got & POLLOUT) != 0 && channel->SendOwed()) {
        got = static_cast<short>(got & ~(POLLOUT | POLLWRNORM));
      }
    }
    return got;
  }

  // Continues the handshake. Returns what the stream itself has then.
  short Step(std::size_t i, short got) {
    const Shared& channel = channels_[i];
    const bool spoken = channel->phase() == Phase::kSpoken;
    channel->Step();
    if (channel->undecided()) Nap();
    if (!spoken || channel->phase() == Phase::kSpoken) return got;
    // The bytes that poll saw may have been a hello, and are gone.
    pollfd again{fds_[i].fd, asked_[i].events, 0};
    return rcs_poll(&again, 1, 0) >= 0 ? again.revents : got;
  }

  pollfd* const fds_;
  std::vector<pollfd> asked_;
  std::vector<Shared> channels_;
};

}  // namespace

RCSOCK_EXPORT int rpoll(pollfd* fds, nfds_t count, int timeout) {
  if (fds == nullptr || std::none_of(fds, fds + count, [](const pollfd& one) {
        return Channels::Has(one.fd);
      })) {
    return rcs_poll(fds, count, timeout);
  }
  return Guarded([&] { return PollCall(fds, count).Wait(timeout); });
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
