#ifndef RCSOCK_LIB_POSIX_IOMUX_INTERESTS_H_
#define RCSOCK_LIB_POSIX_IOMUX_INTERESTS_H_

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>

#include "lib/base/latch.h"
#include "lib/posix/socket/interest_latch.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"

// The registrations of streams in epoll sets.
namespace rcsock::posix {

class EpollSet;

// A pointer that is written with the interest latch.  A wait reads it with its
// own latch alone, while another thread may close the set, or the object that
// the pointer names.  The wait uses at once what it found on its list.  Where
// another object would matter, the wait reads the pointer again.
template <class T>
class Loose {
 public:
  Loose& operator=(T* to) {
    at_.store(to, std::memory_order_relaxed);
    return *this;
  }
  operator T*() const { return at_.load(std::memory_order_relaxed); }
  T* operator->() const { return *this; }

 private:
  std::atomic<T*> at_{nullptr};
};

// One registration of a stream in an epoll set.  It comes from a pool, and is
// never freed.  While the stream is on TCP the kernel has the registration
// (in_kernel).  Otherwise the registration is in user space, and the kernel
// does not know it.  All that a report needs fits in one cache line.
struct alignas(64) Interest {
  Loose<EpollSet> set;  // null: free
  Loose<Sock> sock;
  std::atomic<std::uint64_t> data{0};  // epoll_data_t::u64
  std::atomic<std::uint32_t> events{0};
  std::uint32_t told = 0;  // the last wait that has reported it
  Interest* next_of_sock RC_GUARDED_BY(interest_latch) = nullptr;
  Interest* ready_next = nullptr;  // the set's ready list
  Interest* ready_prev = nullptr;
  std::atomic<bool> ready{false};  // is on the list; written with ready_latch_
  bool in_kernel RC_GUARDED_BY(interest_latch) = false;
  std::atomic<bool> in_user{false};
  std::atomic<bool> spent{false};  // EPOLLONESHOT, reported
  std::atomic<bool> edge{false};   // EPOLLET: something has happened since the
                                   // last report
  // Deleted, but kept for the ADD that follows in programs that delete and add
  // for each request.  A dormant registration reports nothing, and does not
  // exist for epoll_ctl.
  std::atomic<bool> dormant{false};
  // Every wait looks at the stream's lane.  Written with the interest latch.
  std::atomic<bool> direct{false};
  // Reports in a row with short gaps.  Guarded by the set's wait_latch_.
  std::uint8_t warm = 0;

  // EPOLLONESHOT: the kernel has reported it.
  bool told_by_kernel RC_GUARDED_BY(interest_latch) = false;
  // EPOLLONESHOT: armed since it has left the kernel.
  bool armed_here RC_GUARDED_BY(interest_latch) = false;
  // EPOLLONESHOT: /proc is to say whether the kernel has reported the
  // registration.
  bool asked RC_GUARDED_BY(interest_latch) = false;
  // How often it has been armed.  Written with the interest latch.
  std::atomic<std::uint32_t> armings{0};
  // local_tcp_ of its set counts it.
  bool counted RC_GUARDED_BY(interest_latch) = false;
  // moves_ of the set when the registration left the kernel.
  std::uint32_t moved_at RC_GUARDED_BY(interest_latch) = 0;
  int fd RC_GUARDED_BY(interest_latch) = -1;
  Interest* next_of_set = nullptr;  // the set's interests in user space
  Interest* prev_of_set RC_GUARDED_BY(interest_latch) = nullptr;
  // The registration has been in user space, so a wait may look at it without
  // the latch.
  bool was_user RC_GUARDED_BY(interest_latch) = false;
  EpollSet* was_of = nullptr;  // its set, while it is in a Lookers

  // A look that sees this arming sees what the arming thread has read before,
  // too.
  void CountArming() RC_REQUIRES(interest_latch) {
    armings.store(armings.load(std::memory_order_relaxed) + 1,
                  std::memory_order_release);
  }
  // Whether the registration is still armed with what a look has read without
  // the latch.
  bool Is(std::uint32_t its_events, std::uint64_t its_data) const {
    return events.load(std::memory_order_relaxed) == its_events &&
           data.load(std::memory_order_relaxed) == its_data;
  }
};

// What the streams tell their registrations (registrations.h).
class Interests final : public Registrations {
 public:
  // Makes this object the one that streams report to.
  static void Install();

  bool ToUser(Sock* sock) override;
  void ToKernel(Sock* sock) override;
  void Refresh(Sock* sock, bool barrier) override;
  void MakeEdges(Sock* sock, Edge edge) override;
  void Kick(Sock* sock) override;
  void PeerKnown(Sock* sock) override;
  void Drop(Sock* sock, int fd, int kept) override;
  bool Named(Sock* sock, int fd) override;
  bool Kept(Sock* sock) override;
  int Bell(Sock* sock, int otherwise) override;
  bool NotifyLatched(Sock* sock) override
      RC_REQUIRES(sock->tx_latch, sock->rx_latch);
  bool MayHide(Sock* sock, bool forking) override;
  void HideSets(Sock* sock) override;
};
// NotifyLatched, with the stream's latches.
void InterestsNotify(Sock* sock);
// The stream is the kernel's, but has unread bytes that the kernel does not
// know of.  Reports what `set` should tell of them now, and returns the number
// of events.
int InterestsUnread(Sock* sock, EpollSet* set, epoll_event* out, int capacity);
// Around fork, and in its child.
void InterestsForkLock();
void InterestsForkUnlock(bool child);
void InterestsForkChild();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_IOMUX_INTERESTS_H_
