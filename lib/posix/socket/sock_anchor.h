#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_ANCHOR_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_ANCHOR_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/latch.h"
#include "lib/stream/stream.h"

namespace rcsock::posix {

class Sock;

// The kernel's TCP connection under a stream: the number by which rcsock uses
// it, and the calls that the Stream makes on it.
//
// A part of its Sock.  It owns no descriptor.  Any thread may ask and set.  The
// Stream calls stream::Anchor with the latch of the direction, or both.
class TcpAnchor final : public stream::Anchor {
 public:
  explicit TcpAnchor(Sock* sock) : sock_(sock) {}

  // Returns the number, or -1.
  int number() const { return number_.load(std::memory_order_relaxed); }
  void SetNumber(int number) {
    number_.store(number, std::memory_order_relaxed);
  }
  // Sets no number.  Returns the number that there was.
  int TakeNumber() { return number_.exchange(-1); }

  // Lends the number to a call of the conductor.  Returns -1 and lends nothing
  // if there is none, or if the stream is closed.  The caller calls GiveBack
  // after each call that has returned a number.
  int Borrow();
  void GiveBack() { borrowers_.fetch_sub(1, std::memory_order_release); }
  // Waits, 100 ms at most, until no number is lent.  Requires that no latch is
  // held, and that no other call borrows: the stream is closed.
  void AwaitBorrowers() const;

  // Returns the socket's inode number, or 0 if it is not known yet.
  std::uint64_t inode() const { return inode_.load(std::memory_order_relaxed); }
  void SetInode(std::uint64_t inode) {
    inode_.store(inode, std::memory_order_relaxed);
  }
  // Returns when the bytes that were read ahead came, by CLOCK_REALTIME; 0: not
  // known.
  std::uint64_t came_ns() const {
    return came_ns_.load(std::memory_order_relaxed);
  }
  void SetCame(std::uint64_t ns) {
    came_ns_.store(ns, std::memory_order_relaxed);
  }
  // Returns how many bytes of the stream this process's engine has read from
  // TCP.  Requires the stream's rx_latch.
  std::uint64_t BytesRead(const base::Latch& rx) const RC_REQUIRES(rx) {
    static_cast<void>(rx);
    return read_;
  }

  // stream::Anchor: lib/stream/stream.h says what these do.
  ssize_t Send(const iovec* iov, int count) override;
  ssize_t Recv(void* to, std::size_t length) override;
  ssize_t RecvV(const iovec* iov, int count, bool peek) override;
  int ShutdownWrite() override;
  bool AtMark() override;
  bool Ended() override;
  // Returns whether the kernel has seen a reset, which the next write is to
  // hear of.  A completion of MSG_ZEROCOPY may look the same.
  bool Broken() const;
  // Returns whether TCP takes no more at this moment.
  bool IsFull() const;
  // Returns whether TCP has its end.  A completion of MSG_ZEROCOPY is none.
  bool HasEnd() const;
  // Returns whether TCP's end is not yet the stream's.  Requires either latch.
  bool HoldsEnd() const;
  // This end has adopted the stream, and is about to say so.  Requires that the
  // kernel's epoll sets no longer have the stream.  Does nothing if called
  // again for the same lane.  Requires both latches.
  void BeginHolding();
  // Returns whether the peer may have the lane.
  bool SaidReady() const {
    return ends_.load(std::memory_order_relaxed) != Ends::kNotSaid;
  }
  // The ends have agreed on another lane.  Requires both latches.
  void EndHolding() { ends_.store(Ends::kNotSaid, std::memory_order_relaxed); }

  // Forgets all, for another connection.  Requires that no other thread knows
  // the stream.
  void Reset() {
    SetNumber(-1);
    SetInode(0);
    SetCame(0);
    EndHolding();
    read_ = 0;
    // The count of borrowers stays: each call takes back its own, maybe late.
  }
  // In the child of a fork: the conductor's calls, and what the engine has
  // read, are the parent's.
  void OnForkChild();

 private:
  // What a read makes of TCP's end while this process does not have the lane.
  enum class Ends : std::uint8_t {
    kNotSaid,  // the stream's end: this process has not said READY
    kThere,    // the stream's end: it was there before READY
    kLater,    // held
  };

  // Returns whether what the engine reads from TCP is the application's.
  bool ReadsRaw() const;
  // As recvfrom, for a stream whose recvmsg tells when the bytes came.
  [[gnu::noinline]] long RecvStamped(void* to, std::size_t length);

  Sock* const sock_;
  std::atomic<int> number_{-1};
  std::atomic<int> borrowers_{0};
  std::atomic<std::uint64_t> inode_{0};
  std::atomic<std::uint64_t> came_ns_{0};
  std::atomic<Ends> ends_{Ends::kNotSaid};
  std::uint64_t read_ = 0;  // with the rx_latch
};

// Returns whether the next byte of `number` lies behind the mark of urgent
// data.
bool AtMarkOf(int number);

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_ANCHOR_H_
