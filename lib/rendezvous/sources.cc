#include "lib/rendezvous/sources.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <utility>
#include <vector>

#include "lib/base/log.h"
#include "lib/base/unique_fd.h"
#include "lib/rendezvous/core.h"

namespace rcsock::rendezvous {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

void Sources::Want(lane::Source* source, int delta) {
  bool fresh = false;
  {
    base::LatchGuard lock(latch_);
    if (closed_) return;
    auto it = entries_.find(source);
    if (it == entries_.end()) {
      if (delta <= 0) return;
      try {
        it = entries_.try_emplace(source).first;
      } catch (...) {
        return;  // no memory: a waiting thread drains for its lanes
      }
    }
    fresh = it->second.wanted <= 0 && delta > 0;
    it->second.wanted += delta;
  }
  // When the last lane goes, nothing happens: the source stays armed until it
  // rings.  That costs one wake-up.  Otherwise a stream that is often picked up
  // and put down would cost one each time.
  if (fresh) core_->PostTask([this, source] { Watch(source); });
}

bool Sources::EnsureSet() {
  if (set_ != nullptr) return true;
  base::UniqueFd fd(base::OpenHigh(
      [&] { return ::syscall(SYS_epoll_create1, EPOLL_CLOEXEC); }));
  if (!fd.ok()) return false;
  auto set = std::make_unique<stream_descriptor>(core_->io);
  error_code error;
  set->assign(fd.get(), error);
  if (error) return false;
  fd.release();
  set_ = std::move(set);
  Wait();
  return true;
}

void Sources::Watch(lane::Source* source) {
  Entry* entry = nullptr;
  {
    base::LatchGuard lock(latch_);
    auto it = entries_.find(source);
    // The count has gone down since, so the source may no longer exist.
    if (it == entries_.end() || it->second.wanted <= 0) return;
    entry = &it->second;
  }
  if (entry->number == 0) {
    const int fd = source->fd();
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.u64 = last_number_ + 1;
    if (!EnsureSet() || ::syscall(SYS_epoll_ctl, set_->native_handle(),
                                  EPOLL_CTL_ADD, fd, &event) != 0) {
      RCSOCK_LOG(1, "a completion channel can't be watched: %d", errno);
      return;
    }
    entry->number = ++last_number_;
    entry->fd = fd;
    source->Arm();
  }
  // Arm, then drain.  What came before the arming rings bell 0 by the board.
  // What comes after makes the descriptor readable.
  source->Drain();
}

void Sources::Wait() {
  set_->async_wait(stream_descriptor::wait_read,
                   [this](const error_code& error) {
                     if (error) return;
                     Step step(core_);
                     OnRings();
                   });
}

// Takes the edges before the next wait.  What comes later makes a new edge.
void Sources::OnRings() {
  epoll_event events[16];
  const long n = ::syscall(SYS_epoll_pwait, set_->native_handle(), events,
                           std::size(events), 0, nullptr, 8);
  for (long i = 0; i < n; ++i) OnRing(events[i].data.u64);
  if (set_ != nullptr) Wait();
}

void Sources::OnRing(std::uint64_t number) {
  lane::Source* source = nullptr;
  bool wanted = false;
  {
    base::LatchGuard lock(latch_);
    for (const auto& [key, entry] : entries_) {
      if (entry.number != number) continue;
      source = key;
      wanted = entry.wanted > 0;
    }
  }
  if (source == nullptr) return;
  if (!wanted) return Sweep();
  source->Disarm(true);
  source->Arm();
  source->Drain();
}

void Sources::LetGo(lane::Source* source, Entry* entry) {
  if (entry->number == 0) return;
  epoll_event event{};
  // A descriptor that is closed has left the set already.
  ::syscall(SYS_epoll_ctl, set_->native_handle(), EPOLL_CTL_DEL, entry->fd,
            &event);
  source->Disarm(false);
}

void Sources::Sweep() {
  std::vector<std::pair<lane::Source*, Entry>> idle;
  {
    base::LatchGuard lock(latch_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      if (it->second.wanted > 0) {
        ++it;
        continue;
      }
      idle.emplace_back(it->first, it->second);
      it = entries_.erase(it);
    }
  }
  for (auto& [source, entry] : idle) LetGo(source, &entry);
}

void Sources::Close() {
  std::unordered_map<lane::Source*, Entry> entries;
  {
    base::LatchGuard lock(latch_);
    closed_ = true;
    entries.swap(entries_);
  }
  for (auto& [source, entry] : entries) LetGo(source, &entry);
  if (set_ == nullptr) return;
  base::CloseRaw(set_->release());
  set_.reset();
}

void Sources::CloseInherited() const {
  if (set_ != nullptr) base::CloseRaw(set_->native_handle());
}

}  // namespace rcsock::rendezvous
