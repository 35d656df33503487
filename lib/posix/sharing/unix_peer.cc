#include "lib/posix/sharing/unix_peer.h"

#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>

#include "lib/base/unique_fd.h"
#include "lib/posix/sharing/unread.h"

namespace rcsock::posix {
namespace {

struct Request {
  nlmsghdr header;
  unix_diag_req body;
};

// The attribute UNIX_DIAG_PEER of the kernel's answer; 0: it has none.
std::uint64_t PeerIn(const char* answer, std::size_t length,
                     std::uint32_t inode) {
  nlmsghdr header;
  unix_diag_msg body;
  if (length < NLMSG_HDRLEN + sizeof body) return 0;
  std::memcpy(&header, answer, sizeof header);
  std::memcpy(&body, answer + NLMSG_HDRLEN, sizeof body);
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || body.udiag_ino != inode) {
    return 0;
  }
  std::size_t at = NLMSG_HDRLEN + NLMSG_ALIGN(sizeof body);
  nlattr attribute;
  while (at + sizeof attribute <= length) {
    std::memcpy(&attribute, answer + at, sizeof attribute);
    if (attribute.nla_len < NLA_HDRLEN || attribute.nla_len > length - at) {
      return 0;
    }
    std::uint32_t peer;
    if (attribute.nla_type == UNIX_DIAG_PEER &&
        attribute.nla_len >= NLA_HDRLEN + sizeof peer) {
      std::memcpy(&peer, answer + at + NLA_HDRLEN, sizeof peer);
      return peer;
    }
    at += NLA_ALIGN(attribute.nla_len);
  }
  return 0;
}

std::uint64_t AskPeer(std::uint32_t inode) {
  const base::UniqueFd diag(base::OpenHigh([] {
    return ::syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC,
                     NETLINK_SOCK_DIAG);
  }));
  if (!diag.ok()) return 0;
  Request request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.body.sdiag_family = AF_UNIX;
  request.body.udiag_ino = inode;
  request.body.udiag_show = UDIAG_SHOW_PEER;
  request.body.udiag_cookie[0] = request.body.udiag_cookie[1] = ~0u;
  if (::syscall(SYS_sendto, diag.get(), &request, sizeof request, MSG_DONTWAIT,
                nullptr, 0) != sizeof request) {
    return 0;
  }
  // The kernel has answered before sendto returns.
  alignas(nlmsghdr) char answer[512];
  const long length = ::syscall(SYS_recvfrom, diag.get(), answer, sizeof answer,
                                MSG_DONTWAIT, nullptr, nullptr);
  return length > 0 ? PeerIn(answer, static_cast<std::size_t>(length), inode)
                    : 0;
}

int TypeOf(int fd) {
  int type = 0;
  socklen_t length = sizeof type;
  return ::syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0
             ? type
             : -1;
}

}  // namespace

std::uint64_t UnixPeer(int fd) {
  const std::uint64_t inode = SocketInode(fd);
  if (inode == 0 || inode > UINT32_MAX) return 0;
  // A stream socket keeps its peer for life, so its number is cached: both
  // numbers in one word.
  static constinit std::atomic<std::uint64_t> known[64] = {};
  auto& place = known[inode % 64];
  const std::uint64_t before = place.load(std::memory_order_relaxed);
  if (before >> 32 == inode) return before & UINT32_MAX;
  const std::uint64_t peer = AskPeer(static_cast<std::uint32_t>(inode));
  if (peer != 0 && TypeOf(fd) != SOCK_DGRAM) {
    place.store(inode << 32 | peer, std::memory_order_relaxed);
  }
  return peer;
}

}  // namespace rcsock::posix
