#ifndef RCSOCK_LIB_POSIX_IOMUX_POLL_SOURCES_H_
#define RCSOCK_LIB_POSIX_IOMUX_POLL_SOURCES_H_

#include "lib/lane/poller.h"
#include "lib/posix/iomux/thread_bells.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

// The sources that one call of poll sleeps on: those of the lanes to other
// hosts among its streams.  The calling thread alone uses it.
class PollSources {
 public:
  bool empty() const { return count_ == 0; }
  void Clear() { count_ = 0; }
  // Adds the source, if there is one and it is new.  Returns false if the
  // thread cannot sleep on it.
  bool Want(lane::Source* source) {
    if (Wanted(source)) return true;
    if (count_ == kThreadSources || !EnsureSource(source)) return false;
    sources_[count_++] = source;
    return true;
  }
  // Returns whether Want has added the source, or there is none.
  bool Wanted(lane::Source* source) const {
    if (source == nullptr) return true;
    for (int i = 0; i < count_; ++i) {
      if (sources_[i] == source) return true;
    }
    return false;
  }
  void Arm() {
    const Critical critical;
    for (int i = 0; i < count_; ++i) sources_[i]->Arm();
  }
  void Drain() {
    for (int i = 0; i < count_; ++i) {
      const Critical critical;
      sources_[i]->Drain();
    }
  }
  // `rang`: one of the thread's bells or sources has rung since Arm.
  void Disarm(bool rang) {
    for (int i = 0; i < count_; ++i) {
      const Critical critical;
      sources_[i]->Disarm(rang);
    }
  }

 private:
  lane::Source* sources_[kThreadSources];
  int count_ = 0;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_POLL_SOURCES_H_
