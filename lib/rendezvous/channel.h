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
#include "lib/base/identity.h"
#include "lib/base/unique_fd.h"
#include "lib/rendezvous/timer.h"
#include "lib/rendezvous/wire.h"

namespace rcsock::rendezvous {

class Core;

class ChannelOwner {
 public:
  virtual ~ChannelOwner() = default;
  virtual void OnPacket(Packet& packet) = 0;
  // The channel has ended of itself, never because of Close.
  virtual void OnChannelEnd(base::Reason reason) = 0;
};

// A connected SOCK_SEQPACKET socket.  It begins as the meeting of two streams,
// and may become the link of two processes.  So the owner can change, even
// while it handles a packet.
//
// Threads: only within a turn of the conductor (Step).
class Channel : public std::enable_shared_from_this<Channel> {
 public:
  // `accepted`: the other end has connected the socket.
  Channel(Core* core, base::PeerSocket fd, bool accepted = false);
  ~Channel();

  bool Start();
  // Hands the packets that have come to the owner, at most `turns` turns'
  // worth.  Four turns take all that a peer can send for its unanswered
  // streams.
  void Take(int turns = 1);
  void SetOwner(std::weak_ptr<ChannelOwner> owner) { owner_ = owner; }
  // Sends the message, or queues a bounded amount.  A peer that does not read
  // loses the channel.  The caller keeps the descriptors.
  void Send(const void* bytes, std::size_t length, const int* fds = nullptr,
            int fd_count = 0);
  template <typename Message>
  void Send(const Message& message, const int* fds = nullptr,
            int fd_count = 0) {
    Send(static_cast<const void*>(&message), sizeof message, fds, fd_count);
  }
  // Until the channel is closed, the two ends of the link ring each other by
  // this socket (RUNG).
  void Lend(std::shared_ptr<lane::shm::Link> link);
  void Close();
  bool closed() const { return !fd_.ok(); }
  // The peer has not read everything for a while.
  bool backed_up() const { return !queue_.empty(); }
  int fd() const { return fd_.get(); }
  // Returns the uid of the peer's process, as the kernel reports it.  Returns
  // kNoUid for a peer that was met in the meeting directory: each container
  // gives its users numbers of its own.
  uid_t peer_uid() const { return far_ ? base::kNoUid : peer_uid_; }
  // Notes that the two ends have met in the meeting directory.  A process
  // between two namespaces can have one name in both, unless the name includes
  // the namespace.
  void SetFar() {
    far_ = true;
    if (!space_known_) name_length_ = 0;
  }
  bool far() const { return far_; }
  // Returns the number of a thread of the peer's process, as the peer reports
  // it.
  std::uint32_t peer_thread() const { return peer_thread_; }
  void set_peer_thread(std::uint32_t thread) { peer_thread_ = thread; }
  // Returns the name that the connecting end's socket is bound to.  The kernel
  // gives the name to no other socket meanwhile, so no two channels share a
  // name.  Both ends know the name.  Empty: the connecting end has bound none.
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
  bool far_ = false;
  bool space_known_ = false;  // name_ has the cookie of its namespace
  std::uint8_t name_[sizeof(sockaddr_un::sun_path) + sizeof(std::uint64_t)];
  std::size_t name_length_ = 0;
  std::uint32_t peer_thread_ = 0;
  boost::asio::posix::stream_descriptor descriptor_;
  Timer stuck_;
  std::weak_ptr<ChannelOwner> owner_;
  std::deque<Queued> queue_;
  std::shared_ptr<lane::shm::Link> borrower_;
};

// Whether the peer's process has our effective uid.
bool PeerHasOurUid(int fd);
// Whether the peer's uid may share memory with us: our own or one of
// Config::peers.
bool PeerIsTrusted(int fd);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_CHANNEL_H_
