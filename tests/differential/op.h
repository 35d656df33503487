#ifndef RCSOCK_TESTS_DIFFERENTIAL_OP_H_
#define RCSOCK_TESTS_DIFFERENTIAL_OP_H_

#include <cstdint>
#include <string>
#include <vector>

// What a generated case is made of.  Any sequence of steps is a valid case: a
// step that makes no sense where it stands is answered "skip", over TCP as well
// as under the preload.
namespace differential {

// The two processes of a case: 0 connects, 1 accepts.  Each has kSlots
// descriptors: one for each connection that there is from the beginning, the
// others for duplicates and for connections that are made in the case.
constexpr int kAtFirst = 2;
constexpr int kConnections = 5;
constexpr int kSlots = 4;
constexpr int kSets = 2;
// Calls that an end may be inside of at once, besides those that its steps
// make.
constexpr int kThreads = 2;

#define DIFFERENTIAL_KINDS(X)                                             \
  X(Send, "send")           /* slot, length, way, flags */                \
  X(Recv, "recv")           /* slot, length, way, flags */                \
  X(Shutdown, "shutdown")   /* slot, how */                               \
  X(Close, "close")         /* slot */                                    \
  X(Dup, "dup")             /* slot */                                    \
  X(EpollCtl, "ctl")        /* slot, set, operation, events */            \
  X(EpollWait, "wait")      /* -, set, way */                             \
  X(Option, "option")       /* slot, which, value */                      \
  X(Error, "error")         /* slot */                                    \
  X(Select, "select")       /* slot, -, way */                            \
  X(Fork, "fork")           /* slot, length, what the child does */       \
  X(Sendfile, "sendfile")   /* slot, length */                            \
  X(Splice, "splice")       /* slot, length */                            \
  X(Print, "print")         /* slot: dprintf */                           \
  X(Urgent, "urgent")       /* slot, send, receive or ask for the mark */ \
  X(Chat, "chat")           /* slot, round trips */                       \
  X(Bulk, "bulk")           /* slot, length */                            \
  X(Fail, "fail")           /* the lanes die */                           \
  X(AsyncRecv, "arecv")     /* slot, length, -, flags; in a thread */     \
  X(AsyncPoll, "apoll")     /* slot, events, way */                       \
  X(AsyncSelect, "aselect") /* slot, -, way */                            \
  X(AsyncWait, "await")     /* -, set, way */                             \
  X(Signal, "signal")       /* -, restart or not, to which thread */      \
  X(Owner, "owner")         /* slot, who gets SIGURG, or who that is */   \
  X(More, "more")           /* slot, length, way, flags: MSG_MORE */      \
  X(Cork, "cork")           /* slot, -, on or off */                      \
  X(Connect, "connect")     /* -, how; by end 0 */                        \
  X(Accept, "accept")       /* -, how; by end 1 */                        \
  X(SendSeveral, "sendm")   /* slot, length, messages, flags */           \
  X(RecvSeveral, "recvm")   /* slot, length, messages, flags */           \
  X(AsyncSeveral, "arecvm") /* the same in a thread */                    \
  X(Timed, "timed")         /* slot, length, way, flags: SO_RCVTIMEO */   \
  X(SpliceTo, "spliceto")   /* slot, length */                            \
  X(Inq, "inq")             /* slot, length, on or off, peek: TCP_INQ */  \
  X(PeekOffset, "peekoff")  /* slot, length, offset */                    \
  X(DupOnto, "dup2")        /* slot, onto which, way */                   \
  X(Names, "names")         /* slot, room for a name or not */            \
  X(Bad, "bad")             /* slot, what is wrong */                     \
  X(Masked, "masked")       /* slot, call, time-out, set or events */     \
  X(Unconnect, "unconnect") /* slot */

enum class Kind : std::uint8_t {
#define X(name, text) k##name,
  DIFFERENTIAL_KINDS(X)
#undef X
      kCount
};

struct Op {
  Kind kind = Kind::kSend;
  std::uint8_t end = 0;
  std::uint8_t slot = 0;
  // Small numbers, whose meaning is the step's; taken modulo what there is.
  std::uint8_t a = 0;
  std::uint8_t b = 0;
  std::uint8_t c = 0;
};

// How a connection is when its case begins.
enum class Warmth : std::uint8_t {
  kCold,  // promotion comes when it comes
  kSome,  // a few round trips, so it comes soon
  kLane,  // all has left TCP
  // By the usual rules, at a service whose connections so far were worth a
  // lane: it is foreseen that this one is, too.
  kUsual,
  kCount
};

struct Case {
  Warmth warmth = Warmth::kCold;
  std::vector<Op> ops;
};

// One step a line; what Parse takes.
std::string Text(const Case& one);
bool Parse(const std::string& text, Case* one);

// Lengths that steps name by a small number.
std::size_t Length(std::uint8_t index);

// How many a call with several has.
int Messages(std::uint8_t index);

}  // namespace differential

#endif  // RCSOCK_TESTS_DIFFERENTIAL_OP_H_
