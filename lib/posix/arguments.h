#ifndef RCSOCK_LIB_POSIX_ARGUMENTS_H_
#define RCSOCK_LIB_POSIX_ARGUMENTS_H_

#include <cstdarg>

namespace rcsock::posix {

// The arguments of execl and its like, up to the null that ends them.
struct Arguments {
  static constexpr int kMost = 4096;
  char* list[kMost];
  // False if there are too many.
  bool Collect(const char* first, va_list* rest) {
    list[0] = const_cast<char*>(first);
    if (first == nullptr) return true;
    for (int n = 1; n < kMost; ++n) {
      list[n] = va_arg(*rest, char*);
      if (list[n] == nullptr) return true;
    }
    return false;
  }
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_ARGUMENTS_H_
