#ifndef RCSOCK_LIB_BASE_BYTES_H_
#define RCSOCK_LIB_BASE_BYTES_H_

#include <cstdint>

namespace rcsock::base {

// Parses a number of bytes: 64, 4K, 1M, 2G. The units are powers of 1024, and
// may be small letters. Returns false if `text` is no number of bytes, or too
// large.
bool ParseBytes(const char* text, std::uint64_t* bytes);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_BYTES_H_
