#include "lib/api/device_data.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "lib/base/fail.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/socket/sock_place.h"
#include "lib/posix/socket/sock_taken.h"

namespace rcsock::api {
namespace {

using base::Fail;
using gpu::Pipe;

// Copies of a device go straight into a ring from this size on. Fewer bytes go
// as well through a slot.
constexpr std::size_t kLeastFilled = 16 * 1024;
// How many bytes go by a slot when the ring is full, and so wait for room.
constexpr std::size_t kWaiting = 16 * 1024;
// No handler runs while a ring is filled or drained, and no other thread sends.
// So at most this much goes at once, however well the peer keeps pace.  Bytes
// that are passed go faster.
constexpr std::size_t kMostAtOnce = 64 * 1024 * 1024;
// The first copy is short, so that the peer has something to do early.
constexpr std::size_t kFirst = 64 * 1024;

// Copies out of the device's memory that have begun ahead of the sends.
class ReadAhead {
 public:
  ReadAhead(Pipe* pipe, const std::byte* from, std::size_t length)
      : pipe_(pipe), from_(from), length_(length) {}

  // Sets *bytes to the next bytes, in host memory until Next is called again.
  // Returns how many; 0: the end, or error().
  std::size_t Next(const std::byte** bytes) {
    while (error_ == 0 && begun_ < length_ && last_ - first_ < kAhead) {
      Begin();
    }
    if (first_ == last_) return 0;
    const int slot = first_++ % Pipe::kSlots;
    if (const int error = pipe_->Wait(slot); error != 0) {
      error_ = error;
      return 0;
    }
    *bytes = pipe_->slot(slot);
    return sizes_[static_cast<std::size_t>(slot)];
  }
  int error() const { return error_; }

 private:
  // One slot is the sender's.
  static constexpr int kAhead = Pipe::kSlots - 1;

  void Begin() {
    const int slot = last_ % Pipe::kSlots;
    const std::size_t n =
        std::min(begun_ == 0 ? kFirst : Pipe::kSlotBytes, length_ - begun_);
    error_ = pipe_->FromDevice(slot, from_ + begun_, n);
    if (error_ != 0) return;
    sizes_[static_cast<std::size_t>(slot)] = n;
    begun_ += n;
    ++last_;
  }

  Pipe* const pipe_;
  const std::byte* const from_;
  const std::size_t length_;
  std::size_t begun_ = 0;
  int first_ = 0;
  int last_ = 0;
  int error_ = 0;
  std::array<std::size_t, Pipe::kSlots> sizes_{};
};

void Count(std::atomic<std::uint64_t>* way, ssize_t bytes) {
  if (bytes <= 0) return;
  way->fetch_add(static_cast<std::uint64_t>(bytes), std::memory_order_relaxed);
}

// `passed`: the last bytes of this call went so.
std::size_t MostAtOnce(bool passed) {
  return passed ? posix::Placement::kMostPassed : kMostAtOnce;
}

// Counts the bytes of a copy into a ring or out of it, `n` in all.
void CountRing(const posix::Placement::DeviceCopy& copy, ssize_t n) {
  const auto passed = static_cast<ssize_t>(copy.passed);
  Count(&gpu::counts.passed, passed);
  Count(&gpu::counts.rings, n - passed);
}

bool MayWait(const posix::Sock* sock, int flags) {
  return (flags & MSG_DONTWAIT) == 0 &&
         !sock->nonblock.load(std::memory_order_relaxed);
}

// One call that sends.
struct Sending {
  posix::Sock* const sock;
  const int fd;
  Pipe* const pipe;
  const std::byte* const from;
  const std::size_t length;
  const int flags;
  const bool behind;
  std::size_t done = 0;
  int error = 0;  // of the device, or errno of a send

