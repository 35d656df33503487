#include "lib/api/device_data.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "lib/posix/hooks/hooks.h"

namespace rcsock::api {
namespace {

using gpu::Pipe;

// The first copy is short, so that the peer has something to do early.
constexpr std::size_t kFirst = 64 * 1024;

ssize_t Fail(int error) {
  errno = error;
  return -1;
}

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

// Receives up to `length` bytes into a slot and copies them to the device. The
// bytes stay in the stream until they are there: a copy that fails loses none.
// Returns as recv.
// *of_device: the error is the device's.
ssize_t RecvSlot(int fd, Pipe* pipe, std::byte* to, std::size_t length,
                 int flags, bool* of_device) {
  std::byte* const slot = pipe->slot(0);
  const bool stays = (flags & (MSG_PEEK | MSG_OOB | MSG_ERRQUEUE)) != 0;
  const ssize_t n =
      posix::hook::recv(fd, slot, length, stays ? flags : flags | MSG_PEEK);
  if (n <= 0) return n;
  int error = pipe->ToDevice(0, to, static_cast<std::size_t>(n));
  if (error == 0) error = pipe->Wait(0);
  *of_device = error != 0;
  if (error != 0) return Fail(error);
  if (stays) return n;
  return posix::hook::recv(fd, slot, static_cast<std::size_t>(n),
                           MSG_TRUNC | MSG_DONTWAIT);
}

}  // namespace

ssize_t SendFromDevice(posix::Sock* sock, int fd, gpu::Memory* memory,
                       const std::byte* from, std::size_t length, int flags,
                       bool behind) {
  int error = memory->Check(from, length);
  if (error != 0) return Fail(error);
  const gpu::Memory::Lease pipe = memory->Borrow(&error);
  if (pipe == nullptr) return Fail(error);
  ReadAhead ahead(pipe.get(), from, length);
  std::size_t done = 0;
  const std::byte* bytes = nullptr;
  while (const std::size_t size = ahead.Next(&bytes)) {
    // Behind a part no signal is due: the part is the result.
    const bool first = done == 0 && !behind;
    const ssize_t n = posix::hook::send(fd, bytes, size,
                                        first ? flags : flags | MSG_NOSIGNAL);
    if (n < 0) {
      if (!first) sock->KeepError(fd, errno);
      return done == 0 ? n : static_cast<ssize_t>(done);
    }
    done += static_cast<std::size_t>(n);
    if (static_cast<std::size_t>(n) < size) break;
  }
  if (done == 0 && ahead.error() != 0) return Fail(ahead.error());
  return static_cast<ssize_t>(done);
}

ssize_t RecvToDevice(posix::Sock* sock, int fd, gpu::Memory* memory,
                     std::byte* to, std::size_t length, int flags) {
  int error = memory->Check(to, length);
  if (error != 0) return Fail(error);
  const gpu::Memory::Lease pipe = memory->Borrow(&error);
  if (pipe == nullptr) return Fail(error);
  const bool all = (flags & MSG_WAITALL) != 0;
  const bool once = (flags & (MSG_PEEK | MSG_OOB | MSG_ERRQUEUE)) != 0;
  // The kernel waits for ever to peek at more than its queue has room for.
  flags &= ~MSG_WAITALL;
  std::size_t done = 0;
  while (done < length) {
    const std::size_t size = std::min(Pipe::kSlotBytes, length - done);
    const bool waits = done == 0 || all;
    bool of_device = false;
    const ssize_t n =
        RecvSlot(fd, pipe.get(), to + done, size,
                 waits ? flags : flags | MSG_DONTWAIT, &of_device);
    if (n < 0) {
      if (done == 0) return n;
      if (!of_device) sock->KeepError(fd, errno);
      return static_cast<ssize_t>(done);
    }
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
    if (once || (!all && static_cast<std::size_t>(n) < size)) break;
  }
  return static_cast<ssize_t>(done);
}

}  // namespace rcsock::api
