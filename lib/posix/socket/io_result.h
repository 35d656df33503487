#ifndef RCSOCK_LIB_POSIX_SOCKET_IO_RESULT_H_
#define RCSOCK_LIB_POSIX_SOCKET_IO_RESULT_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace rcsock::posix {

// The result of a step of a call that sends or receives.  A value; any thread
// may copy it.
struct [[nodiscard]] IoResult {
  enum class Status : std::uint64_t {
    // The call is over, and returns `bytes`; if that is -1, errno says why.
    kDone,
    // The stream is not on a lane any more, or no lane is awaited any more: the
    // call goes on where the stream is now.
    kRetry,
    // The number has been closed under the call, and the object may be another
    // connection: the call goes on with what the number names now.
    kGone,
    // The number has been closed under the call, which has slept.  The call
    // goes on with the stream, by RecvLeft or SendLeft.
    kClosedInUse,
  };

  ssize_t bytes;
  Status status;

  static constexpr IoResult Done(ssize_t n) { return {n, Status::kDone}; }
  static constexpr IoResult Done(std::size_t n) {
    return {static_cast<ssize_t>(n), Status::kDone};
  }
  static constexpr IoResult Retry() { return {0, Status::kRetry}; }
  static constexpr IoResult Gone() { return {0, Status::kGone}; }
  static constexpr IoResult ClosedInUse() { return {0, Status::kClosedInUse}; }

  constexpr bool done() const { return status == Status::kDone; }
  constexpr bool retry() const { return status == Status::kRetry; }
  constexpr bool gone() const { return status == Status::kGone; }
  constexpr bool closed_in_use() const {
    return status == Status::kClosedInUse;
  }
};

// A function returns it in two registers.
static_assert(sizeof(IoResult) == 16 && std::is_trivially_copyable_v<IoResult>);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_IO_RESULT_H_
