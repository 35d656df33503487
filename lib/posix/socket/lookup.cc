#include "lib/posix/socket/lookup.h"

#include <atomic>
#include <cerrno>

#include "lib/base/reason.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/socket/hidden.h"

namespace rcsock::posix {

Sock* SettledSock(int fd) {
  File* file = Lookup(fd);
  return file != nullptr && file->kind == FileKind::kSock
             ? static_cast<Sock*>(file)
             : nullptr;
}

Sock* OwnersSock(int fd) {
  File* const file = OwnersFile(fd);
  return file != nullptr && file->IsSock() ? static_cast<Sock*>(file) : nullptr;
}

namespace {

void PinStandard(Sock* sock) {
  sock->way_back().Pin(base::Reason::kPinnedFdopen);
}

constinit std::atomic<BeforeStandard> before_standard{&PinStandard};

// What the table asks of a stream.

Sock* AsSock(File* file) { return static_cast<Sock*>(file); }

[[gnu::hot]] void NumberSock(File* file, int fd, bool first) {
  Sock& sock = static_cast<Sock&>(*file);
  if (first) sock.anchor().SetNumber(fd);
  if (static_cast<unsigned>(fd) <= 2) before_standard.load()(&sock);
}

void EvictSock(File* file, int fd, bool claimed) {
  Sock* const sock = AsSock(file);
  sock->Ref();  // see fd_table
  ClearEntry(fd);
  // If two threads close the stream at once, for instance, the other thread has
  // the claim and does this.
  if (!claimed && file->fds.fetch_sub(1) != 1) {
    sock->ending().LoseNumber(fd);
  } else if (!claimed) {
    // The connection is gone already.  Only rcsock's state for it is left.
    sock->ending().Vanished();
  }
  sock->Unref();
}

// Children that have copies of the stream get it on TCP.  The wait is here,
// where no signal is put off.
[[gnu::hot]] void BeforeLastClose(File* file) {
  if (file->kind != FileKind::kSock || file->fds.load() != 1) return;
  Sock* const sock = AsSock(file);
  if (!sock->claim().SharesLane() || !sock->TryRef()) return;
  sock->claim().LeaveToCopies();
  sock->Unref();
}

// The stream is kept until its number is out of the table, even if all its
// other numbers are closed before.
[[gnu::hot]] int CloseSock(File* file, bool last, int fd,
                           const Successor& next) {
  Sock* const sock = AsSock(file);
  if (last) return sock->ending().CloseLast(fd, next);
  sock->Ref();
  int result;
  if (sock->fds.fetch_sub(1) == 1) {
    result = sock->ending().CloseLast(fd, next);
  } else {
    sock->ending().LoseNumber(fd);
    result = CloseNumber(fd, next, true);
  }
  const int saved = errno;
  sock->Unref();
  errno = saved;
  return result;
}

[[gnu::hot]] bool EndSock(File* file, int fd, bool lone) {
  Sock* const sock = AsSock(file);
  if (lone) return sock->ending().EndLone(fd);
  if (!sock->ending().EndOnTcp()) return false;
  // The object goes to the pool before the kernel's close, but behind its entry
  // (I-LIFE-1).
  ClearEntry(fd);
  sock->Unref();
  return true;
}

void RenumberSock(File* file, int fd, int other) {
  if (AsSock(file)->fd() == fd) AsSock(file)->anchor().SetNumber(other);
}

constexpr FileOps kSockOps{
    .number = &NumberSock,
    .refuse = [](File* file) { AsSock(file)->Unref(); },
    .evict = &EvictSock,
    .before_close = &BeforeLastClose,
    .close = &CloseSock,
    .end = &EndSock,
    .renumber = &RenumberSock,
    .on_lane =
        [](const File* file) {
          return static_cast<const Sock*>(file)->OnLane();
        },
    .reveal = &Reveal,
};

}  // namespace

[[gnu::hot]] void Bind(int fd, Sock* sock) { Bind(fd, sock, kSockOps); }

[[gnu::cold]] void SetBeforeStandard(BeforeStandard call) {
  before_standard.store(call);
}

}  // namespace rcsock::posix
