// Requests of io_uring whose submitting thread stands at one of its
// instructions.
#include <liburing.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
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

// A send, and behind a link the receive of its answer.  The answer comes while
// the submitting thread stands.
Case linked(
    "ring_linked_at_each_step",
    [](int fd) {
      char text[16];
      while (::recv(fd, text, sizeof text, MSG_WAITALL) == sizeof text) {
        Hear();
        SendAll(fd, text, sizeof text);
      }
    },
    [](int fd) {
      io_uring ring;
      if (const int error = ::io_uring_queue_init(64, &ring, 0); error != 0) {
        std::fprintf(stderr, "SKIPPED: io_uring is not to be had here: %s\n",
                     ErrorName(-error));
        return;
      }
      HandleTraps(&Standing::OnTrap);
      constexpr int kMost = 10'000;
      int wrong = 0;
      Standing::due = 0;
      for (bool stood = true; stood && Standing::due < kMost;
           Standing::due += 1 + Standing::due / 40) {
        char text[16] = "linked";
        char back[16] = {};
        io_uring_sqe* sqe = ::io_uring_get_sqe(&ring);
        ::io_uring_prep_send(sqe, fd, text, sizeof text, 0);
        sqe->user_data = 1;
        sqe->flags |= IOSQE_IO_LINK;
        sqe = ::io_uring_get_sqe(&ring);
        ::io_uring_prep_recv(sqe, fd, back, sizeof back, 0);
        sqe->user_data = 2;
        Standing::stands = Standing::goes = false;
        std::atomic<bool> over{false};
        std::uint64_t first = 0;
        std::uint64_t second = 0;
        // The kernel cancels what waits when its thread ends.
        std::thread submits([&] {
          Standing::Run([&] { ::io_uring_submit(&ring); });
          over = true;
          first = Next(&ring);
          second = Next(&ring);
        });
        while (!Standing::stands && !over) std::this_thread::yield();
        stood = Standing::stands;
        Tell(0);
        // Another thread may complete what waits.
        if (stood) ::usleep(10'000);
        Standing::goes = true;
        submits.join();
        if (first == 1 && second == 2) continue;
        if (++wrong == 1) std::fprintf(stderr, "step %d\n", Standing::due);
      }
      std::fprintf(stderr, "%d steps\n", Standing::due);
      Log("wrong: %d", wrong);
      ::io_uring_queue_exit(&ring);
    },
    {.seconds = 120});

}  // namespace
