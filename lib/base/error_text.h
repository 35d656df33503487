#ifndef RCSOCK_LIB_BASE_ERROR_TEXT_H_
#define RCSOCK_LIB_BASE_ERROR_TEXT_H_

namespace rcsock::base {

// Returns what `error` means for a file that cannot be opened, read or written.
// Unlike strerror() it takes no lock and no memory, and does not translate.
// strerrordesc_np() needs glibc 2.32.
const char* ErrorText(int error);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_ERROR_TEXT_H_
