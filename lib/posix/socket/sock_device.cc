// Copies between a device's memory and the rings of a lane in shared memory, or
// between the devices of both ends.

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/sleep.h"
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
constexpr long kNapNs = 50'000;
// Fewer bytes are not worth a word with the peer.
constexpr std::size_t kLeastPassed = 256 * 1024;
// One copy from device to device.  The peer takes so much at once, or nothing.
constexpr std::size_t kPassedPiece = 32 * 1024 * 1024;
// Bytes that are passed at a rate below this had better go by the ring. 1 is 1
// GB/s: a PCIe 3 slot with 4 lanes has three times as much.
constexpr std::uint64_t kLeastBytesPerNs = 1;
// What the peer may need before its first copy: its conductor gets the
// descriptor, and its driver opens the allocation.
constexpr std::uint64_t kOpenNs = 16'000'000;
// So an offer stays so long without a byte taken, and one call makes offers for
// as long as it takes to pass the most bytes: no handler runs meanwhile.
constexpr std::uint64_t kOfferNs = kOpenNs + kPassedPiece / kLeastBytesPerNs;
constexpr std::uint64_t kOffersNs =
    kOpenNs + Placement::kMostPassed / kLeastBytesPerNs;
// How long the sender waits for an empty ring to make one.
constexpr std::uint64_t kEmptyNs = 1'000'000;
// After so many offers that the peer does not take, a call makes no more.
constexpr int kMostRefused = 3;

}  // namespace

