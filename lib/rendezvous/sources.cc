#include "lib/rendezvous/sources.h"

#include <mutex>
#include <utility>
#include <vector>

#include "lib/base/log.h"
#include "lib/rendezvous/core.h"

namespace rcsock::rendezvous {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

void Sources::Want(lane::Source* source, int delta) {
  bool fresh = false;
  {
    std::lock_guard lock(latch_);
    if (closed_) return;
    auto it = entries_.find(source);
    if (it == entries_.end()) {
      if (delta <= 0) return;
      try {
        it = entries_.try_emplace(source).first;
      } catch (...) {
        return;  // no memory: its lanes wait for somebody else's drain
      }
    }
    fresh = it->second.wanted <= 0 && delta > 0;
    it->second.wanted += delta;
  }
  // The other way nothing is said: the source stays armed until it rings, which
  // costs one wake-up, where a stream that is often picked up and put down
  // would cost one each time.
  if (fresh) core_->PostTask([this, source] { Watch(source); });
}

void Sources::Watch(lane::Source* source) {
  Entry* entry = nullptr;
  {
    std::lock_guard lock(latch_);
    auto it = entries_.find(source);
    // Counted down since: the source may be gone.
    if (it == entries_.end() || it->second.wanted <= 0) return;
    entry = &it->second;
  }
  if (entry->descriptor == nullptr) {
    auto descriptor = std::make_unique<stream_descriptor>(core_->io);
    error_code error;
    descriptor->assign(source->fd(), error);
    if (error) {
      RCSOCK_LOG(1, "a completion channel can't be watched: %d", error.value());
      return;
    }
    entry->descriptor = std::move(descriptor);
    entry->number = ++last_number_;
    source->Arm();
    Wait(source, entry);
  }
  // Armed, then drained: what came before rings bell 0 by the board, what comes
  // after makes the descriptor readable.
  source->Drain();
}

void Sources::Wait(lane::Source* source, Entry* entry) {
  entry->descriptor->async_wait(
      stream_descriptor::wait_read,
      [this, source, number = entry->number](const error_code& error) {
        if (error) return;  // let go of
        Step step(core_);
        OnRing(source, number);
      });
}

void Sources::OnRing(lane::Source* source, std::uint32_t number) {
  Entry* entry = nullptr;
  bool wanted = false;
  {
    std::lock_guard lock(latch_);
    auto it = entries_.find(source);
    if (it == entries_.end() || it->second.number != number) return;
    entry = &it->second;
    wanted = entry->wanted > 0;
  }
  if (!wanted) return Sweep();
  source->Disarm(true);
  source->Arm();
  Wait(source, entry);
  source->Drain();
}

void Sources::LetGo(lane::Source* source, Entry* entry) {
  if (entry->descriptor == nullptr) return;
  entry->descriptor->release();
  entry->descriptor.reset();
  source->Disarm(false);
}

void Sources::Sweep() {
  std::vector<std::pair<lane::Source*, Entry>> idle;
  {
    std::lock_guard lock(latch_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      if (it->second.wanted > 0) {
        ++it;
        continue;
      }
      idle.emplace_back(it->first, std::move(it->second));
      it = entries_.erase(it);
    }
  }
  for (auto& [source, entry] : idle) LetGo(source, &entry);
}

void Sources::Close() {
  decltype(entries_) entries;
  {
    std::lock_guard lock(latch_);
    closed_ = true;
    entries.swap(entries_);
  }
  for (auto& [source, entry] : entries) LetGo(source, &entry);
}

}  // namespace rcsock::rendezvous
