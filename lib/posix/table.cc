#include "lib/posix/table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "lib/base/backoff.h"
#include "lib/base/latch.h"
#include "lib/base/no_cancel.h"
#include "lib/base/real.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/process.h"
#include "lib/posix/signals.h"
#include "lib/posix/stdio.h"
#include "lib/posix/uring.h"

namespace rcsock::posix {
namespace {

void Raise(int fd) {
  int high = fd_high.load(std::memory_order_relaxed);
  while (fd > high && !fd_high.compare_exchange_weak(high, fd)) {
  }
}

// A number that the kernel closes, or gives to another file, while the anchor
// under it stays open: a call that found nothing here would go to the kernel,
// and take frames of the anchor for bytes of the application, or put its own
// between them; one that still found the stream might mean the file that the
// number names by then.  So it finds this, and waits.
constinit File between{FileKind::kBetween};
// Held while it stands there.  Its holder waits for nothing but the kernel's
// close of what is not the last descriptor, which does not block.
constinit base::Latch between_latch;

void Put(int fd, File* file) {
  fd_table[fd].store(reinterpret_cast<std::uintptr_t>(file),
                     std::memory_order_release);
}

// kNo: another thread is closing it, or has.  kHeld: another thread copies it.
enum class Claimed : std::uint8_t { kYes, kNo, kIsHeld };
Claimed Claim(int fd, File* file) {
  std::uintptr_t entry = fd_table[fd].load(std::memory_order_relaxed);
  do {
    if (FileIn(entry) != file || (entry & kClaimed) != 0) return Claimed::kNo;
    if ((entry & kHeld) != 0) return Claimed::kIsHeld;
  } while (!fd_table[fd].compare_exchange_weak(
      entry, (entry & ~kLaneMark) | kClaimed));
  return Claimed::kYes;
}

bool IsClaimed(int fd) {
  return (fd_table[fd].load(std::memory_order_relaxed) & kClaimed) != 0;
}

// In place of a file whose number a child of vfork has closed, or has put
// something else on: the table is the parent's too, who has the number still.
// (It is no stream and no set, so who looks it up takes the slow way, and asks
// who he is.)
constinit File lent{FileKind::kBetween};
struct Lent {
  std::atomic<std::uintptr_t> entry;
  std::atomic<int> borrower;
};
// By the number, 64 Ki of them together; mapped when the first of these is
// lent, by a child, and kept.
constexpr int kLentBits = 16;
constinit std::atomic<Lent*> lent_files[kMaxFds >> kLentBits] = {};

// Of a number that is lent.
Lent& LentAt(int fd) {
  return lent_files[fd >> kLentBits].load(
      std::memory_order_acquire)[fd & ((1 << kLentBits) - 1)];
}

bool MakeLent(int fd) {
  auto& files = lent_files[fd >> kLentBits];
  if (files.load(std::memory_order_acquire) != nullptr) return true;
  constexpr std::size_t kBytes = sizeof(Lent) << kLentBits;
  const int saved = errno;
  void* zeros = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (zeros == MAP_FAILED) {
    errno = saved;
    return false;
  }
  Lent* none = nullptr;
  if (!files.compare_exchange_strong(none, static_cast<Lent*>(zeros))) {
    ::munmap(zeros, kBytes);
  }
  return true;
}

// In the parent: the entry is as before.
void Recall(int fd) {
  if (Entry(fd) != &lent) return;
  auto entry = reinterpret_cast<std::uintptr_t>(&lent);
  fd_table[fd].compare_exchange_strong(
      entry, LentAt(fd).entry.load(std::memory_order_relaxed));
}

// Whether who has borrowed it has ended, or is another program by now.  (Where
// nobody may compare, it may be.)
bool Returned(int fd) {
  constexpr int kSameMemory = 1;  // KCMP_VM
  const int saved = errno;
  const bool same =
      ::syscall(SYS_kcmp, OwnPid(),
                LentAt(fd).borrower.load(std::memory_order_relaxed),
                kSameMemory, 0, 0) == 0;
  errno = saved;
  return !same;
}

// What a number that is lent names for the caller.
File* LentFile(int fd) {
  const long pid = ::syscall(SYS_getpid);
  if (pid == LentAt(fd).borrower.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  const auto entry = LentAt(fd).entry.load(std::memory_order_relaxed);
  if (pid == OwnPid() && Returned(fd)) Recall(fd);
  return FileIn(entry);
}

int KernelClose(int fd, const Successor& next) {
  if (next.from < 0) return real::close(fd);
  // (A filter of system calls may know only the older.)
  return next.flags == 0 ? real::dup2(next.from, fd)
                         : real::dup3(next.from, fd, next.flags);
}

// Onto a number that may be free: what is closed here may linger, and only if
// nothing is can rcsock have been about to go from there.
int KernelReplace(int fd, const Successor& next) {
  {
    const base::FreeNumber number;
    if (::syscall(SYS_fcntl, fd, F_GETFD) < 0) return KernelClose(fd, next);
  }
  return KernelClose(fd, next);
}

// One more number for it, which is held.  With between_latch, and until that
// number is in the table: see LeaveNumber.
File* Another(File* file) {
  if (file == nullptr) return nullptr;
  // (None: it is closing.)
  int fds = file->fds.load(std::memory_order_relaxed);
  while (fds > 0 && !file->fds.compare_exchange_weak(fds, fds + 1)) {
  }
  return fds > 0 ? file : nullptr;
}

// Another number that names `file`, and will not be left for this one, or -1.
int OtherFd(const File* file, int except) {
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    if (fd != except && Named(fd) == file && (WholeEntry(fd) & kLeft) == 0) {
      return fd;
    }
  }
  return -1;
}

}  // namespace

void Lend(int fd) {
  if (Entry(fd) == &lent && Returned(fd)) Recall(fd);
  if (Entry(fd) == nullptr) return;
  auto entry = fd_table[fd].load(std::memory_order_acquire);
  do {
    const File* const file = FileIn(entry);
    // (What another thread closes at this moment will be nobody's soon.)
    if (file == nullptr || file->kind == FileKind::kBetween ||
        (entry & kClaimed) != 0 || !MakeLent(fd)) {
      return;
    }
    LentAt(fd).borrower.store(static_cast<int>(::syscall(SYS_getpid)),
                              std::memory_order_relaxed);
    // (Who holds it in the parent finds it lent, and lets go of nothing.)
    LentAt(fd).entry.store(entry & ~kHeld, std::memory_order_relaxed);
    // (The parent's conductor may have put the mark there, or taken it away.
    // It comes back as it was here, true or not.)
  } while (!fd_table[fd].compare_exchange_weak(
      entry, reinterpret_cast<std::uintptr_t>(&lent)));
}

int LeaveNumber(int fd, const File* file) {
  std::uintptr_t entry = fd_table[fd].load(std::memory_order_relaxed);
  while (FileIn(entry) == file &&
         !fd_table[fd].compare_exchange_weak(entry, entry | kLeft)) {
  }
  return OtherFd(file, fd);
}

void GoOnBy(int hidden, File* file) {
  between_latch.lock();
  Raise(hidden);
  Put(hidden, file);
  file->fds.store(1, std::memory_order_seq_cst);
  between_latch.unlock();
}

int LeaveNumberForAny(int fd, const File* file) {
  int other = LeaveNumber(fd, file);
  if (other >= 0) return other;
  // One that is counted already is about to come into the table.
  between_latch.lock();
  other = OtherFd(file, fd);
  between_latch.unlock();
  return other;
}

HeldNumber::HeldNumber(int fd) : fd_(fd) {
  if (Entry(fd) == nullptr) return;
  for (base::Backoff backoff;; backoff.Wait()) {
    Recall(fd);
    File* const file = Lookup(fd);
    if (file == nullptr || file->kind == FileKind::kBetween) return;
    std::uintptr_t entry = fd_table[fd].load(std::memory_order_relaxed);
    if (FileIn(entry) == file && (entry & (kClaimed | kHeld)) == 0 &&
        fd_table[fd].compare_exchange_strong(entry,
                                             (entry & ~kLaneMark) | kHeld)) {
      file_ = file;
      marked_ = (entry & kLaneMark) != 0;
      return;
    }
  }
}

void HeldNumber::Release() {
  File* const file = std::exchange(file_, nullptr);
  if (file == nullptr) return;
  const std::uintptr_t mark =
      marked_ && static_cast<Sock*>(file)->OnLane() ? kLaneMark : 0;
  std::uintptr_t entry = fd_table[fd_].load(std::memory_order_relaxed);
  while (FileIn(entry) == file &&
         !fd_table[fd_].compare_exchange_weak(entry, (entry & ~kHeld) | mark)) {
  }
}

Sock* OwnersSock(int fd) {
  File* file = Entry(fd);
  if (file == &lent) {
    file = FileIn(LentAt(fd).entry.load(std::memory_order_relaxed));
  }
  return file != nullptr && file->kind == FileKind::kSock
             ? static_cast<Sock*>(file)
             : nullptr;
}

void Bind(int fd, File* file) {
  Evict(fd);
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kMaxFds) ||
      OwnFace() == Face::kBehind) {
    // Not followed: plain TCP for ever.
    if (file->kind == FileKind::kSock) {
      static_cast<Sock*>(file)->Unref();
    } else {
      static_cast<EpollSet*>(file)->Free();
    }
    return;
  }
  file->fds.store(1, std::memory_order_relaxed);
  if (file->kind == FileKind::kSock) {
    Sock& sock = static_cast<Sock&>(*file);
    sock.set_fd(fd);
    BeforeStandardNumber(&sock, fd);
  }
  // (Not while another thread forks: see ForkPrepare.)
  Critical critical;
  between_latch.lock();
  Raise(fd);
  Put(fd, file);
  between_latch.unlock();
}

