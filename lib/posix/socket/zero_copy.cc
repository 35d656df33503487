#include "lib/posix/socket/zero_copy.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "lib/posix/sys/control_message.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

// Behind the error the kernel puts the address that it is about.  Here it is
// empty.
template <class Address>
struct Told {
  sock_extended_err error;
  Address nobody;
};

template <class Address>
void PutError(msghdr* message, int level, int type,
              const sock_extended_err& error) {
  Told<Address> told{};
  told.error = error;
  PutControlMessage(message, level, type, &told, sizeof told);
}

}  // namespace

void ZeroCopy::Reset() {
  Critical critical;
  base::LatchGuard hold(latch_);
  kernels_ = 0;
  shifts_ = 0;
  waiting_.store(0, std::memory_order_relaxed);
}

void ZeroCopy::ByKernel() {
  Critical critical;
  base::LatchGuard hold(latch_);
  ++kernels_;
}

void ZeroCopy::Add(std::uint32_t first, std::uint32_t last, std::uint8_t code) {
  const int n = waiting_.load(std::memory_order_relaxed);
  if (n > 0) {
    Range& tail = range_[n - 1];
    // Without room, whether a call was copied is no longer told right.
    if (tail.last + 1 == first && (tail.code == code || n == kMost)) {
      tail.last = last;
      return;
    }
    if (n == kMost) return;
  }
  range_[n] = {first, last, code};
  waiting_.store(n + 1, std::memory_order_release);
}

bool ZeroCopy::Copied() {
  Critical critical;
  base::LatchGuard hold(latch_);
  bool room = true;
  if (shifts_ == 0 || shift_[shifts_ - 1].from != kernels_) {
    const std::uint32_t before = shifts_ == 0 ? 0 : shift_[shifts_ - 1].by;
    if (shifts_ == kMost) {
      // The oldest calls of the kernel's are over by now.
      std::memmove(shift_, shift_ + 1, (kMost - 1) * sizeof *shift_);
      --shifts_;
    }
    shift_[shifts_++] = {kernels_, before};
  }
  const std::uint32_t number = kernels_ + shift_[shifts_ - 1].by++;
  Add(number, number, SO_EE_CODE_ZEROCOPY_COPIED);
  room = waiting_.load(std::memory_order_relaxed) < kMost / 2;
  return room;
}

// Completions before a shift and behind it are no longer neighbours.
void ZeroCopy::AddKernels(std::uint32_t first, std::uint32_t last,
                          std::uint8_t code) {
  // Numbers wrap, so only differences are compared.
  const auto reaches = [](std::uint32_t number, std::uint32_t from) {
    return static_cast<std::int32_t>(number - from) >= 0;
  };
  for (;;) {
    int i = shifts_ - 1;
    while (i >= 0 && !reaches(first, shift_[i].from)) --i;
    // A forgotten shift counts as the oldest known shift.
    const std::uint32_t by = i >= 0 ? shift_[i].by : 0;
    std::uint32_t end = last;
    if (i + 1 < shifts_ && reaches(last, shift_[i + 1].from)) {
      end = shift_[i + 1].from - 1;
    }
    Add(first + by, end + by, code);
    if (end == last) return;
    first = end + 1;
  }
}

bool ZeroCopy::Drain(int fd) {
  Critical critical;
  base::LatchGuard hold(latch_);
  bool any = false;
  while (waiting_.load(std::memory_order_relaxed) < kMost / 2) {
    alignas(cmsghdr) char control[256];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::syscall(SYS_recvmsg, fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      return any;
    }
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr;
         at = CMSG_NXTHDR(&message, at)) {
      if (!(at->cmsg_level == SOL_IP && at->cmsg_type == IP_RECVERR) &&
          !(at->cmsg_level == SOL_IPV6 && at->cmsg_type == IPV6_RECVERR)) {
        continue;
      }
      sock_extended_err error;
      std::memcpy(&error, CMSG_DATA(at), sizeof error);
      if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
      AddKernels(error.ee_info, error.ee_data, error.ee_code);
      any = true;
    }
  }
  return any;
}

bool ZeroCopy::Take(int fd, msghdr* message) {
  sock_extended_err error{};
  {
    Critical critical;
    base::LatchGuard hold(latch_);
    const int n = waiting_.load(std::memory_order_relaxed);
    if (n == 0) return false;
    error.ee_origin = SO_EE_ORIGIN_ZEROCOPY;
    error.ee_code = range_[0].code;
    error.ee_info = range_[0].first;
    error.ee_data = range_[0].last;
    std::memmove(range_, range_ + 1,
                 static_cast<std::size_t>(n - 1) * sizeof *range_);
    waiting_.store(n - 1, std::memory_order_release);
  }
  int family = AF_INET;
  socklen_t size = sizeof family;
  ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size);
  if (message->msg_name != nullptr) message->msg_namelen = 0;
  message->msg_flags = MSG_ERRQUEUE;
  if (family == AF_INET6) {
    PutError<sockaddr_in6>(message, SOL_IPV6, IPV6_RECVERR, error);
  } else {
    PutError<sockaddr_in>(message, SOL_IP, IP_RECVERR, error);
  }
  return true;
}

}  // namespace rcsock::posix
