#ifndef RCSOCK_LIB_LANE_READ_LANDED_H_
#define RCSOCK_LIB_LANE_READ_LANDED_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lib/base/guard.h"
#include "lib/lane/iov_cursor.h"

namespace rcsock::lane {

// Lane::Read over the messages that have landed, up to the first that is no
// data. `data()` says whether the current message is data, and takes the next
// message once the current one is consumed. `left()` is the rest of its bytes,
// `bytes()` where they are. `take(n)` says that `n` of them have been read.
template <class Data, class Left, class Bytes, class Take>
std::size_t ReadLanded(const iovec* iov, int count, std::size_t skip,
                       std::size_t limit, Data data, Left left, Bytes bytes,
                       Take take) {
  const bool drop = iov == nullptr;
  IovCursor to(iov, drop ? 0 : count, skip);
  const std::size_t all = drop ? limit : to.Left(limit);
  std::size_t done = 0;
  while (done < all && data()) {
    const auto n =
        static_cast<std::uint32_t>(std::min<std::size_t>(left(), all - done));
    if (!drop && !to.CopyIn(bytes(), n)) [[unlikely]] {
      base::tls_fault = done == 0;
      break;
    }
    take(n);
    done += n;
  }
  return done;
}

}  // namespace rcsock::lane

#endif  // RCSOCK_LIB_LANE_READ_LANDED_H_
