#include "lib/rendezvous/anchors.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace rcsock::rendezvous {
namespace {

constexpr int kBatch = 64;

// An event taken just before another thread's Unwatch is stale once.  A
// registration that nobody can remove makes a stale event in every batch.
constexpr int kStaleBatches = 4;

int NewSet() {
  return base::OpenHigh(
      [&] { return ::syscall(SYS_epoll_create1, EPOLL_CLOEXEC); });
}

int Control(int set, int op, int fd, std::uint32_t events,
            std::uint32_t generation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<std::uint64_t>(generation) << 32 |
                   static_cast<std::uint32_t>(fd);
  return ::syscall(SYS_epoll_ctl, set, op, fd, &event) == 0 ? 0 : -errno;
}

}  // namespace

bool Anchors::Init() {
  set_.reset(NewSet());
  return set_.ok();
}

void Anchors::Close() {
  // Destroyed without the latch.
  std::unordered_map<int, Entry> entries;
  base::LatchGuard lock(latch_);
  entries.swap(entries_);
  set_.reset();
}

void Anchors::CloseInherited() {
  // If the latch is held, its holder is a thread of the parent that was
  // changing the set.
  if (!latch_.try_lock()) return;
  for (const auto& [fd, entry] : entries_) {
    if (base::IsInternalFd(fd)) base::CloseRaw(fd);
  }
  latch_.unlock();
}

bool Anchors::Any() {
  base::LatchGuard lock(latch_);
  return !entries_.empty();
}

bool Anchors::Add(int fd, const Entry& entry) {
  int r =
      Control(set_.get(), EPOLL_CTL_ADD, fd, entry.events, entry.generation);
  if (r == -EEXIST) {
    r = Control(set_.get(), EPOLL_CTL_MOD, fd, entry.events, entry.generation);
  }
  return r == 0;
}

bool Anchors::Watch(int fd, std::shared_ptr<AnchorWatcher> watcher,
                    std::uint32_t events) {
  std::shared_ptr<AnchorWatcher> old;  // destroyed without the latch
  base::LatchGuard lock(latch_);
  Entry entry{++generation_, events, std::move(watcher)};
  try {
    entries_.try_emplace(fd);
  } catch (...) {
    return false;  // no memory
  }
  Entry& slot = entries_[fd];
  old = std::exchange(slot, std::move(entry)).watcher;
  if (Add(fd, slot)) return true;
  old = std::move(slot.watcher);
  entries_.erase(fd);
  return false;
}

void Anchors::Rewatch(int fd, std::uint32_t events) {
  base::LatchGuard lock(latch_);
  auto it = entries_.find(fd);
  if (it == entries_.end() || it->second.events == events) return;
  it->second.events = events;
  Control(set_.get(), EPOLL_CTL_MOD, fd, events, it->second.generation);
}

void Anchors::Unwatch(int fd) {
  std::shared_ptr<AnchorWatcher> old;
  base::LatchGuard lock(latch_);
  auto it = entries_.find(fd);
  if (it == entries_.end()) return;
  Control(set_.get(), EPOLL_CTL_DEL, fd, 0, 0);
  old = std::move(it->second.watcher);
  entries_.erase(it);
}

bool Anchors::Dispatch() {
  epoll_event events[kBatch];
  const long n =
      ::syscall(SYS_epoll_pwait, set_.get(), events, kBatch, 0, nullptr, 8);
  bool stale = false;
  for (long i = 0; i < n; ++i) {
    const int fd = static_cast<int>(events[i].data.u64 & 0xffffffff);
    const auto generation =
        static_cast<std::uint32_t>(events[i].data.u64 >> 32);
    std::shared_ptr<AnchorWatcher> watcher;
    {
      base::LatchGuard lock(latch_);
      auto it = entries_.find(fd);
      if (it != entries_.end() && it->second.generation == generation) {
        watcher = it->second.watcher;
      }
    }
    if (watcher != nullptr) {
      watcher->OnAnchor(events[i].events);
    } else {
      stale = true;
    }
  }
  stale_ = stale ? stale_ + 1 : 0;
  return stale_ >= kStaleBatches;
}

bool Anchors::Rebuild() {
  base::UniqueFd old;
  base::LatchGuard lock(latch_);
  base::UniqueFd fresh(NewSet());
  if (!fresh.ok()) return false;
  old = std::exchange(set_, std::move(fresh));
  stale_ = 0;
  for (const auto& [fd, entry] : entries_) Add(fd, entry);
  return true;
}

}  // namespace rcsock::rendezvous
