#ifndef RCSOCK_LIB_LANE_POLLER_H_
#define RCSOCK_LIB_LANE_POLLER_H_

#include <cstdint>

namespace rcsock::lane {

// The bells of a process. A thread that shares a bell is also woken for
// another's streams, and then has to wake that other thread. So there are as
// many bells as the event loops of a large server. A BellMask has a bit for
// each.
constexpr int kBells = 64;
using BellMask = std::uint64_t;
constexpr BellMask BellBit(int k) { return BellMask{1} << k; }

// What happened on a lane whose notify bits name this poller.
struct Completion {
  void* cookie;         // what SetCookie gave the lane
  std::uint32_t flags;  // kCompletion*
};
enum : std::uint32_t {
  kCompletionRx = 1,     // something may have landed
  kCompletionTx = 2,     // credit may have come back
  kCompletionError = 4,  // the lane failed
};

// What a thread polls, and what wakes the thread: a CQ and its completion
// channel (rdma), or ready bitmaps and a bell (shm).
//
// This order loses no wake-up. A thread calls Arm(), then looks, by Poll and at
// every lane that is watched directly, then sleeps on fd(). Arm() is a full
// fence. The sender too fences between its post and its look at the armed word.
// By Dekker's argument at least one of the two sees the other.
//
// Threads: one at a time in Poll. Several may call Arm and Disarm, which count.
class Poller {
 public:
  virtual ~Poller() = default;
  // Returns up to `capacity` completions; never blocks.
  virtual int Poll(Completion* out, int capacity) = 0;
  virtual void Arm() = 0;
  virtual void Disarm() = 0;
  // Becomes readable when something comes while the poller is armed. A thread
  // watches it edge-triggered and never reads it. Each kick is then an edge in
  // every epoll set that holds it, and no sleeper can take another's wake-up.
  virtual int fd() const = 0;
  // Wakes the threads of this process that sleep on fd().
  virtual void Kick() = 0;
};

// Where the events of some lanes must be fetched: a CQ and its completion
// channel (rdma). Lanes in plain memory have no source.
//
// This order loses no wake-up: Arm(), Drain(), look at the lanes, sleep on
// fd(). Whichever thread drains, each drain gives what it finds to the lanes
// and to the board. So a watcher need not drain itself.
//
// A source is never destroyed. When its device goes, fd() becomes -1, and the
// other functions do nothing.
//
// Threads: any.
class Source {
 public:
  virtual ~Source() = default;
  // Takes what has come, gives it to its lanes, and wakes the threads that
  // watch these. Never blocks: if another thread is draining, that thread does
  // the work.
  virtual void Drain() = 0;
  // Drain for the thread that has just called Arm, before it sleeps. Returns
  // false if something has come since the source was armed. Then this call has
  // not armed the source again for that thread alone. The thread looks whether
  // its lane has something. If not, the thread calls this once more.
  virtual bool DrainToSleep() {
    Drain();
    return true;
  }
  // Arm: one more thread is about to sleep on fd(). Disarm: it has slept;
  // `rang` says that it has seen fd() readable. The source stays armed while
  // any thread sleeps.
  virtual void Arm() = 0;
  virtual void Disarm(bool rang) = 0;
  // Becomes readable when something comes while the source is armed. A thread
  // watches it edge-triggered, and never reads it.
  virtual int fd() const = 0;
};

// The bells of a process, for lanes and sources that ring them from within the
// process.
class Ringer {
 public:
  virtual ~Ringer() = default;
  // Returns true if a thread sleeps by the bell. The caller has made a full
  // fence between all that it wrote and this look.
  virtual bool Armed(int bell) const = 0;
  virtual void Kick(int bell) = 0;
};

}  // namespace rcsock::lane

#endif  // RCSOCK_LIB_LANE_POLLER_H_
