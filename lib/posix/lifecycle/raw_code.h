#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_RAW_CODE_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_RAW_CODE_H_

#include <memory>

#include "lib/posix/socket/seek_gate.h"

// Whether the program has machine code that may use its connections past the
// hooks.  That is a `syscall` instruction outside of libc, with the number of a
// call that reads, writes, waits, closes or the like (lib/base/raw_numbers.h).
// If there is such code, no stream of the process leaves TCP.
//
// The conductor looks at the code before the first stream looks for its peer.
// From then on the conductor looks at code that has come since.  Behind dlopen
// it looks at once, else with the next search, once a second at most.
namespace rcsock::posix::raw_code {

using Answer = SeekGate::Answer;

// SeekGate's answers of this process.
//
// Returns whether the stream may look for its peer.  With kLater it keeps a
// reference of the stream.  Without a conductor the stream waits for Started.
Answer MaySeek(const std::shared_ptr<Sock>& sock,
               rendezvous::Conductor* conductor);
void Started(rendezvous::Conductor* conductor, base::Reason why);
// Returns true if a stream that has looked for its peer may go on to a lane: no
// unseen open has come since MaySeek.  Takes no latch.
bool MayAdopt();
// Has the conductor look, as MaySeek does for a stream.  Without a conductor
// Started does so.
void LookAtCalls(rendezvous::Conductor* conductor);
// Drops that reference: the stream has given up the search.
void Forget(const Sock* sock);

// Looks at the code of a library that the program has loaded.  May pin the
// process.
void AfterOpen();
// The program is about to load a library, and rcsock will not see the end of
// the load.  Takes all streams to TCP, and the next search begins with a look.
void BeforeUnseenOpen();

// Called before a filter of system calls, in a process that is marked as
// sandboxed.  Waits for a turn of the look that is under way, 0.1 s at most.  A
// later turn opens no file.
void AwaitTurn();

// Take and release the latches around fork.
void ForkLock();
void ForkUnlock(bool child);

}  // namespace rcsock::posix::raw_code

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_RAW_CODE_H_
