#ifndef RCSOCK_LIB_POSIX_URING_H_
#define RCSOCK_LIB_POSIX_URING_H_

#include <linux/io_uring.h>

#include <cstddef>
#include <cstdint>

// io_uring.  Requests go into memory that the kernel reads, by functions that
// are partly inline; but only liburing's submitting functions show them to the
// kernel.  So each submission is looked at first, and the streams that it names
// go to TCP for good.  Where a ring could be filled past those functions, all
// streams of the process do.
namespace rcsock::posix::uring {

// The beginning of liburing's struct io_uring, which its ABI has fixed since
// version 2.0: the part that its inline functions use.
// (tests/posix/raw.cc compares it with the real one.)
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
};

// A ring is about to be made, in a way or with flags under which not all
// submissions can be seen: no stream of this process may be on a lane from now
// on.
void PinAll();

// A ring is about to be made by liburing with `flags` (IORING_SETUP_*).
// `version`: liburing's, major * 1000 + minor, 0 if it is too old to say.
void BeforeMaking(unsigned flags, int version);

// What has been filled in is about to be submitted.
void BeforeSubmit(const Ring* ring);

// `count` descriptors are about to be registered: requests may name them by
// their place from then on.
void BeforeRegister(const int* fds, unsigned count);
// The same by io_uring_register(2), with this operation (IORING_REGISTER_*).
void BeforeRegister(unsigned operation);

}  // namespace rcsock::posix::uring

#endif  // RCSOCK_LIB_POSIX_URING_H_
