// Rings that a program makes by io_uring_setup(2) and fills by itself, as libuv
// does to change its epoll sets.
#include <fcntl.h>
#include <liburing.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/pair.h"

namespace {

using namespace pair;

// Newer than the headers of Debian 12.
constexpr unsigned kNoSqArray = 1u << 16;  // IORING_SETUP_NO_SQARRAY

// The other end of most cases.
void EchoAll(int fd) {
  char text[16];
  while (::recv(fd, text, sizeof text, MSG_WAITALL) == sizeof text) {
    SendAll(fd, text, sizeof text);
  }
}

// Talks, and fails if that does not go by a lane, or does: where the run is one
// with lanes.
void Talk(int fd, bool by_lane) {
  const std::uint64_t before = TcpBytes(fd);
  Call(fd, 200);
  const std::uint64_t bytes = TcpBytes(fd) - before;
  const char* warm = std::getenv("PAIR_WARM");
  if (warm != nullptr && std::strcmp(warm, "lane") == 0 &&
      (bytes < 3200) != by_lane) {
    Fail("%lu bytes went over TCP", static_cast<unsigned long>(bytes));
  }
  Log("talked");
}

class Ring {
 public:
  explicit Ring(unsigned entries, unsigned flags = 0) {
    params_.flags = flags;
    fd_ = static_cast<int>(::syscall(SYS_io_uring_setup, entries, &params_));
    if (fd_ < 0 && errno == EINVAL && flags != 0) {
      // An older kernel.
      params_ = {};
      fd_ = static_cast<int>(::syscall(SYS_io_uring_setup, entries, &params_));
    }
    if (fd_ < 0) {
      std::fprintf(stderr, "SKIPPED: io_uring is not to be had here: %s\n",
                   ErrorName(errno));
      return;
    }
    sq_size_ = std::max<std::size_t>(
        params_.sq_off.array + params_.sq_entries * sizeof(unsigned),
        params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe));
    sq_ = static_cast<char*>(Map(sq_size_, IORING_OFF_SQ_RING));
    shift_ = (params_.flags & IORING_SETUP_SQE128) != 0 ? 1 : 0;
    sqes_size_ = (params_.sq_entries * sizeof(io_uring_sqe)) << shift_;
    sqes_ = static_cast<io_uring_sqe*>(Map(sqes_size_, IORING_OFF_SQES));
  }
  ~Ring() { Close(); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  bool ok() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  void Close() {
    Unmap();
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void Unmap() {
    if (sq_ == nullptr) return;
    ::munmap(sq_, sq_size_);
    ::munmap(sqes_, sqes_size_);
    sq_ = nullptr;
  }
  unsigned& At(unsigned offset) {
    return *reinterpret_cast<unsigned*>(sq_ + offset);
  }
  unsigned Dropped() { return At(params_.sq_off.dropped); }
  // The next request, empty; it is in the queue already.
  io_uring_sqe* Next(std::uint64_t data) {
    const unsigned tail = At(params_.sq_off.tail);
    const unsigned index = tail & (params_.sq_entries - 1);
    io_uring_sqe* sqe = request(index);
    std::memset(sqe, 0, sizeof *sqe);
    sqe->user_data = data;
    if (params_.sq_off.array != 0) Slot(tail) = index;
    __atomic_store_n(&At(params_.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
    return sqe;
  }
  // Says that it is one more, wherever it is.
  void Push(unsigned index) {
    const unsigned tail = At(params_.sq_off.tail);
    Slot(tail) = index;
    __atomic_store_n(&At(params_.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
  }
  io_uring_sqe* request(unsigned index) { return &sqes_[index << shift_]; }
  void Scribble(unsigned index) { Slot(index) = index; }
  // Whatever has completed.
  void Drop() {
    At(params_.cq_off.head) =
        __atomic_load_n(&At(params_.cq_off.tail), __ATOMIC_ACQUIRE);
  }
  bool has_array() const { return params_.sq_off.array != 0; }
  io_uring_sqe* Control(std::uint64_t data, int set, int op, int fd,
                        const void* event) {
    io_uring_sqe* sqe = Next(data);
    sqe->opcode = IORING_OP_EPOLL_CTL;
    sqe->fd = set;
    sqe->len = static_cast<unsigned>(op);
    sqe->off = static_cast<std::uint64_t>(fd);
    sqe->addr = reinterpret_cast<std::uintptr_t>(event);
    return sqe;
  }
  long Enter(unsigned submit, unsigned wait) {
    return ::syscall(SYS_io_uring_enter, fd_, submit, wait,
                     wait > 0 ? IORING_ENTER_GETEVENTS : 0, nullptr, 0);
  }
  void Submit(unsigned n) {
    Result("enter", Enter(n, n));
    Reap();
  }
  // Logs what has completed.
  void Reap() {
    auto* cqes = reinterpret_cast<io_uring_cqe*>(sq_ + params_.cq_off.cqes);
    unsigned head = At(params_.cq_off.head);
    for (; head != __atomic_load_n(&At(params_.cq_off.tail), __ATOMIC_ACQUIRE);
         ++head) {
      const io_uring_cqe& cqe = cqes[head & (params_.cq_entries - 1)];
      Log("  %lu: %s", static_cast<unsigned long>(cqe.user_data),
          cqe.res < 0 ? ErrorName(-cqe.res) : std::to_string(cqe.res).c_str());
    }
    __atomic_store_n(&At(params_.cq_off.head), head, __ATOMIC_RELEASE);
  }

 private:
  void* Map(std::size_t size, off_t offset) {
    void* at =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, offset);
    CHECK_THAT(at != MAP_FAILED);
    return at;
  }
  unsigned& Slot(unsigned at) {
    return reinterpret_cast<unsigned*>(
        sq_ + params_.sq_off.array)[at & (params_.sq_entries - 1)];
  }

  io_uring_params params_{};
  int fd_ = -1;
  char* sq_ = nullptr;
  io_uring_sqe* sqes_ = nullptr;
  std::size_t sq_size_ = 0;
  std::size_t sqes_size_ = 0;
  unsigned shift_ = 0;
};

void LogEvents(int set, int timeout) {
  epoll_event events[4] = {};
  const int n = ::epoll_wait(set, events, 4, timeout);
  Log("epoll_wait: %d", n);
  for (int i = 0; i < n; ++i) {
    Log("  %x %lu", events[i].events,
        static_cast<unsigned long>(events[i].data.u64));
  }
}

// --- Making one

// As a container's filter does it, which was there before the program.
void RefuseRings() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{std::size(filter), filter};
  const auto call = [](long number, long a, long b, const void* c) {
    long result;
    register long d asm("r10") = 0;
    register long e asm("r8") = 0;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d), "r"(e)
                 : "rcx", "r11", "memory");
    return result;
  };
  CHECK_THAT(call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, nullptr) == 0);
  CHECK_THAT(call(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}

Case refused("ring_refused", EchoAll, [](int fd) {
  RefuseRings();
  io_uring_params params{};
  Result("setup", ::syscall(SYS_io_uring_setup, 8, &params));
  Result("setup", ::io_uring_setup(8, &params));
  Talk(fd, true);
});

Case impossible("ring_impossible", EchoAll, [](int fd) {
  io_uring_params params{};
  Result("none", ::syscall(SYS_io_uring_setup, 0, &params));
  Result("nowhere", ::syscall(SYS_io_uring_setup, 8, nullptr));
  params.flags = ~0u;
  Result("unknown", ::syscall(SYS_io_uring_setup, 8, &params));
  Talk(fd, true);
});

Case unused("ring_unused", EchoAll, [](int fd) {
  const Ring ring(256);
  Talk(fd, true);
});

Case by_queue("ring_polled", EchoAll, [](int fd) {
  const Ring ring(8, IORING_SETUP_SQPOLL);
  Talk(fd, !ring.ok());
  // What is on TCP for good epoll sets of either kind of call have all the
  // same.
  Ring other(8);
  if (!other.ok()) return;
  const int set = ::epoll_create1(0);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  Result("epoll_ctl", ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
  other.Control(1, set, EPOLL_CTL_DEL, fd, nullptr);
  other.Submit(1);
  Result("epoll_ctl", ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &in));
  other.Control(2, set, EPOLL_CTL_ADD, fd, &in);
  other.Submit(1);
});

// --- What is submitted

Case files_only("ring_of_nops", EchoAll, [](int fd) {
  Ring ring(4);
  if (!ring.ok()) return;
  // More than it holds, in pieces of each size.
  for (unsigned i = 0; i < 40; ++i) {
    const unsigned n = i % 4 + 1;
    for (unsigned j = 0; j < n; ++j) ring.Next(10 * i + j);
    ring.Submit(n);
  }
  // More than there is; then the kernel does not wait.
  ring.Next(1);
  Result("more", ring.Enter(3, 2));
  Result("none", ring.Enter(1, 1));
  ring.Reap();
  // Less.
  for (int i = 2; i < 5; ++i) ring.Next(static_cast<std::uint64_t>(i));
  ring.Submit(1);
  ring.Submit(2);
  Talk(fd, true);
});

Case bad_index("ring_of_bad_indices", EchoAll, [](int fd) {
  Ring ring(4);
  if (!ring.ok() || !ring.has_array()) return;
  for (const unsigned index : {4u, 0x7fff'ffffu, ~0u}) {
    ring.Push(index);
    ring.Next(index);
    Result("enter", ring.Enter(2, 0));
    Result("again", ring.Enter(2, 0));
    ring.Reap();
    Log("dropped %u", ring.Dropped());
  }
  Talk(fd, true);
});

// One request submitted again and again, which the kernel does not change.
Case same_request("ring_of_one_request", EchoAll, [](int fd) {
  Ring ring(4);
  if (!ring.ok() || !ring.has_array()) return;
  const int set = ::epoll_create1(0);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 5}};
  ring.Control(1, set, EPOLL_CTL_ADD, fd, &event);
  for (int i = 0; i < 3; ++i) {
    ring.Submit(1);
    const io_uring_sqe& sqe = *ring.request(0);
    Log("%d %d %d %d %u", sqe.opcode, sqe.fd == set,
        sqe.off == static_cast<std::uint64_t>(fd), sqe.len, sqe.rw_flags);
    if (i == 1) CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr) == 0);
    ring.Push(0);
  }
  Talk(fd, true);
});