  // Sends up to `most` bytes by slots. Returns false if the call ends.
  bool BySlots(std::size_t most) {
    error = pipe->NeedSlots();
    if (error != 0) return false;
    ReadAhead ahead(pipe, from + done, most);
    const std::byte* bytes = nullptr;
    while (const std::size_t size = ahead.Next(&bytes)) {
      // Behind a part no signal is due: the call returns the part.
      const bool first = done == 0 && !behind;
      const ssize_t n = posix::hook::send(fd, bytes, size,
                                          first ? flags : flags | MSG_NOSIGNAL);
      if (n < 0) {
        error = errno;
        if (!first) sock->KeepError(fd, error);
        return false;
      }
      Count(&gpu::counts.slots, n);
      done += static_cast<std::size_t>(n);
      if (static_cast<std::size_t>(n) < size) return false;
    }
    error = ahead.error();
    return error == 0;
  }
  // Returns false if the call ends, or the ring takes no copies. Then *slots
  // says which.
  bool ByRing(gpu::Memory* memory, bool* slots) {
    ssize_t n;
    std::size_t most;
    bool passed = false;
    do {
      most = std::min(MostAtOnce(passed), length - done);
      posix::Placement::DeviceCopy copy{fd, memory, pipe, MayWait(sock, flags)};
      n = posix::Placement(sock).FillRing(from + done, most, &copy);
      error = copy.error;
      passed = copy.passed != 0;
      CountRing(copy, n);
      if (n > 0) done += static_cast<std::size_t>(n);
    } while (n == static_cast<ssize_t>(most) && done < length && error == 0);
    *slots = n < 0 && error == 0;
    return n >= 0 && error == 0;
  }
};

// Copies to a device of bytes that are in slots ahead of what has been
// received. Several are under way, while the stream's next bytes come into
// another slot. `Source` is Placement::Taken or Placement::Seen.
template <class Source>
class TakeAhead {
 public:
  TakeAhead(Source* source, Pipe* pipe) : source_(source), pipe_(pipe) {}

  // Copies what there is, `length` bytes at most. What could not be copied goes
  // back. Returns how many bytes are on the device.
  std::size_t Run(std::byte* to, std::size_t length) {
    for (;;) {
      while (MayTake(length) && Take(to, length)) {
      }
      if (first_ == begun_) break;
      if (const int error = pipe_->Wait(Slot(first_)); error != 0) {
        device_error_ = error;
        break;
      }
      const std::size_t n = SizeOf(first_++);
      const std::size_t delivered = source_->Deliver(n);
      done_ += delivered;
      if (delivered != n) {
        AwaitAll();
        break;
      }
      // More may have come meanwhile.
      empty_ = false;
    }
    if (first_ != last_) GiveBack();
    return done_;
  }
  int device_error() const { return device_error_; }
  // Of the stream, which says it once.
  int error() const { return error_; }
  // There was no memory for what had to go back.
  bool lost() const { return lost_; }

 private:
  static int Slot(int number) { return number % Pipe::kSlots; }
  std::size_t& SizeOf(int number) {
    return sizes_[static_cast<std::size_t>(Slot(number))];
  }
  bool MayTake(std::size_t length) const {
    return device_error_ == 0 && !empty_ && !over_ && taken_bytes_ < length &&
           last_ - first_ < Pipe::kSlots;
  }
  // Takes what fits into a slot, and begins its copy. Returns false if no more
  // can be there now.
  bool Take(std::byte* to, std::size_t length) {
    const std::size_t size =
        std::min({Pipe::kSlotBytes, source_->piece(), length - taken_bytes_});
    const ssize_t n = source_->Take(pipe_->slot(Slot(last_)), size);
    empty_ = n < static_cast<ssize_t>(size);
    if (n <= 0) {
      // The end stays for the next look.
      over_ = n == 0 || (errno != EAGAIN && errno != EINTR);
      if (n < 0 && over_) error_ = errno;
      return false;
    }
    const auto bytes = static_cast<std::size_t>(n);
    device_error_ = pipe_->ToDevice(Slot(last_), to + taken_bytes_, bytes);
    SizeOf(last_++) = bytes;
    if (device_error_ == 0) begun_ = last_;
    taken_bytes_ += bytes;
    return !empty_;
  }
  // The call goes on in another way, which uses the slots.
  void AwaitAll() {
    while (device_error_ == 0 && first_ != begun_) {
      device_error_ = pipe_->Wait(Slot(first_++));
    }
  }
  // A copy that goes on reads its slot, as this does.
  void GiveBack() {
    std::array<iovec, Pipe::kSlots> pieces;
    int count = 0;
    for (int i = first_; i != last_; ++i) {
      pieces[static_cast<std::size_t>(count++)] = {pipe_->slot(Slot(i)),
                                                   SizeOf(i)};
    }
    lost_ = !source_->GiveBack(pieces.data(), count);
  }

