#include "lib/base/bytes.h"

#include <cerrno>
#include <cstdlib>

namespace rcsock::base {

bool ParseBytes(const char* text, std::uint64_t* bytes) {
  if (*text < '0' || *text > '9') return false;
  const int saved = errno;
  errno = 0;
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  const bool fits = errno == 0;
  errno = saved;
  int shift = 0;
  switch (*end) {
    case 'k':
    case 'K':
      shift = 10;
      break;
    case 'm':
    case 'M':
      shift = 20;
      break;
    case 'g':
    case 'G':
      shift = 30;
      break;
    default:
      break;
  }
  if (!fits || *(end + (shift != 0)) != '\0' ||
      value > ~std::uint64_t{0} >> shift) {
    return false;
  }
  *bytes = value << shift;
  return true;
}

}  // namespace rcsock::base
