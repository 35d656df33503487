// The anchor: raw bytes and frames that go over TCP, and what is read ahead of
// the application.

#include <algorithm>

#include "lib/stream/stream.h"

namespace rcsock::stream {
namespace {

// Bounds the work of one Progress call, whatever the peer does.
constexpr int kMaxRecvs = 64;
constexpr std::size_t kReadAhead = 64 * 1024;

}  // namespace

ssize_t Stream::SendRaw(const iovec* iov, int count) {
  ssize_t n = anchor_->Send(iov, count);
  if (n > 0) {
    tail_tx_.Push(iov, count, static_cast<std::size_t>(n));
    tx_off_ += static_cast<std::uint64_t>(n);
  } else if (n < 0 && n != -EAGAIN && n != -EINTR) {
    // The kernel repeats only these errors for ever.
    if (n == -EPIPE || n == -ECONNRESET) tx_broken_ = true;
  }
  return n;
}

// Returns true if nothing is left to be written.
bool Stream::FlushOut() {
  if (out_.empty()) return true;
  while (!out_.empty()) {
    iovec iov{const_cast<std::uint8_t*>(out_.data()), out_.size()};
    ssize_t n = anchor_->Send(&iov, 1);
    if (n == -EAGAIN || n == -EINTR || n == 0) return false;
    if (n < 0) {
      // The reading side still delivers what the peer sent before it went.
      // After the peer's FIN a reset is EPIPE, as in the kernel. The kernel has
      // not seen a FIN that came as a frame. If only frames were still to be
      // sent, there is no error: over TCP the end would have been orderly.
      const bool nothing =
          pfin_known_ && (tx_ == Tx::kLane || tx_ == Tx::kDown) &&
          (fin_acked_ || (lane_ != nullptr && AckedOff() == tx_off()));
      if (n != -EPIPE && so_error_ == 0 && !nothing) {
        const bool more =
            rx_ != Rx::kRaw || waiting_ != Waiting::kNothing || !limbo_.empty();
        if (n == -ECONNRESET && more && !pfin_known_) {
          // The kernel reports a reset once, and has reported it to the writer.
          // What is on the lane came before the reset.
          send_error_ = static_cast<int>(-n);
        } else {
          so_error_ = pfin_known_ ? EPIPE : static_cast<int>(-n);
        }
      }
      tx_broken_ = true;
      out_.Clear();
      Emit(kTxReady | kRxReady);
      return false;
    }
    out_.Drop(static_cast<std::size_t>(n));
  }
  // COMMIT and GOT are in no writer's way.
  if (tx_ != Tx::kComm) Emit(kTxReady);
  return true;
}

// For the application. Returns bytes, 0 at the end, or -errno.
ssize_t Stream::RecvRaw(const iovec* iov, int count, bool peek) {
  const ssize_t n = anchor_->RecvV(iov, count, peek);
  if (n > 0 && !peek) {
    tail_rx_.Push(iov, count, static_cast<std::size_t>(n));
    rx_off_ += static_cast<std::uint64_t>(n);
    TookRaw();
  }
  return n;
}

// As RecvRaw, behind the first `skip` bytes of the vector. Returns 0 if there
// is nothing for now, or if TCP has ended. The next call meets an end again. It
// would not meet an error, which the kernel reports once.
std::size_t Stream::RecvRest(const iovec* iov, int count, std::size_t skip,
                             bool peek) {
  if (anchor_->AtMark()) return 0;
  for (int i = 0; i < count; ++i) {
    if (skip >= iov[i].iov_len) {
      skip -= iov[i].iov_len;
      continue;
    }
    const iovec first{static_cast<char*>(iov[i].iov_base) + skip,
                      iov[i].iov_len - skip};
    const auto ends = [this](ssize_t n) {
      const auto error = static_cast<int>(-n);
      if (n < 0 && IsToldOnce(error)) OnTcpEnd(error);
    };
    ssize_t n = RecvRaw(&first, 1, peek);
    if (n <= 0) {
      ends(n);
      return 0;
    }
    auto got = static_cast<std::size_t>(n);
    // Not after a read that has come to the switch: the bytes that follow are
    // not the application's.
    if (got == first.iov_len && i + 1 < count && !peek && rx_ == Rx::kRaw &&
        !anchor_->AtMark()) {
      n = RecvRaw(iov + i + 1, count - i - 1, false);
      if (n > 0) {
        got += static_cast<std::size_t>(n);
      } else {
        ends(n);
      }
    }
    return got;
  }
  return 0;
}

// The bytes that the application has read from limbo_ come again by TCP, and
// are dropped. Returns true if all have come.
bool Stream::DropAhead() {
  std::uint8_t nowhere[4096];
  while (ahead_ != 0) {
    const ssize_t n = anchor_->Recv(nowhere, std::min(ahead_, sizeof nowhere));
    if (n == -EAGAIN || n == -EINTR) return false;
    if (n <= 0) {
      OnTcpEnd(static_cast<int>(-n));
      return false;
    }
    tail_rx_.Push(nowhere, static_cast<std::size_t>(n));
    ahead_ -= static_cast<std::size_t>(n);
    if (ahead_ == 0) {
      // The rest comes by TCP after these bytes. A reader that waits for the
      // rest may have looked before.
      KeepReturns();
      Emit(kRxReady);
    }
    TookRaw();
    if (failed_) return false;
  }
  return true;
}

// How many raw bytes to read ahead of the application now.
std::size_t Stream::WantedAhead() const {
  if (StashIsFull()) return 0;
  const std::uint64_t in = InOff();
  const auto up_to_x = [&] {
    return in < rx_x_ ? static_cast<std::size_t>(
                            std::min<std::uint64_t>(rx_x_ - in, kReadAhead))
                      : 0;
  };
  if (waiting_ == Waiting::kPropose || waiting_ == Waiting::kSwitch) {
    // Not beyond X: the state decides whose the bytes behind X are.
    return up_to_x();
  }
  // One byte is enough to answer with RST.
  if (closed_) return stash_.empty() ? 1 : 0;
  // One byte behind X distinguishes a peer that went raw from a peer that died
  // staging.
  if (!limbo_.empty()) return up_to_x() + 1;
  // Only the end of TCP is to come.
  if (pfin_known_ && in == pfin_) return 1;
  return PeerIsDead() && stash_.size() < limits_.stash ? kReadAhead : 0;
}

// Reads ahead into the stash; no other function does. Rule 21 bounds the bytes
// here, whatever they are wanted for.
void Stream::PumpRaw(std::size_t want) {
  want = std::min({want, kReadAhead, limits_.stash + 1 - stash_.size()});
  std::uint8_t* to = stash_.Reserve(want);
  ssize_t n = to == nullptr ? -EAGAIN : anchor_->Recv(to, want);
  if (n > 0) {
    tail_rx_.Push(to, static_cast<std::size_t>(n));
    stash_.Commit(static_cast<std::size_t>(n));
    SayUnread();
    Emit(kRxReady);
    TookRaw();
    return;
  }
  if (stash_.empty()) stash_.Clear();
  if (n != -EAGAIN && n != -EINTR) OnTcpEnd(n == 0 ? 0 : static_cast<int>(-n));
}

void Stream::PumpTcp() {
  for (int i = 0; i < kMaxRecvs && !eof_ && !failed_; ++i) {
    if (rx_ == Rx::kRaw) {
      if (ahead_ != 0) {
        if (!DropAhead()) return;
        continue;
      }
      const std::size_t want = WantedAhead();
      if (want == 0) return;
      std::uint64_t before = InOff();
      PumpRaw(want);
      if (InOff() == before) return;
      continue;
    }
    std::uint8_t* to = hs_ + hs_have_;
    std::size_t want = kFrameSize - hs_have_;
    if (back_left_ != 0) {
      want = std::min(back_left_, kReadAhead);
      to = back_.Reserve(want);
      if (to == nullptr) return Fail(base::Reason::kNoMemory);
    }
    ssize_t n = anchor_->Recv(to, want);
    if (n == -EAGAIN || n == -EINTR) return;
    if (n <= 0) {
      OnTcpEnd(static_cast<int>(-n));
      return;
    }
    if (back_left_ != 0) {
      back_.Commit(static_cast<std::size_t>(n));
      back_left_ -= static_cast<std::size_t>(n);
      continue;
    }
    hs_have_ = static_cast<std::uint8_t>(hs_have_ + n);
    if (rx_ == Rx::kArm) {
      OnArmBytes();
    } else if (hs_have_ == kFrameSize) {
      hs_have_ = 0;
      if (rx_ == Rx::kArmF) {
        OnCommitFrame();
      } else {
        OnFrame();
      }
    }
  }
}

// Raw bytes have come in.
void Stream::TookRaw() {
  // The bytes that wait in limbo_ went over TCP.
  if (!limbo_.empty() && !returns_ && InOff() > rx_x_) limbo_.Clear();
  if (pfin_known_ && InOff() > pfin_) return Fail(base::Reason::kProtocol);
  CheckPending();
}

}  // namespace rcsock::stream