// One of two connections is named.
Case names(
    "ring_names_one",
    [](int fd) {
      const int listener = ListenAndTell();
      const int other = Accept(listener);
      Warm(other);
      std::thread second([other] { EchoAll(other); });
      EchoAll(fd);
      second.join();
    },
    [](int fd) {
      const int other = Connect(HearPort());
      Warm(other);
      Ring ring(8);
      if (!ring.ok()) return;
      char text[16] = "by the ring";
      char back[16] = {};
      io_uring_sqe* sqe = ring.Next(1);
      sqe->opcode = IORING_OP_SEND;
      sqe->fd = other;
      sqe->addr = reinterpret_cast<std::uintptr_t>(text);
      sqe->len = sizeof text;
      ring.Submit(1);
      sqe = ring.Next(2);
      sqe->opcode = IORING_OP_POLL_ADD;
      sqe->fd = other;
      sqe->poll32_events = POLLIN;
      ring.Submit(1);
      sqe = ring.Next(3);
      sqe->opcode = IORING_OP_RECV;
      sqe->fd = other;
      sqe->addr = reinterpret_cast<std::uintptr_t>(back);
      sqe->len = sizeof back;
      sqe->msg_flags = MSG_WAITALL;
      ring.Submit(1);
      Log("back: %s", back);
      Talk(fd, true);
      Talk(other, false);
    });