  Source* const source_;
  Pipe* const pipe_;
  std::array<std::size_t, Pipe::kSlots> sizes_{};
  // Slots in use: the copies of those before begun_ have begun.
  int first_ = 0;
  int begun_ = 0;
  int last_ = 0;
  std::size_t taken_bytes_ = 0;
  std::size_t done_ = 0;
  bool empty_ = false;  // the last look took all that there was
  bool over_ = false;   // the end, or an error
  int error_ = 0;
  int device_error_ = 0;
  bool lost_ = false;
};

// One call that receives.
struct Receiving {
  posix::Sock* const sock;
  const int fd;
  gpu::Memory* const memory;
  Pipe* const pipe;
  std::byte* const to;
  const std::size_t length;
  const bool all;
  const int flags;  // without MSG_WAITALL
  bool rings = true;
  bool ahead = true;
  bool passed = false;
  int failed = 0;  // what the device has said behind bytes that it has
  std::size_t done = 0;
  bool of_device = false;

  bool stays() const {
    return (flags & (MSG_PEEK | MSG_OOB | MSG_ERRQUEUE)) != 0;
  }
  int FlagsNow() const {
    return done == 0 || all ? flags : flags | MSG_DONTWAIT;
  }
  ssize_t FailOfDevice(int error) {
    of_device = true;
    return Fail(error);
  }

  // Receives what is there, or the next piece. Returns as recv.
  ssize_t Next() {
    if (failed != 0) return FailOfDevice(failed);
    if (stays() || (!rings && !ahead)) return BySlot();
    char byte;
    const ssize_t seen = posix::hook::recv(fd, &byte, 1, FlagsNow() | MSG_PEEK);
    if (seen <= 0) return seen;
    if (rings) {
      const ssize_t n = ByRing();
      if (n != 0) return n;
    }
    if (ahead) {
      const ssize_t n = Ahead();
      if (n != 0) return n;
    }
    return BySlot();
  }

  // All return as recv, and 0 if the bytes have to go another way.
  ssize_t ByRing() {
    posix::Placement::DeviceCopy copy{fd, memory, pipe,
                                      all && MayWait(sock, flags)};
    const ssize_t n = posix::Placement(sock).DrainRing(
        to + done, std::min(MostAtOnce(passed), length - done), &copy);
    passed = copy.passed != 0;
    CountRing(copy, n);
    if (n > 0) return n;
    if (copy.error != 0) return FailOfDevice(copy.error);
    // If it is no ring, the rest of this call goes by slots.
    rings = n == 0;
    return 0;
  }
  ssize_t Ahead() {
    posix::Placement::Seen seen(sock, fd);
    if (seen.Begin()) return CopyAhead(&seen);
    posix::Placement::Taken taken(sock, fd);
    ahead = taken.Begin();
    return ahead ? CopyAhead(&taken) : 0;
  }
  template <class Source>
  ssize_t CopyAhead(Source* source) {
    if (const int error = pipe->NeedSlots(); error != 0) {
      return FailOfDevice(error);
    }
    TakeAhead copies(source, pipe);
    const auto n = static_cast<ssize_t>(
        copies.Run(to + done, std::min(kMostAtOnce, length - done)));
    Count(&gpu::counts.slots, n);
    failed = copies.device_error();
    if (copies.lost()) {
      // Nothing may come behind bytes that are missing.
      failed = ENOMEM;
      posix::hook::shutdown(fd, SHUT_RDWR);
      // What has arrived could still be read after that. What arrives now makes
      // the kernel reset the connection.
      while (posix::hook::recv(fd, pipe->slot(0), Pipe::kSlotBytes,
                               MSG_TRUNC | MSG_DONTWAIT) > 0) {
      }
    }
    // The kernel has said it, and says it once. It comes behind what has gone
    // back.
    if (copies.error() != 0 && (n > 0 || failed != 0)) {
      sock->KeepError(fd, copies.error());
    }
    if (n > 0) return n;
    if (failed != 0) return FailOfDevice(failed);
    return copies.error() != 0 ? Fail(copies.error()) : 0;
  }

