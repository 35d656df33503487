#ifndef RCSOCK_LIB_POSIX_POLL_H_
#define RCSOCK_LIB_POSIX_POLL_H_

#include <poll.h>
#include <signal.h>
#include <sys/select.h>

#include <cstdint>

namespace rcsock::posix {

// The bell on which every poll() and select() of the process sleeps, besides
// those of the epoll sets that share its streams.
constexpr int kPollBell = 1;

// True if poll() of these must look at streams itself.
bool PollNeedsEngine(const pollfd* fds, nfds_t count);

// poll(2) over kernel descriptors and streams of the engine.  timeout_ns < 0:
// none.
int EnginePoll(pollfd* fds, nfds_t count, std::int64_t timeout_ns,
               const sigset_t* mask);

// select(2) the same way.  kNotMine: no stream of the engine is in the sets.
constexpr int kNotMine = -1000;
int EngineSelect(int count, fd_set* in, fd_set* out, fd_set* except,
                 std::int64_t timeout_ns, const sigset_t* mask,
                 std::int64_t* left_ns);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_POLL_H_
