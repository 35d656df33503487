#include "lib/api/rsocket/placing.h"

#include <sys/mman.h>

#include <algorithm>

namespace rcsock::rsocket {
namespace {

constexpr std::size_t kBytes = 512 * 1024;
// A quarter, so that several writes are under way.
constexpr std::size_t kMostPiece = kBytes / 4;
constexpr std::size_t kLeastPiece = 4096;

}  // namespace

unsigned char* Placing::Room(std::size_t want, std::size_t* have) {
  if (refused_) return nullptr;
  if (memory_ == nullptr) {
    void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED && rcs_register_buffer(memory, kBytes) != 0) {
      ::munmap(memory, kBytes);
      memory = MAP_FAILED;
    }
    refused_ = memory == MAP_FAILED;
    if (refused_) return nullptr;
    memory_ = static_cast<unsigned char*>(memory);
  }
  if (used_ == 0) begin_ = 0;
  want = std::min(want, kMostPiece) + kNumberBytes;
  const std::size_t least = std::min(want, kLeastPiece);
  std::size_t end = begin_ + used_;
  if (end >= kBytes) end -= kBytes;
  std::size_t free = used_ == kBytes ? 0
                     : end >= begin_ ? kBytes - end
                                     : begin_ - end;
  skip_ = 0;
  if (free < least && end > begin_) {
    skip_ = free;
    end = 0;
    free = begin_;
  }
  if (free < least) return nullptr;
  *have = std::min(want, free) - kNumberBytes;
  return memory_ + end;
}

void Placing::Add(const Write& write) {
  writes_.push_back(write);
  writes_.back().skipped = skip_;
  used_ += skip_ + write.length + kNumberBytes;
}

void Placing::Pop() {
  const Write& first = writes_.front();
  const std::size_t gone = first.skipped + first.length + kNumberBytes;
  begin_ = (begin_ + gone) % kBytes;
  used_ -= gone;
  writes_.pop_front();
}

void Placing::Release() {
  writes_.clear();
  begin_ = used_ = 0;
  if (memory_ == nullptr) return;
  rcs_unregister_buffer(memory_, kBytes);
  ::munmap(memory_, kBytes);
  memory_ = nullptr;
}

}  // namespace rcsock::rsocket
