#include "lib/posix/fd/table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "lib/base/alone.h"
#include "lib/base/backoff.h"
#include "lib/base/direct.h"
#include "lib/base/latch.h"
#include "lib/base/no_cancel.h"
#include "lib/base/real.h"
#include "lib/base/start_data.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/pinned.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

std::atomic<std::uintptr_t> fd_table[kMaxFds];
RCSOCK_START_DATA std::atomic<int> fd_high{-1};

namespace {

// Of streams, and of sets.  Bind stores them before a file of theirs is found.
constinit std::atomic<const FileOps*> sock_ops{nullptr};
constinit std::atomic<const FileOps*> set_ops{nullptr};
std::atomic<const FileOps*>& OpsPlace(const File* file) {
  return file->IsSock() ? sock_ops : set_ops;
}
const FileOps& OpsOf(const File* file) {
  return *OpsPlace(file).load(std::memory_order_relaxed);
}

void Raise(int fd) {
  int high = fd_high.load(std::memory_order_relaxed);
  while (fd > high && !fd_high.compare_exchange_weak(high, fd)) {
  }
}

// Stands in the table while the kernel closes a number, or gives it to another
// file, and the anchor under the number stays open.  A call that finds this
// entry waits.
//
// If the entry were empty, the call would go to the kernel.  It would take the
// anchor's frames for bytes of the application, or put its own bytes between
// them.  If the entry still named the stream, a call that means the number's
// new file would get the stream.
constinit File between{FileKind::kBetween};
// Held while `between` stands in the table.  Its holder waits for nothing but
// the kernel's close of a descriptor that is not the last, which does not
// block.
constinit base::Latch between_latch;

void Put(int fd, File* file) {
  fd_table[fd].store(reinterpret_cast<std::uintptr_t>(file),
                     std::memory_order_release);
}

// kNo: another thread is closing the number, or has closed it.  kIsHeld:
// another thread copies it.
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

// Stands in for a file whose number a child of vfork has closed, or reused.
// The child shares the table with its parent, and in the parent the number
// still names the file.  This entry is no stream and no set, so a look-up takes
// the slow way, and asks which process is running.
constinit File lent{FileKind::kBetween};
struct Lent {
  std::atomic<std::uintptr_t> entry;
  std::atomic<int> borrower;
};
// Indexed by number, in blocks of 64 Ki.  A child maps a block when it lends
// the block's first number.  The block is kept.
constexpr int kLentBits = 16;
constinit std::atomic<Lent*> lent_files[kMaxFds >> kLentBits] = {};

// Requires that the number is lent.
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

// In the parent: restores the entry.
void RecallLent(int fd) {
  auto entry = reinterpret_cast<std::uintptr_t>(&lent);
  fd_table[fd].compare_exchange_strong(
      entry, LentAt(fd).entry.load(std::memory_order_relaxed));
}

inline void Recall(int fd) {
  if (Entry(fd) == &lent) [[unlikely]]
    RecallLent(fd);
}

// Returns whether the borrowing child has ended, or is another program now.  If
// kcmp is forbidden, returns true.
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

// What a lent number names for the caller.
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
  // A filter of system calls may know only the older call.
  return next.flags == 0 ? real::dup2(next.from, fd)
                         : real::dup3(next.from, fd, next.flags);
}

// If the number is free, rcsock may be about to move a descriptor of its own
// away from it.  FreeNumber waits for that.  If the number is open, the close
// of its file may linger, so FreeNumber does not go around the call.
int KernelReplace(int fd, const Successor& next) {
  {
    const base::FreeNumber number;
    if (::syscall(SYS_fcntl, fd, F_GETFD) < 0) return KernelClose(fd, next);
  }
  return KernelClose(fd, next);
}

// Counts one more number for a held file.  The caller has between_latch until
// that number is in the table (LeaveNumber).
File* Another(File* file) {
  if (file == nullptr) return nullptr;
  // A file without numbers is closing.
  int fds = file->fds.load(std::memory_order_relaxed);
  while (fds > 0 && !file->fds.compare_exchange_weak(fds, fds + 1)) {
  }
  return fds > 0 ? file : nullptr;
}