// --- IORING_OP_EPOLL_CTL

void Controls(int fd, unsigned flags) {
  Ring ring(16, flags);
  if (!ring.ok()) return;
  const int set = ::epoll_create1(0);
  const int counter = ::eventfd(0, 0);
  const int file = ::open("/proc/self/exe", O_RDONLY);
  // High, as rcsock's own threads may have the lowest number for a moment.
  const int closed = ::fcntl(counter, F_DUPFD, 300);
  ::close(closed);
  char text[16] = "text";
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  epoll_event out{.events = EPOLLOUT, .data = {.u64 = 8}};
  epoll_event none{.events = 0, .data = {.u64 = 9}};
  epoll_event wrong{.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT,
                    .data = {.u64 = 10}};

  // One after another.
  ring.Control(1, set, EPOLL_CTL_ADD, fd, &in);
  ring.Submit(1);
  LogEvents(set, 0);
  SendAll(fd, text, sizeof text);
  LogEvents(set, 5000);
  ring.Control(2, set, EPOLL_CTL_MOD, fd, &out);
  ring.Submit(1);
  LogEvents(set, 5000);
  ring.Control(3, set, EPOLL_CTL_MOD, fd, &none);
  ring.Submit(1);
  LogEvents(set, 0);
  ring.Control(4, set, EPOLL_CTL_DEL, fd, nullptr);
  ring.Submit(1);
  LogEvents(set, 0);
  RecvAll(fd, text, sizeof text);
  Talk(fd, true);

  // What is refused, and what stands around it.
  ring.Control(10, set, EPOLL_CTL_DEL, fd, nullptr);
  ring.Control(11, set, EPOLL_CTL_MOD, fd, &in);
  ring.Control(12, set, EPOLL_CTL_ADD, fd, &in);
  ring.Control(13, set, EPOLL_CTL_ADD, fd, &in);
  ring.Control(14, set, EPOLL_CTL_ADD, counter, &in);
  ring.Control(15, set, EPOLL_CTL_ADD, counter, &in);
  ring.Submit(6);
  ring.Control(20, set, EPOLL_CTL_ADD, -1, &in);
  ring.Control(21, set, EPOLL_CTL_ADD, closed, &in);
  ring.Control(22, -1, EPOLL_CTL_MOD, fd, &in);
  ring.Control(23, closed, EPOLL_CTL_ADD, fd, &in);
  ring.Control(24, set, EPOLL_CTL_ADD, set, &in);
  ring.Control(25, set, EPOLL_CTL_ADD, file, &in);
  ring.Control(26, file, EPOLL_CTL_MOD, fd, &in);
  ring.Control(27, set, 9, fd, &in);
  ring.Submit(8);
  // The kernel stops at what it cannot read.
  for (const std::uintptr_t nowhere : {0, 16}) {
    ring.Control(30, set, EPOLL_CTL_MOD, fd,
                 reinterpret_cast<const void*>(nowhere));
    ring.Control(31, set, EPOLL_CTL_MOD, fd, &in);
    ring.Submit(2);
    ring.Submit(1);
  }
  Talk(fd, true);
  ring.Control(32, set, EPOLL_CTL_DEL, fd, reinterpret_cast<const void*>(16));
  ring.Control(33, set, EPOLL_CTL_ADD, fd, &wrong);
  ring.Submit(2);

  // Silent successes, and what is linked behind.
  ring.Control(40, set, EPOLL_CTL_ADD, fd, &in)->flags = IOSQE_CQE_SKIP_SUCCESS;
  ring.Control(41, set, EPOLL_CTL_ADD, fd, &in)->flags = IOSQE_CQE_SKIP_SUCCESS;
  ring.Control(42, set, EPOLL_CTL_MOD, fd, &in)->flags = IOSQE_IO_LINK;
  ring.Next(43);
  ring.Control(44, set, EPOLL_CTL_ADD, fd, &in)->flags = IOSQE_IO_LINK;
  ring.Next(45);
  ring.Control(46, set, EPOLL_CTL_ADD, fd, &in)->flags = IOSQE_IO_HARDLINK;
  ring.Next(47);
  Result("enter", ring.Enter(8, 7));
  ring.Reap();
  Talk(fd, true);
  SendAll(fd, text, sizeof text);
  LogEvents(set, 5000);
  RecvAll(fd, text, sizeof text);

  // A set of one that is closed and comes again.
  ring.Control(50, set, EPOLL_CTL_DEL, counter, nullptr);
  ring.Control(51, set, EPOLL_CTL_DEL, fd, nullptr);
  ring.Control(52, set, EPOLL_CTL_ADD, fd, &out);
  ring.Submit(3);
  LogEvents(set, 5000);
  Talk(fd, true);
}

