// Returns whether poll(2) itself has to look at streams.  And the short way of
// poll(2), for streams on lanes that are asked for input, if some have input.

#include "lib/base/guard.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/poll.h"
#include "lib/posix/iomux/poll_look.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/socket/sock_quick.h"

namespace rcsock::posix {

thread_local constinit KernelLook tls_look;

namespace {

struct Looked {
  int found = 0;
  nfds_t kernels = 0;  // the kernel's: what they have is not known
  bool remote = false;
};

// For a file without kLaneMark.  Returns which of `events` the file has, or
// kNotLooked.
[[gnu::noinline]] int LookAtOther(File* file, int fd, int events,
                                  lane::Source** drained, Looked* looked) {
  if (file->kind != FileKind::kSock) return Looks::kNotLooked;
  auto* const sock = static_cast<Sock*>(file);
  if (sock->mode() == Mode::kPlain) {
    ++looked->kernels;
    return 0;
  }
  lane::Source* const source = sock->notice().source();
  if (source == nullptr) return Looks::kNotLooked;
  if (source != *drained) source->Drain();
  *drained = source;
  looked->remote = true;
  return Looks(sock).QuickLook(fd, events, true);
}

// Returns false if the descriptors need the long way.  Not in line, so that it
// has the registers for itself.
[[gnu::noinline]] bool LookAtAll(pollfd* fds, nfds_t count, Looked* looked) {
  lane::Source* drained = nullptr;
  for (pollfd* one = fds; one != fds + count; ++one) {
    int fd;
    short events;
    if (!base::TryLoad(&one->fd, &fd) || !base::TryLoad(&one->events, &events))
      return false;
    int found = 0;
    const std::uintptr_t entry = WholeEntry(fd);
    File* const file = FileIn(entry);
    if (file == nullptr) {
      if (fd >= 0) ++looked->kernels;
    } else {
      // With the mark, this look reads no line that it does not need.
      found = Looks::kNotLooked;
      if ((entry & kLaneMark) != 0) {
        found = Looks(static_cast<Sock*>(file)).QuickLook(fd, events, false);
      }
      if (found == Looks::kNotLooked) [[unlikely]] {
        found = LookAtOther(file, fd, events, &drained, looked);
        if (found == Looks::kNotLooked) return false;
      }
    }
    if (!base::TryStore(&one->revents, static_cast<short>(found))) return false;
    if (found != 0) ++looked->found;
  }
  return true;
}

}  // namespace

bool PollNeedsEngine(const pollfd* fds, nfds_t count) {
  for (nfds_t i = 0; i < count; ++i) {
    int fd;
    // The kernel reports that.
    if (!base::TryLoad(&fds[i].fd, &fd)) return false;
    File* file = fd < 0 ? nullptr : Lookup(fd);
    if (file == nullptr) continue;
    if (file->kind == FileKind::kSock
            ? static_cast<Sock*>(file)->mode() == Mode::kEngine
            : static_cast<EpollSet*>(file)->LookedAtFromOutside()) {
      return true;
    }
  }
  return false;
}

int QuickPoll(pollfd* fds, nfds_t count, bool wait) {
  constexpr nfds_t kSpins = 8;  // a turn over more takes too long
  if (count == 0) return kPollLong;
  const Critical critical;
  int turns = wait && count <= kSpins
                  ? Spinner::QuickTurns() / static_cast<int>(2 * count)
                  : 0;
  for (;; --turns) {
    Looked looked;
    if (!LookAtAll(fds, count, &looked)) return kPollLong;
    if (looked.found > 0) {
      // A mere look, without waiting, is complete.
      const bool owed = looked.kernels > 0 && (!wait || tls_look.Owed());
      return owed ? kPollLong : looked.found;
    }
    if (looked.kernels > 0 || looked.remote) return kPollLong;
    if (turns <= 0) return wait ? kPollLong : 0;
    base::LookOnce();
  }
}

}  // namespace rcsock::posix