// Another number that names `file`, and is not being left itself.  -1: there is
// none.
int OtherFd(const File* file, int except) {
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    if (fd != except && NamedEvenHidden(fd) == file &&
        (WholeEntry(fd) & kLeft) == 0) {
      return fd;
    }
  }
  return -1;
}

}  // namespace

void Lend(int fd) {
  if (Entry(fd) == &lent && Returned(fd)) Recall(fd);
  const File* const known = Entry(fd);
  if (known == nullptr) return;
  if (known->Hidden()) OpsOf(known).reveal(fd);
  auto entry = fd_table[fd].load(std::memory_order_acquire);
  do {
    const File* const file = FileIn(entry);
    // Another thread is closing the number, which soon names nothing.
    if (file == nullptr || file->kind == FileKind::kBetween ||
        (entry & kClaimed) != 0 || !MakeLent(fd)) {
      return;
    }
    LentAt(fd).borrower.store(static_cast<int>(::syscall(SYS_getpid)),
                              std::memory_order_relaxed);
    // If a thread of the parent holds the number, it finds the number lent, and
    // releases nothing.
    LentAt(fd).entry.store(entry & ~kHeld, std::memory_order_relaxed);
    // The parent's conductor may have set or cleared the mark.  The entry
    // returns as it was here, up to date or not.
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
  // A number that is counted already is about to enter the table.
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
      marked_ && OpsOf(file).on_lane(file) ? kLaneMark : 0;
  std::uintptr_t entry = fd_table[fd_].load(std::memory_order_relaxed);
  while (FileIn(entry) == file &&
         !fd_table[fd_].compare_exchange_weak(entry, (entry & ~kHeld) | mark)) {
  }
}

File* OwnersFile(int fd) {
  File* const file = Entry(fd);
  return file == &lent
             ? FileIn(LentAt(fd).entry.load(std::memory_order_relaxed))
             : file;
}

[[gnu::hot]] void ClearEntry(int fd) { Put(fd, nullptr); }

[[gnu::hot]] void Bind(int fd, File* file, const FileOps& ops) {
  Evict(fd);
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kMaxFds) ||
      OwnFace() == Face::kBehind) {
    // Not followed: plain TCP for ever.
    ops.refuse(file);
    return;
  }
  file->fds.store(1, std::memory_order_relaxed);
  ops.number(file, fd, true);
  OpsPlace(file).store(&ops, std::memory_order_relaxed);
  Critical critical;
  if (base::Lone()) {
    Raise(fd);
    Put(fd, file);
    return;
  }
  // Not while another thread forks (ForkPrepare).
  between_latch.lock();
  Raise(fd);
  Put(fd, file);
  between_latch.unlock();
}

File* NamedInBetween(int fd) {
  return Entry(fd) == &lent ? LentFile(fd) : nullptr;
}

void NoteOnLane(int fd, const File* file, bool on) {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kMaxFds)) return;
  std::uintptr_t entry = fd_table[fd].load(std::memory_order_relaxed);
  while (FileIn(entry) == file && (entry & (kClaimed | kHeld)) == 0) {
    const std::uintptr_t noted = on ? entry | kLaneMark : entry & ~kLaneMark;
    if (noted == entry || fd_table[fd].compare_exchange_weak(entry, noted)) {
      return;
    }
  }
}

File* Settled(int fd) {
  if (Entry(fd) == &lent) return LentFile(fd);
  if (File* const file = Entry(fd); file != nullptr && file->Hidden()) {
    return OpsOf(file).reveal(fd);
  }
  Critical critical;
  between_latch.lock();
  File* file = Entry(fd);
  between_latch.unlock();
  return file;
}

void EvictStale(int fd) {
  File* file = LookupToClose(fd);
  if (file == nullptr) return;
  // In a child of vfork the number is the child's, and the entry the parent's.
  if (InBorrowedMemory()) return Lend(fd);
  OpsOf(file).evict(file, fd, IsClaimed(fd));
}

