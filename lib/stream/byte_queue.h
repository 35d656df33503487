#ifndef RCSOCK_LIB_STREAM_BYTE_QUEUE_H_
#define RCSOCK_LIB_STREAM_BYTE_QUEUE_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "lib/base/guard.h"

namespace rcsock::stream {

// A FIFO of bytes on the heap. One is the stash: bytes that were read ahead,
// and that the application has not taken yet. One is the out-queue: bytes on
// their way to TCP. A queue allocates nothing while it is empty, and never
// throws: if there is no memory, a call returns false.
class ByteQueue {
 public:
  ByteQueue() = default;
  ByteQueue(const ByteQueue& other) { *this = other; }
  ByteQueue& operator=(const ByteQueue& other) {
    if (this == &other) return *this;
    Clear();
    if (!Append(other.data(), other.size())) Clear();
    return *this;
  }
  ByteQueue(ByteQueue&& other) noexcept { Swap(other); }
  ByteQueue& operator=(ByteQueue&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~ByteQueue() { ::operator delete(bytes_); }

  void Swap(ByteQueue& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(capacity_, other.capacity_);
    std::swap(head_, other.head_);
    std::swap(tail_, other.tail_);
  }

  bool empty() const { return head_ == tail_; }
  std::size_t size() const { return tail_ - head_; }
  const std::uint8_t* data() const {
    return bytes_ == nullptr ? nullptr : bytes_ + head_;
  }

  // Returns room for `count` bytes behind the last; null if there is no memory.
  std::uint8_t* Reserve(std::size_t count) {
    if (capacity_ - tail_ < count) {
      if (head_ != 0) {
        std::memmove(bytes_, bytes_ + head_, size());
        tail_ -= head_;
        head_ = 0;
      }
      if (capacity_ - tail_ < count) {
        std::size_t wanted = std::max(tail_ + count, capacity_ * 2);
        // Not by malloc, which a handler may have interrupted (lib/base/heap).
        void* grown = ::operator new(wanted, std::nothrow);
        if (grown == nullptr) return nullptr;
        if (tail_ != 0) std::memcpy(grown, bytes_, tail_);
        ::operator delete(bytes_);
        bytes_ = static_cast<std::uint8_t*>(grown);
        capacity_ = wanted;
      }
    }
    return bytes_ + tail_;
  }
  void Commit(std::size_t count) { tail_ += count; }

  bool Append(const void* from, std::size_t count) {
    if (count == 0) return true;
    std::uint8_t* to = Reserve(count);
    if (to == nullptr) return false;
    std::memcpy(to, from, count);
    Commit(count);
    return true;
  }

  void Drop(std::size_t count) {
    head_ += count;
    if (head_ == tail_) Clear();
  }

  // Gives the memory back: an idle stream keeps none.
  void Clear() {
    ::operator delete(bytes_);
    bytes_ = nullptr;
    capacity_ = head_ = tail_ = 0;
  }

  // Copies to iov[0..count) from the vector's byte `skip` on; consumes nothing.
  // At a piece that can't be written it stops and sets base::tls_fault.
  std::size_t CopyTo(const iovec* iov, int count, std::size_t skip,
                     std::size_t limit) const {
    std::size_t done = 0;
    const std::size_t available = std::min(size(), limit);
    for (int i = 0; i < count && done < available; ++i) {
      if (skip >= iov[i].iov_len) {
        skip -= iov[i].iov_len;
        continue;
      }
      std::size_t n = std::min(iov[i].iov_len - skip, available - done);
      if (!base::TryPut(static_cast<char*>(iov[i].iov_base) + skip,
                        data() + done, n)) {
        base::tls_fault = true;
        break;
      }
      done += n;
      skip = 0;
    }
    return done;
  }

 private:
  std::uint8_t* bytes_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
};

// The last 64 raw bytes of one direction (rule 4).
class Tail {
 public:
  static constexpr std::size_t kMax = 64;

  void Push(const void* bytes, std::size_t count) {
    const auto* from = static_cast<const std::uint8_t*>(bytes);
    if (count >= kMax) {
      std::memcpy(bytes_, from + (count - kMax), kMax);
      size_ = kMax;
      return;
    }
    if (count == 0) return;
    std::size_t keep = std::min<std::size_t>(size_, kMax - count);
    std::memmove(bytes_, bytes_ + (size_ - keep), keep);
    std::memcpy(bytes_ + keep, from, count);
    size_ = static_cast<std::uint8_t>(keep + count);
  }
  void Push(const iovec* iov, int count, std::size_t limit) {
    for (int i = 0; i < count && limit != 0; ++i) {
      std::size_t n = std::min(iov[i].iov_len, limit);
      Push(iov[i].iov_base, n);
      limit -= n;
    }
  }
  std::size_t size() const { return size_; }
  // Requires `count` <= size().
  const std::uint8_t* Last(std::size_t count) const {
    return bytes_ + (size_ - count);
  }

 private:
  std::uint8_t bytes_[kMax] = {};
  std::uint8_t size_ = 0;
};

}  // namespace rcsock::stream

#endif  // RCSOCK_LIB_STREAM_BYTE_QUEUE_H_
