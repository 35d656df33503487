#ifndef RCSOCK_LIB_POSIX_RAW_CODE_H_
#define RCSOCK_LIB_POSIX_RAW_CODE_H_

#include <memory>

// Whether the program has machine code that may use its connections past the
// hooks: a `syscall` instruction outside of libc, with the number of a call
// that reads, writes, waits, closes or the like (lib/base/raw_numbers.h).
// Where it has, no stream of the process leaves TCP.
//
// The conductor looks before the first stream looks for its peer, and from then
// on at what has come since: at once behind dlopen, else with the next search,
// once a second at most.
namespace rcsock::rendezvous {
class Conductor;
}  // namespace rcsock::rendezvous

namespace rcsock::posix {
class Sock;
}  // namespace rcsock::posix

namespace rcsock::posix::raw_code {

// A stream wants to look for its peer.
enum class Answer : unsigned char {
  kMay,
  kLater,   // the conductor begins the search when it knows
  kNotNow,  // no memory: it is to ask again
  kNever,
};
Answer MaySeek(const std::shared_ptr<Sock>& sock,
               rendezvous::Conductor* conductor);
// Returns true if a stream that has looked for its peer may go on to a lane: no
// unseen open has come since MaySeek.  Takes no latch.
bool MayAdopt();
// It has given up what MaySeek has put off.
void Forget(const Sock* sock);

// The program has loaded a library.
void AfterOpen();
// It is about to, and nothing will be heard of the end: all streams go to TCP,
// and the next search begins with a look.
void BeforeUnseenOpen();

// Around fork.
void ForkLock();
void ForkUnlock(bool child);

}  // namespace rcsock::posix::raw_code

#endif  // RCSOCK_LIB_POSIX_RAW_CODE_H_
