#include "lib/base/pin_count.h"

#include <atomic>
#include <utility>

#include "lib/base/start_data.h"

namespace rcsock::base {
namespace {

constinit std::atomic<std::uint64_t> total{0};
constinit std::atomic<std::uint64_t> peak{0};
RCSOCK_START_DATA constinit std::atomic<std::uint64_t> limit{0};

void NotePeak(std::uint64_t now) {
  std::uint64_t most = peak.load(std::memory_order_relaxed);
  while (now > most &&
         !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

}  // namespace

PinCount& PinCount::operator=(PinCount&& other) noexcept {
  if (this == &other) return *this;
  reset();
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

bool PinCount::Take(std::size_t bytes) {
  reset();
  const std::uint64_t most = limit.load(std::memory_order_relaxed);
  std::uint64_t now = total.load(std::memory_order_relaxed);
  do {
    if (most != 0 && (now > most || bytes > most - now)) return false;
  } while (!total.compare_exchange_weak(now, now + bytes,
                                        std::memory_order_relaxed));
  bytes_ = bytes;
  NotePeak(now + bytes);
  return true;
}

void PinCount::Count(std::size_t bytes) {
  reset();
  bytes_ = bytes;
  Add(static_cast<std::int64_t>(bytes));
}

void PinCount::reset() {
  total.fetch_sub(std::exchange(bytes_, 0), std::memory_order_relaxed);
}

[[gnu::cold]] void PinCount::SetLimit(std::uint64_t bytes) {
  limit.store(bytes, std::memory_order_relaxed);
}

std::uint64_t PinCount::Total() {
  return total.load(std::memory_order_relaxed);
}

std::uint64_t PinCount::Peak() { return peak.load(std::memory_order_relaxed); }

void PinCount::Add(std::int64_t bytes) {
  const auto delta = static_cast<std::uint64_t>(bytes);
  NotePeak(total.fetch_add(delta, std::memory_order_relaxed) + delta);
}

void PinCount::ForkChild() {
  total.store(0, std::memory_order_relaxed);
  peak.store(0, std::memory_order_relaxed);
}

}  // namespace rcsock::base
