#ifndef RCSOCK_LIB_POSIX_IOMUX_POLL_H_
#define RCSOCK_LIB_POSIX_IOMUX_POLL_H_

#include <poll.h>
#include <signal.h>
#include <sys/select.h>

#include <cstdint>

namespace rcsock::posix {

// Returns whether poll() must itself look at the streams among these
// descriptors.
bool PollNeedsEngine(const pollfd* fds, nfds_t count);

// What puts a descriptor into each of select's sets, as in the kernel.  HUP
// reads, an error reads and writes, and neither is an exception.
struct SelectSets {
  static constexpr int kIn =
      POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR;
  static constexpr int kOut = POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR;
  static constexpr int kExcept = POLLPRI;

  // What select() reports.  poll() reports a hung-up or failed connection
  // whatever the caller asked for.
  static short Told(int events) {
    int told = POLLNVAL;
    if (events & POLLIN) told |= kIn;
    if (events & POLLOUT) told |= kOut;
    if (events & POLLPRI) told |= kExcept;
    return static_cast<short>(told);
  }
};

// poll(2) where the answer is easy: some streams on lanes have what they are
// asked for.  Or, without `wait`, all are on lanes and have nothing.  `wait`:
// it may spin for a moment.  kPollLong: the caller polls the usual way.
constexpr int kPollLong = -1000;
int QuickPoll(pollfd* fds, nfds_t count, bool wait);

// poll(2) over kernel descriptors and streams of the engine. timeout_ns < 0: no
// time-out.  `select`: reports only what puts a descriptor into a set that
// asked.
int EnginePoll(pollfd* fds, nfds_t count, std::int64_t timeout_ns,
               const sigset_t* mask, bool select = false);

// How many of `count` descriptors select(2) looks at.  The kernel reads and
// writes its sets up to the size of the descriptor table.  rcsock's own
// descriptors, at the top of the range, enlarge that table.  So this is the
// size that the table would have without them.
int SelectTable(int count);
inline int SelectEnd(int count) {
  return count <= FD_SETSIZE ? count : SelectTable(count);
}

// select(2) in the manner of EnginePoll, for a count from SelectEnd().
// kNotMine: the sets have no stream of the engine, and none `may` be.
constexpr int kNotMine = -1000;
int EngineSelect(int count, fd_set* in, fd_set* out, fd_set* except,
                 std::int64_t timeout_ns, const sigset_t* mask,
                 std::int64_t* left_ns, bool may = false);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_POLL_H_