File* NamedInBetween(int fd) {
  return Entry(fd) == &lent ? LentFile(fd) : nullptr;
}

void NoteOnLane(int fd, Sock* sock, bool on) {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kMaxFds)) return;
  std::uintptr_t entry = fd_table[fd].load(std::memory_order_relaxed);
  while (FileIn(entry) == sock && (entry & (kClaimed | kHeld)) == 0) {
    const std::uintptr_t noted = on ? entry | kLaneMark : entry & ~kLaneMark;
    if (noted == entry || fd_table[fd].compare_exchange_weak(entry, noted)) {
      return;
    }
  }
}

File* Settled(int fd) {
  if (Entry(fd) == &lent) return LentFile(fd);
  Critical critical;
  between_latch.lock();
  File* file = Entry(fd);
  between_latch.unlock();
  return file;
}

Sock* SettledSock(int fd) {
  File* file = Lookup(fd);
  return file != nullptr && file->kind == FileKind::kSock
             ? static_cast<Sock*>(file)
             : nullptr;
}

EpollSet* SettledSet(int fd) {
  File* file = Lookup(fd);
  return file != nullptr && file->kind == FileKind::kEpoll
             ? static_cast<EpollSet*>(file)
             : nullptr;
}

void Evict(int fd) {
  File* file = Lookup(fd);
  if (file == nullptr) return;
  // (In a child of vfork the number is the child's, and the entry the
  // parent's.)
  if (InBorrowedMemory()) return Lend(fd);
  const bool claimed = IsClaimed(fd);
  if (file->kind == FileKind::kSock) {
    auto* const sock = static_cast<Sock*>(file);
    sock->Ref();  // see fd_table
    Put(fd, nullptr);
    // (Who closes it twice, say: the other thread sees to it.)
    if (!claimed && file->fds.fetch_sub(1) != 1) {
      sock->LoseFd(fd);
    } else if (!claimed) {
      // The connection is gone already; only what we keep about it is left.
      sock->Vanished();
    }
    sock->Unref();
    return;
  }
  auto* const set = static_cast<EpollSet*>(file);
  Put(fd, nullptr);
  if (claimed) return;
  set->LoseFd(fd);
  if (file->fds.fetch_sub(1) == 1) set->Free();
}

