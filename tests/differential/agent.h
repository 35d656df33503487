#ifndef RCSOCK_TESTS_DIFFERENTIAL_AGENT_H_
#define RCSOCK_TESTS_DIFFERENTIAL_AGENT_H_

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/differential/protocol.h"

// One end of a case: makes the calls that the driver asks for.  Knows sockets
// and nothing of rcsock, but for FailLanes.
namespace differential {

// --- What this end has (agent.cc)
struct Slot {
  int fd = -1;
  int connection = -1;
};
extern Slot slots[kSlots];
extern int sets[kSets];
extern std::uint64_t tx_at[kConnections];
extern bool accepts;
extern std::atomic<int> sigpipes;
extern std::atomic<int> signals;  // SIGUSR1 and SIGUSR2

// --- What it says of a call
std::string Print(const char* format, ...)
    __attribute__((format(printf, 1, 2)));
// What it has returned, or errno's name.
std::string Outcome(long n);
std::string Hash(const char* from, long n);
[[noreturn]] void Die(const char* why);

// What this end sends on a connection, in its order.
std::vector<char> Bytes(int connection, std::size_t length);
void Brief();

// --- Calls in threads of their own (agent_threads.cc)
struct Pending {
  pthread_t thread;
  std::function<std::string()> call;
  int connection;  // -1: a set
  bool takes;      // bytes, so that others would see a race
  std::atomic<int> tid{0};
  std::atomic<bool> done{false};
  std::string result;
};
extern Pending* threads[kThreads];

// The thread of this process is in a call that sleeps.
bool Asleep(int tid);
bool IsPending(int i);
bool IsPending();
// In a thread that has nothing to do; "skip": it would be a race over TCP too.
std::string StartPending(int connection, bool takes,
                         std::function<std::string()> call);
// The same call once more.
void PendingAgain(int i);
void JoinPending(int i);

// --- Single calls (agent_calls.cc); *value: bytes moved
std::string DoSend(const Slot& slot, const Op& op, long* value);
std::string DoRecv(int fd, std::size_t length, int way, int which, bool wait,
                   long* value);
std::uint32_t Events(std::uint8_t index);
// Way: epoll_wait, epoll_pwait, epoll_pwait2.  `first`: what it has told
// before.
std::string DoWait(int set, int timeout, int way,
                   const epoll_event* first = nullptr);
std::string DoOption(int fd, const Op& op);
// Way: select, pselect.
std::string DoSelect(int fd, timeval* time, int way);
std::string DoFork(Slot* slot, const Op& op, long* value);
std::string DoSplice(int fd, std::size_t length, long* value);
std::string DoUrgent(const Slot& slot, const Op& op, long* value);
std::string DoCork(int fd, bool on);
// The new descriptor, or less than 0.
std::string DoConnect(int port, int how, int* fd);
std::string DoAccept(int listener, int how, int* fd);
std::string FailLanes();
// Lanes have died in this case.
extern bool failed;
// While a stream goes back to TCP nothing can be written; who then waits until
// something can, tries again.
bool Again(int fd);

// --- With several messages, or in other ways (agent_several.cc)
std::string DoSendSeveral(const Slot& slot, const Op& op, long* value);
std::string DoRecvSeveral(int fd, const Op& op, bool wait, long* value);
std::string DoTimed(int fd, const Op& op, long* value);
std::string DoSpliceTo(const Slot& slot, std::size_t length, long* value);
std::string DoInq(int fd, const Op& op, long* value);
std::string DoPeekOffset(int fd, const Op& op);

// --- Without bytes (agent_corners.cc)
std::string DoNames(int fd, int service, int how);
std::string DoBad(int fd, const Op& op);
std::string DoMasked(int fd, const Op& op);
std::string DoDupOnto(const Slot& from, Slot* to, int how);
std::string DoUnconnect(int fd);

// --- Both ends at once (agent_both.cc)
bool RoundTrips(int fd, bool first, int count);
// Until the bytes no longer use TCP, if `lane`.
std::string Warm(int fd, bool lane);
std::string DoBulk(const Slot& slot, bool sends, std::uint8_t index);

}  // namespace differential

#endif  // RCSOCK_TESTS_DIFFERENTIAL_AGENT_H_
