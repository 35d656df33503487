#ifndef RCSOCK_LIB_BASE_NO_SIGPIPE_H_
#define RCSOCK_LIB_BASE_NO_SIGPIPE_H_

#include <signal.h>

#include <atomic>
#include <cstdint>

namespace rcsock::base {

constexpr std::uint64_t kSigpipeBit = std::uint64_t{1} << (SIGPIPE - 1);
constexpr std::uint64_t kNoMaskBefore = ~std::uint64_t{0};

// The state of one thread's NoSigpipe scopes.
struct SigpipeState {
  // The thread's mask before the NoSigpipe in force blocked SIGPIPE. The kernel
  // writes it, in the call that blocks.
  volatile std::uint64_t mask_before = kNoMaskBefore;
  // The thread is known not to block SIGPIPE.
  volatile bool open = false;
  // The thread is in a NoSigpipe that leaves SIGPIPE to the handler.
  volatile bool posting = false;
};
extern thread_local constinit SigpipeState tls_sigpipe
    __attribute__((tls_model("initial-exec")));

// Installs a handler for SIGPIPE, whatever the program has asked for. The
// handler drops a SIGPIPE of which RaisedInPost is true. Returns true if it is
// installed. Set once, by a room that can.
extern constinit std::atomic<bool (*)()> handle_sigpipe;

// From here on the thread's mask may have changed.
inline void ForgetMask() { tls_sigpipe.open = false; }
// Returns the part of this thread's present mask that the program has set.
inline std::uint64_t WithoutNoSigpipe(std::uint64_t mask) {
  return mask & (tls_sigpipe.mask_before | ~kSigpipeBit);
}
// Returns true if a NoSigpipe of this thread has caused the SIGPIPE that has
// just interrupted it.
bool RaisedInPost(const siginfo_t& info);

// Goes around a call in which the kernel sends by TCP for this thread, without
// MSG_NOSIGNAL (`sends`). siw does so in calls that post to a QP or end it. A
// SIGPIPE that the kernel raises there is dropped. A SIGPIPE that was pending
// before, or that another process sends meanwhile, stays.
//
// If rcsock's handler is installed, a thread that is known not to block SIGPIPE
// only marks that it posts. Otherwise NoSigpipe blocks SIGPIPE and takes back
// what has come: three system calls.
class NoSigpipe {
 public:
  explicit NoSigpipe(bool sends) : sends_(sends) {
    if (!sends) [[likely]]
      return;
    if (tls_sigpipe.open) {
      handled_ = true;
      tls_sigpipe.posting = true;
    } else {
      Begin();
    }
  }
  ~NoSigpipe() {
    if (!sends_) [[likely]]
      return;
    if (!handled_) {
      End();
    } else {
      tls_sigpipe.posting = false;
      if (!tls_sigpipe.open) [[unlikely]]
        EndBlocked();
    }
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  [[gnu::cold]] void Begin();
  [[gnu::cold]] void End();
  // A handler has run in between, and SIGPIPE may be blocked since.
  [[gnu::cold]] void EndBlocked();
  void Block();

  const bool sends_;
  bool handled_ = false;
  bool blocks_ = false;  // the program had it unblocked
  bool marked_ = false;  // a SIGPIPE was pending before
};

// A scope for a handler of the program's. The handler may post itself, and has
// its own mask.
class OutsidePost {
 public:
  OutsidePost() : posting_(tls_sigpipe.posting) {
    tls_sigpipe.posting = false;
    ForgetMask();
  }
  ~OutsidePost() {
    ForgetMask();
    tls_sigpipe.posting = posting_;
  }
  OutsidePost(const OutsidePost&) = delete;
  OutsidePost& operator=(const OutsidePost&) = delete;

 private:
  const bool posting_;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_NO_SIGPIPE_H_
