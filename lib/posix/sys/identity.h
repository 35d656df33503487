#ifndef RCSOCK_LIB_POSIX_SYS_IDENTITY_H_
#define RCSOCK_LIB_POSIX_SYS_IDENTITY_H_

#include <atomic>
#include <cstdint>

// Which process this is, and how its calls come here.  Any thread may call
// these functions, with any latch.
namespace rcsock::posix {

// How calls reach the hooks.
enum class Face : std::uint8_t {
  kPreload,  // every call of the process comes through the hooks
  kLibrary,  // calls that the program makes by rcsock's names
  kBehind,   // as kLibrary, but another copy of rcsock is interposed and does
             // the work: this copy follows nothing
};

extern constinit std::atomic<Face> own_face;
extern constinit std::atomic<long> own_pid;

// Returns the face that InitProcess has set; kPreload before.
inline Face OwnFace() { return own_face.load(std::memory_order_relaxed); }
void SetOwnFace(Face face);

// A child that borrows the memory of its parent (vfork, clone(CLONE_VM)) is
// another process by its number, which only the kernel tells.  So the kernel is
// asked only while there may be such a child.  Every function that makes one
// counts it before it is there.  Machine code of the program's own may make one
// that nobody counts: such a process has no lanes (raw_code.h), and may at most
// stop to follow a stream that the child has closed.
//
// The preload sees these functions.  In a program that is linked with the
// library there may be such a child at any time.
extern constinit std::atomic<int> lendings;
// Surrounds a call that makes such a child and returns once the child has given
// the memory back.
void LendMemory();
void TakeMemoryBack();
// From now on there may be such a child at any time.
void LendMemoryForGood();

// How often another process has been given a copy of the descriptors, plus 1.
// Every function that makes such a process counts it before it is there.
extern constinit std::atomic<std::uint32_t> table_copies;
inline void CountTableCopy() { table_copies.fetch_add(1); }

// The slow part of InBorrowedMemory.
[[gnu::cold]] bool IsAnotherProcess();
// Returns true in a child that borrows the parent's memory.  What the child
// does to descriptors is its own, and must not touch the tables.
inline bool InBorrowedMemory() {
  return lendings.load(std::memory_order_relaxed) != 0 && IsAnotherProcess();
}

// Returns the process whose memory this is; 0 before InitProcess.  InitProcess
// stores it, and each child of fork, by KnowOwnPid.
inline long OwnPid() { return own_pid.load(std::memory_order_relaxed); }
void KnowOwnPid();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SYS_IDENTITY_H_
