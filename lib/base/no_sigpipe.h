#ifndef RCSOCK_LIB_BASE_NO_SIGPIPE_H_
#define RCSOCK_LIB_BASE_NO_SIGPIPE_H_

#include <signal.h>

#include <atomic>
#include <cstdint>

namespace rcsock::base {

constexpr std::uint64_t kSigpipeBit = std::uint64_t{1} << (SIGPIPE - 1);
constexpr std::uint64_t kNoMaskBefore = ~std::uint64_t{0};

// What a thread has of its NoSigpipes.
struct SigpipeState {
  // What it blocked before the one in force that blocks SIGPIPE.  Written by
  // the kernel, in the call that does.
  volatile std::uint64_t mask_before = kNoMaskBefore;
  // It is known that it does not block SIGPIPE.
  volatile bool open = false;
  // Within a NoSigpipe that leaves it to the handler.
  volatile bool posting = false;
};
extern thread_local constinit SigpipeState tls_sigpipe
    __attribute__((tls_model("initial-exec")));

// Has a handler see to SIGPIPE, whatever the program has asked for, which drops
// what RaisedInPost; true where that is so.  Set once, by who can.
inline constinit std::atomic<bool (*)()> handle_sigpipe{nullptr};

// The thread's mask may be another one from here on.
inline void ForgetMask() { tls_sigpipe.open = false; }
// Of a mask that this thread has now, what the program has set of it.
inline std::uint64_t WithoutNoSigpipe(std::uint64_t mask) {
  return mask & (tls_sigpipe.mask_before | ~kSigpipeBit);
}
// Of the SIGPIPE that has just interrupted this thread.
bool RaisedInPost(const siginfo_t& info);

// Around a call in which the kernel sends by TCP for this thread, without
// MSG_NOSIGNAL (`sends`; siw, which does so in whatever call posts to a QP or
// ends it): the SIGPIPE that the kernel raises is nobody's.  One that was
// pending before, or that somebody sends meanwhile, stays.
//
// Where a handler sees to it, a thread that is known not to block SIGPIPE says
// that it posts, and no more.  Else SIGPIPE is blocked, and what has come taken
// back: three system calls.
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
  // A handler has come in between, which may have SIGPIPE blocked behind it.
  [[gnu::cold]] void EndBlocked();
  void Block();

  const bool sends_;
  bool handled_ = false;
  bool blocks_ = false;  // the program did not
  bool marked_ = false;  // one was pending before
};

// A handler of the program's, which may post itself, and has a mask of its own.
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
