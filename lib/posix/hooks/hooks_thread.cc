// Calls that make a second thread of the program, or cancel a thread.  A hook
// ends base::Alone(), and then passes the call on.  rcsock's own threads do not
// count.
//
// Some calls make libc start threads by itself.  The hooks here are for the
// calls whose threads may run the program's code, which could cancel.

#include <aio.h>
#include <sched.h>
#include <signal.h>

#include <cerrno>

#include "lib/base/alone.h"
#include "lib/base/cancellation.h"
#include "lib/base/held_latches.h"
#include "lib/base/internal.h"
#include "lib/base/unwinder.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/lifecycle/clone.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_plain.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/user_arguments.h"

namespace rcsock::posix::hook {
namespace {

// A thread that another library makes for rcsock cancels nothing, but may have
// sockets of its own.
void EndAlone() { base::tls_internal ? base::EndLone() : base::EndAlone(); }

// The threads of libc's asynchronous I/O make system calls of their own to read
// and write.  They do so for a socket too, where pread would fail.
template <class Block>
void BeforeAsynchronous(const Block* block) {
  EndAlone();
  if (Null(block) || base::tls_internal) return;
  const int saved = errno;
  if (const SockAt sock(block->aio_fildes); sock) {
    sock->way_back().Pin(base::Reason::kPinnedSyscall);
  }
  errno = saved;
}

template <class Block>
void BeforeList(Block* const* blocks, int count) {
  EndAlone();
  for (int i = 0; !Null(blocks) && i < count; ++i) {
    if (!Null(blocks[i]) && blocks[i]->aio_lio_opcode != LIO_NOP) {
      BeforeAsynchronous(blocks[i]);
    }
  }
}

bool ByThread(const sigevent* event) {
  return !Null(event) && event->sigev_notify == SIGEV_THREAD;
}

}  // namespace

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                   void* (*start)(void*), void* argument) {
  EndAlone();
  return real::pthread_create(thread, attributes, start, argument);
}

int thrd_create(thrd_t* thread, thrd_start_t start, void* argument) {
  EndAlone();
  return real::thrd_create(thread, start, argument);
}

int pthread_cancel(pthread_t thread) {
  EndAlone();
  if (!base::tls_internal) {
    base::cancels.store(true, std::memory_order_relaxed);
    // libc loads the unwinder here, too.  The cancelled thread must not wait
    // for the loader's lock, since the lock's owner may wait for that thread.
    const int saved = errno;
    base::ReadyToThrow();
    errno = saved;
  }
  return real::pthread_cancel(thread);
}

void BeforeClone(unsigned long flags) {
  if ((flags & CLONE_VM) == 0) {
    if (!ClonesAsFork(flags) && !base::tls_internal && !InBorrowedMemory()) {
      PinProcess(base::Reason::kPinnedSyscall);
    }
    return;
  }
  if ((flags & CLONE_THREAD) == 0) LendMemoryForGood();
  // The maker of a child of vfork waits for that child.
  if ((flags & CLONE_VFORK) != 0) return;
  EndAlone();
  // The thread-local data of rcsock (call_marks.h, signals.h) then belongs to
  // two threads.  A thread that is made past libc's names is not seen.  It has
  // its maker's errno, so it cannot well use libc either.
  if ((flags & CLONE_SETTLS) == 0 && !base::tls_internal &&
      !InBorrowedMemory()) {
    base::ForgetHeldLatches();
    PinProcess(base::Reason::kPinnedSyscall);
  }
}

int pthread_setcanceltype(int type, int* before) {
  if (type == PTHREAD_CANCEL_ASYNCHRONOUS && !base::tls_internal) {
    base::cancels.store(true, std::memory_order_relaxed);
  }
  return real::pthread_setcanceltype(type, before);
}

int timer_create(clockid_t clock, sigevent* event, timer_t* timer) {
  if (ByThread(event)) EndAlone();
  return real::timer_create(clock, event, timer);
}

int mq_notify(mqd_t queue, const sigevent* event) {
  if (ByThread(event)) EndAlone();
  return real::mq_notify(queue, event);
}

int aio_read(aiocb* block) {
  BeforeAsynchronous(block);
  return real::aio_read(block);
}

int aio_read64(aiocb64* block) {
  BeforeAsynchronous(block);
  return real::aio_read64(block);
}

int aio_write(aiocb* block) {
  BeforeAsynchronous(block);
  return real::aio_write(block);
}

int aio_write64(aiocb64* block) {
  BeforeAsynchronous(block);
  return real::aio_write64(block);
}

int aio_fsync(int operation, aiocb* block) {
  EndAlone();
  return real::aio_fsync(operation, block);
}

int aio_fsync64(int operation, aiocb64* block) {
  EndAlone();
  return real::aio_fsync64(operation, block);
}

int lio_listio(int mode, aiocb* const* blocks, int count, sigevent* event) {
  BeforeList(blocks, count);
  return real::lio_listio(mode, blocks, count, event);
}

int lio_listio64(int mode, aiocb64* const* blocks, int count, sigevent* event) {
  BeforeList(blocks, count);
  return real::lio_listio64(mode, blocks, count, event);
}

int getaddrinfo_a(int mode, gaicb** list, int count, sigevent* event) {
  EndAlone();
  return real::getaddrinfo_a(mode, list, count, event);
}

}  // namespace rcsock::posix::hook
