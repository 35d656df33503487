#ifndef RCSOCK_TESTS_POSIX_PAIR_H_
#define RCSOCK_TESTS_POSIX_PAIR_H_

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tests/posix/common.h"

// Programs that know sockets and nothing else.  Each case is two processes, a
// server and a client, that tell what they saw; tests/posix/both runs a program
// over plain TCP and under the preload and compares.
namespace pair {

// One line of what this end saw.  Only what plain TCP would always give: no
// times, no counts that depend on how bytes happened to be cut.
void Log(const char* format, ...) __attribute__((format(printf, 1, 2)));
const char* ErrorName(int error);
// Logs "what: n" or "what: ECONNRESET".  Returns n.
long Result(const char* what, long n);
// Ends the process, and the run, with a message.
[[noreturn]] void Fail(const char* format, ...)
    __attribute__((format(printf, 1, 2)));
#define CHECK_THAT(condition)                                             \
  do {                                                                    \
    if (!(condition)) {                                                   \
      ::pair::Fail("%s:%d: %s, errno %s", __FILE__, __LINE__, #condition, \
                   ::pair::ErrorName(errno));                             \
    }                                                                     \
  } while (0)

// Both ends call it; returns when both have.  Goes past the connection.
void Barrier();
// A number from one end to the other, past the connection.
void Tell(std::int64_t value);
std::int64_t Hear();

bool IsClient();
// RCSOCK or not: only for budgets, never for what is expected.
int Scale(int plain);

// Blocking helpers; Fail on anything but success.
void SendAll(int fd, const void* from, std::size_t length);
void RecvAll(int fd, void* to, std::size_t length);
// So many messages of 16 bytes come, and go back; and the other end of that.
void Echo(int fd, int count);
void Call(int fd, int count);
// SIGSTOP; returns when the process stands.
void Stop(pid_t pid);
// Returns when a thread of a process sleeps.
void AwaitAsleep(pid_t pid, pid_t thread);
// Reads to EOF or an error; returns how many bytes, *error 0 or errno.
std::size_t Drain(int fd, int* error);
// Logs both.
void LogDrain(int fd);
// Speaks lines to a program that gives each back (cat), and then its end.
void SpeakToCat(int fd);
// Waits for its end, and logs its status.
void LogChild(pid_t child);
// Waits until so many bytes can be read, and logs how many can.
void AwaitBytes(int fd, int wanted);
// Logs what poll says once it says all of `wanted`.
void AwaitPoll(int fd, short events, short wanted);
// Round trips until the bytes no longer go through the kernel's TCP (with
// PAIR_WARM=lane in the environment, or in the first case with PAIR_FIRST=lane;
// else a few), then returns on both ends.
void Warm(int fd);
// The same between other processes: one of them asks, the other answers.
void WarmAs(int fd, bool asks);
// True if `fd` has not used TCP for a while: asks the kernel (TCP_INFO).
std::uint64_t TcpBytes(int fd);

using posix_test::NowMs;
void SetNonblock(int fd, bool on);

// Returns when the kernel stamps what comes (SO_TIMESTAMP), which it begins a
// while after the first socket of the host wants it: by a worker of its own.
void AwaitStamps();

// Deterministic bytes: what stands at `offset` of stream `seed`.
void Pattern(std::uint64_t seed, std::uint64_t offset, void* to,
             std::size_t length);
bool IsPattern(std::uint64_t seed, std::uint64_t offset, const void* from,
               std::size_t length);
using posix_test::Random;
std::uint64_t Seed();  // PAIR_SEED, or 1

using End = std::function<void(int fd)>;
struct Options {
  bool warm = true;
  bool connect = true;  // else the ends get fd -1 / the listener's port by Hear
  int seconds = 20;
};
// A value that the compiler has no opinion on.
template <class T>
T Opaque(T value) {
  static volatile T kept;
  kept = value;
  return kept;
}

// Registers a case; Main runs those whose name contains argv[1] (or all).
struct Case {
  Case(const char* name, End server, End client, Options options = {});
};
int Listen(int* port);
int Connect(int port);
// Fails on error, as these.
int Accept(int listener);
// Between ends that connect by themselves: one listens, the other hears where.
int ListenAndTell();
int HearPort();
int Main(int argc, char** argv);

}  // namespace pair

#endif  // RCSOCK_TESTS_POSIX_PAIR_H_