Case controls("ring_controls", EchoAll, [](int fd) { Controls(fd, 0); });
Case controls_direct("ring_controls_by_no_array", EchoAll,
                     [](int fd) { Controls(fd, kNoSqArray); });
Case controls_wide("ring_controls_by_wide_requests", EchoAll,
                   [](int fd) { Controls(fd, IORING_SETUP_SQE128); });
// On a kernel whose NOP has no result to give.
Case controls_old("ring_controls_of_old", EchoAll, [](int fd) {
  CHECK_THAT(::personality(UNAME26) >= 0);
  Controls(fd, 0);
});

// A refused request stays refused, although a later one of its batch would let
// it pass: on a connection that is still on TCP.
Case controls_old_first("ring_controls_of_old_at_first", EchoAll, [](int fd) {
  CHECK_THAT(::personality(UNAME26) >= 0);
  Ring ring(16);
  if (!ring.ok()) return;
  const int set = ::epoll_create1(0);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  ring.Control(1, set, EPOLL_CTL_DEL, fd, nullptr);
  ring.Control(2, set, EPOLL_CTL_MOD, fd, &in);
  ring.Control(3, set, EPOLL_CTL_ADD, fd, &in);
  ring.Submit(3);
  // Nor does a set get into one that it holds, by a later request that lets it
  // go.
  const int outer = ::epoll_create1(0);
  ring.Control(4, outer, EPOLL_CTL_ADD, set, &in);
  ring.Control(5, set, EPOLL_CTL_ADD, outer, &in);
  ring.Control(6, outer, EPOLL_CTL_DEL, set, nullptr);
  ring.Submit(3);
  Call(fd, 200);
});

