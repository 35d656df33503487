#ifndef RCSOCK_LIB_LANE_IOV_CURSOR_H_
#define RCSOCK_LIB_LANE_IOV_CURSOR_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstring>

#include "lib/base/copy.h"
#include "lib/base/guard.h"

namespace rcsock::lane {

constexpr std::size_t kLongPiece = 4096;

// memcpy, without a call for what fits in a cache line.
inline void CopyBytes(std::byte* to, const std::byte* from, std::size_t n) {
  if (n >= kLongPiece) [[unlikely]] {
    base::LongCopy(to, from, n);
  } else if (n > 64) {
    std::memcpy(to, from, n);
  } else if (n >= 16) {
    // The last block overlaps the block before it.
    for (std::size_t i = 0; i + 16 < n; i += 16) {
      std::memcpy(to + i, from + i, 16);
    }
    std::memcpy(to + n - 16, from + n - 16, 16);
  } else if (n >= 8) {
    std::memcpy(to, from, 8);
    std::memcpy(to + n - 8, from + n - 8, 8);
  } else {
    for (std::size_t i = 0; i < n; ++i) to[i] = from[i];
  }
}

// CopyBytes to memory of the program. False: a fault (base/guard.h).
inline bool TryCopyIn(std::byte* to, const std::byte* from, std::size_t n) {
  if (n <= 64) return base::TrySmall(to, from, n);
  if (!base::Writable(to, from, n)) return false;
  if (n >= kLongPiece) [[unlikely]] {
    base::LongCopy(to, from, n);
  } else {
    std::memcpy(to, from, n);
  }
  return true;
}

// Walks through iov[0..count) from byte `skip` on.
class IovCursor {
 public:
  IovCursor(const iovec* iov, int count, std::size_t skip)
      : at_(iov), end_(iov + count), done_(skip) {
    Settle();
  }

  // The bytes that are left, at most `limit`.
  std::size_t Left(std::size_t limit) const {
    std::size_t left = 0;
    std::size_t skip = done_;
    for (const iovec* at = at_; at != end_ && left < limit; ++at) {
      left += at->iov_len - skip;
      skip = 0;
    }
    return left < limit ? left : limit;
  }

  // Where the next byte is, and how many bytes follow in one piece. Requires
  // that a byte is left.
  std::byte* Next() const {
    return static_cast<std::byte*>(at_->iov_base) + done_;
  }
  std::size_t Here() const { return at_->iov_len - done_; }
  // Passes over `n` <= Here() bytes.
  void Pass(std::size_t n) {
    done_ += n;
    Settle();
  }

  // Returns true if the next `n` bytes can be read. Requires that so many are
  // left.
  bool Readable(std::size_t n) const {
    IovCursor look = *this;
    return look.Walk(n, [](const std::byte* part, std::size_t length) {
      return base::Readable(part, length);
    });
  }

  // Copies the next `n` bytes from the vector. Requires that so many are left,
  // and that the caller knows them to be readable.
  void CopyOut(void* to, std::size_t n) { CopyOut(to, n, CopyBytes); }
  template <typename Copy>
  void CopyOut(void* to, std::size_t n, Copy copy) {
    auto* out = static_cast<std::byte*>(to);
    Walk(n, [&](std::byte* part, std::size_t length) {
      copy(out, part, length);
      out += length;
      return true;
    });
  }
  // Copies the next `n` bytes to the vector. False: a fault, and the cursor is
  // of no more use.
  bool CopyIn(const void* from, std::size_t n) {
    const auto* in = static_cast<const std::byte*>(from);
    return Walk(n, [&](std::byte* part, std::size_t length) {
      const bool copied = TryCopyIn(part, in, length);
      in += length;
      return copied;
    });
  }

 private:
  void Settle() {
    while (at_ != end_ && done_ >= at_->iov_len) {
      done_ -= at_->iov_len;
      ++at_;
    }
  }
  template <typename Copy>
  bool Walk(std::size_t n, Copy copy) {
    while (n > 0 && at_ != end_) {
      const std::size_t here = at_->iov_len - done_;
      const std::size_t part = n < here ? n : here;
      if (!copy(static_cast<std::byte*>(at_->iov_base) + done_, part)) {
        return false;
      }
      n -= part;
      done_ += part;
      Settle();
    }
    return true;
  }

  const iovec* at_;
  const iovec* end_;
  std::size_t done_;  // of *at_
};

}  // namespace rcsock::lane

#endif  // RCSOCK_LIB_LANE_IOV_CURSOR_H_
