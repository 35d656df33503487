#ifndef RCSOCK_LIB_RENDEZVOUS_CHANNEL_H_
#define RCSOCK_LIB_RENDEZVOUS_CHANNEL_H_

#include <sys/types.h>
#include <sys/un.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "lib/base/foreign_fd.h"
#include "lib/base/unique_fd.h"
#include "lib/rendezvous/timer.h"
#include "lib/rendezvous/wire.h"

namespace rcsock::rendezvous {

class Core;

class ChannelOwner {
 public:
  virtual ~ChannelOwner() = default;
  virtual void OnPacket(Packet& packet) = 0;
  // The channel has ended of itself (never because of Close).
  virtual void OnChannelEnd(base::Reason reason) = 0;
};

// A connected SOCK_SEQPACKET socket.  It begins as the meeting of two streams
// and may become the link of two processes: hence the owner can change, even
// while a packet is being handled.
//
// Threads: within turns of the conductor (Step).
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  // `accepted`: the other end has connected it.
  Channel(Core* core, base::PeerSocket fd, bool accepted = false);
  ~Channel();

  bool Start();
  // Hands over what is there to be read, a turn's worth; or all that a peer can
  // have sent of streams it waits for an answer for.
  void Take(int turns = 1);
  void SetOwner(std::weak_ptr<ChannelOwner> owner) { owner_ = owner; }
  // Sends, or queues a bounded amount; a peer that does not read loses the
  // channel.  The descriptors stay the caller's.
  void Send(const void* bytes, std::size_t length, const int* fds = nullptr,
            int fd_count = 0);
  template <typename Message>
  void Send(const Message& message, const int* fds = nullptr,
            int fd_count = 0) {
    Send(static_cast<const void*>(&message), sizeof message, fds, fd_count);
  }
  // The link's ends ring each other by it (RUNG) until it is closed.
  void Lend(std::shared_ptr<lane::shm::Link> link);
  void Close();
  bool closed() const { return !fd_.ok(); }
  // The peer has not read all for a while.
  bool backed_up() const { return !queue_.empty(); }
  int fd() const { return fd_.get(); }
  // Whose process is at the other end, by the kernel's word.
  uid_t peer_uid() const { return peer_uid_; }
  // A thread of that process, by its own word.
  std::uint32_t peer_thread() const { return peer_thread_; }
  void set_peer_thread(std::uint32_t thread) { peer_thread_ = thread; }
  // The name that the connecting end's socket is bound to.  The kernel gives it
  // to no other socket meanwhile: no two channels have one, and both ends know
  // it.  Empty: that end has bound none.
  std::span<const std::uint8_t> name() const { return {name_, name_length_}; }

 private:
  struct Queued {
    std::array<std::uint8_t, kMaxPacket> bytes;
    std::size_t length;
    std::vector<base::UniqueFd> fds;
  };
  void WaitReadable();
  void OnReadable();
  void Flush();
  void WaitWritable();
  void OnStuck() { End(base::Reason::kTimeout); }
  // Closes, and tells the owner in a later turn: the caller may be the owner.
  void End(base::Reason reason);

  Core* core_;
  base::PeerSocket fd_;
  const uid_t peer_uid_;
  std::uint8_t name_[sizeof(sockaddr_un::sun_path) + sizeof(std::uint64_t)];
  std::size_t name_length_ = 0;
  std::uint32_t peer_thread_ = 0;
  boost::asio::posix::stream_descriptor descriptor_;
  Timer stuck_;
  std::weak_ptr<ChannelOwner> owner_;
  std::deque<Queued> queue_;
  std::shared_ptr<lane::shm::Link> borrower_;
};

// Whether the process at the other end has our effective uid ...
bool PeerHasOurUid(int fd);
// ... or one of those that shared memory may be used with (Config::peers).
bool PeerIsTrusted(int fd);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_CHANNEL_H_
