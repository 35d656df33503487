#include "lib/posix/sharing/notes.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/clock.h"
#include "lib/base/sleep.h"
#include "lib/posix/sharing/unread.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

// Where the notes stand.  The last three parts follow each other, so that one
// look finds the first note of all three.
constexpr std::uint64_t kBase = std::uint64_t{1} << 62;
constexpr std::uint64_t kTurn = kBase;
constexpr std::uint64_t kRole = kBase + 16;  // and the next byte
constexpr std::uint64_t kWidth = std::uint64_t{1} << 56;
constexpr std::uint64_t kDriftTx = kBase + kWidth;
constexpr std::uint64_t kDriftRx = kBase + 2 * kWidth;
constexpr std::uint64_t kSpoilt = kBase + 4 * kWidth;
constexpr std::uint64_t kFlights = kBase + 5 * kWidth;
constexpr std::uint64_t kShares = kBase + 6 * kWidth;
constexpr std::uint64_t kEnd = kBase + 7 * kWidth;
// A drift of none is in the middle of its part.
constexpr std::int64_t kNoDrift = std::int64_t{1} << 55;
// A flight of a socket, or a share of a process, is a number of this many bits
// behind the number of that socket or process.
constexpr int kTagBits = 24;
constexpr std::uint64_t kTags = std::uint64_t{1} << kTagBits;

struct flock64 LockOf(short type, std::uint64_t at, std::uint64_t length) {
  struct flock64 lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off64_t>(at);
  lock.l_len = static_cast<off64_t>(length);
  return lock;
}

bool Fcntl(int fd, int command, struct flock64* lock) {
  return ::syscall(SYS_fcntl, fd, command, lock) == 0;
}

