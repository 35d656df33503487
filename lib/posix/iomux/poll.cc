// poll(2) over kernel descriptors and streams: it splits, looks, spins, arms,
// looks again, and sleeps.

#include "lib/posix/iomux/poll.h"

#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "lib/base/barrier.h"
#include "lib/base/clock.h"
#include "lib/base/fail.h"
#include "lib/base/guard.h"
#include "lib/base/nap.h"
#include "lib/base/real.h"
#include "lib/base/sleep.h"
#include "lib/posix/iomux/epoll.h"
#include "lib/posix/iomux/poll_look.h"
#include "lib/posix/iomux/poll_member.h"
#include "lib/posix/iomux/poll_sources.h"
#include "lib/posix/iomux/thread_bells.h"
#include "lib/posix/iomux/unread_wait.h"
#include "lib/posix/iomux/wait_loop.h"
#include "lib/posix/socket/kernel_hold.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/socket/sock_quick.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/bell_shares.h"
#include "lib/posix/thread/signals.h"
#include "lib/posix/thread/spin.h"

namespace rcsock::posix {

using rendezvous::Conductor;

namespace {

class Polling {
 public:
  Polling(pollfd* fds, nfds_t count, std::int64_t timeout_ns,
          const sigset_t* mask, bool select)
      : fds_(fds),
        count_(count),
        limits_(timeout_ns, mask, tls_signals.any),
        select_(select) {
    limits_.StartClock();
    if (count > kOnStack) {
      heap_kernel_.reset(new (std::nothrow) pollfd[count + 1]);
      heap_members_.reset(new (std::nothrow) Member[count]);
      if (!hold_.Reserve(count)) return;
      kernel_ = heap_kernel_.get();
      members_ = heap_members_.get();
    }
  }
  // The whole sleep is what a spin might have saved, even if it was interrupted
  // in vain many times.
  ~Polling() {
    if (slept_since_ == 0) return;
    Spinner::Slept(slept_since_, woken_);
    if (InHandler()) [[unlikely]]
      RingAgain();
  }
  Polling(const Polling&) = delete;
  Polling& operator=(const Polling&) = delete;
  bool ok() const { return kernel_ != nullptr && members_ != nullptr; }

  int Run() {
    kernel_look_ = tls_look.told ? 0 : tls_look.at;
    if (!Split()) return base::Fail(EFAULT);
    NewSpin();
    if (mine_ == 1 && members_[0].file->kind == FileKind::kSock) {
      Looks(static_cast<Sock*>(members_[0].file)).CountForPoll();
    }
    WaitLoop(this, &limits_);
    return result_;
  }

  // --- For WaitLoop.
  bool Look() {
    for (;;) {
      // A stream that was the engine's a moment ago may have left bytes that
      // were read ahead.
      const bool unread = AnyUnread() && PollFindsUnread(fds_, count_, select_);
      bool again = false;
      const int found = LookStreams(&again);
      if (faulted_) [[unlikely]]
        return End(base::Fail(EFAULT));
      if (!again || (found > 0 && !unread)) {
        return unread ? TellUnread() : LookKernelToo(found);
      }
      if (!Split()) return End(base::Fail(EFAULT));
      kernel_look_ = 0;
    }
  }
  bool TimeOut() {
    const bool asked = looked_ || (asked_ && in_vain_);
    return End(asked && limits_.mask() == nullptr ? 0 : LastLook());
  }
  bool Spin() { return !in_vain_ && spin_.Go(); }
  bool Sleep() {
    if (SleepByFutex()) {
      kernel_look_ = 0;
    } else if (SleepByBells() < 0) {
      return entered_ ? End(-1) : Fail(errno);
    }
    // If the next look finds nothing, the bell has rung for another thread, or
    // the nap is over.  That is no reason to spin.  A source wakes for many
    // streams, so with sources the thread spins.
    in_vain_ = sources_.empty();
    if (!in_vain_) NewSpin();
    return !Split() && End(base::Fail(EFAULT));
  }
  // A handler has run before the thread asked the kernel, which tells what is
  // ready first.
  bool Fail(int error) {
    if (error == EINTR && LookKernel(0, false, nullptr) > 0) {
      LookBeside();
      return End(Merge());
    }
    errno = error;
    return End(-1);
  }

 private:
  // Ends the call, and returns true.
  bool End(int result) {
    result_ = result;
    return true;
  }

  void NewSpin() {
    if (mine_ > kFew) {
      spin_.RestartForLongLooks();
    } else {
      spin_.Restart();
    }
  }

