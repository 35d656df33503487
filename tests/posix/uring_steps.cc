// Requests of io_uring whose submitting thread stands at one of its
// instructions.
#include <liburing.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "tests/posix/pair.h"
#include "tests/posix/stepping.h"

namespace {

using namespace pair;
using namespace steps;

// The data of the next completion.
std::uint64_t Next(io_uring* ring) {
  io_uring_cqe* cqe = nullptr;
  CHECK_THAT(::io_uring_wait_cqe(ring, &cqe) == 0 && cqe->res == 16);
  const std::uint64_t data = cqe->user_data;
  ::io_uring_cqe_seen(ring, cqe);
  return data;
}

void MakeRing(io_uring* ring) {
  const int error = ::io_uring_queue_init(64, ring, 0);
  if (error == 0) return;
  std::fprintf(stderr, "SKIPPED: io_uring is not to be had here: %s\n",
               ErrorName(-error));
  std::exit(0);
}

// Answers each message when it is told to.
void Answers(int fd) {
  char text[16];
  while (::recv(fd, text, sizeof text, MSG_WAITALL) == sizeof text) {
    Hear();
    SendAll(fd, text, sizeof text);
  }
}

// A send, and behind a link the receive of its answer.
void PrepareChain(io_uring* ring, int fd, char* text, char* back) {
  io_uring_sqe* sqe = ::io_uring_get_sqe(ring);
  ::io_uring_prep_send(sqe, fd, text, 16, 0);
  sqe->user_data = 1;
  sqe->flags |= IOSQE_IO_LINK;
  sqe = ::io_uring_get_sqe(ring);
  ::io_uring_prep_recv(sqe, fd, back, 16, 0);
  sqe->user_data = 2;
}

// The answer comes while the submitting thread stands.  Another thread waits
// then (`other`), or the one that submits waits later.
void InOrder(int fd, bool other) {
  io_uring ring;
  MakeRing(&ring);
  HandleTraps(&Standing::OnTrap);
  constexpr int kMost = 10'000;
  int wrong = 0;
  Standing::due = 0;
  for (bool stood = true; stood && Standing::due < kMost;
       Standing::due += 1 + Standing::due / 40) {
    char text[16] = "linked";
    char back[16] = {};
    PrepareChain(&ring, fd, text, back);
    Standing::stands = Standing::goes = false;
    std::atomic<bool> over{false};
    std::atomic<bool> reaped{false};
    std::uint64_t first = 0;
    std::uint64_t second = 0;
    const auto reap = [&] {
      first = Next(&ring);
      second = Next(&ring);
      reaped = true;
    };
    // The kernel cancels what waits when its thread ends.
    std::thread submits([&] {
      Standing::Run([&] { ::io_uring_submit(&ring); });
      over = true;
      if (!other) reap();
      while (!reaped) ::usleep(100);
    });
    while (!Standing::stands && !over) std::this_thread::yield();
    stood = Standing::stands;
    std::thread waits([&] {
      if (other) reap();
    });
    Tell(0);
    // Another thread may complete what waits.
    if (stood) ::usleep(10'000);
    Standing::goes = true;
    submits.join();
    waits.join();
    if (first == 1 && second == 2) continue;
    if (++wrong == 1) std::fprintf(stderr, "step %d\n", Standing::due);
  }
  std::fprintf(stderr, "%d steps\n", Standing::due);
  Log("wrong: %d", wrong);
  ::io_uring_queue_exit(&ring);
}

Case linked("ring_linked_at_each_step", Answers,
            [](int fd) { InOrder(fd, false); }, {.seconds = 120});
Case linked_other("ring_linked_other_waits_at_each_step", Answers,
                  [](int fd) { InOrder(fd, true); }, {.seconds = 120});

std::int64_t CpuNs(clockid_t clock) {
  timespec time{};
  CHECK_THAT(::clock_gettime(clock, &time) == 0);
  return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
}

// A second receive in the same submission, of bytes that are there.  Until the
// thread goes on, nobody is busy with it.
Case rests("ring_rests_behind_a_link", Answers,
           [](int fd) {
             io_uring ring;
             MakeRing(&ring);
             HandleTraps(&Standing::OnTrap);
             constexpr int kMost = 10'000;
             constexpr std::int64_t kStandsNs = 20'000'000;
             // In a row, at the same step.
             constexpr int kSurely = 3;
             int busy = 0;
             Standing::due = 0;
             for (bool stood = true;
                  stood && busy < kSurely && Standing::due < kMost;) {
               char text[16] = "linked";
               char back[16] = {};
               io_uring_sqe* sqe = ::io_uring_get_sqe(&ring);
               ::io_uring_prep_send(sqe, fd, text, 16, 0);
               sqe->flags |= IOSQE_IO_LINK;
               for (int i = 0; i < 2; ++i) {
                 sqe = ::io_uring_get_sqe(&ring);
                 ::io_uring_prep_recv(sqe, fd, back + i * 8, 8, 0);
               }
               Standing::stands = Standing::goes = false;
               std::atomic<bool> over{false};
               std::thread submits([&] {
                 Standing::Run([&] { ::io_uring_submit(&ring); });
                 over = true;
                 for (int i = 0; i < 3; ++i) {
                   io_uring_cqe* cqe = nullptr;
                   CHECK_THAT(::io_uring_wait_cqe(&ring, &cqe) == 0);
                   CHECK_THAT(cqe->res == 16 || cqe->res == 8);
                   ::io_uring_cqe_seen(&ring, cqe);
                 }
               });
               while (!Standing::stands && !over) std::this_thread::yield();
               stood = Standing::stands;
               Tell(0);
               bool was_busy = false;
               if (stood) {
                 // (The standing thread itself looks all the time.)
                 clockid_t own;
                 CHECK_THAT(::pthread_getcpuclockid(submits.native_handle(),
                                                    &own) == 0);
                 const std::int64_t before =
                     CpuNs(CLOCK_PROCESS_CPUTIME_ID) - CpuNs(own);
                 ::usleep(kStandsNs / 1000);
                 const std::int64_t after =
                     CpuNs(CLOCK_PROCESS_CPUTIME_ID) - CpuNs(own);
                 was_busy = after - before > kStandsNs / 4;
               }
               busy = was_busy ? busy + 1 : 0;
               Standing::goes = true;
               submits.join();
               if (busy == 0) Standing::due += 1 + Standing::due / 40;
             }
             std::fprintf(stderr, "%d steps\n", Standing::due);
             Log("busy: %d", busy);
             ::io_uring_queue_exit(&ring);
           },
           {.seconds = 120});

// A handler jumps out of the submission.  Then nobody waits: the program looks
// at the ring's memory.
sigjmp_buf out;
volatile sig_atomic_t submits_now = 0;

void JumpWhenDue(int, siginfo_t*, void* context) {
  KeepTraps(context);
  if (Standing::done == Standing::due) {
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrap;
    Raw(SYS_tgkill, ::getpid(), Raw(SYS_gettid, 0, 0, 0, 0), SIGUSR1, 0);
  }
  Standing::done = Standing::done + 1;
}

Case jumps(
    "ring_jumped_out_at_each_step",
    [](int fd) {
      char text[16];
      while (::recv(fd, text, sizeof text, MSG_WAITALL) == sizeof text) {
        ::usleep(20'000);  // it is not there yet when the receive is submitted
        // More than one receive may come of a request that is submitted twice.
        for (int i = 0; i < 4; ++i) SendAll(fd, text, sizeof text);
      }
    },
    [](int fd) {
      io_uring ring;
      MakeRing(&ring);
      struct sigaction action {};
      action.sa_handler = [](int) {
        if (submits_now == 0) return;
        submits_now = 0;
        ::siglongjmp(out, 1);
      };
      CHECK_THAT(::sigaction(SIGUSR1, &action, nullptr) == 0);
      HandleTraps(&JumpWhenDue);
      static int waited_for = 0;
      static int last = 0;
      static int step = 0;
      // From the end to the beginning: a chain that is submitted twice takes
      // the stream to TCP.  The first round has no jump, and counts.
      for (int i = 0; waited_for == 0 && (i == 0 || step > 0); ++i) {
        step = i == 0 ? 1'000'000 : step - 1 - (last - step) / 40;
        Standing::due = step;
        static char text[16] = "linked";
        static char back[16] = {};
        ::usleep(1000);
        while (::recv(fd, back, sizeof back, MSG_DONTWAIT) > 0) {
        }
        PrepareChain(&ring, fd, text, back);
        if (::sigsetjmp(out, 1) == 0) {
          submits_now = 1;
          Standing::Run([&] { ::io_uring_submit(&ring); });
          submits_now = 0;
        }
        if (last == 0) last = step = Standing::done;
        unsigned seen = 0;
        for (int n = 0; seen != 3 && waited_for == 0; ++n) {
          // (The jump may have come between the library's two stores.)
          if (ring.sq.sqe_head == ring.sq.sqe_tail) {
            io_uring_smp_store_release(ring.sq.ktail, ring.sq.sqe_tail);
          }
          if (::io_uring_sq_ready(&ring) > 0 ||
              *ring.sq.khead != *ring.sq.ktail) {
            ::io_uring_submit(&ring);
          }
          for (io_uring_cqe* cqe = nullptr;
               ::io_uring_cq_ready(&ring) > 0 &&
               ::io_uring_peek_cqe(&ring, &cqe) == 0;) {
            if (cqe->user_data != 0) seen |= 1u << (cqe->user_data - 1);
            ::io_uring_cqe_seen(&ring, cqe);
          }
          if (n == 5000) waited_for = static_cast<int>(3 & ~seen);
          if (seen != 3) ::usleep(1000);
        }
      }
      ::shutdown(fd, SHUT_WR);
      int error = 0;
      Drain(fd, &error);
      std::fprintf(stderr, "%d steps, %d\n", last, step);
      Log("waits for ever: %d", waited_for);
      ::io_uring_queue_exit(&ring);
    },
    {.seconds = 120});

}  // namespace
