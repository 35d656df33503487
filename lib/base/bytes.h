#ifndef RCSOCK_LIB_BASE_BYTES_H_
#define RCSOCK_LIB_BASE_BYTES_H_

#include <cstdint>

namespace rcsock::base {

// A number of bytes: 64, 4K, 1M, 2G (of 1024; also in small letters).  False if
// `text` is none, or too large.
bool ParseBytes(const char* text, std::uint64_t* bytes);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_BYTES_H_
