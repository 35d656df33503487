#ifndef RCSOCK_LIB_LANE_READ_LANDED_H_
#define RCSOCK_LIB_LANE_READ_LANDED_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "lib/base/guard.h"
#include "lib/lane/iov_cursor.h"

namespace rcsock::lane {

// How a lane reads the messages that have landed in a ring of its own memory.
// The lane makes this class a friend.  `L` is the lane.  It has these members:
//
//   rx_                 the current message; a copy of it can look ahead
//   bool Fill()         takes the next message once rx_ is consumed; returns
//                       whether there is one
//   bool LandedData(&at)  as Fill, of a copy; returns whether it is data
//   const std::byte* Bytes(at)   where the rest of a message is
//   void Take(n)        `n` of its bytes have been read
class LandedReader {
 public:
  // Lane::Read, up to the first message that is no data.
  template <class L>
  static std::size_t Read(L* lane, const iovec* iov, int count,
                          std::size_t skip, std::size_t limit, bool peek) {
    if (peek) {
      auto at = lane->rx_;
      return Each(
          iov, count, skip, limit, [&] { return lane->LandedData(&at); },
          [&] { return at.left(); }, [&] { return lane->Bytes(at); },
          [&](std::uint32_t n) { at.Take(n); });
    }
    return Each(
        iov, count, skip, limit,
        [&] { return lane->Fill() && lane->rx_.data(); },
        [&] { return lane->rx_.left(); },
        [&] { return lane->Bytes(lane->rx_); },
        [&](std::uint32_t n) { lane->Take(n); });
  }

  // Lane::ReadCtl.
  template <class L>
  static std::size_t ReadCtl(L* lane, void* message, std::size_t capacity) {
    if (!lane->Fill() || lane->rx_.data()) return 0;
    const std::uint32_t length = lane->rx_.left();
    const std::size_t n = std::min<std::size_t>(length, capacity);
    std::memcpy(message, lane->Bytes(lane->rx_), n);
    lane->Take(length);
    return n;
  }

 private:
  // `data()` says whether the current message is data, and takes the next
  // message once the current one is consumed.
  template <class Data, class Left, class Bytes, class Take>
  static std::size_t Each(const iovec* iov, int count, std::size_t skip,
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
};

}  // namespace rcsock::lane

#endif  // RCSOCK_LIB_LANE_READ_LANDED_H_
