#include "lib/lane/sim/sim_lane.h"

#include <algorithm>
#include <cstring>

namespace rcsock::lane::sim {
namespace {

std::size_t UnitLength(const std::string& units, std::size_t at) {
  return static_cast<std::uint8_t>(units[at + 1]) |
         static_cast<std::size_t>(static_cast<std::uint8_t>(units[at + 2]))
             << 8;
}

}  // namespace

bool SimRing::Land() {
  if (in_flight == 0) return false;
  --in_flight;
  ++(latched ? held : landed);
  return true;
}

void SimRing::DropInFlight() {
  std::size_t at = 0;
  for (std::uint32_t i = 0; i < landed + held; ++i)
    at += 3 + UnitLength(units, at);
  units.resize(at);
  in_flight = 0;
  dropping = true;
}

void SimRing::ReturnCredit() {
  acked = consumed;
  SimLane::TrimMirror(this);
}

void SimLink::Reset() {
  for (int i = 0; i < 2; ++i) {
    ring[i] = SimRing{};
    frozen[i] = false;
    left[i] = Lane::Left::kNot;
    forgoes[i] = resets[i] = false;
    state[i] = base::Reason::kNone;
  }
}

void SimLane::TrimMirror(SimRing* ring) {
  std::size_t keep = static_cast<std::size_t>(ring->posted - ring->acked);
  if (ring->mirror.size() > keep) {
    ring->mirror.erase(0, ring->mirror.size() - keep);
  }
}

void SimLane::PutUnit(bool ctl, const std::string& bytes) {
  SimRing& ring = Tx();
  if (ring.dropping) return;
  ring.units += static_cast<char>(ctl);
  ring.units += static_cast<char>(bytes.size() & 255);
  ring.units += static_cast<char>(bytes.size() >> 8);
  ring.units += bytes;
  ++ring.in_flight;
  // Once the receiver has frozen, nothing more lands.
  if (link_->auto_land && (link_->outlives || !link_->frozen[1 - end_])) {
    ring.Land();
  }
}

std::size_t SimLane::Writable() {
  return link_->capacity - static_cast<std::size_t>(Tx().posted - Tx().acked);
}

std::size_t SimLane::Post(const iovec* iov, int count, std::size_t skip,
                          std::size_t limit) {
  SimRing& ring = Tx();
  std::size_t room = std::min(limit, Writable());
  std::string bytes;
  for (int i = 0; i < count && bytes.size() < room; ++i) {
    if (skip >= iov[i].iov_len) {
      skip -= iov[i].iov_len;
      continue;
    }
    std::size_t n = std::min(iov[i].iov_len - skip, room - bytes.size());
    bytes.append(static_cast<const char*>(iov[i].iov_base) + skip, n);
    skip = 0;
  }
  for (std::size_t at = 0; at < bytes.size(); at += link_->largest) {
    PutUnit(false, bytes.substr(at, link_->largest));
  }
  ring.mirror += bytes;
  ring.posted += bytes.size();
  return bytes.size();
}

bool SimLane::PostCtl(const void* message, std::size_t length) {
  if (length > kCtlMax) return false;
  PutUnit(true, std::string(static_cast<const char*>(message), length));
  return true;
}

std::size_t SimLane::CopyUnacked(std::uint64_t from, void* to,
                                 std::size_t length) {
  SimRing& ring = Tx();
  std::uint64_t first = ring.posted - ring.mirror.size();
  if (from < first || from > ring.posted) return 0;
  std::size_t at = static_cast<std::size_t>(from - first);
  std::size_t n = std::min(length, ring.mirror.size() - at);
  std::memcpy(to, ring.mirror.data() + at, n);
  return n;
}

Head SimLane::Peek() {
  SimRing& ring = Rx();
  if (ring.landed != 0) return ring.units[0] != 0 ? Head::kCtl : Head::kData;
  return link_->state[end_] != base::Reason::kNone ? Head::kDead : Head::kEmpty;
}

std::size_t SimLane::Readable() {
  SimRing& ring = Rx();
  std::size_t sum = 0;
  std::size_t at = 0;
  for (std::uint32_t i = 0; i < ring.landed; ++i) {
    if (ring.units[at] != 0) break;
    sum += UnitLength(ring.units, at);
    at += 3 + UnitLength(ring.units, at);
  }
  return sum;
}

std::size_t SimLane::Read(const iovec* iov, int count, std::size_t skip,
                          std::size_t limit, bool peek) {
  SimRing& ring = Rx();
  std::string bytes;
  std::size_t at = 0;
  std::size_t room = count == 0 ? limit : 0;
  for (int i = 0; i < count; ++i) room += iov[i].iov_len;
  room = count == 0 ? room : std::min(limit, room - std::min(room, skip));
  for (std::uint32_t i = 0; i < ring.landed && bytes.size() < room; ++i) {
    if (ring.units[at] != 0) break;
    std::size_t length = UnitLength(ring.units, at);
    bytes.append(ring.units, at + 3, std::min(length, room - bytes.size()));
    at += 3 + length;
  }
  std::size_t done = 0;
  for (int i = 0; i < count && done < bytes.size(); ++i) {
    if (skip >= iov[i].iov_len) {
      skip -= iov[i].iov_len;
      continue;
    }
    std::size_t n = std::min(iov[i].iov_len - skip, bytes.size() - done);
    std::memcpy(static_cast<char*>(iov[i].iov_base) + skip, bytes.data() + done,
                n);
    done += n;
    skip = 0;
  }
  if (peek) return bytes.size();
  std::size_t left = bytes.size();
  while (left != 0) {
    std::size_t length = UnitLength(ring.units, 0);
    if (length > left) {
      ring.units.erase(3, left);
      length -= left;
      ring.units[1] = static_cast<char>(length & 255);
      ring.units[2] = static_cast<char>(length >> 8);
      break;
    }
    ring.units.erase(0, 3 + length);
    --ring.landed;
    left -= length;
  }
  ring.consumed += bytes.size();
  if (link_->auto_credit) ring.ReturnCredit();
  return bytes.size();
}

std::size_t SimLane::ReadCtl(void* message, std::size_t capacity) {
  SimRing& ring = Rx();
  if (ring.landed == 0 || ring.units[0] == 0) return 0;
  std::size_t length = UnitLength(ring.units, 0);
  std::memcpy(message, ring.units.data() + 3, std::min(length, capacity));
  ring.units.erase(0, 3 + length);
  --ring.landed;
  return length;
}

void SimLane::Freeze() {
  if (link_->frozen[end_]) return;
  link_->frozen[end_] = true;
  if (link_->outlives) {
    Rx().latched = true;
  } else {
    Rx().DropInFlight();
  }
}

bool SimLane::Thaw() {
  if (!link_->outlives || !link_->frozen[end_]) return false;
  Rx().landed += Rx().held;
  Rx().held = 0;
  return true;
}

}  // namespace rcsock::lane::sim
