#ifndef RCSOCK_LIB_POSIX_HOOKS_URING_H_
#define RCSOCK_LIB_POSIX_HOOKS_URING_H_

#include <linux/io_uring.h>
#include <signal.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>

// io_uring.  Requests go into memory that the kernel reads, but only a call of
// liburing's or io_uring_enter(2) submits them.  rcsock looks at each
// submission first.  The streams that its requests name go to TCP for good.
// rcsock itself does an epoll_ctl by request, and that stream stays where it
// is.
//
// If rcsock cannot see the requests of a ring, all streams of the process go to
// TCP.  rcsock cannot see them if the kernel polls the ring's queue, or if it
// cannot map or does not know the ring.
namespace rcsock::posix::uring {

// The start of liburing's struct io_uring: the part that its inline functions
// use.  Its ABI has fixed this since version 2.0.  tests/posix/raw_syscalls.cc
// compares it with the real struct.
struct Ring {
  unsigned* khead;
  unsigned* ktail;
  unsigned* kring_mask;
  unsigned* kring_entries;
  unsigned* kflags;
  unsigned* kdropped;
  unsigned* array;
  io_uring_sqe* sqes;
  // Requests [sqe_head, sqe_tail) have been filled in and not been submitted.
  unsigned sqe_head;
  unsigned sqe_tail;
  std::size_t sq_ring_size;
  void* sq_ring;
  unsigned sq_pad[4];
  // struct io_uring_cq
  void* cq[7];
  std::size_t cq_ring_size;
  void* cq_ring;
  unsigned cq_pad[4];
  // IORING_SETUP_*
  unsigned flags;
  int fd;
};

// Not all submissions of this process can be seen.  From now on no stream of
// the process may be on a lane.
void PinAll();

// liburing has made a ring with `flags` (IORING_SETUP_*).
// `version`: liburing's, major * 1000 + minor, 0 if it is too old to say.
void AfterMaking(unsigned flags, int version);

// liburing is about to close a ring, past libc.
void BeforeExit(const Ring* ring);

// liburing is about to close the number of a ring that it goes on using.
void BeforeCloseRingFd(const Ring* ring);
// liburing is about to give the ring other memory.
void BeforeResizing(const Ring* ring);
// liburing restricts what the ring takes.
void BeforeRestricting(const Ring* ring);

// One call of liburing's that submits what has been filled in.  Lives from
// before the call to its end.
class LibSubmission {
 public:
  // `submits`: the call submits the requests in any case.  Otherwise it may
  // leave them to a later call, and the program may still change them; none is
  // carried out.  `waits`: the call then waits for a completion.
  explicit LibSubmission(const Ring* ring, bool submits = true,
                         bool waits = false);
  ~LibSubmission();
  LibSubmission(const LibSubmission&) = delete;
  LibSubmission& operator=(const LibSubmission&) = delete;
  // The call waits for completions after it has submitted.
  void WaitsToo() { Taken(); }

 private:
  void Taken();

  const Ring* ring_ = nullptr;  // null: nothing is to be restored
  bool holds_behind_ = false;   // see Batch
  unsigned deferred_ = 0;       // links that the kernel puts off
  bool taken_ = false;          // Taken has been called
  unsigned head_ = 0;
  unsigned tail_ = 0;
};

// Whether rcsock holds requests of the ring.  LibAwait waits for these.
bool LibHolds(const Ring* ring);
// Waits until `count` completions are there.  Returns 0 if the program's call
// of liburing that waits for them may be made, else -ETIME or -EINTR.
int LibAwait(const Ring* ring, unsigned count, const timespec* timeout,
             const sigset_t* mask);

// `count` descriptors are about to be registered.  From then on requests may
// name them by their place.
void BeforeRegister(const int* fds, unsigned count);
// io_uring_register(2) is about to do this operation (IORING_REGISTER_*) on
// ring `fd`.
void BeforeRegister(int fd, unsigned operation);

// io_uring_register(2) is about to do this operation with `argument`.  Returns
// true if the operation asks to cancel a request that rcsock held, and rcsock
// has cancelled it.
bool CancelsByRegister(int fd, unsigned operation, const void* argument);

// --- Rings that the program makes and fills by itself (uring_rings.cc).

// io_uring_setup(2) has made ring `fd`, and filled in `parameters` (struct
// io_uring_params).  rcsock maps the ring's queue, to see what is submitted.
void AfterSetup(int fd, const void* parameters);

struct KnownRing;

// One io_uring_enter(2) of the program, from before the call to its end.  The
// kernel is asked with count() and flags(), so it takes no request that the
// constructor has not seen.
class Submission {
 public:
  Submission(int fd, unsigned count, unsigned flags);
  ~Submission();
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;
  unsigned count() const { return count_; }
  unsigned flags() const { return flags_; }
  // Makes the call, by `enter(count, wait, flags)`.  `argument` and `size` are
  // those of the program's call.
  template <class Enter>
  long Call(unsigned wait, const void* argument, std::size_t size,
            Enter&& enter) {
    if ((flags_ & 1) != 0 && wait > 0) {  // IORING_ENTER_GETEVENTS
      const long taken =
          Holding() ? enter(count_, 0u, flags_ & ~1u) : kNoneHeld;
      if (taken != kNoneHeld) {
        if (taken < 0 || static_cast<unsigned long>(taken) < count_) {
          return taken;
        }
        Taken();
        const int waited = Wait(wait, argument, size);
        if (waited < 0 && (taken > 0 || waited == -EINTR)) {
          return taken > 0 ? taken : Interrupted();
        }
        const long result = enter(0, waited < 0 ? 0 : wait, flags_);
        return taken > 0 ? taken : waited < 0 ? TimedOut() : result;
      }
    }
    return enter(count_, wait, flags_);
  }

 private:
  KnownRing* ring_ = nullptr;  // null: nothing was looked at
  unsigned count_;
  unsigned flags_;
  std::uint64_t serial_ = 0;  // of the ring
  unsigned head_ = 0;         // of the queue, before the call
  unsigned turn_ = 0;
  bool remade_ = false;
  bool holds_behind_ = false;  // see Batch
  unsigned deferred_ = 0;      // links that the kernel puts off
  bool taken_ = false;         // Taken has been called
  int fd_;

  bool TakeTurn();
  void Taken();  // the kernel has taken the requests
  bool LookAtRequests();
  void EndLook(bool drained);

  static constexpr long kNoneHeld = -1000;
  bool Holding() const;
  int Wait(unsigned count, const void* argument, std::size_t size) const;
  static long Interrupted();
  static long TimedOut();
};

// Forgets the rings with these numbers (fd/close.h).
void ForgetRings(unsigned first, unsigned last);
// In the child of fork, which knows no ring.
void RingsForkChild();

}  // namespace rcsock::posix::uring

#endif  // RCSOCK_LIB_POSIX_HOOKS_URING_H_