  // Copies up to a slot to the device. The bytes stay in the stream until they
  // are on the device: a copy that fails loses none.
  ssize_t BySlot() {
    int error = pipe->NeedSlots();
    if (error != 0) return FailOfDevice(error);
    std::byte* const slot = pipe->slot(0);
    const std::size_t size = std::min(Pipe::kSlotBytes, length - done);
    const ssize_t n = posix::hook::recv(
        fd, slot, size, stays() ? FlagsNow() : FlagsNow() | MSG_PEEK);
    if (n <= 0) return n;
    error = pipe->ToDevice(0, to + done, static_cast<std::size_t>(n));
    if (error == 0) error = pipe->Wait(0);
    if (error != 0) return FailOfDevice(error);
    if (stays()) return n;
    Count(&gpu::counts.slots, n);
    return posix::hook::recv(fd, slot, static_cast<std::size_t>(n),
                             MSG_TRUNC | MSG_DONTWAIT);
  }
};

}  // namespace

ssize_t SendFromDevice(posix::Sock* sock, int fd, gpu::Memory* memory,
                       const std::byte* from, std::size_t length, int flags,
                       bool behind) {
  int error = memory->Check(from, length);
  if (error != 0) return Fail(error);
  const gpu::Memory::Lease pipe = memory->Borrow(&error);
  if (pipe == nullptr) return Fail(error);
  Sending call{sock, fd, pipe.get(), from, length, flags, behind};
  bool slots = length < kLeastFilled;
  while (!slots && call.ByRing(memory, &slots) && call.done < length &&
         call.BySlots(std::min(kWaiting, length - call.done))) {
  }
  if (slots) call.BySlots(length - call.done);
  if (call.done == 0 && call.error != 0) return Fail(call.error);
  return static_cast<ssize_t>(call.done);
}

ssize_t RecvToDevice(posix::Sock* sock, int fd, gpu::Memory* memory,
                     std::byte* to, std::size_t length, int flags) {
  int error = memory->Check(to, length);
  if (error != 0) return Fail(error);
  const gpu::Memory::Lease pipe = memory->Borrow(&error);
  if (pipe == nullptr) return Fail(error);
  const bool all = (flags & MSG_WAITALL) != 0;
  // The kernel waits for ever to peek at more than its queue has room for.
  Receiving call{sock, fd,     memory, pipe.get(),
                 to,   length, all,    flags & ~MSG_WAITALL};
  while (call.done < length) {
    const ssize_t n = call.Next();
    if (n < 0) {
      if (call.done == 0) return n;
      if (!call.of_device) sock->KeepError(fd, errno);
      break;
    }
    if (n == 0) break;
    call.done += static_cast<std::size_t>(n);
    if (call.stays()) break;
  }
  return static_cast<ssize_t>(call.done);
}

}  // namespace rcsock::api
