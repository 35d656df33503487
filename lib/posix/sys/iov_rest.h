#ifndef RCSOCK_LIB_POSIX_SYS_IOV_REST_H_
#define RCSOCK_LIB_POSIX_SYS_IOV_REST_H_

#include <sys/uio.h>

#include <cstddef>

namespace rcsock::posix {

// The part of an iovec array that begins `skip` bytes into it.
class IovRest {
 public:
  IovRest(const iovec* iov, int count) : iov_(iov), count_(count) {}
  const iovec* iov() const { return first_ ? local_ : iov_; }
  int count() const { return first_ ? local_count_ : count_; }
  // Builds at most kPiece elements.  A caller with more elements repeats this
  // for each piece.
  void Skip(std::size_t skip) {
    if (skip > 0) Limit(skip, ~std::size_t{0});
  }
  // Takes at most `most` bytes, from `skip` on.
  void Limit(std::size_t skip, std::size_t most) {
    first_ = true;
    local_count_ = 0;
    for (int i = 0; i < count_ && most > 0 && local_count_ < kPiece; ++i) {
      if (skip >= iov_[i].iov_len) {
        skip -= iov_[i].iov_len;
        continue;
      }
      const std::size_t here = iov_[i].iov_len - skip;
      iovec& piece = local_[local_count_++];
      piece.iov_base = static_cast<char*>(iov_[i].iov_base) + skip;
      piece.iov_len = here < most ? here : most;
      most -= piece.iov_len;
      skip = 0;
    }
  }
  std::size_t total() const {
    std::size_t sum = 0;
    for (int i = 0; i < count(); ++i) sum += iov()[i].iov_len;
    return sum;
  }

 private:
  static constexpr int kPiece = 16;
  const iovec* iov_;
  int count_;
  bool first_ = false;
  int local_count_ = 0;
  iovec local_[kPiece];
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SYS_IOV_REST_H_
