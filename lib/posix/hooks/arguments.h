#ifndef RCSOCK_LIB_POSIX_HOOKS_ARGUMENTS_H_
#define RCSOCK_LIB_POSIX_HOOKS_ARGUMENTS_H_

#include <alloca.h>

#include <cstdarg>
#include <cstddef>

namespace rcsock::posix {

// The size of the arguments of execl and its like as a list, with the null that
// ends them.
inline std::size_t ArgumentBytes(const char* first, std::va_list* rest) {
  std::size_t count = 1;
  while (first != nullptr) {
    first = va_arg(*rest, const char*);
    ++count;
  }
  return count * sizeof first;
}

inline void CopyArguments(const char* first, std::va_list* rest, char** to) {
  *to = const_cast<char*>(first);
  while (*to != nullptr) *++to = va_arg(*rest, char*);
}

}  // namespace rcsock::posix

// `list`: the arguments of a variadic function from `first` on; `rest`: what
// follows them, to be ended.  The list is on the stack, and takes no more room
// there than the caller's arguments took.  The caller may be a child of vfork,
// or a thread with little stack.
#define RCSOCK_COLLECT(list, first, rest)                        \
  va_list rest;                                                  \
  va_start(rest, first);                                         \
  auto** const list = static_cast<char**>(                       \
      ::alloca(::rcsock::posix::ArgumentBytes(first, &(rest)))); \
  va_end(rest);                                                  \
  va_start(rest, first);                                         \
  ::rcsock::posix::CopyArguments(first, &(rest), list)

#endif  // RCSOCK_LIB_POSIX_HOOKS_ARGUMENTS_H_
