#ifndef RCSOCK_TOOLS_RCSOCK_PERF_TRACE_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_TRACE_H_

#include <functional>
#include <map>
#include <string>

namespace rcsock::perf {

// What all threads of a command did between its first and its last Mark()
// (mark.h).  Measured programs call Mark() around what they measure.
struct SyscallCounts {
  int marks = 0;
  long total = 0;
  std::map<std::string, long> calls;
};

// Runs `start` in a child under ptrace(2). `start` should turn the child into
// the command. This is for hosts without strace and perf_event. Tracing costs
// some microseconds for each call, so times measured meanwhile mean nothing.
//
// Returns the command's exit status as a shell has it.  Returns 125 and a
// reason in *error if tracing is not allowed.
int CountSyscalls(const std::function<void()>& start, SyscallCounts* counts,
                  std::string* error);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_TRACE_H_
