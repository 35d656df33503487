#ifndef RCSOCK_LIB_BASE_NO_SIGPIPE_H_
#define RCSOCK_LIB_BASE_NO_SIGPIPE_H_

#include <signal.h>

#include <cstdint>

namespace rcsock::base {

constexpr std::uint64_t kSigpipeBit = std::uint64_t{1} << (SIGPIPE - 1);

// What this thread blocked before a NoSigpipe of its that is in force: who
// keeps a mask that a handler has found leaves out what is not the program's.
// Written by the kernel, in the call that blocks the signal.
constexpr std::uint64_t kNoMaskBefore = ~std::uint64_t{0};
extern thread_local constinit volatile std::uint64_t tls_mask_before
    __attribute__((tls_model("initial-exec")));

// Of a mask that this thread has now, what the program has set of it.
inline std::uint64_t WithoutNoSigpipe(std::uint64_t mask) {
  return mask & (tls_mask_before | ~kSigpipeBit);
}

// Around a call in which the kernel sends by TCP for this thread, without
// MSG_NOSIGNAL (`sends`; siw, which does so in whatever call posts to a QP or
// ends it): the SIGPIPE that the kernel raises is nobody's.  One that was
// pending before, or that somebody sends meanwhile, stays.
//
// A handler that drops it would not be enough: where the program blocks
// SIGPIPE it would stay pending, and only a system call tells whether it does.
class NoSigpipe {
 public:
  explicit NoSigpipe(bool sends) : sends_(sends) {
    if (sends) [[unlikely]]
      Begin();
  }
  ~NoSigpipe() {
    if (sends_) [[unlikely]]
      End();
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  [[gnu::cold]] void Begin();
  [[gnu::cold]] void End();

  const bool sends_;
  bool blocks_ = false;  // the program did not
  bool marked_ = false;  // one was pending before
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_NO_SIGPIPE_H_
