#ifndef RCSOCK_LIB_BASE_FILE_TEXT_H_
#define RCSOCK_LIB_BASE_FILE_TEXT_H_

#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

// Reads of short files of /proc and /sys, for instance. No function here takes
// memory of the heap, or is a cancellation point.
namespace rcsock::base {

// Opens a file to read it. The descriptor is rcsock's, at a high number.
// Returns it, or -1 with errno. `flags`: more than O_RDONLY and O_CLOEXEC.
int OpenText(const char* path, int flags = 0);

// Reads the beginning of the file, up to `size` bytes, into `text`. Returns the
// bytes that it has read: none if the file is empty, or cannot be read.
std::string_view ReadStart(const char* path, char* text, std::size_t size);

// Calls line(std::string_view), without the line feed, for each line of the
// file, until that returns true. Reads `most` bytes, and some more, at most.
// Passes over lines of more than kLongest - 1 bytes.
template <std::size_t kLongest, class Line>
void EachLine(int fd, std::size_t most, Line&& line) {
  char text[kLongest];
  std::size_t held = 0;
  bool skip = false;  // the beginning of this line did not fit
  for (std::size_t total = 0; total < most;) {
    const long n = ::syscall(SYS_read, fd, text + held, kLongest - held);
    if (n <= 0) return;
    total += static_cast<std::size_t>(n);
    held += static_cast<std::size_t>(n);
    std::string_view left(text, held);
    for (std::size_t end; (end = left.find('\n')) != left.npos;
         left.remove_prefix(end + 1)) {
      if (!std::exchange(skip, false) && line(left.substr(0, end))) return;
    }
    if (left.size() == kLongest) {
      skip = true;
      left = {};
    }
    held = left.size();
    std::memmove(text, left.data(), held);
  }
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_FILE_TEXT_H_
