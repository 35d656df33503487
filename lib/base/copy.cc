#include "lib/base/copy.h"

#include <emmintrin.h>

#include <algorithm>

namespace rcsock::base {
namespace {

template <typename Store>
void Lines(std::byte* to, const std::byte* from, std::size_t n, Store store) {
  const std::size_t head =
      std::min(n, -reinterpret_cast<std::uintptr_t>(to) % kCacheLine);
  std::memcpy(to, from, head);
  to += head;
  from += head;
  n -= head;
  for (; n >= kCacheLine;
       n -= kCacheLine, to += kCacheLine, from += kCacheLine) {
    auto* out = reinterpret_cast<__m128i*>(to);
    const auto* in = reinterpret_cast<const __m128i*>(from);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    // The stores follow each other: a streamed line leaves the core as a whole.
    store(out, a);
    store(out + 1, b);
    store(out + 2, c);
    store(out + 3, d);
  }
  std::memcpy(to, from, n);
}

}  // namespace

void LoopCopy(std::byte* to, const std::byte* from, std::size_t n) {
  Lines(to, from, n,
        [](__m128i* at, __m128i value) { _mm_store_si128(at, value); });
}

void StreamCopy(std::byte* to, const std::byte* from, std::size_t n) {
  Lines(to, from, n,
        [](__m128i* at, __m128i value) { _mm_stream_si128(at, value); });
  // Streaming stores have no order with other stores, even on x86.
  _mm_sfence();
}

}  // namespace rcsock::base