int CloseNumber(int fd, const Successor& next, bool held) {
  Critical critical;
  const base::NoCancelInCritical no_cancel;
  const bool anchor = held;
  const bool follows = next.held != nullptr && next.held->file() != nullptr;
  int last = -1;
  if (!held && follows) {
    // A stream that takes the file's place has an anchor, too.  The last close
    // of a file may linger, so it must not come with the latch held.
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
  // A filter of system calls refuses the call, for instance.  The number still
  // names the anchor, and no code knows it any more.
  if (anchor && result < 0 && next.from >= 0) ::syscall(SYS_close, fd);
  Put(fd, result >= 0 && follows ? Another(next.held->file()) : nullptr);
  between_latch.unlock();
  if (next.held != nullptr) next.held->Release();
  if (last >= 0) base::CloseRaw(last);
  errno = error;
  return result;
}

namespace {

// Requires that a number of the file is claimed.  If the file has no other,
// `fds` becomes 0, and this returns true.
inline bool LeavesLast(File* file) {
  int only = 1;
  return file->fds.compare_exchange_strong(only, 0);
}

// Requires that the number is claimed.
int CloseClaimed(int fd, File* file, const Successor& next) {
  const bool last = LeavesLast(file);
  return OpsOf(file).close(file, last, fd, next);
}

}  // namespace

[[gnu::hot]] int CloseFd(int fd) {
  constexpr Successor kNothing;
  File* const named = Entry(fd);
  if (named == nullptr) return KernelClose(fd, kNothing);
  if (InBorrowedMemory()) {
    Lend(fd);
    return KernelClose(fd, kNothing);
  }
  if (named->kind == FileKind::kSock && base::Lone()) {
    Critical critical;
    // A handler may have made a thread before the section began.
    if (base::Lone() && OpsOf(named).end(named, fd, true)) {
      return direct::CloseInCritical(fd);
    }
  }
  Recall(fd);
  for (base::Backoff backoff;; backoff.Wait()) {
    File* const file = LookupToClose(fd);
    if (file == nullptr) return KernelClose(fd, kNothing);
    OpsOf(file).before_close(file);
    Critical critical;  // no handler jumps out of a claim
    const Claimed claimed = Claim(fd, file);
    if (claimed == Claimed::kNo) return KernelClose(fd, kNothing);
    if (claimed == Claimed::kIsHeld) continue;
    const FileOps& ops = OpsOf(file);
    const bool last = LeavesLast(file);
    if (last && ops.end != nullptr && ops.end(file, fd, false)) {
      return direct::CloseInCritical(fd);
    }
    return ops.close(file, last, fd, kNothing);
  }
}

int ReplaceFd(int fd, int from, int flags) {
  if (Entry(fd) == nullptr && Entry(from) == nullptr) {
    return KernelReplace(fd, {from, flags});
  }
  for (base::Backoff backoff;; backoff.Wait()) {
    Recall(fd);
    HeldNumber held(from);
    Successor next{from, flags, &held};
    // If the kernel would refuse the call, nothing changes.  If `from` is not
    // followed, another thread may close it at any moment.
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
    OpsOf(file).before_close(file);
    const Claimed claimed = Claim(fd, file);
    if (claimed == Claimed::kYes) return CloseClaimed(fd, file, next);
    if (claimed == Claimed::kNo) {
      const int result = KernelClose(fd, next);
      if (result >= 0) CopyHeld(held, fd);
      return result;
    }
    // The holder of `fd` may be waiting for `from`.
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
  OpsOf(file).number(file, to, false);
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
  // The thread that was closing a number is not in the child.  What the kernel
  // has at that number belongs to no file here.
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    const std::uintptr_t entry = fd_table[fd].load(std::memory_order_relaxed);
    if ((entry & (kClaimed | kHeld)) == 0) continue;
    File* const file = NamedEvenHidden(fd);
    // A thread that was duplicating this number has lost the race.  Its new
    // number refers to nothing.
    const bool claimed = (entry & kClaimed) != 0;
    if (claimed) {
      Put(fd, nullptr);
    } else {
      fd_table[fd].store(entry & ~kHeld, std::memory_order_relaxed);
    }
    if (file == nullptr) continue;
    // If the file has other numbers, these remain.  Code that looks for the
    // stream, such as AfterFork::Begin, finds it by one of them.
    int others = 0;
    for (int i = 0; i <= top; ++i) {
      others += NamedEvenHidden(i) == file ? 1 : 0;
    }
    file->fds.store(others, std::memory_order_relaxed);
    if (others == 0 || !claimed) continue;
    OpsOf(file).renumber(file, fd, OtherFd(file, fd));
  }
}

}  // namespace rcsock::posix
