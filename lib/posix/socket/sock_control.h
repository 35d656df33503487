#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_CONTROL_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_CONTROL_H_

#include <atomic>
#include <cstdint>

namespace rcsock::posix {

class Sock;

// What a program that is linked with rcsock wants for a stream.
//
// A part of its Sock.  Any thread may call it, and holds no latch of the
// stream.  A child of a fork keeps the policy.
class ProgramControl {
 public:
  enum class Policy : std::uint8_t { kAuto, kTcp, kEager };

  explicit ProgramControl(Sock* sock) : sock_(sock) {}

  // Sets what the program wants.  kTcp pins the stream.  A later policy takes
  // that pin back.
  void SetPolicy(Policy policy);
  Policy policy() const { return policy_.load(std::memory_order_relaxed); }
  // Begins a search at once.  Returns 0, or an errno if no lane may come.
  int PromoteNow();
  // Takes the stream off its lane, and waits for that until the deadline.
  // Returns 0, or ETIMEDOUT.
  int DemoteNow(std::uint64_t deadline_ns);

  // Forgets all, for another connection.
  void Reset() { policy_.store(Policy::kAuto, std::memory_order_relaxed); }

 private:
  Sock* const sock_;
  std::atomic<Policy> policy_{Policy::kAuto};
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_CONTROL_H_
