#ifndef RCSOCK_TESTS_POSIX_LANE_PEER_H_
#define RCSOCK_TESTS_POSIX_LANE_PEER_H_

#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <utility>

#include "lib/rendezvous/address.h"
#include "lib/rendezvous/rendezvous.h"
#include "lib/stream/stream.h"

// For a test that is itself the other end of a lane: what lib/posix is to a
// stream, in the least that does.
namespace under {

class SocketAnchor : public rcsock::stream::Anchor {
 public:
  explicit SocketAnchor(int fd) : fd_(fd) {}
  ssize_t Send(const iovec* iov, int count) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(iov);
    message.msg_iovlen = static_cast<std::size_t>(count);
    const ssize_t n = ::sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n < 0 ? -errno : n;
  }
  ssize_t Recv(void* to, std::size_t length) override {
    const ssize_t n = ::recv(fd_, to, length, MSG_DONTWAIT);
    return n < 0 ? -errno : n;
  }
  ssize_t RecvV(const iovec* iov, int count, bool peek) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(iov);
    message.msg_iovlen = static_cast<std::size_t>(count);
    const ssize_t n =
        ::recvmsg(fd_, &message, MSG_DONTWAIT | (peek ? MSG_PEEK : 0));
    return n < 0 ? -errno : n;
  }
  int ShutdownWrite() override {
    return ::shutdown(fd_, SHUT_WR) == 0 ? 0 : -errno;
  }

 private:
  const int fd_;
};

class Seeking : public rcsock::rendezvous::Seeker {
 public:
  Seeking(int fd, rcsock::stream::Role role) : fd_(fd), role_(role) {}
  rcsock::stream::Role role() const override { return role_; }
  bool Names(sockaddr_storage* local, sockaddr_storage* peer) override {
    return rcsock::rendezvous::NamesOf(fd_, local, peer);
  }
  int Descriptor() override { return fd_; }
  void Adopt() override {
    rcsock::rendezvous::Conductor::IfRunning()->Adopted(this);
  }
  void OnLink(std::shared_ptr<rcsock::lane::shm::Link> its_link,
              int its_index) override {
    link = std::move(its_link);
    index = its_index;
  }
  void LaneOpen(std::unique_ptr<rcsock::lane::Lane> opened,
                std::uint32_t its_epoch, const rcsock::stream::Nonce& my_nonce,
                const rcsock::stream::Nonce& peers_nonce,
                bool /*authenticated*/) override {
    lane = std::move(opened);
    epoch = its_epoch;
    mine = my_nonce;
    peers = peers_nonce;
    answer.store(1, std::memory_order_release);
  }
  void SeekFailed(rcsock::base::Reason, bool) override {
    answer.store(2, std::memory_order_release);
  }

  std::atomic<int> answer{0};
  std::shared_ptr<rcsock::lane::shm::Link> link;
  int index = -1;
  std::unique_ptr<rcsock::lane::Lane> lane;
  std::uint32_t epoch = 0;
  rcsock::stream::Nonce mine{};
  rcsock::stream::Nonce peers{};

 private:
  const int fd_;
  const rcsock::stream::Role role_;
};

}  // namespace under

#endif  // RCSOCK_TESTS_POSIX_LANE_PEER_H_
