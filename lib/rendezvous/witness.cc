#include "lib/rendezvous/witness.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/rendezvous/address.h"

namespace rcsock::rendezvous {
namespace {

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

// Where a message about a socket has its ports, both big-endian.
constexpr std::uint32_t kPorts =
    NLMSG_HDRLEN + offsetof(inet_diag_msg, id.idiag_sport);
// The peer may have asked by this socket, too, and left its answers there.
constexpr int kMostAnswers = 8;

std::uint64_t NamespaceOf(int fd) {
  std::uint64_t cookie = 0;
  socklen_t length = sizeof cookie;
  ::syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length);
  return cookie;
}

// Lets the socket receive only messages about the connecting end's port, for
// ever.  The parts of a list hold many sockets, and the filter would see the
// first alone.  In messages about other families other numbers stand at the
// port's place.
bool Limit(int fd, const Tuple& ends, stream::Role role) {
  const std::uint32_t at = kPorts + (role == stream::Role::kConnector ? 0 : 2);
  // A filter reads numbers as big-endian, and the type is little-endian.
  constexpr std::uint32_t kType = SOCK_DIAG_BY_FAMILY << 8;
  constexpr std::uint32_t kPart = NLM_F_MULTI << 8;
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, offsetof(nlmsghdr, nlmsg_type)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kType, 0, 8),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, offsetof(nlmsghdr, nlmsg_flags)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kPart, 6, 0),
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS,
               NLMSG_HDRLEN + offsetof(inet_diag_msg, idiag_family)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 3),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, at),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ends.c_port, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, 0xffff),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  const sock_fprog program{sizeof code / sizeof *code, code};
  const int on = 1;
  return ::syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_ATTACH_FILTER, &program,
                   sizeof program) == 0 &&
         ::syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_LOCK_FILTER, &on,
                   sizeof on) == 0;
}

bool HasOption(int fd, int option, int wanted) {
  int value = -1;
  socklen_t length = sizeof value;
  return ::syscall(SYS_getsockopt, fd, SOL_SOCKET, option, &value, &length) ==
             0 &&
         value == wanted;
}

struct Side {
  const std::uint8_t* address;
  std::uint16_t port;
  bool v4;

  Side(const std::uint8_t* its_address, std::uint16_t its_port)
      : address(its_address), port(its_port) {
    Address copy;
    std::memcpy(copy.data(), address, copy.size());
    v4 = IsMapped(copy);
  }
  // Returns whether the kernel means this address.  A socket of IPv6 has the
  // address of IPv4 in its mapped form.
  bool Is(const std::uint32_t* words, std::uint8_t family) const {
    const bool brief = v4 && family == AF_INET;
    return std::memcmp(words, address + (brief ? 12 : 0), brief ? 4 : 16) == 0;
  }
};

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 which;
};

Question Ask(const Side& own, const Side& other) {
  Question ask{};
  ask.header.nlmsg_len = sizeof ask;
  ask.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  ask.header.nlmsg_flags = NLM_F_REQUEST;
  // The peer must not know which answer is awaited.
  ask.header.nlmsg_seq = static_cast<std::uint32_t>(base::NowNs() >> 3);
  ask.which.sdiag_family = own.v4 ? AF_INET : AF_INET6;
  ask.which.sdiag_protocol = IPPROTO_TCP;
  ask.which.idiag_states = ~0u;
  inet_diag_sockid& id = ask.which.id;
  id.idiag_sport = htons(own.port);
  id.idiag_dport = htons(other.port);
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const std::size_t size = own.v4 ? 4 : 16;
  std::memcpy(id.idiag_src, own.address + 16 - size, size);
  std::memcpy(id.idiag_dst, other.address + 16 - size, size);
  return ask;
}

// Returns the inode number in an answer to the question, or 0.
std::uint32_t InodeIn(const nlmsghdr* header, long length, const Question& ask,
                      const Side& own, const Side& other) {
  inet_diag_msg found{};
  if (length < static_cast<long>(NLMSG_LENGTH(sizeof found)) ||
      header->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      header->nlmsg_seq != ask.header.nlmsg_seq ||
      header->nlmsg_len < NLMSG_LENGTH(sizeof found)) {
    return 0;
  }
  std::memcpy(&found, NLMSG_DATA(header), sizeof found);
  // If there is no connection, a listener answers for its port.
  const bool same = found.id.idiag_sport == htons(own.port) &&
                    found.id.idiag_dport == htons(other.port) &&
                    own.Is(found.id.idiag_src, found.idiag_family) &&
                    other.Is(found.id.idiag_dst, found.idiag_family);
  return same ? found.idiag_inode : 0;
}

}  // namespace

base::UniqueFd OpenWitness(int fd, const Tuple& ends, stream::Role role) {
  const int saved = errno;
  base::UniqueFd witness(base::OpenHigh([] {
    return ::syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC,
                     NETLINK_SOCK_DIAG);
  }));
  const std::uint64_t space = NamespaceOf(fd);
  if (witness.ok() && (space == 0 || NamespaceOf(witness.get()) != space ||
                       !Limit(witness.get(), ends, role))) {
    witness.reset();
  }
  errno = saved;
  return witness;
}

std::uint32_t AskWitness(int witness, const Tuple& ends, stream::Role whose) {
  if (witness < 0 || !HasOption(witness, SO_DOMAIN, AF_NETLINK) ||
      !HasOption(witness, SO_PROTOCOL, NETLINK_SOCK_DIAG)) {
    return 0;
  }
  const Side client(ends.c_addr, ends.c_port);
  const Side server(ends.s_addr, ends.s_port);
  const bool connector = whose == stream::Role::kConnector;
  const Side& own = connector ? client : server;
  const Side& other = connector ? server : client;
  if (own.v4 != other.v4) return 0;
  const Question ask = Ask(own, other);
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  if (::syscall(SYS_sendto, witness, &ask, sizeof ask, MSG_DONTWAIT, &kernel,
                sizeof kernel) < 0) {
    return 0;
  }
  for (int i = 0; i < kMostAnswers; ++i) {
    alignas(nlmsghdr) char text[1024];
    sockaddr_nl from{};
    socklen_t length = sizeof from;
    const long n = ::syscall(SYS_recvfrom, witness, text, sizeof text,
                             MSG_DONTWAIT, &from, &length);
    if (n <= 0) return 0;
    // A process that administers its network can write to the socket, too.
    if (length != sizeof from || from.nl_family != AF_NETLINK ||
        from.nl_pid != 0) {
      continue;
    }
    const std::uint32_t inode =
        InodeIn(reinterpret_cast<const nlmsghdr*>(text), n, ask, own, other);
    if (inode != 0) return inode;
  }
  return 0;
}

}  // namespace rcsock::rendezvous