// Where what comes before may have to be done first, or the request has
// something else about it, results are as ever.
Case controls_odd("ring_controls_oddly", EchoAll, [](int fd) {
  Ring ring(16);
  if (!ring.ok()) return;
  const int set = ::epoll_create1(0);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  ring.Next(1)->flags = IOSQE_IO_LINK;
  ring.Control(2, set, EPOLL_CTL_ADD, fd, &in);
  ring.Submit(2);
  ring.Control(3, set, EPOLL_CTL_ADD, fd, &in)->flags = IOSQE_IO_DRAIN;
  ring.Submit(1);
  ring.Control(4, set, EPOLL_CTL_MOD, fd, &in)->flags = IOSQE_ASYNC;
  ring.Submit(1);
  ring.Control(5, set, EPOLL_CTL_MOD, fd, &in)->buf_index = 1;
  ring.Submit(1);
  char text[16] = "text";
  SendAll(fd, text, sizeof text);
  LogEvents(set, 5000);
  RecvAll(fd, text, sizeof text);
  Talk(fd, false);
});

// The kernel takes nothing else from this ring.
Case controls_alone("ring_controls_alone", EchoAll, [](int fd) {
  Ring ring(8, IORING_SETUP_R_DISABLED);
  if (!ring.ok()) return;
  io_uring_restriction only[2] = {};
  only[0].opcode = IORING_RESTRICTION_SQE_OP;
  only[0].sqe_op = IORING_OP_EPOLL_CTL;
  only[1].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
  Result("restrict", ::syscall(SYS_io_uring_register, ring.fd(),
                               IORING_REGISTER_RESTRICTIONS, only, 2));
  Result("enable", ::syscall(SYS_io_uring_register, ring.fd(),
                             IORING_REGISTER_ENABLE_RINGS, nullptr, 0));
  Talk(fd, true);
  const int set = ::epoll_create1(0);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  ring.Control(1, set, EPOLL_CTL_ADD, fd, &in);
  ring.Submit(1);
  ring.Next(2);
  ring.Submit(1);
  Talk(fd, false);
});

