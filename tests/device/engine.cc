#include "tests/device/engine.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tests/device/raw.h"

namespace fake_device {
namespace {

// The kernel empties the page in a child of fork, by whatever call that was
// made: the child has no State yet, and the latch is free.
struct AtFork {
  std::atomic<State*> state;
  std::atomic<int> latch;
};
AtFork* Page() {
  static AtFork* const page = [] {
    const long at = Raw(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Raw(SYS_madvise, at, 4096, MADV_WIPEONFORK);
    return reinterpret_cast<AtFork*>(at);
  }();
  return page;
}
// So that a leak checker sees them all.
State* newest = nullptr;

thread_local bool on_device = false;

constexpr int kBatch = 64;
constexpr std::uint64_t kControl = ~std::uint64_t{0};

std::string ReceiveFrame(int fd, long* result) {
  static thread_local std::vector<char> buffer(sizeof(Head) + kMtu);
  *result = Raw(SYS_recvfrom, fd, Arg(buffer.data()),
                static_cast<long>(buffer.size()), MSG_DONTWAIT);
  return *result <= 0
             ? std::string()
             : std::string(buffer.data(), static_cast<std::size_t>(*result));
}

void Readable(Conn* conn) {
  State* const state = conn->state;
  const std::uint64_t serial = conn->serial;
  for (int i = 0; i < kBatch; ++i) {
    long n;
    const std::string frame = ReceiveFrame(conn->fd, &n);
    if (n == -EAGAIN) break;
    // The peer has closed with frames of ours unread; its own come first.
    if (n == -ECONNRESET || n == -EINTR) continue;
    if (n <= 0) {
      epoll_event none{};
      Raw(SYS_epoll_ctl, state->epoll, EPOLL_CTL_DEL, conn->fd, Arg(&none));
      OnBatchEnd(conn);
      OnEnd(conn);
      return;
    }
    OnFrame(conn, frame);
    if (state->conns.count(serial) == 0) return;
  }
  OnBatchEnd(conn);
}

void Handle(State* state, const epoll_event& event) {
  const std::uint64_t serial = event.data.u64;
  if (serial == kControl) return OnControl(state, -1);
  const auto conn = state->conns.find(serial);
  if (conn != state->conns.end()) {
    if ((event.events & EPOLLOUT) != 0) Pump(conn->second);
    if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0 &&
        state->conns.count(serial) != 0) {
      Readable(conn->second);
    }
    return;
  }
  const auto id = state->ids.find(serial);
  if (id != state->ids.end()) OnAccept(state, id->second);
}

void* SleepForSockets(void* argument) {
  auto* state = static_cast<State*>(argument);
  on_device = true;
  epoll_event events[16];
  for (;;) {
    const long n =
        Raw(SYS_epoll_pwait, state->epoll, Arg(events), 16, -1, 0, 8);
    const std::lock_guard hold(state->mutex);
    for (long i = 0; i < n; ++i) Handle(state, events[i]);
  }
}

void* SleepForWork(void* argument) {
  auto* state = static_cast<State*>(argument);
  on_device = true;
  std::unique_lock hold(state->mutex);
  for (;;) {
    const auto now = Clock::now();
    while (!state->timers.empty() && state->timers.begin()->first <= now) {
      const auto task = std::move(state->timers.begin()->second);
      state->timers.erase(state->timers.begin());
      task();
    }
    while (!state->tasks.empty()) {
      const auto task = std::move(state->tasks.front());
      state->tasks.pop_front();
      task();
    }
    while (!state->ready.empty()) {
      const auto conn = state->conns.find(*state->ready.begin());
      state->ready.erase(state->ready.begin());
      if (conn != state->conns.end()) Pump(conn->second);
    }
    if (!state->tasks.empty()) continue;
    if (state->timers.empty()) {
      state->some.wait(hold);
    } else {
      state->some.wait_until(hold, state->timers.begin()->first);
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A function of libc's own table: dlsym() gives the preload's in its place.
// Null: libc has none of this name.
void* FindInLibc(std::string_view name) {
  void* const handle = ::dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  const auto* const libc = static_cast<const link_map*>(handle);
  if (libc == nullptr) return nullptr;
  const ElfW(Sym)* symbol = nullptr;
  const char* names = nullptr;
  for (const ElfW(Dyn)* one = libc->l_ld; one->d_tag != DT_NULL; ++one) {
    if (one->d_tag == DT_SYMTAB) {
      symbol = reinterpret_cast<const ElfW(Sym)*>(one->d_un.d_ptr);
    } else if (one->d_tag == DT_STRTAB) {
      names = reinterpret_cast<const char*>(one->d_un.d_ptr);
    }
  }
  // The names follow the symbols.
  for (; reinterpret_cast<const char*>(symbol + 1) <= names; ++symbol) {
    if (symbol->st_value != 0 && names + symbol->st_name == name) {
      return reinterpret_cast<void*>(libc->l_addr + symbol->st_value);
    }
  }
  return nullptr;
}
#endif

// libc's own, where that can be: by the preload's name the program would count
// as one that makes threads.
int MakeThread(void* (*body)(void*), void* argument) {
  auto* create = &::pthread_create;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  if (void* found = FindInLibc("pthread_create")) {
    create = reinterpret_cast<decltype(create)>(found);
  }
#endif
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  ::pthread_attr_setstacksize(&attributes, 512 << 10);
  pthread_t thread;
  const int error = create(&thread, &attributes, body, argument);
  ::pthread_attr_destroy(&attributes);
  if (error != 0) return error;
  // A device has no threads: libc must not wait for them to call exit, when the
  // program's last one has ended.
  if (void* count = ::dlsym(RTLD_DEFAULT, "__nptl_nthreads")) {
    __atomic_sub_fetch(static_cast<unsigned*>(count), 1, __ATOMIC_RELAXED);
  }
  return 0;
}

// Begins in the program's descriptor table, and leaves it.
void* Begin(void* argument) {
  auto* state = static_cast<State*>(argument);
  bool good = Raw(SYS_unshare, CLONE_FILES) == 0 &&
              Raw(SYS_close_range, 0, ~0u, 0) == 0;
  if (good) {
    // Nobody's output may go to a socket.
    for (int i = 0; i < 3; ++i) {
      Raw(SYS_openat, AT_FDCWD, Arg("/dev/null"), O_RDWR);
    }
    state->epoll = static_cast<int>(Raw(SYS_epoll_create1, EPOLL_CLOEXEC));
    good = state->epoll >= 0;
  }
  if (good) {
    const int control = OpenControl(state);
    if (control >= 0) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = kControl;
      Raw(SYS_epoll_ctl, state->epoll, EPOLL_CTL_ADD, control, Arg(&event));
    }
    good = MakeThread(&SleepForWork, state) == 0;
  }
  {
    const std::lock_guard hold(state->mutex);
    state->up = good;
    state->failed = !good;
    state->done.notify_all();
  }
  return good ? SleepForSockets(state) : nullptr;
}

State* Make() {
  auto* state = new State(ReadOptions());
  state->before = newest;
  newest = state;
  std::uint32_t random = 0;
  Raw(SYS_getrandom, Arg(&random), sizeof random, 0);
  state->next_key = random | 1;
  state->next_qp = random >> 8;
  Count(&Counts::processes);
  // All signals are the program's, but libc's own two.
  std::uint64_t all = ~(std::uint64_t{3} << 31);
  std::uint64_t before = 0;
  Raw(SYS_rt_sigprocmask, SIG_SETMASK, Arg(&all), Arg(&before), 8);
  int cancel;
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  {
    std::unique_lock hold(state->mutex);
    if (MakeThread(&Begin, state) != 0) {
      state->failed = true;
    } else {
      state->done.wait(hold, [&] { return state->up || state->failed; });
    }
  }
  ::pthread_setcancelstate(cancel, nullptr);
  Raw(SYS_rt_sigprocmask, SIG_SETMASK, Arg(&before), 0, 8);
  return state;
}

}  // namespace

State* Current() {
  AtFork* const page = Page();
  State* state = page->state.load(std::memory_order_acquire);
  if (state != nullptr) return state;
  while (page->latch.exchange(1, std::memory_order_acquire) != 0) {
    ::sched_yield();
  }
  state = page->state.load(std::memory_order_relaxed);
  if (state == nullptr) {
    state = Make();
    page->state.store(state, std::memory_order_release);
  }
  page->latch.store(0, std::memory_order_release);
  return state;
}

void CheckOwner(const State* owner, const char* what) {
  if (owner == Current()) return;
  Count(&Counts::of_parent);
  char text[128];
  const int n =
      std::snprintf(text, sizeof text,
                    "fake device: %s of the parent's, used in a child\n", what);
  Raw(SYS_write, 2, Arg(text), n);
  std::abort();
}

void State::Call(std::unique_lock<std::mutex>* hold,
                 std::function<void()> task) {
  if (!up) return;
  int cancel;
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  bool finished = false;
  tasks.push_back([&] {
    task();
    finished = true;
    done.notify_all();
  });
  some.notify_all();
  done.wait(*hold, [&] { return finished; });
  ::pthread_setcancelstate(cancel, nullptr);
}

void State::Later(std::chrono::microseconds after, std::function<void()> task) {
  timers.emplace(Clock::now() + after, std::move(task));
  some.notify_all();
}

void State::Ready(const Conn* conn) {
  if (ready.insert(conn->serial).second) some.notify_all();
}

// By a name, so that /proc shows what it is, as of the kernel's own.
bool MakeFifo(State* state, std::unique_lock<std::mutex>* hold, Fifo* fifo,
              int* read_fd) {
  *read_fd = -1;
  if (!state->up) {
    errno = ENODEV;
    return false;
  }
  const std::string path = state->options.directory + "/" +
                           std::to_string(Raw(SYS_getpid)) + "." +
                           std::to_string(state->next_fifo++);
  long result = 0;
  state->Call(hold, [&] {
    result = Raw(SYS_mknodat, AT_FDCWD, Arg(path.c_str()), S_IFIFO | 0600, 0);
    if (result < 0) return;
    result = Raw(SYS_openat, AT_FDCWD, Arg(path.c_str()),
                 O_RDWR | O_NONBLOCK | O_CLOEXEC);
    fifo->write_fd = static_cast<int>(result);
  });
  if (result >= 0) {
    result = Raw(SYS_openat, AT_FDCWD, Arg(path.c_str()), O_RDONLY | O_CLOEXEC);
  }
  Raw(SYS_unlinkat, AT_FDCWD, Arg(path.c_str()), 0);
  if (result >= 0) {
    *read_fd = static_cast<int>(result);
    return true;
  }
  CloseFifo(state, hold, fifo);
  errno = static_cast<int>(-result);
  return false;
}

void CloseFifo(State* state, std::unique_lock<std::mutex>* hold, Fifo* fifo) {
  const int fd = fifo->write_fd;
  fifo->write_fd = -1;
  if (fd >= 0) state->Call(hold, [fd] { Raw(SYS_close, fd); });
}

// (The descriptor is one of the device threads' table.)
void Tell(State* state, const Fifo& fifo, const void* record,
          std::size_t length) {
  const int fd = fifo.write_fd;
  if (fd < 0) return;
  if (on_device) {
    Raw(SYS_write, fd, Arg(record), static_cast<long>(length));
    return;
  }
  const std::string bytes(static_cast<const char*>(record), length);
  state->tasks.push_back([fd, bytes] {
    Raw(SYS_write, fd, Arg(bytes.data()), static_cast<long>(bytes.size()));
  });
  state->some.notify_all();
}

}  // namespace fake_device
