#include "lib/posix/policy/prospect.h"

#include <netinet/in.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

namespace rcsock::posix {
namespace {

// Several services may share a place.  A wrong guess costs time, and no more.
constexpr std::size_t kPlaces = 1024;
constinit std::atomic<std::uint32_t> places[kPlaces];

// A call on TCP takes as long as this many bytes.
constexpr std::uint64_t kCallBytes = 8192;
// A lane saves less than it costs for fewer bytes than this.
constexpr unsigned kLittleBits = 17;
constexpr unsigned kMuchBits = 19;
// Fewer connections make no rule.
constexpr unsigned kFewest = 4;
// Of 255.  Below, too few connections get a lane.
constexpr unsigned kLeastLanes = 8;

// A place: the mean of the logarithms, the number of connections, and how many
// of late had lanes.  With logarithms one large transfer does not outweigh many
// requests.
struct View {
  unsigned mean;   // log2, in 1/256
  unsigned count;  // up to 255
  unsigned lanes;  // up to 255
};

View Unpack(std::uint32_t word) {
  return {word & 0xffff, word >> 16 & 0xff, word >> 24};
}

std::uint32_t Pack(const View& view) {
  return view.mean | view.count << 16 | view.lanes << 24;
}

unsigned Log2In256(std::uint64_t value) {
  const auto bits = static_cast<unsigned>(std::bit_width(value | 1)) - 1;
  const std::uint64_t rest = value - (std::uint64_t{1} << bits);
  const std::uint64_t fraction =
      bits >= 8 ? rest >> (bits - 8) : rest << (8 - bits);
  return bits * 256 + static_cast<unsigned>(fraction & 255);
}

unsigned Towards(unsigned from, unsigned to, unsigned part) {
  return from < to ? from + (to - from + part - 1) / part
                   : from - (from - to + part - 1) / part;
}

// How many connections of late were over, for their pace, before a lane had
// paid for itself: of 255.  A thread that sleeps for each message saves less by
// a lane than one that never sleeps.
constinit std::atomic<std::uint8_t> lates[kPlaces];
constexpr unsigned kMostLates = 192;
constexpr std::uint64_t kSlowNs = 400'000;
constexpr std::uint64_t kCallsOfALane = 400;
// One of so many connections is made to prove otherwise.
constexpr unsigned kTrialOf = 16;
constinit std::atomic<std::uint8_t> late_counts[kPlaces];

// How far a service is trusted to bring its lanes soon.  A hold in vain halves
// the credit.  Without credit, each loss leaves more connections without a
// hold.
struct Trust {
  unsigned skip;    // so many more get no hold; 16 bits
  unsigned lost;    // log2 of `skip` after the next loss
  unsigned credit;  // holds that were not in vain
};
constexpr unsigned kMostLost = 12;
constexpr unsigned kMostCredit = 8;
constinit std::atomic<std::uint32_t> trusts[kPlaces];

Trust UnpackTrust(std::uint32_t word) {
  return {word & 0xffff, word >> 16 & 0xff, word >> 24};
}
std::uint32_t PackTrust(const Trust& trust) {
  return trust.skip | trust.lost << 16 | trust.credit << 24;
}

// How long a successful hold has taken of late.  One value for all services,
// since it depends on the machine.
constexpr std::uint64_t kLeastHoldNs = 300'000;
constexpr std::uint64_t kMostHoldNs = 1'000'000;
constinit std::atomic<std::uint32_t> hold_mean_ns{250'000};

// Log2 of the looks that a receiver may take nothing in.  A receiver that waits
// for its disk now and then is as slow over TCP.  In a program that talks to
// itself, a receiver cannot read before its peer has written all, and only
// needs room.
constinit std::atomic<std::uint8_t> patiences[kPlaces];
constexpr unsigned kMostPatience = 4;

// What is known of streams that have gone back.  kUntried: nothing, or that
// going back was in vain.  kOfUse: that it was of use.  Otherwise, in
// milliseconds, since when the stream on trial has been gone.
constexpr std::uint32_t kUntried = 0;
constexpr std::uint32_t kOfUse = 1;
constexpr std::uint32_t kTrialMs = 1000;
constinit std::atomic<std::uint32_t> trials[kPlaces];

}  // namespace

[[gnu::hot]] std::uint16_t Prospect::ServiceAt(const sockaddr* address,
                                               socklen_t length,
                                               stream::Role role) {
  std::uint64_t hash = role == stream::Role::kConnector ? 1 : 2;
  // By words: each connect() comes here.
  const auto mix = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  };
  if (address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
    sockaddr_in in;
    std::memcpy(&in, address, sizeof in);
    mix(std::uint64_t{in.sin_port} << 32 | in.sin_addr.s_addr);
  } else if (address->sa_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
    sockaddr_in6 in;
    std::memcpy(&in, address, sizeof in);
    std::uint64_t words[2];
    std::memcpy(words, &in.sin6_addr, sizeof words);
    mix(words[0]);
    mix(words[1]);
    mix(in.sin6_port);
  } else {
    return 0;
  }
  return static_cast<std::uint16_t>(hash % (kPlaces - 1) + 1);
}

// Apart from Of, through which each connection of one request goes.
[[gnu::noinline]] static Prospect::Promise OfLonger(std::uint16_t service,
                                                    View view) {
  using Promise = Prospect::Promise;
  if (lates[service].load(std::memory_order_relaxed) >= kMostLates) {
    const unsigned count =
        late_counts[service].fetch_add(1, std::memory_order_relaxed);
    return count % kTrialOf == 0 ? Promise::kUnknown : Promise::kLate;
  }
  if (view.mean >= kMuchBits * 256 && view.lanes >= kLeastLanes) {
    return Promise::kMuch;
  }
  return Promise::kUnknown;
}

[[gnu::hot]] Prospect::Promise Prospect::Of(std::uint16_t service) {
  const View view = Unpack(places[service].load(std::memory_order_relaxed));
  if (service == 0 || view.count < kFewest) return Promise::kUnknown;
  if (view.mean < kLittleBits * 256) return Promise::kLittle;
  return OfLonger(service, view);
}

std::uint64_t Prospect::HoldNs(std::uint16_t service) {
  std::atomic<std::uint32_t>& place = trusts[service];
  Trust trust = UnpackTrust(place.load(std::memory_order_relaxed));
  if (trust.skip > 0) {
    --trust.skip;
    place.store(PackTrust(trust), std::memory_order_relaxed);
    return 0;
  }
  return std::clamp(
      4 * std::uint64_t{hold_mean_ns.load(std::memory_order_relaxed)},
      kLeastHoldNs, kMostHoldNs);
}

void Prospect::Held(std::uint16_t service, std::uint64_t ns, bool vain) {
  std::atomic<std::uint32_t>& place = trusts[service];
  Trust trust = UnpackTrust(place.load(std::memory_order_relaxed));
  if (vain && trust.credit > 0) {
    trust.credit /= 2;
  } else if (vain) {
    trust.skip = 1u << trust.lost;
    trust.lost = std::min(trust.lost + 1, kMostLost);
  } else {
    if (trust.lost > 0) --trust.lost;
    trust.credit = std::min(trust.credit + 1, kMostCredit);
    const auto took =
        static_cast<unsigned>(std::min<std::uint64_t>(ns, kMostHoldNs));
    hold_mean_ns.store(
        Towards(hold_mean_ns.load(std::memory_order_relaxed), took, 8),
        std::memory_order_relaxed);
  }
  place.store(PackTrust(trust), std::memory_order_relaxed);
}

// The next connection is held, too.  If connections end before they get their
// lanes, nothing comes late, and more and more get no hold.
void Prospect::CameLate(std::uint16_t service) {
  std::atomic<std::uint32_t>& place = trusts[service];
  Trust trust = UnpackTrust(place.load(std::memory_order_relaxed));
  if (service == 0 || trust.skip == 0) return;
  trust.skip = 0;
  if (trust.lost > 0) --trust.lost;
  place.store(PackTrust(trust), std::memory_order_relaxed);
}

int Prospect::StarvedLooks(std::uint16_t service) {
  if (service == 0) return 1;
  return 1 << patiences[service].load(std::memory_order_relaxed);
}

void Prospect::Starved(std::uint16_t service, bool vain) {
  if (service == 0) return;
  std::atomic<std::uint8_t>& place = patiences[service];
  unsigned patience = place.load(std::memory_order_relaxed);
  if (vain) {
    patience = std::min(patience + 2, kMostPatience);
  } else {
    patience /= 2;
  }
  place.store(static_cast<std::uint8_t>(patience), std::memory_order_relaxed);
  trials[service].store(vain ? kUntried : kOfUse, std::memory_order_relaxed);
}

bool Prospect::MayLeaveStarved(std::uint16_t service, std::uint64_t now_ns) {
  if (service == 0) return true;
  std::atomic<std::uint32_t>& place = trials[service];
  std::uint32_t trial = place.load(std::memory_order_relaxed);
  if (trial == kOfUse) return true;
  const auto now =
      std::max(static_cast<std::uint32_t>(now_ns / 1'000'000), kOfUse + 1);
  if (trial != kUntried && now - trial < kTrialMs) return false;
  return place.compare_exchange_strong(trial, now, std::memory_order_relaxed);
}

[[gnu::hot]] void Prospect::Learn(std::uint16_t service, std::uint64_t bytes,
                                  std::uint64_t calls, bool promoted) {
  if (service == 0) return;
  std::atomic<std::uint32_t>& place = places[service];
  View view = Unpack(place.load(std::memory_order_relaxed));
  const std::uint64_t worth =
      bytes + std::min<std::uint64_t>(calls, 1u << 24) * kCallBytes;
  const unsigned now = Log2In256(worth);
  view.mean = view.count == 0 ? now : Towards(view.mean, now, 4);
  view.count = std::min(view.count + 1, 255u);
  view.lanes = Towards(view.lanes, promoted ? 255 : 0, 8);
  place.store(Pack(view), std::memory_order_relaxed);
}

void Prospect::LearnPace(std::uint16_t service, std::uint64_t bytes,
                         std::uint64_t calls, std::uint64_t ns) {
  if (service == 0 || calls == 0) return;
  // What large messages save is their copies, whatever their pace.
  const bool late = calls < kCallsOfALane && bytes / calls < kCallBytes &&
                    ns / calls >= kSlowNs;
  std::atomic<std::uint8_t>& place = lates[service];
  const unsigned now =
      Towards(place.load(std::memory_order_relaxed), late ? 255 : 0, 8);
  place.store(static_cast<std::uint8_t>(now), std::memory_order_relaxed);
}

}  // namespace rcsock::posix
