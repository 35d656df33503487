// Copies between a device's memory and the rings of a lane in shared memory.

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "lib/base/clock.h"
#include "lib/gpu/memory.h"
#include "lib/lane/shm/shm_lane.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_place.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

// A ring has room for four pieces: two for each end.
constexpr std::size_t kPiece = 64 * 1024;
// How long a copy that waits for nothing but the peer looks for it.
constexpr std::uint64_t kPatienceNs = 100'000;
// A copy of a piece takes some 3 to 20 us.
constexpr std::uint64_t kSpinNs = 200'000;

}  // namespace

// Copies of one call, in the order in which they began.  They run without a
// latch: a device may take its time, and the conductor takes the latches of all
// streams.  So the lane is pinned, as by a thread that sleeps on it.  The
// stream may leave it meanwhile; what has not been posted or taken by then goes
// by the way that the stream is on.
class Placement::RingCopies {
 public:
  RingCopies(Sock* sock, gpu::Pipe* pipe) : sock_(sock), pipe_(pipe) {}
  RingCopies(const RingCopies&) = delete;
  RingCopies& operator=(const RingCopies&) = delete;

 protected:
  // Requires the latch of the direction.
  bool Pin(int fd, bool tx) {
    const auto& quick = sock_->quick_;
    if (!sock_->IsAt(fd) || !sock_->lane_is_shm_ ||
        !(tx ? quick.may_send : quick.may_receive)) {
      return false;
    }
    lane_ = static_cast<lane::shm::ShmLane*>(sock_->lane_.get());
    pins_ = &sock_->sleepers().OnLane();
    pins_->fetch_add(1, std::memory_order_seq_cst);
    // The reference keeps the stream, and with the stream a parked lane.
    kept_ = Share(sock_);
    return true;
  }
  // Returns whether the stream is still on that lane.  Requires the latch.
  bool On(bool tx) const {
    const auto& quick = sock_->quick_;
    return sock_->lane_.get() == lane_ &&
           (tx ? quick.may_send : quick.may_receive);
  }
  // A copy that did not end may still write to the ring, or read there.  So the
  // stream leaves the lane now: what is unread is not credited, and the peer
  // writes nothing in its place.  Call it without a latch.
  void LoseRing() {
    const Latched latched(sock_);
    lane_->LoseRing();
    if (sock_->mode() != Mode::kEngine || sock_->lane_.get() != lane_) return;
    sock_->stream_->Progress();
    sock_->HandleChanges();
  }
  // Call it without a latch.  A copy that did not end may still touch the ring,
  // so the lane is never given back.
  void Unpin() {
    if (lane_ == nullptr) return;
    if (hung_) {
      new std::shared_ptr<Sock>(std::move(kept_));
      return;
    }
    pins_->fetch_sub(1, std::memory_order_seq_cst);
    kept_.reset();
  }

  int slot() const { return last_ % gpu::Pipe::kSlots; }
  bool MayBegin() const {
    return error_ == 0 && !ends_ && last_ - first_ < gpu::Pipe::kSlots;
  }
  void Begun(std::size_t bytes, int error) {
    error_ = error;
    if (error_ != 0) return;
    sizes_[static_cast<std::size_t>(slot())] = bytes;
    begun_ += bytes;
    ++last_;
  }
  bool UnderWay() const { return first_ != last_; }
  // Returns the bytes of the first copy if that has ended well, else 0.
  std::size_t Ended() {
    const int first = first_ % gpu::Pipe::kSlots;
    int error = 0;
    if (!pipe_->Look(first, &error)) {
      const std::uint64_t now = base::NowNs();
      if (began_ns_ == 0) began_ns_ = now;
      hung_ = now - began_ns_ > gpu::Pipe::kMostWaitNs;
      if (hung_) error_ = ETIMEDOUT;
      if (now - began_ns_ > kSpinNs) {
        const timespec nap{0, 50'000};
        ::syscall(SYS_nanosleep, &nap, nullptr);
      }
      return 0;
    }
    began_ns_ = 0;
    ++first_;
    if (error != 0) {
      if (error_ == 0) error_ = error;
      failed_ = true;
    }
    return !failed_ ? sizes_[static_cast<std::size_t>(first)] : 0;
  }
  // Copies until `length` bytes are done, or no more can be.  `begin` begins
  // one copy, and returns false if there is none to begin now.  `end` takes the
  // bytes of a copy that has ended.  `patient` returns whether to wait for the
  // peer if nothing is under way.
  template <class Begin, class End, class Patient>
  void Copy(std::size_t length, Begin&& begin, End&& end, Patient&& patient) {
    while (!hung_) {
      while (MayBegin() && begun_ < length && begin()) {
      }
      if (UnderWay()) {
        end(Ended());
      } else if (ends_ || error_ != 0 || done_ == length || !Waits(patient())) {
        break;
      }
    }
  }
  // Nothing is under way, and the peer has to do something first.
  bool Waits(bool patient) {
    const std::uint64_t now = base::NowNs();
    if (waits_ns_ == 0) waits_ns_ = now;
    base::LookOnce();
    return patient && now - waits_ns_ < kPatienceNs;
  }

  Sock* const sock_;
  gpu::Pipe* const pipe_;
  lane::shm::ShmLane* lane_ = nullptr;
  std::atomic<int>* pins_ = nullptr;
  std::shared_ptr<Sock> kept_;
  std::array<std::size_t, gpu::Pipe::kSlots> sizes_{};
  int first_ = 0;
  int last_ = 0;
  std::size_t begun_ = 0;  // bytes whose copy has begun
  std::size_t done_ = 0;   // bytes posted, or taken
  int error_ = 0;          // of the device: no more copies begin
  bool failed_ = false;    // a copy has failed: what is behind it is not next
  bool ends_ = false;      // the stream has left the lane
  bool hung_ = false;
  std::uint64_t began_ns_ = 0;  // the first look at the first copy
  std::uint64_t waits_ns_ = 0;
};

class Placement::Fill : RingCopies {
 public:
  using RingCopies::RingCopies;