// Copies of one call, in the order in which they began.  They run without a
// latch: a device may take its time, and the conductor takes the latches of all
// streams.  So the lane is pinned, as by a thread that sleeps on it.  The
// stream may leave the lane meanwhile; what has not been posted or taken by
// then goes by the way that the stream is on.
class Placement::RingCopies {
 public:
  RingCopies(Sock* sock, DeviceCopy* copy)
      : sock_(sock), copy_(copy), pipe_(copy->pipe) {}
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
  // Call it without a latch.  A copy that did not end may still touch the ring.
  // Such a lane is lost (LoseRing), and no thread destroys the lane or its
  // stream.
  void Unpin() {
    if (lane_ == nullptr) return;
    pins_->fetch_sub(1, std::memory_order_seq_cst);
    if (hung_) {
      new std::shared_ptr<Sock>(std::move(kept_));
      return;
    }
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
        base::SleepThrough(kNapNs);
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
  // bytes of a copy that has ended.  `idle` returns whether to look again if
  // nothing is under way.
  template <class Begin, class End, class Idle>
  void Copy(std::size_t length, Begin&& begin, End&& end, Idle&& idle) {
    while (!hung_) {
      while (MayBegin() && begun_ < length && begin()) {
      }
      if (UnderWay()) {
        end(Ended());
      } else if (ends_ || error_ != 0 || done_ == length || !idle()) {
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
  DeviceCopy* const copy_;
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

  ssize_t Run(const std::byte* from, std::size_t length) {
    {
      const base::LatchGuard hold(sock_->tx_latch);
      if (!Pin(copy_->fd, true)) return -1;
      fills_ = lane_->BeginFill();
    }
    const bool can = fills_ && lane_->NeedPages(true, copy_->memory);
    if (can) {
      Copy(
          length, [&] { return Begin(from, length); },
          [&](std::size_t bytes) { Post(bytes); },
          [&] { return Idle(from, length); });
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
    copy_->error = error_;
    return can ? static_cast<ssize_t>(done_) : -1;
  }

 private:
  // Returns whether to offer the rest, once the ring is empty.
  bool MayPass(std::size_t rest) const {
    return copy_->patient && rest >= kLeastPassed && refused_ < kMostRefused &&
           lane_->PeerTakesOffers() &&
           (offers_ns_ == 0 || base::NowNs() - offers_ns_ < kOffersNs);
  }
  bool Idle(const std::byte* from, std::size_t length) {
    if (!MayPass(length - done_)) return Waits(copy_->patient);
    if (offers_ns_ == 0) offers_ns_ = base::NowNs();
    if (!Pass(from + done_, length - done_)) ++refused_;
    waits_ns_ = 0;
    return true;
  }
  // Offers these bytes to the peer, and waits while it takes them.  Returns
  // whether it has taken some.
  bool Pass(const std::byte* from, std::size_t length) {
    gpu::Passed what;
    if (copy_->memory->Pass(from, length, &what) != 0 ||
        what.length < kLeastPassed ||
        !lane_->NeedMemory(copy_->memory, from, what)) {
      refused_ = kMostRefused;
      return false;
    }
    if (!Offer(what)) return false;
    const bool in_vain = !AwaitTaken(what.length);
    std::uint64_t sent = 0;
    {
      const base::LatchGuard hold(sock_->tx_latch);
      // A stream that has left the lane meanwhile has counted these bytes.
      sock_->quick_.tx += lane_->Withdraw();
      sent = lane_->offer_sent();
    }
    done_ += sent;
    begun_ = done_;
    copy_->passed += sent;
    if (sent == 0 && in_vain) lane_->ForgetMemory(what);
    return sent != 0;
  }
  // Makes the offer once the peer has taken all that lies before it.
  bool Offer(const gpu::Passed& what) {
    const std::uint64_t began = base::NowNs();
    while (base::NowNs() - began < kEmptyNs) {
      {
        const base::LatchGuard hold(sock_->tx_latch);
        ends_ = !On(true);
        if (ends_) return false;
        if (lane_->Offer(what)) return true;
      }
      if (!lane_->PeerTakesOffers()) return false;
      base::LookOnce();
    }
    return false;
  }
  // Waits while the peer copies.  Whenever the wait ends, the offer's word says
  // how much of the offer counts.  The peer's device harms nothing by reading
  // on.  Returns false if the peer looks on, and takes nothing.
  bool AwaitTaken(std::uint64_t length) {
    std::uint64_t seen = 0;
    std::uint64_t since = base::NowNs();
    for (;;) {
      const std::uint64_t taken = lane_->OfferTaken();
      if (taken >= length || !lane_->PeerTakesOffers()) return true;
      const std::uint64_t now = base::NowNs();
      if (taken != seen) since = now;
      seen = taken;
      if (now - since > kOfferNs || now - offers_ns_ > kOffersNs) return false;
      if (now - since > kSpinNs) {
        base::SleepThrough(kNapNs);
      } else {
        base::LookOnce();
      }
    }
  }
  // Returns false if there is no room now.
  bool Begin(const std::byte* from, std::size_t length) {
    // The ring runs empty first.
    if (MayPass(length - begun_)) return false;
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
  int refused_ = 0;              // offers of which the peer has taken nothing
  std::uint64_t offers_ns_ = 0;  // the first offer
};

class Placement::Drain : RingCopies {
 public:
  using RingCopies::RingCopies;

  ssize_t Run(std::byte* to, std::size_t length) {
    bool drains = false;
    {
      const base::LatchGuard hold(sock_->rx_latch);
      if (!Pin(copy_->fd, false)) return -1;
      drains = lane_->BeginDrain();
      ahead_.emplace(lane_->RxNow());
      start_ = sock_->stream_->rx_off();
    }
    const bool can = drains && lane_->NeedPages(false, copy_->memory);
    if (can) {
      takes_ = copy_->patient && length >= kLeastPassed &&
               lane_->TakeOffers(*copy_->memory);
      Copy(
          length, [&] { return Begin(to, length); },
          [&](std::size_t bytes) { Take(bytes); },
          [&] { return Idle(to, length); });
      TakeNoOffers();
    }
    if (hung_) {
      LoseRing();
    } else if (drains) {
      const base::LatchGuard hold(sock_->rx_latch);
      lane_->EndDrain();
    }
    Unpin();
    copy_->error = error_;
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

  bool Idle(std::byte* to, std::size_t length) {
    lane::shm::SeenOffer seen;
    if (takes_ && See(&seen)) {
      const std::size_t before = done_;
      if (offers_ns_ == 0) offers_ns_ = base::NowNs();
      if (lane_->AwaitsMemory(*copy_->memory, seen.what)) {
        // It comes by another thread.  The peer withdraws the offer in time.
        if (base::NowNs() - offers_ns_ > kOffersNs) TakeNoOffers();
        base::SleepThrough(kNapNs);
        return true;
      }
      TakePassed(seen, to, length);
      // No handler runs meanwhile.  A peer that takes back what it offers, or
      // offers little at a time, keeps this thread no longer than an honest
      // one.
      if (done_ == before) ++withdrawals_;
      if (withdrawals_ >= kMostRefused ||
          base::NowNs() - offers_ns_ > kOffersNs) {
        TakeNoOffers();
      }
      waits_ns_ = 0;
      return !ends_;
    }
    return Waits(copy_->patient && done_ != 0);
  }
  bool See(lane::shm::SeenOffer* seen) {
    const base::LatchGuard hold(sock_->rx_latch);
    ends_ = !Still();
    return !ends_ && lane_->SeeOffer(seen);
  }
  // The rest of the call goes by the ring.
  void TakeNoOffers() {
    if (takes_) lane_->TakeNoOffers();
    takes_ = false;
  }
  // Copies from the peer's device.  Whatever fails, the peer sends these bytes
  // by the ring.
  void TakePassed(const lane::shm::SeenOffer& seen, std::byte* to,
                  std::size_t length) {
    const std::uint64_t taken = lane::shm::OfferWord::Decode(seen.word).taken;
    const auto import = lane_->FindImport(copy_->memory, seen.what);
    const void* const from =
        import == nullptr ? nullptr
                          : import->At(seen.what.offset, seen.what.length);
    if (from == nullptr) return TakeNoOffers();
    word_ = seen.word;
    withdrawn_ = false;
    const std::size_t start = done_;
    const std::size_t end =
        start +
        std::min<std::uint64_t>(seen.what.length - taken, length - start);
    const auto* const next = static_cast<const std::byte*>(from) + taken;
    Copy(
        end,
        [&] {
          const std::size_t n = std::min(kPassedPiece, end - begun_);
          return !withdrawn_ &&
                 BeginPassed(next + (begun_ - start), to + begun_, n);
        },
        [&](std::size_t bytes) { Commit(bytes); }, [] { return false; });
    // What was under way behind bytes that do not count has ended, too.
    begun_ = done_;
    if (hung_ || error_ == 0) return;
    error_ = 0;
    failed_ = false;
    lane_->imports()->refused = copy_->memory->context();
    TakeNoOffers();
  }
  bool BeginPassed(const std::byte* from, std::byte* to, std::size_t bytes) {
    Begun(bytes, pipe_->OnDevices(slot(), to, from, bytes));
    return error_ == 0;
  }
  void Commit(std::size_t bytes) {
    if (bytes == 0 || withdrawn_) return;
    const base::LatchGuard hold(sock_->rx_latch);
    withdrawn_ = !Still() || !lane_->TakeOffered(&word_, bytes);
    if (withdrawn_) return;
    sock_->quick_.rx += bytes;
    done_ += bytes;
    copy_->passed += bytes;
  }

  std::optional<ring::Rx> ahead_;
  std::uint64_t start_ = 0;  // of the stream's bytes
  bool takes_ = false;       // the peer may offer
  std::uint64_t word_ = 0;   // the offer's, as this end knows it
  bool withdrawn_ = false;
  int withdrawals_ = 0;          // offers of which nothing could be taken
  std::uint64_t offers_ns_ = 0;  // the first offer
};

ssize_t Placement::FillRing(const std::byte* from, std::size_t length,
                            DeviceCopy* copy) {
  const Critical critical;
  return Fill(sock_, copy).Run(from, length);
}

ssize_t Placement::DrainRing(std::byte* to, std::size_t length,
                             DeviceCopy* copy) {
  const Critical critical;
  return Drain(sock_, copy).Run(to, length);
}

}  // namespace rcsock::posix
