#ifndef RCSOCK_LIB_POSIX_SOCKET_HIDDEN_H_
#define RCSOCK_LIB_POSIX_SOCKET_HIDDEN_H_

#include <atomic>
#include <cstdint>

#include "lib/base/latch.h"
#include "lib/posix/fd/file.h"

namespace rcsock::posix {

struct Holding;

// Guards what hidden streams say of their share in the connection.  A thread
// takes it behind a stream's latches.
extern base::Latch hidden_latch;

// Streams on lanes that a child of fork has inherited, and not used.
//
// The parent keeps its lane.  In the child the stream is hidden, and so is each
// epoll set that it is registered in.  Each look-up of such a number takes the
// slow way, and reveals the file.  The child asks the parent, the parent takes
// the stream to TCP, and then both processes share the stream.  A child that
// closes the number, ends, or executes a program without it, asks nothing.

// Called in the parent, before a fork.  Returns whether streams may be hidden
// from the child.
bool PrepareToHide();
// Called before an owner's engine takes a stream of which there are copies.
// The owner's conductor listens from then on.  It may be another one than at
// the fork.
void ListenForAsks();
// Returns, in the child, whether the parent has counted this fork's copies.
bool CountedByParent();
// Returns, in the child, the descriptor that wakes the parent's conductor, or
// -1.
int ParentsAsk();
void HiddenForkLock();
void HiddenForkUnlock(bool child);
// Called in the child behind AfterFork::Begin of all streams.  A child without
// a hidden stream asks nothing, and needs no descriptor for that.
void CloseUnusedAsk();

// Other threads may be looking at the kind: they take the slow way, and look
// anew behind a latch.
inline void SetKind(File* file, FileKind kind) {
  std::atomic_ref<FileKind>(file->kind).store(kind);
}

// Counts the hidden streams of the process: `more` is 1 or -1.
void CountHidden(int more);

// Reveals what the number names.  Returns what the number names then.  Waits
// for the owner, a bounded time.
[[gnu::cold]] File* Reveal(int fd);
// Reveals all streams and sets of the process.
[[gnu::cold]] void RevealAll();
// Before exec or spawn: reveals what the new program inherits, and leaves the
// other hidden streams.  `spawn`: this process goes on, and leaves none.
[[gnu::cold]] void RevealForExec(bool spawn);
// Takes the second part of RevealForExec back: the exec has failed.
[[gnu::cold]] void HideAfterExec();
// Leaves the hidden streams, at the end of the process.
[[gnu::cold]] void LeaveHiddenAtExit();

// What came of a wait for the owner of a stream.
enum class Owner : std::uint8_t { kGave, kLost, kLate, kDead };
Owner AwaitOwner(Holding* all, int ask);
// Wakes the conductor of the owner.
void RingOwner(int ask);
// Called by the owner: the kernel has a stream that a child has waited for.
void AskedStreamLeft();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_HIDDEN_H_