// Another thread waits in the ring meanwhile.
Case controls_beside("ring_controls_beside", EchoAll, [](int fd) {
  Ring ring(4);
  if (!ring.ok()) return;
  const int set = ::epoll_create1(0);
  int ends[2];
  CHECK_THAT(::pipe(ends) == 0);
  char byte = 0;
  io_uring_sqe* sqe = ring.Next(1);
  sqe->opcode = IORING_OP_READ;
  sqe->fd = ends[0];
  sqe->addr = reinterpret_cast<std::uintptr_t>(&byte);
  sqe->len = 1;
  sqe->off = ~0ull;
  std::thread waits([&ring] { CHECK_THAT(ring.Enter(1, 2) == 1); });
  ::usleep(100'000);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  ring.Control(2, set, EPOLL_CTL_ADD, fd, &in);
  Result("enter", ring.Enter(1, 0));
  CHECK_THAT(::write(ends[1], "x", 1) == 1);
  waits.join();
  ring.Reap();
  Talk(fd, true);
});

Case by_liburing("ring_controls_by_liburing", EchoAll, [](int fd) {
  io_uring ring{};
  if (::io_uring_queue_init(8, &ring, 0) != 0) return;
  const int set = ::epoll_create1(0);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  const auto control = [&](int op) {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring);
    ::io_uring_prep_epoll_ctl(sqe, set, fd, op, &in);
    sqe->user_data = 3;
    Result("submit", ::io_uring_submit_and_wait(&ring, 1));
    io_uring_cqe* cqe = nullptr;
    CHECK_THAT(::io_uring_wait_cqe(&ring, &cqe) == 0);
    Log("%lu: %d", static_cast<unsigned long>(cqe->user_data), cqe->res);
    ::io_uring_cqe_seen(&ring, cqe);
  };
  control(EPOLL_CTL_MOD);
  control(EPOLL_CTL_ADD);
  control(EPOLL_CTL_ADD);
  char text[16] = "text";
  SendAll(fd, text, sizeof text);
  LogEvents(set, 5000);
  RecvAll(fd, text, sizeof text);
  Talk(fd, true);
  control(EPOLL_CTL_DEL);
  control(EPOLL_CTL_DEL);
  Talk(fd, true);
  ::io_uring_queue_exit(&ring);
});

// liburing's functions that are system calls and nothing more.
Case by_calls("ring_by_liburings_calls", EchoAll, [](int fd) {
  io_uring_params params{};
  const int made = ::io_uring_setup(8, &params);
  if (made < 0) return;
  io_uring ring{};
  CHECK_THAT(::io_uring_queue_mmap(made, &params, &ring) == 0);
  const int set = ::epoll_create1(0);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  for (int i = 0; i < 2; ++i) {
    ::io_uring_prep_epoll_ctl(::io_uring_get_sqe(&ring), set, fd, EPOLL_CTL_ADD,
                              &in);
    const unsigned tail = *ring.sq.ktail;
    ring.sq.array[tail & *ring.sq.kring_mask] = tail & *ring.sq.kring_mask;
    __atomic_store_n(ring.sq.ktail, tail + 1, __ATOMIC_RELEASE);
    ring.sq.sqe_head = ring.sq.sqe_tail;
    Result("enter", ::io_uring_enter(static_cast<unsigned>(made), 1, 1,
                                     IORING_ENTER_GETEVENTS, nullptr));
    io_uring_cqe* cqe = nullptr;
    CHECK_THAT(::io_uring_peek_cqe(&ring, &cqe) == 0);
    Log("%d", cqe->res);
    ::io_uring_cqe_seen(&ring, cqe);
  }
  Talk(fd, true);
  // It lets go of what it waits for when it ends.
  ::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  CHECK_THAT(::pipe(ends) == 0);
  char byte = 0;
  ::io_uring_prep_read(::io_uring_get_sqe(&ring), ends[0], &byte, 1, -1ull);
  Result("submit", ::io_uring_submit(&ring));
  ::close(ends[0]);
  ::io_uring_queue_exit(&ring);
  pollfd one{ends[1], 0, 0};
  Result("poll", ::poll(&one, 1, 5000));
});

// --- Numbers

// A thread of rcsock that opens a file has the lowest number for a moment:
// `make` opens what it opens anew, until that is `number`.
template <class Make>
void MakeAt(int number, Make&& make) {
  for (int i = 0; i < 10'000; ++i) {
    if (make() == number) return;
    ::usleep(100);
  }
}

