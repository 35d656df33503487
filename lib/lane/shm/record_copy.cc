#include "lib/lane/shm/record_copy.h"

#include <algorithm>

#include "lib/base/clock.h"
#include "lib/base/copy.h"

namespace rcsock::lane::shm {

void RecordCopy::Took(std::uint32_t cost) {
  --left_;
  if (!tries_) {
    // (A thread that is taken off its CPU meanwhile says nothing of the copy.)
    const std::uint32_t bounded = std::min(cost, 2 * cost_);
    cost_ = cost_ == 0 ? cost : (7 * cost_ + bounded) / 8;
    if (left_ != 0) return;
    tries_ = true;
    left_ = kTry;
    tried_ = longest_ = 0;
    return;
  }
  if (left_ >= kCount) return;
  tried_ += cost;
  longest_ = std::max(longest_, cost);
  if (left_ != 0) return;
  tries_ = false;
  const std::uint32_t tried = (tried_ - longest_) / (kCount - 1);
  if (streams_ ? tried < limits_.back * cost_ : limits_.gain * tried < cost_) {
    streams_ = !streams_;
    cost_ = tried;
    wait_ = kFirstWait;
  } else {
    wait_ = std::min<std::uint16_t>(wait_ * 2, kLongestWait);
  }
  left_ = wait_;
}

void RecordCopy::CopyLong(std::byte* to, const std::byte* from, std::size_t n) {
  const std::uint64_t begin = base::Ticks();
  if (streams_ != tries_) {
    base::StreamCopy(to, from, n);
  } else {
    base::LongCopy(to, from, n);
  }
  const std::uint64_t took = base::Ticks() - begin;
  // (Less than a tick for a byte: so in 4096ths.)
  Took(static_cast<std::uint32_t>(
      std::min<std::uint64_t>(took * 4096 / n, 1u << 26)));
}

}  // namespace rcsock::lane::shm