  ssize_t Run(int fd, gpu::Memory* memory, const std::byte* from,
              std::size_t length, bool patient, int* error) {
    {
      const base::LatchGuard hold(sock_->tx_latch);
      if (!Pin(fd, true)) return -1;
      fills_ = lane_->BeginFill();
    }
    const bool can = fills_ && lane_->NeedPages(true, memory);
    if (can) {
      Copy(
          length, [&] { return Begin(from, length); },
          [&](std::size_t bytes) { Post(bytes); }, [&] { return patient; });
    }
    if (hung_) {
      LoseRing();
    } else if (fills_) {
      const base::LatchGuard hold(sock_->tx_latch);
      // A thread that polls looks again: the peer may have told of its room
      // meanwhile.
      if (lane_->EndFill() && On(true)) sock_->Wake(true);
    }
    Unpin();
    *error = error_;
    return can ? static_cast<ssize_t>(done_) : -1;
  }

 private:
  // Returns false if there is no room now.
  bool Begin(const std::byte* from, std::size_t length) {
    std::byte* to = nullptr;
    std::size_t n = 0;
    {
      const base::LatchGuard hold(sock_->tx_latch);
      ends_ = !On(true);
      if (!ends_) n = lane_->Claim(std::min(kPiece, length - begun_), &to);
    }
    if (n == 0) return false;
    waits_ns_ = 0;
    Begun(n, pipe_->FromDevice(slot(), from + begun_, n, to));
    return error_ == 0;
  }
  void Post(std::size_t bytes) {
    while (bytes != 0 && !ends_) {
      std::size_t n = 0;
      {
        const base::LatchGuard hold(sock_->tx_latch);
        ends_ = !On(true);
        if (!ends_) n = lane_->PostClaimed(bytes);
        sock_->quick_.tx += n;
      }
      done_ += n;
      bytes -= n;
      // Small messages have taken all slots.  The rest is not sent, nor what
      // lies behind it.
      if (bytes != 0 && !Waits(true)) ends_ = true;
    }
  }

  bool fills_ = false;
};

class Placement::Drain : RingCopies {
 public:
  using RingCopies::RingCopies;

  ssize_t Run(int fd, gpu::Memory* memory, std::byte* to, std::size_t length,
              bool patient, int* error) {
    bool drains = false;
    {
      const base::LatchGuard hold(sock_->rx_latch);
      if (!Pin(fd, false)) return -1;
      drains = lane_->BeginDrain();
      ahead_.emplace(lane_->RxNow());
      start_ = sock_->stream_->rx_off();
    }
    const bool can = drains && lane_->NeedPages(false, memory);
    if (can) {
      Copy(
          length, [&] { return Begin(to, length); },
          [&](std::size_t bytes) { Take(bytes); },
          [&] { return patient && done_ != 0; });
    }
    if (hung_) {
      LoseRing();
    } else if (drains) {
      const base::LatchGuard hold(sock_->rx_latch);
      lane_->EndDrain();
    }
    Unpin();
    *error = error_;
    return can ? static_cast<ssize_t>(done_) : -1;
  }

 private:
  // Returns whether no other thread has taken what the look ahead has seen.
  // Requires the latch.
  bool Still() const RC_REQUIRES(sock_->rx_latch) {
    return On(false) && sock_->stream_->rx_off() == start_ + done_;
  }
  bool Begin(std::byte* to, std::size_t length) {
    const std::byte* from = nullptr;
    std::size_t n = 0;
    {
      const base::LatchGuard hold(sock_->rx_latch);
      ends_ = !Still();
      if (!ends_) {
        n = lane_->LookAhead(&*ahead_, std::min(kPiece, length - begun_),
                             &from);
      }
    }
    if (n == 0) return false;
    waits_ns_ = 0;
    Begun(n, pipe_->ToDevice(slot(), to + begun_, n, from));
    return error_ == 0;
  }
  void Take(std::size_t bytes) {
    if (bytes == 0 || ends_) return;
    const base::LatchGuard hold(sock_->rx_latch);
    ends_ = !Still();
    if (ends_) return;
    const std::size_t n = lane_->Read(nullptr, 0, 0, bytes, false);
    sock_->quick_.rx += n;
    done_ += n;
    ends_ = n != bytes;
  }

  std::optional<ring::Rx> ahead_;
  std::uint64_t start_ = 0;  // of the stream's bytes
};

ssize_t Placement::FillRing(int fd, gpu::Memory* memory, gpu::Pipe* pipe,
                            const std::byte* from, std::size_t length,
                            bool patient, int* error) {
  const Critical critical;
  return Fill(sock_, pipe).Run(fd, memory, from, length, patient, error);
}

ssize_t Placement::DrainRing(int fd, gpu::Memory* memory, gpu::Pipe* pipe,
                             std::byte* to, std::size_t length, bool patient,
                             int* error) {
  const Critical critical;
  return Drain(sock_, pipe).Run(fd, memory, to, length, patient, error);
}

}  // namespace rcsock::posix
