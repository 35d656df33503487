#ifndef RCSOCK_TESTS_DIFFERENTIAL_PROTOCOL_H_
#define RCSOCK_TESTS_DIFFERENTIAL_PROTOCOL_H_

#include <cstdint>

#include "tests/differential/op.h"

// What the driver and an agent say to each other: one Request, one Reply, over
// a socket pair that the agent inherits as kControl.
namespace differential {

constexpr int kControl = 200;

enum class Ask : std::uint8_t {
  kListen,   // -> value: the port
  kBegin,    // new sets; connection `number`: to `port`, or accepted
  kWarm,     // `number` of connections, `port`: Warmth
  kStep,     // op; of those that make a connection, `number` of it; `port`
  kPartner,  // op, which the other end makes: the part of this one
  kAgain,    // the thread's call, which has ended, once more
  kLook,     // what can be seen without changing it
  kEnd,      // closes all
};

struct Request {
  Ask ask;
  std::uint8_t number = 0;
  Op op;
  std::int32_t port = 0;
  bool failed = false;  // lanes have died in this case
};

struct SlotLook {
  std::int32_t connection;  // -1: no descriptor
  std::int32_t revents;
  std::int32_t readable;
  std::int32_t state;  // TCP's
};

struct Reply {
  std::int64_t value;
  // What is compared.
  char text[256];
  SlotLook slots[kSlots];
  struct Thread {
    std::int32_t state;  // 0 none, 1 it is inside a call, 2 that has ended
    char ended[128];     // with this
  } threads[kThreads];
  bool backlog;  // there is something to accept
  bool busy;     // a thread is not asleep: it may be about to end
  bool urgent;   // SIGURG has come
};

}  // namespace differential

#endif  // RCSOCK_TESTS_DIFFERENTIAL_PROTOCOL_H_
