#ifndef RCSOCK_LIB_POSIX_SYS_IDENTITY_H_
#define RCSOCK_LIB_POSIX_SYS_IDENTITY_H_

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

// Returns the face that InitProcess has set; kPreload before.
Face OwnFace();
void SetOwnFace(Face face);

// Returns true in a child that shares the parent's memory (vfork,
// clone(CLONE_VM)).  What the child does to descriptors is its own, and must
// not touch the tables.
bool InBorrowedMemory();

// Returns the process whose memory this is; 0 before InitProcess.  InitProcess
// stores it, and each child of fork, by KnowOwnPid.
long OwnPid();
void KnowOwnPid();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SYS_IDENTITY_H_
