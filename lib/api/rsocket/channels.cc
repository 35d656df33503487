#include "lib/api/rsocket/channels.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "lib/base/backoff.h"
#include "lib/base/mutex.h"
#include "lib/include/rcsock/rcsock.h"

namespace rcsock::rsocket {
namespace {

constexpr int kMost = 65536;
constexpr int kLookMs = 50;
std::atomic<bool> present[kMost];

// Leaked: a thread may still wait when the process ends.
struct Registry {
  base::Mutex latch;
  std::map<int, std::shared_ptr<Channel>> channels RC_GUARDED_BY(latch);
  int pump_pid RC_GUARDED_BY(latch) = 0;
  int kick = -1;
};
void ForkPrepare();
void ForkParent();
void ForkChild();
Registry& All() {
  static auto* registry = [] {
    ::pthread_atfork(&ForkPrepare, &ForkParent, &ForkChild);
    return new Registry;
  }();
  return *registry;
}

// At a fork no other thread may hold a latch: the child would not have that
// thread. Elsewhere a thread takes the registry's latch after a channel's
// latch, so here a channel's latch is only tried.
bool held_by_fork = false;

void ForkPrepare() {
  Registry& all = All();
  for (base::Backoff backoff;; backoff.Wait()) {
    all.latch.LockForFork();
    all.latch.AssertHeld();
    auto next = all.channels.begin();
    while (next != all.channels.end() && next->second->TryHold()) ++next;
    if (next == all.channels.end()) break;
    while (next != all.channels.begin()) (--next)->second->LetGo();
    all.latch.UnlockAfterFork();
  }
  held_by_fork = true;
}

void ForkParent() {
  if (!std::exchange(held_by_fork, false)) return;
  Registry& all = All();
  all.latch.AssertHeld();
  for (const auto& [fd, channel] : all.channels) channel->LetGo();
  all.latch.UnlockAfterFork();
}

void ForkChild() {
  if (!std::exchange(held_by_fork, false)) return;
  Registry& all = All();
  all.latch.AssertHeld();
  for (const auto& [fd, channel] : all.channels) {
    channel->InChild();
    channel->LetGo();
  }
  all.latch.UnlockAfterFork();
}

void Kick() {
  const std::uint64_t one = 1;
  const int fd = All().kick;
  if (fd >= 0 && ::write(fd, &one, sizeof one) < 0) {
    // Full: the pump is awake anyway.
  }
}

struct Pumped {
  std::vector<std::shared_ptr<Channel>> mine;
  std::vector<pollfd> fds;
};

void Turn(int kick, Pumped* pumped) {
  auto& [mine, fds] = *pumped;
  mine.clear();
  fds.assign(1, {kick, POLLIN, 0});
  {
    const base::MutexGuard hold(All().latch);
    for (const auto& [fd, channel] : All().channels) {
      if (channel->framed() &&
          (channel->mapped() || channel->owes() || channel->placing())) {
        mine.push_back(channel);
      }
    }
  }
  bool placing = false;
  for (const auto& channel : mine) {
    channel->Progress();
    channel->LookPlaced();
    placing = placing || channel->placing();
    short events = channel->SendOwed() ? POLLOUT : 0;
    int fd;
    {
      const base::MutexGuard hold(channel->rx());
      fd = channel->fd();
      // The application takes data, and what follows the data comes after.
      channel->parked =
          channel->DataFirst() || channel->Ended() || !channel->mapped();
      if (!channel->parked) events |= POLLIN;
    }
    fds.push_back({events != 0 ? fd : -1, events, 0});
  }
  // A lane that dies does not wake a thread that waits for bytes.
  const int timeout = placing ? kLookMs : -1;
  if (rcs_poll(fds.data(), fds.size(), timeout) < 0) return;
  if ((fds[0].revents & POLLIN) != 0) {
    std::uint64_t count;
    if (::read(kick, &count, sizeof count) < 0) return;
  }
}

void* Run(void* kick) {
  Pumped pumped;
  for (;;) {
    try {
      Turn(static_cast<int>(reinterpret_cast<std::intptr_t>(kick)), &pumped);
    } catch (const std::bad_alloc&) {
      ::poll(nullptr, 0, kLookMs);  // there may be some later
    }
  }
}

}  // namespace

bool Channels::Has(int fd) {
  return static_cast<unsigned>(fd) < kMost &&
         present[fd].load(std::memory_order_acquire);
}

bool Channels::CanHold(int fd) { return static_cast<unsigned>(fd) < kMost; }

std::shared_ptr<Channel> Channels::Find(int fd) {
  if (!Has(fd)) return nullptr;
  const base::MutexGuard hold(All().latch);
  const auto found = All().channels.find(fd);
  return found == All().channels.end() ? nullptr : found->second;
}

std::shared_ptr<Channel> Channels::Make(int fd) {
  if (!CanHold(fd)) throw std::bad_alloc();
  const base::MutexGuard hold(All().latch);
  std::shared_ptr<Channel>& slot = All().channels[fd];
  if (slot == nullptr) slot = std::make_shared<Channel>(fd);
  present[fd].store(true, std::memory_order_release);
  return slot;
}

bool Channels::IsOtherEnd(int fd, std::uint64_t cookie_at) {
  sockaddr_storage peer{};
  socklen_t peer_size = sizeof peer;
  if (rcs_getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) !=
      0) {
    return false;
  }
  const base::MutexGuard hold(All().latch);
  for (const auto& [number, channel] : All().channels) {
    if (!channel->HasCookieAt(cookie_at)) continue;
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    return rcs_getsockname(number, reinterpret_cast<sockaddr*>(&name), &size) ==
               0 &&
           size == peer_size && std::memcmp(&name, &peer, size) == 0;
  }
  return false;
}

void Channels::Forget(int fd) {
  if (!Has(fd)) return;
  std::shared_ptr<Channel> gone;
  {
    const base::MutexGuard hold(All().latch);
    present[fd].store(false, std::memory_order_release);
    const auto found = All().channels.find(fd);
    if (found == All().channels.end()) return;
    gone = std::move(found->second);
    All().channels.erase(found);
  }
  const bool pumped = gone->mapped();
  gone->Close();
  if (pumped) Kick();
}

int Channels::Start() {
  const base::MutexGuard hold(All().latch);
  // fork does not copy the thread.
  if (All().pump_pid == ::getpid()) return 0;
  const int kick = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (kick < 0) return errno;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int error = ::pthread_create(&thread, nullptr, &Run,
                                     reinterpret_cast<void*>(intptr_t{kick}));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) {
    ::close(kick);
    return error;
  }
  ::pthread_detach(thread);
  All().pump_pid = ::getpid();
  All().kick = kick;
  return 0;
}

void Channels::Pump() {
  if (Start() == 0) Kick();
}

void Channels::Taken(const std::shared_ptr<Channel>& channel) {
  if (!channel->mapped()) return;
  bool parked;
  {
    const base::MutexGuard hold(channel->rx());
    parked = channel->parked && !channel->DataFirst();
    if (parked) channel->parked = false;
  }
  if (parked) Kick();
}

}  // namespace rcsock::rsocket
