#ifndef RCSOCK_LIB_LANE_POLLER_H_
#define RCSOCK_LIB_LANE_POLLER_H_

#include <cstdint>

namespace rcsock::lane {

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
// The order that loses no wake-up: Arm(), then look (Poll, and every lane that is
// watched directly), then sleep on fd().  Arm() is a full fence, and so is the
// sender's side between its post and its look at the armed word (Dekker's
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
  // and never read it: each kick is an edge in every epoll set that holds it, so
  // that several sleepers cannot eat each other's wake-up.
  virtual int fd() const = 0;
  // Wakes whoever sleeps on fd(), from this process.
  virtual void Kick() = 0;
};

}  // namespace rcsock::lane

#endif  // RCSOCK_LIB_LANE_POLLER_H_