// One process at a time changes what is counted.  Threads take turns by a word,
// and processes by a lock of the kernel's, which ends with its process.
class Turn {
 public:
  // Makes one try in any case.
  Turn(int fd, std::uint64_t until_ns)
      : fd_(fd), owner_(owners[SocketInode(fd) % kOwners]) {
    const long self = OwnPid();
    for (;;) {
      // A thread of the parent may have had the turn at a fork.
      long before = owner_.load(std::memory_order_relaxed);
      mine_ = before != self && owner_.compare_exchange_strong(before, self);
      if (mine_ || base::NowNs() >= until_ns) break;
      base::SleepThrough(100'000);
    }
    struct flock64 lock = LockOf(F_WRLCK, kTurn, 1);
    while (mine_) {
      taken_ = Fcntl(fd_, F_SETLK, &lock);
      if (taken_ || base::NowNs() >= until_ns) break;
      base::SleepThrough(100'000);
    }
  }
  ~Turn() {
    struct flock64 lock = LockOf(F_UNLCK, kTurn, 1);
    if (taken_) Fcntl(fd_, F_SETLK, &lock);
    if (mine_) owner_.store(0, std::memory_order_release);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const { return taken_; }

 private:
  // Nearly one word for each connection.  If another process keeps a turn from
  // this process, hardly any other connection waits.
  static constexpr std::size_t kOwners = 64;
  static constinit std::atomic<long> owners[kOwners];
  // No handler runs meanwhile: a handler that jumped out of the call would keep
  // the turn for ever.
  const Critical critical_;
  const int fd_;
  std::atomic<long>& owner_;
  bool mine_ = false;
  bool taken_ = false;
};

constinit std::atomic<long> Turn::owners[kOwners]{};

std::uint64_t OwnShares() {
  return kShares + (static_cast<std::uint64_t>(OwnPid()) << kTagBits);
}

// A longer inode number has no place, so no process finds the flight.
std::uint64_t FlightsOf(std::uint64_t to) {
  return to < (std::uint64_t{1} << 32) ? kFlights + (to << kTagBits) : 0;
}

}  // namespace

std::uint32_t Notes::Tag() {
  std::uint32_t tag = 0;
  if (::syscall(SYS_getrandom, &tag, sizeof tag, 1) != sizeof tag) {
    static constinit std::atomic<std::uint32_t> more{0};
    tag = static_cast<std::uint32_t>(base::NowNs() / 16) + ++more * 2654435761u;
  }
  return tag % kTags;
}

// The kernel joins locks that touch.  A step apart, each stands alone.
std::uint32_t Notes::TagAfter(std::uint32_t tag, std::uint32_t index) {
  constexpr std::uint32_t kStep = 0x9e3779;  // odd, so that none comes twice
  return (tag + index * kStep) % kTags;
}

// The first lock in this part, of any process.
bool Notes::Find(std::uint64_t from, std::uint64_t length, std::uint64_t* at,
                 std::uint64_t* extent) const {
  struct flock64 lock = LockOf(F_WRLCK, from, length);
  if (!Fcntl(fd_, F_GETLK, &lock) || lock.l_type == F_UNLCK) return false;
  *at = static_cast<std::uint64_t>(lock.l_start);
  *extent = static_cast<std::uint64_t>(lock.l_len);
  return true;
}

bool Notes::Put(std::uint64_t at) const {
  struct flock64 lock = LockOf(F_RDLCK, at, 1);
  return Fcntl(fd_, F_OFD_SETLK, &lock);
}

void Notes::Remove(std::uint64_t at, std::uint64_t length) const {
  struct flock64 lock = LockOf(F_UNLCK, at, length);
  Fcntl(fd_, F_OFD_SETLK, &lock);
}

bool Notes::SetRole(int role) const { return Put(kRole + (role == 1 ? 1 : 0)); }

int Notes::Role() const {
  std::uint64_t at, extent;
  return Find(kRole, 2, &at, &extent) && extent == 1 && at >= kRole
             ? static_cast<int>(at - kRole)
             : -1;
}

// The new value comes first, so that no value is ever missing.
bool Notes::Move(std::uint64_t region, std::int64_t value) const {
  if (value <= -kNoDrift + 1 || value >= kNoDrift - 1) return false;
  const std::uint64_t at =
      region + static_cast<std::uint64_t>(kNoDrift + value);
  if (!Put(at)) return false;
  Remove(region, at - region);
  Remove(at + 1, region + kWidth - (at + 1));
  return true;
}

std::int64_t Notes::Value(std::uint64_t region) const {
  std::uint64_t at, extent;
  if (!Find(region, kWidth, &at, &extent) || extent != 1 || at < region) {
    return 0;
  }
  return static_cast<std::int64_t>(at - region) - kNoDrift;
}

bool Notes::SetDrift(const Drift& drift) const {
  return Move(kDriftTx, drift.tx) && Move(kDriftRx, drift.rx);
}

Notes::Drift Notes::GetDrift() const {
  return {Value(kDriftTx), Value(kDriftRx)};
}

bool Notes::Spoil() const { return Put(kSpoilt); }

std::uint64_t Notes::Until() const {
  return until_ns_ != 0 ? until_ns_ : base::NowNs() + kPatienceNs;
}

std::uint64_t Notes::PutShare() const {
  std::uint64_t at, extent;
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t share = OwnShares() + Tag();
    if (Find(share, 1, &at, &extent)) continue;
    return Put(share) ? share : 0;
  }
  return 0;
}

std::uint64_t Notes::AddShare() const {
  const Turn turn(fd_, Until());
  return turn ? PutShare() : 0;
}

void Notes::DropShare(std::uint64_t share) const {
  if (share >= kShares && share < kEnd) Remove(share, 1);
}

bool Notes::Alone(std::uint64_t share, bool unspoilt) const {
  std::uint64_t at, extent;
  const std::uint64_t from = unspoilt ? kSpoilt : kFlights;
  return share != 0 && Find(from, kEnd - from, &at, &extent) && at == share &&
         extent == 1 && !Find(share + 1, kEnd - (share + 1), &at, &extent);
}

std::uint64_t Notes::OwnShare() const {
  std::uint64_t at, extent;
  const std::uint64_t own = OwnShares();
  return Find(own, kTags, &at, &extent) && at >= own ? at : 0;
}

bool Notes::AddFlight(std::uint64_t to, std::uint32_t tag) const {
  const std::uint64_t all = FlightsOf(to);
  return all != 0 && Put(all + tag);
}

void Notes::DropFlight(std::uint64_t to, std::uint32_t tag) const {
  const std::uint64_t all = FlightsOf(to);
  if (all != 0) Remove(all + tag, 1);
}

std::uint64_t Notes::Arrive(std::uint64_t to, bool peek) const {
  const std::uint64_t all = FlightsOf(to);
  const Turn turn(fd_, Until());
  std::uint64_t at, extent;
  if (all == 0 || !turn || !Find(all, kTags, &at, &extent) || at < all) {
    return 0;
  }
  // The share comes first, so that the connection has a holder at every moment.
  const std::uint64_t share = PutShare();
  if (share != 0 && !peek) Remove(at, 1);
  return share;
}

}  // namespace rcsock::posix