  // Takes streams of the engine, and epoll sets that have some, out of the
  // kernel's array.  False: a bad pointer.  In line, so that the common case
  // makes no call.
  [[gnu::always_inline]] bool Split() {
    mine_ = 0;
    kernels_ = 0;
    hold_.Release();
    for (nfds_t i = 0; i < count_; ++i) {
      if (!base::TryStore(&fds_[i].revents, short{0})) return false;
      if (aside_ && kernel_[i].revents == kAside) continue;
      kernel_[i] = fds_[i];
      kernel_[i].revents = 0;
      File* file = Followed(fds_[i].fd);
      if (fds_[i].fd >= 0) ++kernels_;
      if (file == nullptr) continue;
      if (file->kind == FileKind::kSock) {
        auto* const sock = static_cast<Sock*>(file);
        if (sock->mode() != Mode::kEngine && hold_.Enter(fds_[i].fd, sock)) {
          continue;
        }
        kernel_[i].fd = -1;
        --kernels_;
      } else if (!static_cast<EpollSet*>(file)->HasUser()) {
        continue;
      }
      members_[mine_++] = {i, file};
    }
    return true;
  }

  [[gnu::always_inline]] static std::uint32_t Look(Sock* sock, int fd,
                                                   short events, bool drained,
                                                   bool* plain) {
    {
      const Critical critical;
      const int found = Looks(sock).QuickLook(fd, events, drained);
      if (found != Looks::kNotLooked) return static_cast<std::uint32_t>(found);
    }
    return Looks(sock).Readiness(fd, static_cast<std::uint16_t>(events), plain,
                                 drained);
  }

  // *again: a stream has gone back to the kernel.  If the program's array has
  // gone bad, sets faulted_ and returns more than 0.
  int LookStreams(bool* again) {
    int found = 0;
    lane::Source* drained = nullptr;
    for (nfds_t m = 0; m < mine_; ++m) {
      pollfd& one = fds_[members_[m].at];
      int fd = -1;
      short events = 0;
      if (!base::TryLoad(&one.fd, &fd) || !base::TryLoad(&one.events, &events))
        return Bad();
      short told = 0;
      if (members_[m].file->kind == FileKind::kSock) {
        bool plain = false;
        auto* sock = static_cast<Sock*>(members_[m].file);
        lane::Source* source = sock->notice().source();
        if (source != nullptr && source != drained) {
          Critical critical;
          source->Drain();
          drained = source;
        }
        told = static_cast<short>(
            Look(sock, fd, events, source != nullptr, &plain));
        *again |= plain;
      } else if (static_cast<EpollSet*>(members_[m].file)->AnyReady()) {
        told = static_cast<short>(events & (POLLIN | POLLRDNORM));
      }
      if (select_) told = static_cast<short>(told & SelectSets::Told(events));
      if (!base::TryStore(&one.revents, told)) return Bad();
      if (told != 0) ++found;
    }
    return found;
  }
  int Bad() { return faulted_ = true; }

  // Called when the kernel has an event.  What a peer did before that event is
  // to be seen with it.  For instance, a peer closed one connection before it
  // made the next.
  void LookBeside() {
    bool moved = false;
    LookStreams(&moved);
  }

  bool TellUnread() {
    LookKernel(0, false, nullptr);
    LookBeside();
    return End(AddUnread(fds_, count_, Merge()));
  }

  // Looks at the kernel's descriptors, if that is due.  `found`: how many
  // streams are ready.  Returns whether the call is over.
  bool LookKernelToo(int found) {
    if (found > 0) spin_.Found();
    const bool waits = limits_.Waits();
    // A mere look, without waiting, is complete.
    looked_ = found > 0 ? !waits || OweLook() : KernelDue();
    if (looked_) {
      // Only the last look uses the call's mask.  Unlike epoll_wait, poll ends
      // with EINTR only if there is a signal and nothing else.
      const int n =
          LookKernel(0, false, found == 0 && !waits ? limits_.mask() : nullptr);
      if (n < 0 && found == 0) return End(-1);
      if (n > 0) {
        found += n;
        LookBeside();
      }
      tls_look.told = n > 0;
    }
    if (found > 0) return End(Merge());
    return !waits && looked_ && End(0);
  }