Case reused("ring_numbers_reused", EchoAll, [](int fd) {
  Ring first(4);
  if (!first.ok()) return;
  const int set = ::epoll_create1(0);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  const int number = first.fd();
  first.Control(1, set, EPOLL_CTL_ADD, fd, &in);
  first.Submit(1);
  first.Close();
  {
    std::optional<Ring> second;
    MakeAt(number, [&] { return second.emplace(8).fd(); });
    Log("the number again: %d", second->fd() == number);
    second->Control(2, set, EPOLL_CTL_MOD, fd, &in);
    second->Submit(1);
    Talk(fd, true);
    // Onto it, past libc.
    Ring third(16);
    Result("dup2",
           ::syscall(SYS_dup3, third.fd(), number, O_CLOEXEC) == number);
    third.Control(3, set, EPOLL_CTL_MOD, fd, &in);
    third.Submit(1);
    Talk(fd, true);
  }
  // A file.
  int counter = -1;
  MakeAt(number, [&] {
    ::close(counter);
    return counter = ::eventfd(0, 0);
  });
  Log("the number again: %d", counter == number);
  Result("enter", ::syscall(SYS_io_uring_enter, counter, 1, 0, 0, nullptr, 0));
  Result("enter", ::syscall(SYS_io_uring_enter, 1000, 1, 0, 0, nullptr, 0));
  Call(fd, 200);
});

// By another number, of which nobody keeps count.
Case duplicated("ring_duplicated", EchoAll, [](int fd) {
  Ring ring(4);
  if (!ring.ok()) return;
  const int set = ::epoll_create1(0);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  const int copy = ::dup(ring.fd());
  Talk(fd, true);
  ring.Control(1, set, EPOLL_CTL_ADD, fd, &in);
  Result("enter", ::syscall(SYS_io_uring_enter, copy, 1, 1,
                            IORING_ENTER_GETEVENTS, nullptr, 0));
  ring.Reap();
  char text[16] = "text";
  SendAll(fd, text, sizeof text);
  LogEvents(set, 5000);
  RecvAll(fd, text, sizeof text);
  Talk(fd, false);
});

// By its place among those that the thread has registered.
Case registered("ring_registered", EchoAll, [](int fd) {
  Ring ring(4);
  if (!ring.ok()) return;
  io_uring_rsrc_update place{};
  place.offset = ~0u;
  place.data = static_cast<std::uint64_t>(ring.fd());
  Result("register", ::syscall(SYS_io_uring_register, ring.fd(),
                               IORING_REGISTER_RING_FDS, &place, 1));
  Talk(fd, true);
  const int set = ::epoll_create1(0);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  ring.Control(1, set, EPOLL_CTL_ADD, fd, &in);
  Result("enter",
         ::syscall(SYS_io_uring_enter, place.offset, 1, 1,
                   IORING_ENTER_GETEVENTS | IORING_ENTER_REGISTERED_RING,
                   nullptr, 0));
  ring.Reap();
  char text[16] = "text";
  SendAll(fd, text, sizeof text);
  LogEvents(set, 5000);
  RecvAll(fd, text, sizeof text);
  Talk(fd, false);
});

// It ends with its last number: what it waits for it lets go of.
template <class End>
void Ends(int fd, End&& end) {
  ::signal(SIGPIPE, SIG_IGN);
  Ring ring(4);
  if (!ring.ok()) return;
  int ends[2];
  CHECK_THAT(::pipe(ends) == 0);
  char byte = 0;
  io_uring_sqe* sqe = ring.Next(1);
  sqe->opcode = IORING_OP_READ;
  sqe->fd = ends[0];
  sqe->addr = reinterpret_cast<std::uintptr_t>(&byte);
  sqe->len = 1;
  sqe->off = ~0ull;
  Result("enter", ring.Enter(1, 0));
  ::close(ends[0]);
  ring.Unmap();
  end(ring.fd());
  pollfd one{ends[1], 0, 0};
  Result("poll", ::poll(&one, 1, 5000));
  Log("revents %x", static_cast<unsigned>(one.revents));
  Talk(fd, true);
}

Case closed("ring_closed", EchoAll,
            [](int fd) { Ends(fd, [](int ring) { ::close(ring); }); });
