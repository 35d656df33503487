// Requests of io_uring on connections, by liburing.
#include <fcntl.h>
#include <liburing.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// As liburing says it.
void Returned(const char* what, int n) {
  Log("%s: %s", what, n < 0 ? ErrorName(-n) : std::to_string(n).c_str());
}

class Ring {
 public:
  explicit Ring(unsigned flags = 0) {
    const int error = ::io_uring_queue_init(64, &ring_, flags);
    ok_ = error == 0;
    if (!ok_) {
      std::fprintf(stderr, "SKIPPED: io_uring is not to be had here: %s\n",
                   ErrorName(-error));
    }
  }
  ~Ring() { Quit(); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  void Quit() {
    if (ok_) ::io_uring_queue_exit(&ring_);
    ok_ = false;
  }
  bool ok() const { return ok_; }
  io_uring* get() { return &ring_; }
  io_uring_sqe* Next(std::uint64_t data, unsigned flags = 0) {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    CHECK_THAT(sqe != nullptr);
    data_ = data;
    flags_ = flags;
    return sqe;
  }
  // Behind io_uring_prep_...
  void Is(io_uring_sqe* sqe) const {
    sqe->user_data = data_;
    sqe->flags |= static_cast<std::uint8_t>(flags_);
  }
  void Recv(std::uint64_t data, int fd, void* to, std::size_t length,
            int how = 0, unsigned flags = 0) {
    io_uring_sqe* sqe = Next(data, flags);
    ::io_uring_prep_recv(sqe, fd, to, length, how);
    Is(sqe);
  }
  void Send(std::uint64_t data, int fd, const void* from, std::size_t length,
            int how = 0, unsigned flags = 0) {
    io_uring_sqe* sqe = Next(data, flags);
    ::io_uring_prep_send(sqe, fd, from, length, how);
    Is(sqe);
  }
  void Nop(std::uint64_t data, unsigned flags = 0) {
    io_uring_sqe* sqe = Next(data, flags);
    ::io_uring_prep_nop(sqe);
    Is(sqe);
  }
  void Cancel(std::uint64_t data, std::uint64_t what, int how = 0) {
    io_uring_sqe* sqe = Next(data);
    ::io_uring_prep_cancel64(sqe, what, how);
    Is(sqe);
  }
  void Poll(std::uint64_t data, int fd, unsigned events) {
    io_uring_sqe* sqe = Next(data);
    ::io_uring_prep_poll_add(sqe, fd, events);
    Is(sqe);
  }
  void Submit() { Returned("submit", ::io_uring_submit(&ring_)); }
  // Logs `count` completions, in their order.
  void Reap(int count) {
    for (int i = 0; i < count; ++i) {
      io_uring_cqe* cqe = nullptr;
      int error;
      do {
        error = ::io_uring_wait_cqe(&ring_, &cqe);
      } while (error == -EINTR);
      CHECK_THAT(error == 0);
      Tell(cqe);
    }
  }
  // Waits for one, of this request if `data` is not 0; returns its result.
  int Wait(std::uint64_t data = 0) {
    for (;;) {
      for (auto it = early_.begin(); it != early_.end(); ++it) {
        if (data != 0 && it->first != data) continue;
        const int result = it->second;
        early_.erase(it);
        return result;
      }
      io_uring_cqe* cqe = nullptr;
      CHECK_THAT(::io_uring_wait_cqe(&ring_, &cqe) == 0);
      early_.emplace_back(cqe->user_data, cqe->res);
      ::io_uring_cqe_seen(&ring_, cqe);
    }
  }
  void Tell(io_uring_cqe* cqe) {
    Log("  %lu: %s %x", static_cast<unsigned long>(cqe->user_data),
        cqe->res < 0 ? ErrorName(-cqe->res) : std::to_string(cqe->res).c_str(),
        cqe->flags);
    ::io_uring_cqe_seen(&ring_, cqe);
  }
  // Logs what is there.
  void Peek() {
    io_uring_cqe* cqe = nullptr;
    if (::io_uring_peek_cqe(&ring_, &cqe) == 0) {
      Tell(cqe);
    } else {
      Log("  nothing");
    }
  }

 private:
  io_uring ring_{};
  bool ok_ = false;
  std::vector<std::pair<std::uint64_t, int>> early_;
  std::uint64_t data_ = 0;
  unsigned flags_ = 0;
};

// Where the run is one with lanes: fails if what `talk` moves (3,200 bytes at
// least) goes over TCP, or does not.
template <class Talk>
void ByLane(int fd, bool by_lane, Talk&& talk) {
  const std::uint64_t before = TcpBytes(fd);
  talk();
  const std::uint64_t bytes = TcpBytes(fd) - before;
  const char* warm = std::getenv("PAIR_WARM");
  if (warm != nullptr && std::strcmp(warm, "lane") == 0 &&
      (bytes < 3200) != by_lane) {
    Fail("%lu bytes went over TCP", static_cast<unsigned long>(bytes));
  }
}

// 200 messages by the ring, each answered.
void Talk(Ring* ring, int fd) {
  char text[16] = "by the ring";
  char back[16] = {};
  for (int i = 0; i < 200; ++i) {
    ring->Recv(1, fd, back, sizeof back, MSG_WAITALL);
    ring->Send(2, fd, text, sizeof text);
    CHECK_THAT(::io_uring_submit_and_wait(ring->get(), 2) == 2);
    CHECK_THAT(ring->Wait() == 16);
    CHECK_THAT(ring->Wait() == 16);
    CHECK_THAT(std::memcmp(text, back, sizeof text) == 0);
  }
  Log("talked");
}

void EchoAll(int fd) {
  char text[16];
  while (::recv(fd, text, sizeof text, MSG_WAITALL) == sizeof text) {
    SendAll(fd, text, sizeof text);
  }
}

// The server sends `length` bytes when both have come to a barrier, `times`
// times.
End Sends(std::size_t length, int times = 1) {
  return [=](int fd) {
    std::vector<char> bytes(length);
    std::uint64_t at = 0;
    for (int i = 0; i < times; ++i) {
      Barrier();
      Pattern(1, at, bytes.data(), length);
      SendAll(fd, bytes.data(), length);
      at += length;
    }
    Barrier();
  };
}

template <class Body>
End WithRing(Body body, unsigned flags = 0) {
  return [=](int fd) {
    Ring ring(flags);
    if (!ring.ok()) std::exit(0);
    body(ring, fd);
  };
}

// --- Lanes

Case talks("ring_talks", EchoAll, WithRing([](Ring& ring, int fd) {
             ByLane(fd, true, [&] { Talk(&ring, fd); });
           }));
Case talks_single(
    "ring_talks_single", EchoAll,
    WithRing([](Ring& ring,
                int fd) { ByLane(fd, true, [&] { Talk(&ring, fd); }); },
             1u << 12));  // IORING_SETUP_SINGLE_ISSUER
Case talks_deferred(
    "ring_talks_deferred", EchoAll,
    WithRing([](Ring& ring,
                int fd) { ByLane(fd, true, [&] { Talk(&ring, fd); }); },
             3u << 12));  // ... and IORING_SETUP_DEFER_TASKRUN

Case each_way("ring_each_way", EchoAll, WithRing([](Ring& ring, int fd) {
                char text[16] = "another message";
                char back[16] = {};
                iovec out[2] = {{text, 5}, {text + 5, 11}};
                iovec in[2] = {{back, 3}, {back + 3, 13}};
                msghdr sent{};
                sent.msg_iov = out;
                sent.msg_iovlen = 2;
                msghdr got{};
                got.msg_iov = in;
                got.msg_iovlen = 2;
                const auto answer = [&](const char* what) {
                  CHECK_THAT(::io_uring_submit(ring.get()) == 1);
                  if (ring.Wait() != 16) Fail("%s", what);
                  if (what[0] == 'r') {
                    CHECK_THAT(std::memcmp(text, back, 16) == 0);
                  }
                  std::memset(back, 0, sizeof back);
                };
                ByLane(fd, true, [&] {
                  for (int i = 0; i < 80; ++i) {
                    io_uring_sqe* sqe = ring.Next(1);
                    ::io_uring_prep_write(sqe, fd, text, 16, 0);
                    ring.Is(sqe);
                    answer("write");
                    sqe = ring.Next(2);
                    ::io_uring_prep_read(sqe, fd, back, 16, 0);
                    ring.Is(sqe);
                    answer("read");
                    sqe = ring.Next(3);
                    ::io_uring_prep_writev(sqe, fd, out, 2, 0);
                    ring.Is(sqe);
                    answer("writev");
                    sqe = ring.Next(4);
                    ::io_uring_prep_readv(sqe, fd, in, 2, 0);
                    ring.Is(sqe);
                    answer("readv");
                    sqe = ring.Next(5);
                    ::io_uring_prep_sendmsg(sqe, fd, &sent, 0);
                    ring.Is(sqe);
                    answer("sendmsg");
                    sqe = ring.Next(6);
                    ::io_uring_prep_recvmsg(sqe, fd, &got, 0);
                    ring.Is(sqe);
                    answer("recvmsg");
                  }
                });
              }));

// --- Ready and waiting

Case ready("ring_ready", Sends(100), WithRing([](Ring& ring, int fd) {
             char text[100];
             Barrier();
             AwaitBytes(fd, 100);
             ring.Recv(1, fd, text, 40, MSG_PEEK);
             ring.Submit();
             ring.Reap(1);
             ring.Recv(2, fd, text, 40);
             ring.Submit();
             ring.Reap(1);
             ring.Recv(3, fd, text + 40, 100);
             ring.Submit();
             ring.Reap(1);
             Log("%d", IsPattern(1, 0, text, 100));
             ring.Recv(4, fd, text, 100, MSG_DONTWAIT);
             ring.Submit();
             ring.Reap(1);
             Barrier();
           }));

Case waiting("ring_waiting", Sends(16, 3), WithRing([](Ring& ring, int fd) {
               char text[48];
               for (unsigned i = 0; i < 3; ++i) {
                 ring.Recv(i, fd, text + i * 16, 16);
                 ring.Submit();
                 ring.Peek();
                 Barrier();
                 ring.Reap(1);
               }
               ring.Peek();
               Log("%d", IsPattern(1, 0, text, 48));
               Barrier();
             }));

Case all_of_it("ring_waitall", Sends(16, 3), WithRing([](Ring& ring, int fd) {
                 char text[48];
                 ring.Recv(1, fd, text, 48, MSG_WAITALL);
                 ring.Submit();
                 for (int i = 0; i < 3; ++i) {
                   ring.Peek();
                   Barrier();
                 }
                 ring.Reap(1);
                 Log("%d", IsPattern(1, 0, text, 48));
                 Barrier();
               }));

Case bulk(
    "ring_bulk",
    [](int fd) {
      std::vector<char> bytes(100'000);
      for (int i = 0; i < 40; ++i) {
        RecvAll(fd, bytes.data(), bytes.size());
        CHECK_THAT(IsPattern(1, static_cast<unsigned>(i) * 100'000u,
                             bytes.data(), bytes.size()));
      }
      for (unsigned i = 0; i < 40; ++i) {
        Pattern(2, i * 100'000u, bytes.data(), bytes.size());
        SendAll(fd, bytes.data(), bytes.size());
      }
    },
    WithRing([](Ring& ring, int fd) {
      std::vector<char> bytes(4'000'000);
      Pattern(1, 0, bytes.data(), bytes.size());
      std::size_t done = 0;
      while (done < 2'000'000) {
        ring.Send(1, fd, bytes.data() + done, 2'000'000 - done);
        ::io_uring_submit(ring.get());
        const int n = ring.Wait();
        CHECK_THAT(n > 0);
        done += static_cast<unsigned>(n);
      }
      ring.Send(2, fd, bytes.data() + 2'000'000, 2'000'000, MSG_WAITALL);
      ring.Submit();
      Returned("all", ring.Wait());
      done = 0;
      while (done < 2'000'000) {
        ring.Recv(3, fd, bytes.data() + done, 2'000'000 - done);
        ::io_uring_submit(ring.get());
        const int n = ring.Wait();
        CHECK_THAT(n > 0);
        done += static_cast<unsigned>(n);
      }
      ring.Recv(4, fd, bytes.data() + done, 2'000'000, MSG_WAITALL);
      ring.Submit();
      Returned("all", ring.Wait());
      Log("%d", IsPattern(2, 0, bytes.data(), bytes.size()));
    }));

// --- Cancelling

Case cancelled("ring_cancelled", Sends(16), WithRing([](Ring& ring, int fd) {
                 char text[16];
                 ring.Recv(1, fd, text, 16);
                 ring.Submit();
                 ring.Cancel(2, 1);
                 ring.Submit();
                 ring.Reap(2);
                 ring.Cancel(3, 1);
                 ring.Submit();
                 ring.Reap(1);
                 for (std::uint64_t i = 0; i < 3; ++i)
                   ring.Recv(4, fd, text, 16);
                 ring.Cancel(5, 4, IORING_ASYNC_CANCEL_ALL);
                 ring.Submit();
                 ring.Reap(4);
                 ring.Recv(6, fd, text, 16);
                 io_uring_sqe* sqe = ring.Next(7);
                 ::io_uring_prep_cancel_fd(sqe, fd, 0);
                 ring.Is(sqe);
                 ring.Submit();
                 ring.Reap(2);
                 ring.Recv(8, fd, text, 16);
                 ring.Poll(8, fd, POLLPRI);
                 ring.Cancel(9, 0, IORING_ASYNC_CANCEL_ANY);
                 ring.Submit();
                 ring.Reap(3);
                 Barrier();
                 RecvAll(fd, text, 16);
                 Log("%d", IsPattern(1, 0, text, 16));
                 Barrier();
               }));

// A call that submits the cancelling request, and waits for both.
Case cancel_waits("ring_cancel_and_wait", Sends(16),
                  WithRing([](Ring& ring, int fd) {
                    char text[16];
                    for (unsigned i = 0; i < 3; ++i) {
                      ring.Recv(1, fd, text, 16);
                      ring.Submit();
                      ring.Cancel(2, 1);
                      Returned("submit",
                               ::io_uring_submit_and_wait(ring.get(), 2));
                      ring.Reap(2);
                    }
                    Barrier();
                    RecvAll(fd, text, 16);
                    Log("%d", IsPattern(1, 0, text, 16));
                    Barrier();
                  }));
Case cancel_enters("ring_cancel_and_enter", Sends(16), [](int fd) {
  io_uring_params params{};
  const int number = ::io_uring_setup(8, &params);
  if (number < 0) {
    std::fprintf(stderr, "SKIPPED: io_uring is not to be had here: %s\n",
                 ErrorName(-number));
    std::exit(0);
  }
  io_uring ring;
  CHECK_THAT(::io_uring_queue_mmap(number, &params, &ring) == 0);
  for (unsigned i = 0; i < params.sq_entries; ++i) ring.sq.array[i] = i;
  const auto enter = [&](unsigned wait) {
    ring.sq.sqe_head = ring.sq.sqe_tail;
    io_uring_smp_store_release(ring.sq.ktail, ring.sq.sqe_tail);
    Result("enter", ::syscall(SYS_io_uring_enter, number, 1, wait,
                              IORING_ENTER_GETEVENTS, nullptr, 0));
  };
  char text[16];
  io_uring_sqe* sqe = ::io_uring_get_sqe(&ring);
  ::io_uring_prep_recv(sqe, fd, text, 16, 0);
  sqe->user_data = 1;
  enter(0);
  sqe = ::io_uring_get_sqe(&ring);
  ::io_uring_prep_cancel64(sqe, 1, 0);
  sqe->user_data = 2;
  enter(2);
  Log("%u", ::io_uring_cq_ready(&ring));
  ::io_uring_queue_exit(&ring);
  Barrier();
  RecvAll(fd, text, 16);
  Log("%d", IsPattern(1, 0, text, 16));
  Barrier();
});

// --- Links

Case linked("ring_linked", EchoAll, WithRing([](Ring& ring, int fd) {
              char text[16] = "linked";
              char back[16] = {};
              ring.Send(1, fd, text, 16, 0, IOSQE_IO_LINK);
              ring.Recv(2, fd, back, 16);
              ring.Submit();
              ring.Reap(2);
              Log("%s", back);
              // The second waits for the first.
              ring.Recv(3, fd, back, 16, 0, IOSQE_IO_LINK);
              ring.Nop(4);
              ring.Submit();
              ring.Peek();
              SendAll(fd, text, 16);
              ring.Reap(2);
              // A failure ends the chain.
              ring.Recv(5, fd, back, 16, MSG_DONTWAIT, IOSQE_IO_LINK);
              ring.Send(6, fd, text, 16, 0, IOSQE_IO_LINK);
              ring.Nop(7);
              ring.Submit();
              ring.Reap(3);
              ring.Nop(8, IOSQE_IO_LINK);
              ring.Send(9, fd, text, 16, 0, IOSQE_IO_HARDLINK);
              ring.Recv(10, fd, back, 16);
              ring.Submit();
              ring.Reap(3);
            }));

// The kernel does the later links only when the thread asks it for completions.
Case linked_deferred(
    "ring_linked_deferred", EchoAll,
    WithRing(
        [](Ring& ring, int fd) {
          char text[16] = "linked";
          char back[48];
          for (int i = 0; i < 5; ++i) {
            for (unsigned k = 1; k < 4; ++k) {
              ring.Send(k, fd, text, 16, 0, IOSQE_IO_LINK);
            }
            ring.Recv(4, fd, back, 48, MSG_WAITALL);
            ring.Submit();
            ::usleep(20'000);  // the answers come
            ring.Reap(4);
          }
        },
        3u << 12));  // IORING_SETUP_SINGLE_ISSUER, IORING_SETUP_DEFER_TASKRUN

// What is behind a linked request that cancels, or that counts what it has
// cancelled.
Case linked_cancel("ring_linked_cancel", EchoAll,
                   WithRing([](Ring& ring, int fd) {
                     char text[64] = "behind a cancelling request";
                     char back[64];
                     for (const int how : {0, 1}) {  // IORING_ASYNC_CANCEL_ALL
                       for (int i = 0; i <= how; ++i)
                         ring.Recv(1, fd, back, 64);
                       ring.Submit();
                       io_uring_sqe* sqe = ring.Next(2, IOSQE_IO_LINK);
                       ::io_uring_prep_cancel64(sqe, 1, how);
                       ring.Is(sqe);
                       ring.Send(3, fd, text, 64);
                       ::io_uring_submit(ring.get());
                       Returned("cancel", ring.Wait(2));
                       for (int i = 0; i <= how; ++i)
                         Returned("cancelled", ring.Wait(1));
                       Returned("send", ring.Wait(3));
                       RecvAll(fd, back, 64);
                       CHECK_THAT(std::memcmp(text, back, 64) == 0);
                     }
                   }));

// A call that submits a chain and waits for all of it, as the library itself
// does in some of its waits.
Case linked_get("ring_linked_get_cqe", EchoAll,
                WithRing([](Ring& ring, int fd) {
                  char text[16] = "linked";
                  char back[16] = {};
                  io_uring_sq& sq = ring.get()->sq;
                  for (int i = 0; i < 20; ++i) {
                    ring.Send(1, fd, text, 16, 0, IOSQE_IO_LINK);
                    ring.Recv(2, fd, back, 16);
                    io_uring_smp_store_release(sq.ktail, sq.sqe_tail);
                    io_uring_cqe* cqe = nullptr;
                    CHECK_THAT(::__io_uring_get_cqe(ring.get(), &cqe, 2, 2,
                                                    nullptr) >= 0);
                    sq.sqe_head = sq.sqe_tail;
                    CHECK_THAT(::io_uring_cq_ready(ring.get()) == 2);
                    CHECK_THAT(ring.Wait(1) == 16 && ring.Wait(2) == 16);
                  }
                  Log("%s", back);
                }));

Case timed("ring_link_timeout", Sends(16), WithRing([](Ring& ring, int fd) {
             char text[16];
             __kernel_timespec soon{0, 10'000'000};
             __kernel_timespec late{20, 0};
             ring.Recv(1, fd, text, 16, 0, IOSQE_IO_LINK);
             io_uring_sqe* sqe = ring.Next(2);
             ::io_uring_prep_link_timeout(sqe, &soon, 0);
             ring.Is(sqe);
             ring.Submit();
             ring.Reap(2);
             ring.Recv(3, fd, text, 16, 0, IOSQE_IO_LINK);
             sqe = ring.Next(4);
             ::io_uring_prep_link_timeout(sqe, &late, 0);
             ring.Is(sqe);
             ring.Submit();
             Barrier();
             ring.Reap(2);
             Log("%d", IsPattern(1, 0, text, 16));
             Barrier();
           }));

Case drained("ring_drained", EchoAll, WithRing([](Ring& ring, int fd) {
               char text[16] = "drained";
               char back[16] = {};
               ring.Recv(1, fd, back, 16, MSG_WAITALL);
               ring.Nop(2, IOSQE_IO_DRAIN);
               ring.Submit();
               ring.Peek();
               SendAll(fd, text, 16);
               ring.Reap(2);
             }));

// --- Polls

Case polled("ring_polled", Sends(16, 2), WithRing([](Ring& ring, int fd) {
              char text[16];
              ring.Poll(1, fd, POLLOUT);
              ring.Submit();
              ring.Reap(1);
              ring.Poll(2, fd, POLLIN);
              ring.Submit();
              ring.Peek();
              Barrier();
              ring.Reap(1);
              ring.Poll(3, fd, POLLIN | POLLOUT);
              ring.Submit();
              ring.Reap(1);
              RecvAll(fd, text, 16);
              ring.Poll(4, fd, POLLIN);
              ring.Poll(5, fd, POLLIN | POLLRDHUP);
              ring.Submit();
              io_uring_sqe* sqe = ring.Next(6);
              ::io_uring_prep_poll_remove(sqe, 4);
              ring.Is(sqe);
              ring.Submit();
              ring.Reap(2);
              sqe = ring.Next(7);
              ::io_uring_prep_poll_remove(sqe, 4);
              ring.Is(sqe);
              ring.Submit();
              ring.Reap(1);
              Barrier();
              ring.Reap(1);
              RecvAll(fd, text, 16);
              Barrier();
            }));

// --- Ends

Case peer_ends(
    "ring_peer_ends",
    [](int fd) {
      Barrier();
      ::shutdown(fd, SHUT_WR);
      Barrier();
      LogDrain(fd);
    },
    WithRing([](Ring& ring, int fd) {
      char text[16] = {};
      ring.Recv(1, fd, text, 16);
      ring.Submit();
      Barrier();
      ring.Reap(1);
      ring.Poll(2, fd, POLLRDHUP);
      ring.Submit();
      ring.Reap(1);
      ring.Recv(3, fd, text, 16);
      ring.Submit();
      ring.Reap(1);
      ring.Send(4, fd, text, 16);
      ring.Submit();
      ring.Reap(1);
      io_uring_sqe* sqe = ring.Next(5);
      ::io_uring_prep_shutdown(sqe, fd, SHUT_WR);
      ring.Is(sqe);
      ring.Submit();
      ring.Reap(1);
      ring.Send(6, fd, text, 16);
      ring.Submit();
      ring.Reap(1);
      Barrier();
    }));

Case resets(
    "ring_reset",
    [](int fd) {
      Barrier();
      const linger now{1, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
      ::close(fd);
      Barrier();
    },
    WithRing([](Ring& ring, int fd) {
      char text[16] = {};
      ring.Recv(1, fd, text, 16);
      ring.Submit();
      Barrier();
      ring.Reap(1);
      ring.Send(2, fd, text, 16);
      ring.Submit();
      ring.Reap(1);
      ring.Recv(3, fd, text, 16);
      ring.Submit();
      Returned("recv", ring.Wait());
      Barrier();
    }));

// A request that waits keeps the connection.
template <class Close>
End ClosesAmid(Close close) {
  return WithRing([=](Ring& ring, int fd) {
    char text[16] = {};
    ring.Recv(1, fd, text, 16);
    ring.Submit();
    close(ring, fd);
    Barrier();
    ring.Reap(1);
    Log("%d", IsPattern(1, 0, text, 16));
    Barrier();
  });
}
void StaysOpen(int fd) {
  char bytes[16];
  Barrier();
  pollfd end{fd, POLLIN, 0};
  Result("poll", ::poll(&end, 1, 50));
  Pattern(1, 0, bytes, 16);
  SendAll(fd, bytes, 16);
  Barrier();
  LogDrain(fd);
}
Case closed_amid("ring_closed_amid", StaysOpen,
                 ClosesAmid([](Ring&, int fd) { ::close(fd); }));
Case closed_by_it("ring_closes_amid", StaysOpen,
                  ClosesAmid([](Ring& ring, int fd) {
                    io_uring_sqe* sqe = ring.Next(2);
                    ::io_uring_prep_close(sqe, fd);
                    ring.Is(sqe);
                    ring.Submit();
                    ring.Reap(1);
                  }));

Case quits(
    "ring_quits_amid",
    [](int fd) {
      Barrier();
      Barrier();
      LogDrain(fd);
    },
    WithRing([](Ring& ring, int fd) {
      char text[16] = "behind it";
      ring.Recv(1, fd, text, 16);
      ring.Submit();
      ring.Quit();
      Barrier();
      SendAll(fd, text, 16);
      ::shutdown(fd, SHUT_WR);
      Barrier();
      LogDrain(fd);
    }));

// --- How completions are waited for

Case times_out("ring_wait_times_out", Sends(16, 2),
               WithRing([](Ring& ring, int fd) {
                 char text[32];
                 __kernel_timespec soon{0, 20'000'000};
                 io_uring_cqe* cqe = nullptr;
                 ring.Recv(1, fd, text, 16);
                 ring.Submit();
                 Returned("wait",
                          ::io_uring_wait_cqe_timeout(ring.get(), &cqe, &soon));
                 Returned("wait", ::io_uring_wait_cqes(ring.get(), &cqe, 1,
                                                       &soon, nullptr));
                 Barrier();
                 ring.Reap(1);
                 ring.Recv(2, fd, text, 16);
                 Returned("wait", ::io_uring_submit_and_wait_timeout(
                                      ring.get(), &cqe, 1, &soon, nullptr));
                 ring.Nop(3);
                 ring.Nop(4);
                 Barrier();
                 Returned("wait", ::io_uring_submit_and_wait(ring.get(), 3));
                 Log("%u", ::io_uring_cq_ready(ring.get()));
                 ring.Quit();
                 Barrier();
               }));

void OnAlarm(int) {}
Case interrupted("ring_wait_interrupted", Sends(16),
                 WithRing([](Ring& ring, int fd) {
                   char text[16];
                   struct sigaction action {};
                   action.sa_handler = &OnAlarm;
                   ::sigaction(SIGALRM, &action, nullptr);
                   const itimerval soon{{0, 0}, {0, 20'000}};
                   io_uring_cqe* cqe = nullptr;
                   ring.Recv(1, fd, text, 16);
                   ring.Submit();
                   ::setitimer(ITIMER_REAL, &soon, nullptr);
                   Returned("wait", ::io_uring_wait_cqe(ring.get(), &cqe));
                   Barrier();
                   ring.Reap(1);
                   Barrier();
                 }));

Case not_by_the_ring("ring_not_waited_for", Sends(16, 3),
                     WithRing([](Ring& ring, int fd) {
                       char text[16];
                       // Its memory is looked at.
                       ring.Recv(1, fd, text, 16);
                       ring.Submit();
                       Barrier();
                       while (::io_uring_cq_ready(ring.get()) == 0) {
                         ::sched_yield();
                       }
                       ring.Peek();
                       // A descriptor tells.
                       const int counter = ::eventfd(0, 0);
                       CHECK_THAT(::io_uring_register_eventfd(ring.get(),
                                                              counter) == 0);
                       ring.Recv(2, fd, text, 16);
                       ring.Submit();
                       Barrier();
                       std::uint64_t value = 0;
                       Result("read", ::read(counter, &value, sizeof value));
                       ring.Peek();
                       // The ring's own is waited for.
                       pollfd own{ring.get()->ring_fd, POLLIN, 0};
                       ring.Recv(3, fd, text, 16);
                       ring.Submit();
                       Barrier();
                       Result("poll", ::poll(&own, 1, -1));
                       ring.Peek();
                       Barrier();
                     }));

Case other_thread("ring_other_thread", EchoAll,
                  WithRing([](Ring& ring, int fd) {
                    char text[16] = "threads";
                    char back[16];
                    for (int i = 0; i < 20; ++i) {
                      std::thread waits([&] { ring.Reap(1); });
                      ring.Recv(1, fd, back, 16, MSG_WAITALL);
                      ::io_uring_submit(ring.get());
                      SendAll(fd, text, 16);
                      waits.join();
                    }
                  }));

// --- What else

Case bad_memory("ring_bad_memory", Sends(16), WithRing([](Ring& ring, int fd) {
                  char text[16];
                  char* const nowhere = reinterpret_cast<char*>(16);
                  ring.Recv(1, fd, nowhere, 16);
                  ring.Submit();
                  Barrier();
                  ring.Reap(1);
                  ring.Recv(2, fd, nowhere, 16);
                  ring.Send(3, fd, nowhere, 16);
                  io_uring_sqe* sqe = ring.Next(4);
                  ::io_uring_prep_recvmsg(
                      sqe, fd, reinterpret_cast<msghdr*>(nowhere), 0);
                  ring.Is(sqe);
                  ring.Submit();
                  ring.Reap(3);
                  RecvAll(fd, text, 16);
                  Log("%d", IsPattern(1, 0, text, 16));
                  Barrier();
                }));

Case silent("ring_skips_success", EchoAll, WithRing([](Ring& ring, int fd) {
              char text[16] = "silent";
              char back[16];
              ring.Send(1, fd, text, 16, 0, IOSQE_CQE_SKIP_SUCCESS);
              ring.Recv(2, fd, back, 16, MSG_WAITALL);
              ring.Submit();
              ring.Reap(1);
              ring.Recv(3, fd, back, 16, MSG_WAITALL, IOSQE_CQE_SKIP_SUCCESS);
              ring.Send(4, fd, text, 16);
              ring.Submit();
              ring.Reap(1);
              ring.Recv(5, fd, back, 16, MSG_DONTWAIT | MSG_PEEK,
                        IOSQE_CQE_SKIP_SUCCESS);
              ring.Submit();
            }));

Case nonblocking("ring_nonblocking", Sends(16),
                 WithRing([](Ring& ring, int fd) {
                   char text[16];
                   SetNonblock(fd, true);
                   ring.Recv(1, fd, text, 16);
                   ring.Submit();
                   ring.Peek();
                   Barrier();
                   ring.Reap(1);
                   Barrier();
                 }));

Case pinned_amid("ring_pinned_amid", Sends(16, 2),
                 WithRing([](Ring& ring, int fd) {
                   char text[32];
                   ring.Recv(1, fd, text, 16);
                   ring.Submit();
                   ::dprintf(fd, "goes to TCP");
                   Barrier();
                   ring.Reap(1);
                   ring.Recv(2, fd, text + 16, 16);
                   ring.Submit();
                   Barrier();
                   ring.Reap(1);
                   Log("%d", IsPattern(1, 0, text, 32));
                   Barrier();
                 }));

Case forked("ring_forked", Sends(16, 2), WithRing([](Ring& ring, int fd) {
              char text[32];
              ring.Recv(1, fd, text, 16);
              ring.Submit();
              const pid_t child = ::fork();
              if (child == 0) ::_exit(7);
              LogChild(child);
              Barrier();
              ring.Reap(1);
              ring.Recv(2, fd, text + 16, 16);
              ring.Submit();
              Barrier();
              ring.Reap(1);
              Log("%d", IsPattern(1, 0, text, 32));
              Barrier();
            }));

// The kernel chooses the buffers: then the stream is the kernel's.
Case buffers("ring_chooses_buffers", Sends(16, 3),
             WithRing([](Ring& ring, int fd) {
               static char memory[4][64];
               io_uring_sqe* sqe = ring.Next(1);
               ::io_uring_prep_provide_buffers(sqe, memory, 64, 4, 5, 0);
               ring.Is(sqe);
               ring.Submit();
               ring.Reap(1);
               sqe = ring.Next(2, IOSQE_BUFFER_SELECT);
               ::io_uring_prep_recv_multishot(sqe, fd, nullptr, 0, 0);
               ring.Is(sqe);
               sqe->buf_group = 5;
               ring.Submit();
               for (int i = 0; i < 3; ++i) {
                 Barrier();
                 ring.Reap(1);
               }
               Barrier();
             }));

// --- Connections that are made by the ring

Case makes("ring_makes_connections",
           [](int) {
             const int listener = ListenAndTell();
             Ring ring;
             if (!ring.ok()) std::exit(0);
             io_uring_sqe* sqe = ring.Next(1);
             ::io_uring_prep_multishot_accept(sqe, listener, nullptr, nullptr,
                                              0);
             ring.Is(sqe);
             ::io_uring_submit(ring.get());
             for (int i = 0; i < 2; ++i) {
               const int fd = ring.Wait(1);
               CHECK_THAT(fd >= 0);
               char text[16];
               for (;;) {
                 ring.Recv(2, fd, text, 16);
                 ::io_uring_submit_and_wait(ring.get(), 1);
                 const int n = ring.Wait(2);
                 if (n <= 0) break;
                 ring.Send(3, fd, text, static_cast<unsigned>(n));
                 ::io_uring_submit_and_wait(ring.get(), 1);
                 CHECK_THAT(ring.Wait(3) == n);
               }
               sqe = ring.Next(4);
               ::io_uring_prep_close(sqe, fd);
               ring.Is(sqe);
               ring.Submit();
               Returned("close", ring.Wait(4));
             }
           },
           WithRing([](Ring& ring, int) {
             const int port = HearPort();
             for (int i = 0; i < 2; ++i) {
               const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
               sockaddr_in to{};
               to.sin_family = AF_INET;
               to.sin_port = htons(static_cast<std::uint16_t>(port));
               to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
               io_uring_sqe* sqe = ring.Next(1);
               ::io_uring_prep_connect(
                   sqe, fd, reinterpret_cast<sockaddr*>(&to), sizeof to);
               ring.Is(sqe);
               ring.Submit();
               ring.Reap(1);
               Warm(fd);
               ByLane(fd, true, [&] { Talk(&ring, fd); });
               ::close(fd);
             }
           }),
           {.warm = false, .connect = false});

}  // namespace