int CloseNumber(int fd, const Successor& next, bool held) {
  Critical critical;
  const base::NoCancel no_cancel;
  const bool anchor = held;
  const bool follows = next.held != nullptr && next.held->file() != nullptr;
  int last = -1;
  if (!held && follows) {
    // A stream that comes into its place has an anchor, too.  What this closes
    // for the last time may linger: not with the latch held.
    last = base::CopyHighForParent(fd);
    held = true;
  }
  if (!held) {
    Put(fd, nullptr);
    return KernelClose(fd, next);
  }
  between_latch.lock();
  Put(fd, &between);
  const int result = anchor ? KernelClose(fd, next) : KernelReplace(fd, next);
  const int error = errno;
  // (A filter of system calls may refuse it, say.)  The number still names the
  // anchor, and nobody knows of it any more.
  if (anchor && result < 0 && next.from >= 0) ::syscall(SYS_close, fd);
  Put(fd, result >= 0 && follows ? Another(next.held->file()) : nullptr);
  between_latch.unlock();
  if (next.held != nullptr) next.held->Release();
  if (last >= 0) base::CloseRaw(last);
  errno = error;
  return result;
}

namespace {

// What is closed is kept until its number is out of the table, though all its
// other numbers be closed before.
int CloseSock(Sock* sock, bool last, int fd, const Successor& next) {
  if (last) return sock->CloseLast(fd, next);
  sock->Ref();
  int result;
  if (sock->fds.fetch_sub(1) == 1) {
    result = sock->CloseLast(fd, next);
  } else {
    sock->LoseFd(fd);
    result = CloseNumber(fd, next, true);
  }
  const int saved = errno;
  sock->Unref();
  errno = saved;
  return result;
}

int CloseSet(EpollSet* set, bool last, int fd, const Successor& next) {
  set->LoseFd(fd);
  const int result = CloseNumber(fd, next, !last);
  const int saved = errno;
  if (last || set->fds.fetch_sub(1) == 1) set->Free();
  errno = saved;
  return result;
}

// Of a number that is claimed.
int CloseClaimed(int fd, File* file, const Successor& next) {
  int only = 1;
  const bool last = file->fds.compare_exchange_strong(only, 0);
  return file->kind == FileKind::kSock
             ? CloseSock(static_cast<Sock*>(file), last, fd, next)
             : CloseSet(static_cast<EpollSet*>(file), last, fd, next);
}

}  // namespace