Case closed_past("ring_closed_by_syscall", EchoAll, [](int fd) {
  Ends(fd, [](int ring) { ::syscall(SYS_close, ring); });
});
Case closed_in_range("ring_closed_in_a_range", EchoAll, [](int fd) {
  Ends(fd, [](int ring) {
    const auto number = static_cast<unsigned>(ring);
    ::syscall(SYS_close_range, number, number, 0);
  });
});
Case closed_by_dup("ring_closed_by_dup2", EchoAll, [](int fd) {
  Ends(fd, [](int ring) { CHECK_THAT(::dup2(2, ring) == ring); });
});

Case forked("ring_forked", EchoAll, [](int fd) {
  Ring ring(4);
  if (!ring.ok()) return;
  const int set = ::epoll_create1(0);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  const pid_t child = ::fork();
  CHECK_THAT(child >= 0);
  if (child == 0) {
    Ring own(4);
    own.Next(1);
    own.Submit(1);
    // (Its memory is the parent's too.)
    ring.Next(2);
    Result("of the parent", ring.Enter(1, 0));
    ::_exit(0);
  }
  LogChild(child);
  ring.Reap();
  ring.Control(3, set, EPOLL_CTL_ADD, fd, &in);
  ring.Submit(1);
  char text[16] = "text";
  SendAll(fd, text, sizeof text);
  LogEvents(set, 5000);
  RecvAll(fd, text, sizeof text);
  Call(fd, 200);
});

// Another thread writes whatever into the ring.
Case scribbled("ring_scribbled", EchoAll, [](int fd) {
  Ring ring(8);
  if (!ring.ok() || !ring.has_array()) return;
  const int set = ::epoll_create1(0);
  epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
  std::atomic<bool> ended{false};
  std::thread scribbles([&] {
    Random random{Seed()};
    const std::uint64_t any[] = {0, 1, 2, 3, 16, ~0ul, 1000, 1u << 31, 0x7c5e};
    while (!ended.load()) {
      io_uring_sqe* sqe = ring.request(static_cast<unsigned>(random.Below(8)));
      sqe->opcode = random.Below(4) == 0 ? IORING_OP_NOP : IORING_OP_EPOLL_CTL;
      sqe->flags = random.Below(8) == 0 ? IOSQE_IO_LINK : 0;
      sqe->fd =
          random.Below(2) == 0 ? set : static_cast<int>(any[random.Below(9)]);
      sqe->off = random.Below(2) == 0 ? static_cast<unsigned>(fd)
                                      : any[random.Below(9)];
      sqe->len = static_cast<unsigned>(random.Below(5));
      // (Nowhere near what a sanitizer would fault at.)
      const std::uint64_t nowhere[] = {0, 16, ~0ul};
      sqe->addr = random.Below(2) == 0 ? reinterpret_cast<std::uintptr_t>(&in)
                                       : nowhere[random.Below(3)];
      std::memcpy(reinterpret_cast<char*>(sqe) + 56, &any[random.Below(9)], 8);
      ring.Scribble(static_cast<unsigned>(any[random.Below(9)]));
    }
  });
  for (unsigned i = 0; i < 20'000; ++i) {
    ring.Push(i & 7);
    ring.Enter(i % 3 + 1, 0);
    ring.Drop();
  }
  ended.store(true);
  scribbles.join();
  Call(fd, 200);
  Log("done");
});

// Made and ended by many threads.
Case many("ring_many", EchoAll, [](int fd) {
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t) {
    all.emplace_back([fd] {
      for (int i = 0; i < 100; ++i) {
        Ring ring(4);
        if (!ring.ok()) return;
        const int set = ::epoll_create1(0);
        epoll_event in{.events = EPOLLIN, .data = {.u64 = 7}};
        ring.Control(1, set, EPOLL_CTL_ADD, fd, &in);
        if (ring.Enter(1, 1) != 1) Fail("enter: %s", ErrorName(errno));
        CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &in) != 0 &&
                   errno == EEXIST);
        ::close(set);
      }
    });
  }
  for (std::thread& one : all) one.join();
  Talk(fd, true);
});

}  // namespace
