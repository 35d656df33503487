// liburing's functions that make a ring, register descriptors with a ring, or
// submit. The rest of liburing works on memory alone.

#include "lib/posix/hooks/uring.h"

#include <signal.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <ctime>
#include <optional>

#include "preload/library.h"

#define RCSOCK_EXPORT extern "C" __attribute__((visibility("default")))

namespace uring = rcsock::posix::uring;
using uring::Ring;

namespace {

constexpr const char* kSonames[] = {"liburing.so.2", "liburing-ffi.so.2",
                                    "liburing.so.1", nullptr};

// Calls liburing's function of that name and type.
template <class F, class... A>
auto Call(rcsock::preload::Library<F>& next, A... a)
    -> decltype(next.Get()(a...)) {
  if (F* function = next.Get()) return function(a...);
  return -ENOSYS;
}

int Version() {
  static constinit rcsock::preload::Library<int()> major(
      "io_uring_major_version", kSonames);
  static constinit rcsock::preload::Library<int()> minor(
      "io_uring_minor_version", kSonames);
  if (major.Get() == nullptr || minor.Get() == nullptr) return 0;
  return major.Get()() * 1000 + minor.Get()();
}

// How struct io_uring_params begins.
struct Parameters {
  unsigned sq_entries, cq_entries, flags;
};

// `result` below 0: no ring has been made.
int Made(int result, const void* parameters) {
  if (result < 0) return result;
  uring::AfterMaking(static_cast<const Parameters*>(parameters)->flags,
                     Version());
  return result;
}

// liburing returns errors as -errno.
int Returned(long result) {
  return result == -1 ? -errno : static_cast<int>(result);
}

// If rcsock holds requests of the ring, a wait of liburing's is made in parts:
// the submission, rcsock's wait, and `wait(timeout)`. The last is liburing's
// own wait, when all has come or `timeout` is over.
template <class Wait>
int InParts(Ring* ring, bool submits, unsigned count, void* timeout,
            const sigset_t* signals, Wait&& wait) {
  static constinit rcsock::preload::Library<int(Ring*)> submit(
      "io_uring_submit", kSonames);
  int submitted = 0;
  std::optional<uring::LibSubmission> seen;
  if (submits) seen.emplace(ring, true, count > 0);
  if (count == 0 || !uring::LibHolds(ring)) return wait(timeout);
  if (submits) {
    submitted = Call(submit, ring);
    seen.reset();
    if (submitted < 0) return submitted;
  }
  const int waited = uring::LibAwait(
      ring, count, static_cast<const timespec*>(timeout), signals);
  if (waited == -EINTR) return submitted > 0 ? submitted : -EINTR;
  timespec none{};
  const int result = wait(waited == -ETIME ? &none : timeout);
  return submitted > 0 ? submitted : result;
}

}  // namespace

