#include "lib/lane/rdma/target.h"

#include <utility>

#include "lib/base/log.h"
#include "lib/base/no_cancel.h"
#include "lib/lane/rdma/domain.h"
#include "lib/lane/rdma/late_key.h"

namespace rcsock::lane::rdma {
namespace {

constexpr std::uint64_t kExact = std::uint64_t{1} << 63;

constinit std::atomic<std::uint64_t> in_place{0};

// The finalizer of splitmix64: each bit of the result depends on each bit of
// `value`.
std::uint64_t Mix(std::uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

std::uint64_t Check(const TargetWords& words) {
  std::uint64_t check = 0x9e3779b97f4a7c15u;
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    check = Mix(check + words[i]) + i;
  }
  return check == 0 ? 1 : check;
}

}  // namespace

TargetWords EncodeTarget(const Target& target) {
  TargetWords words{
      target.address, target.at | (target.exact ? kExact : 0),
      std::uint64_t{target.key} | std::uint64_t{target.bytes} << 32, 0};
  words.back() = Check(words);
  return words;
}

bool DecodeTarget(const TargetWords& words, Target* target) {
  if (words.back() != Check(words)) return false;
  target->address = words[0];
  target->at = words[1] & ~kExact;
  target->exact = (words[1] & kExact) != 0;
  target->key = static_cast<std::uint32_t>(words[2]);
  target->bytes = static_cast<std::uint32_t>(words[2] >> 32);
  return true;
}

bool Window::Open(std::shared_ptr<Domain> domain, ibv_pd* pd, void* at,
                  std::size_t length) {
  Close();
  if (!pin_.Take(length)) return false;
  const base::NoCancel no_cancel;
  verbs::Error error;
  mr_ = RegisterForPeers(
      pd, at, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &error);
  if (mr_ == nullptr) {
    pin_.reset();
    RCSOCK_LOG(2, "rdma: %zu bytes to receive in: %s: %d", length, error.call,
               error.code);
    return false;
  }
  domain_ = std::move(domain);
  return true;
}

void Window::Close() {
  if (mr_ == nullptr) return;
  const base::NoCancel no_cancel;
  mr_.reset();
  pin_.reset();
  domain_.reset();
}

void Window::Abandon() {
  (void)mr_.release();
  pin_.Forget();
  // The domain is the parent's, too, and nothing destroys it in the child.
  new std::shared_ptr<Domain>(std::move(domain_));
}

std::uint64_t InPlaceBytes() {
  return in_place.load(std::memory_order_relaxed);
}

void CountInPlace(std::uint64_t bytes) {
  in_place.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace rcsock::lane::rdma
