#ifndef RCSOCK_LIB_BASE_PAIRED_H_
#define RCSOCK_LIB_BASE_PAIRED_H_

#include <cstddef>
#include <utility>

#include "lib/base/capability.h"
#include "lib/base/latch.h"

namespace rcsock::base {

// A value that two latches guard. A thread that holds either of them may read
// it; a thread that writes it holds both. Clang's analysis checks the writers.
// It cannot say "either", so it does not check the readers.
template <class T>
class Paired {
 public:
  constexpr Paired() = default;
  constexpr explicit Paired(T value) : value_(std::move(value)) {}
  Paired(const Paired&) = delete;
  Paired& operator=(const Paired&) = delete;

  // `one` and `other` are the latches that guard the value.
  T& Write(const Latch& one, const Latch& other) RC_REQUIRES(one, other) {
    static_cast<void>(one);
    static_cast<void>(other);
    return value_;
  }
  const T& Read() const { return value_; }
  operator const T&() const { return value_; }

  // For a pointer.
  const T& operator->() const { return value_; }
  auto get() const { return value_.get(); }
  friend bool operator==(const Paired& paired, std::nullptr_t) {
    return paired.value_ == nullptr;
  }

 private:
  T value_{};
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_PAIRED_H_
