#ifndef RCSOCK_TESTS_POSIX_UNDER_H_
#define RCSOCK_TESTS_POSIX_UNDER_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/posix/common.h"

// For tests of which one process runs under the preload and another does not:
// the test starts itself again under it, and reads the statistics it leaves.
namespace under {

// Ends the test with a message.
[[noreturn]] void Fail(const char* format, ...)
    __attribute__((format(printf, 1, 2)));
#define CHECK_THAT(condition)                                              \
  do {                                                                     \
    if (!(condition)) {                                                    \
      ::under::Fail("%s:%d: %s, errno %d", __FILE__, __LINE__, #condition, \
                    errno);                                                \
    }                                                                      \
  } while (0)

constexpr const char* kSelf = "/proc/self/exe";

// Runs `program` with `args` under the preload `shim`; `settings` are of the
// environment (NAME=value).  It dies with its parent.
//
// A test that has code of rcsock needs another program than itself: that code
// makes system calls of its own, which keep all connections on TCP.
pid_t Start(const std::string& shim, const std::vector<std::string>& args,
            const std::vector<std::string>& settings,
            const std::string& program = kSelf);
// This process becomes `program`, as Start says.
[[noreturn]] void Become(const std::string& shim,
                         const std::vector<std::string>& args,
                         const std::vector<std::string>& settings,
                         const std::string& program = kSelf);
// Waits for its end, `seconds` at most; Fail unless it ended with status 0.
void Finish(pid_t pid, int seconds, const std::string& what);

// A directory of this test's, made at first use.
const std::string& Work();

struct Stats {
  std::string text;
  std::map<std::string, long> reasons;
  // The number behind "key": that follows "section" ("" for the first one).
  long Get(const char* section, const char* key) const;
};
// What the process left under RCSOCK_STATS=Work()/stats.%p.
Stats ReadStats(pid_t pid);

using posix_test::ByteAt;
using posix_test::NowMs;
using posix_test::Random;

// On 127.0.0.1.
int Listen(int* port);
int Connect(int port);
int Accept(int listener);
// True if `fd` becomes readable (or ends) within `ms`.
bool Readable(int fd, int ms);

}  // namespace under

#endif  // RCSOCK_TESTS_POSIX_UNDER_H_
