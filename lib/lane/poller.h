#ifndef RCSOCK_LIB_LANE_POLLER_H_
#define RCSOCK_LIB_LANE_POLLER_H_

#include <cstdint>

namespace rcsock::lane {

// A process's doorbells.  Who shares one is woken for the other's streams, and
// has to pass on what it then finds: so there are as many as the event loops of
// a large server.  A bit each of a BellMask.
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

// What a thread polls, and what wakes it: a CQ and its completion channel
// (rdma), ready bitmaps and a doorbell (shm).
//
// The order that loses no wake-up: Arm(), then look (Poll, and every lane that
// is watched directly), then sleep on fd().  Arm() is a full fence, and so is
// the sender's side between its post and its look at the armed word (Dekker's
// argument: at least one of the two sees the other).
//
// Threads: one thread at a time in Poll; Arm and Disarm from several threads,
// they count.
class Poller {
 public:
  virtual ~Poller() = default;
  // Up to `capacity` completions; never blocks.
  virtual int Poll(Completion* out, int capacity) = 0;
  virtual void Arm() = 0;
  virtual void Disarm() = 0;
  // Becomes readable when armed and something comes.  Watch it edge-triggered
  // and never read it: each kick is an edge in every epoll set that holds it,
  // so that several sleepers cannot eat each other's wake-up.
  virtual int fd() const = 0;
  // Wakes whoever sleeps on fd(), from this process.
  virtual void Kick() = 0;
};

// Where the events of some lanes must be fetched: a CQ and its completion
// channel (rdma).  Lanes in plain memory have none.
//
// The order that loses no wake-up: Arm(), Drain(), look at the lanes, sleep on
// fd().  Each drain gives what it finds to the lanes and to the board, whoever
// runs it, so a watcher never depends on being the one that drains.
//
// A source is never destroyed; when its device goes, fd() becomes -1 and the
// rest does nothing.
//
// Threads: any.
class Source {
 public:
  virtual ~Source() = default;
  // Takes what has come, gives it to its lanes, and wakes whoever watches them.
  // Never blocks: if another thread is draining, it does the work.
  virtual void Drain() = 0;
  // The same by the thread that has just called Arm, before it sleeps.  False:
  // something has come since the source was armed, and for its sake alone it is
  // not armed again.  It looks whether that was for it, and if not calls this
  // once more.
  virtual bool DrainToSleep() {
    Drain();
    return true;
  }
  // One more (fewer) thread is about to sleep (has slept) on fd().  `rang`: the
  // caller has seen fd() readable.  The source stays armed while anybody
  // sleeps.
  virtual void Arm() = 0;
  virtual void Disarm(bool rang) = 0;
  // Becomes readable when armed and something comes.  Watch it edge-triggered,
  // never read it.
  virtual int fd() const = 0;
};

// The doorbells of a process, as far as a lane rings them itself.
class Ringer {
 public:
  virtual ~Ringer() = default;
  // The look is ordered after all the caller wrote by a full fence of its own.
  virtual bool Armed(int bell) const = 0;
  virtual void Kick(int bell) = 0;
};

}  // namespace rcsock::lane

#endif  // RCSOCK_LIB_LANE_POLLER_H_