// NEXT(result, name, parameter types...): the library's own function, as
// `next`.
#define NEXT(result, name, ...)                                        \
  static constinit rcsock::preload::Library<result(__VA_ARGS__)> next( \
      #name, kSonames)

// --- making a ring

RCSOCK_EXPORT int io_uring_queue_init(unsigned entries, void* ring,
                                      unsigned flags) {
  NEXT(int, io_uring_queue_init, unsigned, void*, unsigned);
  const int result = Call(next, entries, ring, flags);
  if (result >= 0) uring::AfterMaking(flags, Version());
  return result;
}

RCSOCK_EXPORT int io_uring_queue_init_params(unsigned entries, void* ring,
                                             void* parameters) {
  NEXT(int, io_uring_queue_init_params, unsigned, void*, void*);
  return Made(Call(next, entries, ring, parameters), parameters);
}

RCSOCK_EXPORT int io_uring_queue_init_mem(unsigned entries, void* ring,
                                          void* parameters, void* memory,
                                          std::size_t size) {
  NEXT(int, io_uring_queue_init_mem, unsigned, void*, void*, void*,
       std::size_t);
  return Made(Call(next, entries, ring, parameters, memory, size), parameters);
}

RCSOCK_EXPORT int io_uring_queue_init_try_nosqarr(unsigned entries, void* ring,
                                                  void* parameters,
                                                  void* memory,
                                                  std::size_t size) {
  NEXT(int, io_uring_queue_init_try_nosqarr, unsigned, void*, void*, void*,
       std::size_t);
  return Made(Call(next, entries, ring, parameters, memory, size), parameters);
}

RCSOCK_EXPORT void io_uring_queue_exit(Ring* ring) {
  NEXT(void, io_uring_queue_exit, Ring*);
  uring::BeforeExit(ring);
  if (auto* exit = next.Get()) exit(ring);
}

RCSOCK_EXPORT int io_uring_setup(unsigned entries, void* parameters) {
  NEXT(int, io_uring_setup, unsigned, void*);
  const int fd = Call(next, entries, parameters);
  if (fd >= 0) uring::AfterSetup(fd, parameters);
  return fd;
}

RCSOCK_EXPORT int io_uring_enter(unsigned fd, unsigned submit, unsigned wait,
                                 unsigned flags, sigset_t* signals) {
  NEXT(int, io_uring_enter, unsigned, unsigned, unsigned, unsigned, sigset_t*);
  uring::Submission seen(static_cast<int>(fd), submit, flags);
  return Returned(seen.Call(wait, signals, _NSIG / 8,
                            [&](unsigned count, unsigned least, unsigned how) {
                              return Call(next, fd, count, least, how, signals);
                            }));
}

RCSOCK_EXPORT int io_uring_enter2(unsigned fd, unsigned submit, unsigned wait,
                                  unsigned flags, void* signals,
                                  std::size_t size) {
  NEXT(int, io_uring_enter2, unsigned, unsigned, unsigned, unsigned, void*,
       std::size_t);
  uring::Submission seen(static_cast<int>(fd), submit, flags);
  return Returned(seen.Call(
      wait, signals, size, [&](unsigned count, unsigned least, unsigned how) {
        return Call(next, fd, count, least, how, signals, size);
      }));
}

// --- submitting

RCSOCK_EXPORT int io_uring_submit(Ring* ring) {
  NEXT(int, io_uring_submit, Ring*);
  const uring::LibSubmission seen(ring);
  return Call(next, ring);
}

RCSOCK_EXPORT int io_uring_submit_and_wait(Ring* ring, unsigned wait) {
  NEXT(int, io_uring_submit_and_wait, Ring*, unsigned);
  return InParts(ring, true, wait, nullptr, nullptr,
                 [&](void*) { return Call(next, ring, wait); });
}

RCSOCK_EXPORT int io_uring_submit_and_get_events(Ring* ring) {
  NEXT(int, io_uring_submit_and_get_events, Ring*);
  const uring::LibSubmission seen(ring);
  return Call(next, ring);
}

RCSOCK_EXPORT int io_uring_submit_and_wait_timeout(Ring* ring, void** done,
                                                   unsigned wait, void* timeout,
                                                   sigset_t* signals) {
  NEXT(int, io_uring_submit_and_wait_timeout, Ring*, void**, unsigned, void*,
       sigset_t*);
  return InParts(ring, true, wait, timeout, signals, [&](void* time) {
    return Call(next, ring, done, wait, time, signals);
  });
}

RCSOCK_EXPORT int io_uring_submit_and_wait_min_timeout(Ring* ring, void** done,
                                                       unsigned wait,
                                                       void* timeout,
                                                       unsigned least,
                                                       sigset_t* signals) {
  NEXT(int, io_uring_submit_and_wait_min_timeout, Ring*, void**, unsigned,
       void*, unsigned, sigset_t*);
  uring::LibSubmission seen(ring);
  seen.WaitsToo();
  return Call(next, ring, done, wait, timeout, least, signals);
}

RCSOCK_EXPORT int io_uring_submit_and_wait_reg(Ring* ring, void** done,
                                               unsigned wait, int place) {
  NEXT(int, io_uring_submit_and_wait_reg, Ring*, void**, unsigned, int);
  uring::LibSubmission seen(ring);
  seen.WaitsToo();
  return Call(next, ring, done, wait, place);
}

// On an old kernel the waits with a time-out submit it as a request, and with
// it what has been put into the ring.

RCSOCK_EXPORT int io_uring_wait_cqes(Ring* ring, void** done, unsigned wait,
                                     void* timeout, sigset_t* signals) {
  NEXT(int, io_uring_wait_cqes, Ring*, void**, unsigned, void*, sigset_t*);
  const uring::LibSubmission seen(ring, false);
  return InParts(ring, false, wait, timeout, signals, [&](void* time) {
    return Call(next, ring, done, wait, time, signals);
  });
}

RCSOCK_EXPORT int io_uring_wait_cqes_min_timeout(Ring* ring, void** done,
                                                 unsigned wait, void* timeout,
                                                 unsigned least,
                                                 sigset_t* signals) {
  NEXT(int, io_uring_wait_cqes_min_timeout, Ring*, void**, unsigned, void*,
       unsigned, sigset_t*);
  const uring::LibSubmission seen(ring, false);
  return Call(next, ring, done, wait, timeout, least, signals);
}

RCSOCK_EXPORT int io_uring_wait_cqe_timeout(Ring* ring, void** done,
                                            void* timeout) {
  NEXT(int, io_uring_wait_cqe_timeout, Ring*, void**, void*);
  const uring::LibSubmission seen(ring, false);
  return InParts(ring, false, 1, timeout, nullptr,
                 [&](void* time) { return Call(next, ring, done, time); });
}

// The inline waits submit nothing, and say so by `submit`.
RCSOCK_EXPORT int __io_uring_get_cqe(Ring* ring, void** done, unsigned submit,
                                     unsigned wait, sigset_t* signals) {
  NEXT(int, __io_uring_get_cqe, Ring*, void**, unsigned, unsigned, sigset_t*);
  if (submit > 0) {
    uring::LibSubmission seen(ring);
    if (wait > 0) seen.WaitsToo();
    return Call(next, ring, done, submit, wait, signals);
  }
  return InParts(ring, false, wait, nullptr, signals, [&](void*) {
    return Call(next, ring, done, submit, wait, signals);
  });
}

// --- registering

RCSOCK_EXPORT int io_uring_register_files(Ring* ring, const int* files,
                                          unsigned count) {
  NEXT(int, io_uring_register_files, Ring*, const int*, unsigned);
  uring::BeforeRegister(files, count);
  return Call(next, ring, files, count);
}

RCSOCK_EXPORT int io_uring_register_files_tags(Ring* ring, const int* files,
                                               const void* tags,
                                               unsigned count) {
  NEXT(int, io_uring_register_files_tags, Ring*, const int*, const void*,
       unsigned);
  uring::BeforeRegister(files, count);
  return Call(next, ring, files, tags, count);
}

RCSOCK_EXPORT int io_uring_register_files_update(Ring* ring, unsigned at,
                                                 const int* files,
                                                 unsigned count) {
  NEXT(int, io_uring_register_files_update, Ring*, unsigned, const int*,
       unsigned);
  uring::BeforeRegister(files, count);
  return Call(next, ring, at, files, count);
}

RCSOCK_EXPORT int io_uring_register_files_update_tag(Ring* ring, unsigned at,
                                                     const int* files,
                                                     const void* tags,
                                                     unsigned count) {
  NEXT(int, io_uring_register_files_update_tag, Ring*, unsigned, const int*,
       const void*, unsigned);
  uring::BeforeRegister(files, count);
  return Call(next, ring, at, files, tags, count);
}

RCSOCK_EXPORT int io_uring_register(unsigned fd, unsigned operation,
                                    const void* argument, unsigned count) {
  NEXT(int, io_uring_register, unsigned, unsigned, const void*, unsigned);
  uring::BeforeRegister(static_cast<int>(fd), operation);
  if (uring::CancelsByRegister(static_cast<int>(fd), operation, argument)) {
    return 0;
  }
  return Call(next, fd, operation, argument, count);
}

RCSOCK_EXPORT int io_uring_register_restrictions(Ring* ring, void* what,
                                                 unsigned count) {
  NEXT(int, io_uring_register_restrictions, Ring*, void*, unsigned);
  uring::BeforeRestricting(ring);
  return Call(next, ring, what, count);
}

// From then on the ring has other memory.
RCSOCK_EXPORT int io_uring_resize_rings(Ring* ring, void* parameters) {
  NEXT(int, io_uring_resize_rings, Ring*, void*);
  uring::BeforeResizing(ring);
  return Call(next, ring, parameters);
}

RCSOCK_EXPORT int io_uring_close_ring_fd(Ring* ring) {
  NEXT(int, io_uring_close_ring_fd, Ring*);
  uring::BeforeCloseRingFd(ring);
  return Call(next, ring);
}

RCSOCK_EXPORT int io_uring_register_sync_cancel(Ring* ring, void* what) {
  NEXT(int, io_uring_register_sync_cancel, Ring*, void*);
  constexpr unsigned kSyncCancel = 24;  // IORING_REGISTER_SYNC_CANCEL
  if (ring != nullptr &&
      uring::CancelsByRegister(ring->fd, kSyncCancel, what)) {
    return 0;
  }
  return Call(next, ring, what);
}
