#include "lib/posix/iomux/thread_bells.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>

#include "lib/base/sleep.h"
#include "lib/base/start_data.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/iomux/poll.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/bell_shares.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

using rendezvous::Conductor;

namespace {

struct ThreadBells {
  int set = -1;
  lane::BellMask bells = 0;  // bells that are in the set
  int own = 0;               // 0: not chosen yet
  lane::Source* sources[kThreadSources] = {};
  int source_count = 0;
  int pid = 0;
};
thread_local constinit ThreadBells tls_bells;

// A key of libc's gives the set back at the thread's end.  An object with a
// destructor would take memory when a thread first sleeps here, perhaps in a
// handler that has interrupted malloc.  If another key's destructor polls after
// this, BellsEnd runs again.
RCSOCK_START_DATA constinit pthread_key_t bells_key = 0;
RCSOCK_START_DATA constinit bool bells_key_made = false;

void BellsEnd(void* of) {
  auto* const mine = static_cast<ThreadBells*>(of);
  if (mine->set >= 0 && mine->pid == ::syscall(SYS_getpid)) {
    base::CloseRaw(mine->set);
    GiveBell(mine->own);
  }
  mine->set = -1;
  mine->own = 0;
}

// Requires a critical section.  False: no descriptor is left.
bool MakeBell(Conductor* conductor, int k) {
  if (conductor->bells()->bell_fd(k) >= 0) return true;
  if (conductor->bells()->EnsureBell(k) < 0) return false;
  conductor->AnnounceBell(k);
  return true;
}

}  // namespace

bool EnsureBells(Conductor* conductor, lane::BellMask wanted) {
  Critical critical;  // for the latches of the bells and of the conductor
  ThreadBells& mine = tls_bells;
  const int pid = static_cast<int>(OwnPid());
  if (mine.set >= 0 && mine.pid != pid) {
    base::CloseRaw(mine.set);  // inherited by fork
    mine.set = -1;
  }
  if (mine.set < 0) {
    mine.set = base::OpenHigh(
        [&] { return ::syscall(SYS_epoll_create1, EPOLL_CLOEXEC); });
    mine.bells = 0;
    mine.own = 0;
    mine.source_count = 0;
    mine.pid = pid;
    if (bells_key_made) ::pthread_setspecific(bells_key, &mine);
    if (mine.set < 0) return false;
  }
  for (lane::BellMask more = wanted & ~mine.bells; more != 0;
       more &= more - 1) {
    const int k = std::countr_zero(more);
    if (!MakeBell(conductor, k)) return false;
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    if (::syscall(SYS_epoll_ctl, mine.set, EPOLL_CTL_ADD,
                  conductor->bells()->bell_fd(k), &event) != 0) {
      return false;
    }
    mine.bells |= lane::BellBit(k);
  }
  return true;
}

int OwnBell(Conductor* conductor) {
  ThreadBells& mine = tls_bells;
  if (mine.own == 0) {
    Critical critical;
    mine.own = TakeBell(true);
    if (!MakeBell(conductor, mine.own)) {
      GiveBell(mine.own);
      mine.own = kPollBell;
    }
  }
  return mine.own;
}

bool EnsureSource(lane::Source* source) {
  ThreadBells& mine = tls_bells;
  for (int i = 0; i < mine.source_count; ++i) {
    if (mine.sources[i] == source) return true;
  }
  int at = mine.source_count;
  for (int i = 0; i < mine.source_count; ++i) {
    if (mine.sources[i]->fd() < 0) at = i;  // its device has gone
  }
  if (at == kThreadSources) return false;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  if (::syscall(SYS_epoll_ctl, mine.set, EPOLL_CTL_ADD, source->fd(), &event) !=
      0) {
    return false;
  }
  mine.sources[at] = source;
  if (at == mine.source_count) ++mine.source_count;
  return true;
}

int WaitBells(const timespec* timeout, const sigset_t* mask) {
  constexpr int kMost = lane::kBells + kThreadSources;
  epoll_event events[kMost];
  return base::EpollPwait(tls_bells.set, events, kMost, timeout, mask);
}

int ThreadBellsSet() { return tls_bells.set; }

// EPOLL_CTL_MOD makes the kernel look at a descriptor again.  No thread reads a
// bell, so a bell that has rung is readable.  A source that the handler's wait
// has not drained is readable, too.  A source that the wait has drained has
// rung the bells.
[[gnu::cold]] void RingAgain() {
  Critical critical;
  const int saved = errno;
  const ThreadBells& mine = tls_bells;
  Conductor* conductor = Conductor::IfRunning();
  if (mine.set < 0 || mine.pid != OwnPid() || conductor == nullptr) return;
  const auto look = [&mine](int fd) {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    ::syscall(SYS_epoll_ctl, mine.set, EPOLL_CTL_MOD, fd, &event);
  };
  for (lane::BellMask more = mine.bells; more != 0; more &= more - 1) {
    look(conductor->bells()->bell_fd(std::countr_zero(more)));
  }
  for (int i = 0; i < mine.source_count; ++i) look(mine.sources[i]->fd());
  errno = saved;
}

[[gnu::cold]] void InitThreadBells() {
  bells_key_made = ::pthread_key_create(&bells_key, &BellsEnd) == 0;
}

}  // namespace rcsock::posix