int CloseFd(int fd) {
  uring::BeforeClose(fd);
  constexpr Successor kNothing;
  if (Entry(fd) != nullptr && InBorrowedMemory()) {
    Lend(fd);
    return KernelClose(fd, kNothing);
  }
  Recall(fd);
  for (base::Backoff backoff;; backoff.Wait()) {
    File* const file = Lookup(fd);
    if (file == nullptr) return KernelClose(fd, kNothing);
    Critical critical;  // no handler jumps out of a claim
    const Claimed claimed = Claim(fd, file);
    if (claimed == Claimed::kNo) return KernelClose(fd, kNothing);
    if (claimed == Claimed::kYes) return CloseClaimed(fd, file, kNothing);
  }
}

int ReplaceFd(int fd, int from, int flags) {
  uring::BeforeClose(fd);
  if (Entry(fd) == nullptr && Entry(from) == nullptr) {
    return KernelReplace(fd, {from, flags});
  }
  for (base::Backoff backoff;; backoff.Wait()) {
    Recall(fd);
    HeldNumber held(from);
    Successor next{from, flags, &held};
    // What the kernel would refuse changes nothing.  (A number that is not
    // followed another thread may close at any moment.)
    base::UniqueFd copy;
    if (held.file() == nullptr && ProcessPinned() != base::Reason::kSandboxed) {
      copy.reset(base::CopyHighForParent(from));
      if (copy.ok()) next.from = copy.get();
    }
    if (::syscall(SYS_fcntl, next.from, F_GETFD) < 0) return -1;
    File* const file = Lookup(fd);
    const bool followed =
        static_cast<unsigned>(fd) < static_cast<unsigned>(kMaxFds);
    if (file == nullptr) {
      if (held.file() == nullptr || !followed) {
        return KernelReplace(fd, next);
      }
      Raise(fd);
      return CloseNumber(fd, next, false);
    }
    const Claimed claimed = Claim(fd, file);
    if (claimed == Claimed::kYes) return CloseClaimed(fd, file, next);
    if (claimed == Claimed::kNo) {
      const int result = KernelClose(fd, next);
      if (result >= 0) CopyHeld(held, fd);
      return result;
    }
    // (Whoever holds it may wait for this one.)
    held.Release();
  }
}

void CopyHeld(const HeldNumber& from, int to) {
  File* const file = from.file();
  Evict(to);
  if (file == nullptr ||
      static_cast<unsigned>(to) >= static_cast<unsigned>(kMaxFds)) {
    return;
  }
  if (file->kind == FileKind::kSock) {
    BeforeStandardNumber(static_cast<Sock*>(file), to);
  }
  between_latch.lock();
  if (Another(file) != nullptr) {
    Raise(to);
    Put(to, file);
  }
  between_latch.unlock();
}

void CopyFd(int from, int to) { CopyHeld(HeldNumber(from), to); }

void TableForkLock() { between_latch.LockForFork(); }

void TableForkUnlock(bool child) {
  between_latch.UnlockAfterFork(child);
  if (!child) return;
  StdioForkChild();
  // Who was closing a number here is no more: what the kernel has there is
  // nobody's.
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    const std::uintptr_t entry = fd_table[fd].load(std::memory_order_relaxed);
    if ((entry & (kClaimed | kHeld)) == 0) continue;
    File* const file = Named(fd);
    // (Who was making another number of it has not: that is nobody's either.)
    const bool claimed = (entry & kClaimed) != 0;
    if (claimed) {
      Put(fd, nullptr);
    } else {
      fd_table[fd].store(entry & ~kHeld, std::memory_order_relaxed);
    }
    if (file == nullptr) continue;
    // One of several: the others are left, and whoever looks for the stream
    // (Sock::ForkChild, to begin with) finds it by one of them.
    int others = 0;
    for (int i = 0; i <= top; ++i) others += Named(i) == file ? 1 : 0;
    file->fds.store(others, std::memory_order_relaxed);
    if (others == 0 || !claimed) continue;
    if (file->kind == FileKind::kSock) {
      auto* const sock = static_cast<Sock*>(file);
      if (sock->fd() == fd) sock->set_fd(OtherFd(file, fd));
    } else if (auto* const set = static_cast<EpollSet*>(file);
               set->fd() == fd) {
      set->Renumber(OtherFd(file, fd));
    }
  }
}

}  // namespace rcsock::posix