  bool OweLook() const {
    if (kernels_ == 0 || !tls_look.Owed()) return false;
    tls_look.at = base::Ticks();
    return true;
  }
  // A thread that goes to sleep asks the kernel anyway, or sets kernel_look_ to
  // 0.
  bool KernelDue() {
    const bool sleeps = in_vain_ || (tls_spin.us == 0 && !tls_spin.held);
    if (kernel_look_ != 0 && sleeps && limits_.Waits()) return false;
    const std::uint64_t now = base::Ticks();
    if (now - kernel_look_ < 15 * base::ticks_per_us) return false;
    kernel_look_ = tls_look.at = now;
    return true;
  }

  // `mask` as in ppoll.
  int LookKernel(std::int64_t timeout_ns, bool with_bells,
                 const sigset_t* mask) {
    UpdateMirrors();
    timespec limit{static_cast<time_t>(timeout_ns / 1'000'000'000),
                   static_cast<long>(timeout_ns % 1'000'000'000)};
    if (kernels_ == 0) {
      // There is nothing but streams: the wait on the set of bells reports the
      // edge, and clears it.
      if (!with_bells) {
        return mask == nullptr ? 0 : real::ppoll(nullptr, 0, &limit, mask);
      }
      const int woken = WaitBells(timeout_ns < 0 ? nullptr : &limit, mask);
      rang_ = woken > 0;
      woken_ |= rang_;
      return woken < 0 ? -1 : 0;
    }
    nfds_t n = count_;
    pollfd* bells = nullptr;
    if (with_bells) {
      bells = Free();
      if (bells == nullptr) bells = &kernel_[n++];
      *bells = {ThreadBellsSet(), POLLIN, 0};
    }
    int r = real::ppoll(kernel_, n, timeout_ns < 0 ? nullptr : &limit, mask);
    rang_ = with_bells && r > 0 && bells->revents != 0;
    woken_ |= rang_;
    if (with_bells) bells->fd = -1;
    if (rang_) {
      --r;
      const int saved = errno;
      constexpr timespec kNow{0, 0};
      WaitBells(&kNow, nullptr);  // clears the edge
      errno = saved;
    }
    return select_ && r > 0 ? PutAside() : r;
  }

  // Puts aside descriptors for which poll() has reported what was not asked
  // for: the kernel's select() sleeps on for these.  Such a state hardly ever
  // changes, so the kernel is asked about these again after kAsideNs only.
  // Returns how many descriptors remain ready.
  int PutAside() {
    int count = 0;
    for (nfds_t i = 0; i < count_; ++i) {
      pollfd& one = kernel_[i];
      if (one.fd < 0 || one.revents == 0) continue;
      one.revents =
          static_cast<short>(one.revents & SelectSets::Told(one.events));
      if (one.revents != 0) {
        ++count;
        continue;
      }
      one = {-1, 0, kAside};
      --kernels_;
      aside_ = true;
    }
    return count;
  }

  int LastLook() {
    const int n = LookKernel(0, false, limits_.mask());
    if (n <= 0) return n;
    LookBeside();
    return Merge();
  }

  // A free place of the kernel's array.  The kernel may not take more
  // descriptors than the program has.
  pollfd* Free() {
    for (nfds_t m = 0; m < mine_; ++m) {
      if (kernel_[members_[m].at].fd < 0) return &kernel_[members_[m].at];
    }
    return nullptr;
  }

  // Slow, but right.  Returns 0: look again, at the kernel too; -1: errno.
  int Nap(long ns) {
    kernel_look_ = 0;
    const timespec brief{0, ns};
    return real::ppoll(nullptr, 0, &brief, limits_.mask());
  }

  // Returns what the call does, with errno.
  int Merge() {
    if (faulted_) return base::Fail(EFAULT);
    int ready = 0;
    for (nfds_t i = 0; i < count_; ++i) {
      short told = 0;
      if (!base::TryLoad(&fds_[i].revents, &told)) return base::Fail(EFAULT);
      if (kernel_[i].fd >= 0)
        told = static_cast<short>(told | kernel_[i].revents);
      if (!base::TryStore(&fds_[i].revents, told)) return base::Fail(EFAULT);
      if (told != 0) ++ready;
    }
    return ready;
  }

  // The only member, if it is a stream in plain memory that is asked for input.
  // Otherwise null.
  Sock* Reader() const {
    constexpr int kInput = POLLIN | POLLRDNORM;
    constexpr int kOutput = POLLOUT | POLLWRNORM | POLLWRBAND;
    if (count_ != 1 || mine_ != 1 || members_[0].file->kind != FileKind::kSock)
      return nullptr;
    if ((fds_[0].events & kInput) == 0 || (fds_[0].events & kOutput) != 0) {
      return nullptr;
    }
    // A futex takes no mask.
    if (limits_.mask() != nullptr) return nullptr;
    auto* sock = static_cast<Sock*>(members_[0].file);
    return sock->notice().source() == nullptr ? sock : nullptr;
  }

  // Whether the sleep was on the word of the only stream.
  bool SleepByFutex() {
    Sock* const reader = Reader();
    return reader != nullptr &&
           Looks(reader).SleepForInput(fds_[0].fd, limits_.deadline_ns(),
                                       limits_.handlers());
  }

  // Arm, look, sleep.  Returns 0: look again; -1: errno.
  int SleepByBells() {
    entered_ = false;
    Conductor* const conductor = Conductor::IfRunning();
    if (conductor == nullptr) {
      // The engine is being taken down.  Its streams are about to be plain.
      return Nap(100'000);
    }
    lane::BellMask wanted = 0;
    sources_.Clear();
    if (!WantBells(conductor, &wanted) || !WantSources()) {
      return Nap(1'000'000);  // out of descriptors
    }
    CountSleeper(conductor);
    Armed armed{this, conductor, wanted, OwnPid()};
    armed.Arm();
    return LookThenSleep(&armed, &limits_);
  }

  // False: the set of this thread cannot hold the bells.
  bool WantBells(Conductor* conductor, lane::BellMask* wanted) {
    for (nfds_t m = 0; m < mine_; ++m) {
      const int bell = BellOf(members_[m].file);
      if (bell > 0) *wanted |= lane::BellBit(bell);
    }
    return EnsureBells(conductor, *wanted | lane::BellBit(kPollBell));
  }

  bool WantSources() {
    bool complete = true;
    for (nfds_t m = 0; m < mine_ && complete; ++m) {
      if (members_[m].file->kind == FileKind::kSock) {
        complete = sources_.Want(
            static_cast<Sock*>(members_[m].file)->notice().source());
        continue;
      }
      auto* set = static_cast<EpollSet*>(members_[m].file);
      for (int i = 0; i < set->source_count() && complete; ++i) {
        complete = sources_.Want(set->source(i));
      }
    }
    return complete;
  }

  // Counts this thread as a sleeper of its streams, and arms their sources.  If
  // the edge of a kick belongs to a look that is already over, the edge ends
  // the sleep too early, once.
  void CountSleeper(Conductor* conductor) {
    for (nfds_t m = 0; m < mine_; ++m) {
      if (members_[m].file->kind != FileKind::kSock) continue;
      auto* sock = static_cast<Sock*>(members_[m].file);
      sock->notice().EnterPoll(OwnBell(conductor));
    }
    sources_.Arm();
  }

  // Whether all that the streams ring now is armed.
  bool StillRings(lane::BellMask wanted) const {
    for (nfds_t m = 0; m < mine_; ++m) {
      const int bell = BellOf(members_[m].file);
      // Bell 0 is the conductor's.  The conductor announces a change by the
      // poll bell, armed or not.
      if (bell > 0 && (wanted & lane::BellBit(bell)) == 0) return false;
      if (members_[m].file->kind == FileKind::kSock &&
          !sources_.Wanted(
              static_cast<Sock*>(members_[m].file)->notice().source())) {
        return false;
      }
    }
    return true;
  }

  // Sleeps in the kernel.  Returns 0: look again; -1: errno.
  int SleepInKernel(const SleepPart& part, bool nap) {
    if (slept_since_ == 0) slept_since_ = base::Ticks();
    entered_ = true;
    const bool aside = aside_ && !nap;
    const bool late = part.ns < 0 || part.ns > kAsideNs;
    const int n =
        LookKernel(aside && late ? kAsideNs : part.ns, true, limits_.mask());
    if (n == 0 && aside) aside_ = false;
    // Not behind a nap with more time left: the thread may lose its CPU until
    // that time is over, and the kernel may have something by then.  Nor if the
    // kernel had only what select() does not tell.
    asked_ = n == 0 && !rang_ && !aside && !aside_ && (!nap || part.last);
    if (n == 0) kernel_look_ = tls_look.at = base::Ticks();
    // Woken before its end: the next sleep may begin with a nap again.
    napped_ = nap && !rang_;
    // SIGCONT ends the wait of an epoll set, but not poll().
    const bool stopped =
        n < 0 && errno == EINTR && kernels_ == 0 && !limits_.Interrupted();
    return n < 0 && !stopped ? -1 : 0;
  }

  // For LookThenSleep.  Its end undoes CountSleeper, too.
  struct Armed {
    static constexpr int kFound = 0;

    Polling* polling;
    Conductor* conductor;
    lane::BellMask wanted;
    long process;
    bool nap = false;
    std::uint64_t armed_at = 0;  // ticks

    void Arm() {
      // Counted first, then looked.  A thread that takes a stream off its lane,
      // or gives it another bell, does that first and looks at the count after.
      std::atomic_thread_fence(std::memory_order_seq_cst);
      // The first part of a sleep is a nap, as in ShmLane::SleepRx: without the
      // heavy fence, and with an end that makes up for a missed kick.  A sleep
      // that ends soon is a nap as a whole.
      nap = (!polling->napped_ && !tls_spin.SleepsLong()) ||
            polling->limits_.NextPart(true).last;
      for (lane::BellMask more = wanted; more != 0; more &= more - 1) {
        conductor->bells()->Arm(std::countr_zero(more), nap);
      }
      armed_at = base::Ticks();
      polling->sources_.Drain();
      polling->rang_ = false;
      polling->kernel_look_ = 0;
    }
    bool Look() {
      if (nap && conductor->bells()->Fences()) base::AwaitNapLook(armed_at);
      const bool still = polling->StillRings(wanted);
      bool again = false;
      return polling->LookStreams(&again) > 0 || again || !still;
    }
    bool naps() const { return nap; }
    int Sleep(const SleepPart& part) {
      return polling->SleepInKernel(part, nap);
    }

    ~Armed() {
      // A handler has forked during the sleep, and this is the child.  The
      // child has no bells and no sources, and its streams count no thread that
      // sleeps here.
      if (OwnPid() != process) return;
      const int saved = errno;
      // The bells come first: what the sources drain need not ring for this
      // thread.
      for (lane::BellMask more = wanted; more != 0; more &= more - 1) {
        conductor->bells()->Disarm(std::countr_zero(more));
      }
      polling->sources_.Disarm(polling->rang_);
      for (nfds_t m = 0; m < polling->mine_; ++m) {
        File* file = polling->members_[m].file;
        if (file->kind != FileKind::kSock) continue;
        static_cast<Sock*>(file)->notice().LeavePoll();
      }
      errno = saved;
    }
  };

  static int BellOf(File* file) {
    return file->kind == FileKind::kSock
               ? static_cast<Sock*>(file)->notice().bell()
               : static_cast<EpollSet*>(file)->bell();
  }

  pollfd* fds_;
  nfds_t count_;
  WaitLimits limits_;
  Spinner spin_;
  int result_ = 0;
  bool faulted_ = false;  // the program's array has gone bad
  bool looked_ = false;   // the last look included the kernel's descriptors
  bool asked_ = false;    // ... and so did the last sleep, at its end
  bool entered_ = false;  // the last sleep has begun
  bool in_vain_ = false;  // the thread has slept, and does not spin again
  std::uint64_t kernel_look_ = 0;
  std::uint64_t slept_since_ = 0;  // start of the first sleep; 0: none
  bool rang_ = false;    // the last look at the kernel saw a bell or a source
  bool woken_ = false;   // a bell or a source has ended a sleep
  bool napped_ = false;  // the last nap reached its end
  const bool select_;
  bool aside_ = false;  // some descriptors are put aside
  PollSources sources_;
  nfds_t mine_ = 0;
  nfds_t kernels_ = 0;  // descriptors that the kernel is to be asked about
  KernelHold hold_;
  pollfd stack_kernel_[kOnStack + 1];
  Member stack_members_[kOnStack];
  std::unique_ptr<pollfd[]> heap_kernel_;
  std::unique_ptr<Member[]> heap_members_;
  pollfd* kernel_ = stack_kernel_;
  Member* members_ = stack_members_;
};

}  // namespace

int EnginePoll(pollfd* fds, nfds_t count, std::int64_t timeout_ns,
               const sigset_t* mask, bool select) {
  if (!AnyUnread()) [[likely]] {
    const int n = QuickPoll(fds, count, timeout_ns != 0);
    if (n > 0 || (n == 0 && mask == nullptr)) return n;
  }
  Polling polling(fds, count, timeout_ns, mask, select);
  if (!polling.ok()) {
    errno = ENOMEM;
    return -1;
  }
  return polling.Run();
}

}  // namespace rcsock::posix
