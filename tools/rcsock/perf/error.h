#ifndef RCSOCK_TOOLS_RCSOCK_PERF_ERROR_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_ERROR_H_

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace rcsock::perf {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
// The run went well, but its bytes did not use the lane that was asked for.
constexpr int kNotOnLane = 3;
constexpr int kInterrupted = 130;

// Ends a run.  Has the one line that the user reads, and the exit status.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& line, int exit_status = kFailed)
      : std::runtime_error(line), status(exit_status) {}

  const int status;
};

template <typename... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// Appends the meaning of errno.
template <typename... Args>
[[noreturn]] void FailErrno(fmt::format_string<Args...> format,
                            Args&&... args) {
  const int code = errno;
  throw Error(fmt::format(format, std::forward<Args>(args)...) + ": " +
              std::strerror(code));
}

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_ERROR_H_
