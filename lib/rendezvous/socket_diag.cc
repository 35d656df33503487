#include "lib/rendezvous/socket_diag.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/magic.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "lib/base/file_text.h"
#include "lib/rendezvous/address.h"

namespace rcsock::rendezvous {
namespace {

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

// The loopback interface has this number in every network namespace.  Packets
// between two sockets of one host pass through it.  So a socket that is bound
// to an interface is bound to this one.
constexpr std::uint32_t kLoopbackIndex = 1;

// The most of /proc/net/tcp that one look reads: 25,000 sockets.
constexpr std::size_t kMostText = 4 << 20;

// Returns 0 if the kernel does not tell, before 5.12.
std::uint64_t NamespaceOf(int fd) {
  std::uint64_t cookie = 0;
  socklen_t length = sizeof cookie;
  const long r = ::syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_NETNS_COOKIE,
                           &cookie, &length);
  return r == 0 ? cookie : 0;
}

// The addresses and ports of a connection, as one of its ends sees them.
struct Names {
  const std::uint8_t* local;
  const std::uint8_t* remote;
  std::uint16_t local_port;
  std::uint16_t remote_port;

  Names(const Tuple& tuple, stream::Role whose) {
    const bool connector = whose == stream::Role::kConnector;
    local = connector ? tuple.c_addr : tuple.s_addr;
    remote = connector ? tuple.s_addr : tuple.c_addr;
    local_port = connector ? tuple.c_port : tuple.s_port;
    remote_port = connector ? tuple.s_port : tuple.c_port;
  }
  bool v4() const {
    Address address;
    std::memcpy(address.data(), local, address.size());
    return IsMapped(address);
  }
};

// Reads only what the kernel has at hand: a file system of the peer's own
// (FUSE) would answer when it likes.  Returns true if the file says that it is
// a socket.
bool Identify(int fd, struct statx* identity) {
  return fd >= 0 &&
         ::syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
                   STATX_TYPE | STATX_INO, identity) == 0 &&
         S_ISSOCK(identity->stx_mode);
}

// --- /proc/net/tcp, where netlink is refused

// Prints an address and a port as a line of /proc/net/tcp has them: words of 32
// bits in the host's order.
std::size_t Print(const std::uint8_t* address, std::size_t size,
                  std::uint16_t port, char* to) {
  std::size_t done = 0;
  for (std::size_t at = 16 - size; at < 16; at += 4) {
    std::uint32_t word;
    std::memcpy(&word, address + at, sizeof word);
    done += static_cast<std::size_t>(std::sprintf(to + done, "%08X", word));
  }
  return done +
         static_cast<std::size_t>(std::sprintf(to + done, ":%04X", port));
}

struct Wanted {
  Wanted(const Names& names, std::size_t size) {
    length = Print(names.local, size, names.local_port, text);
    text[length++] = ' ';
    length += Print(names.remote, size, names.remote_port, text + length);
    text[length++] = ' ';
  }
  char text[96];
  std::size_t length;
  std::uint32_t inode = 0;
};

// The fields of a line: number, two ends, state, queues, timer,
// retransmissions, uid, time-out, inode.
void ReadLine(std::string_view line, Wanted* wanted) {
  const std::size_t colon = line.find(": ");
  if (colon == line.npos) return;
  line.remove_prefix(colon + 2);
  if (!line.starts_with({wanted->text, wanted->length})) return;
  line.remove_prefix(wanted->length);
  for (int field = 0; field < 6; ++field) {
    const std::size_t end = line.find(' ');
    if (end == line.npos) return;
    line.remove_prefix(end);
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  }
  std::from_chars(line.data(), line.data() + line.size(), wanted->inode);
}

// Looks for both connections' lines in one of the two files.
void ReadFile(const char* name, Wanted* one, Wanted* two) {
  const base::UniqueFd file(base::OpenText(name));
  struct statfs system;
  if (!file.ok() || ::syscall(SYS_fstatfs, file.get(), &system) != 0 ||
      system.f_type != PROC_SUPER_MAGIC) {
    return;
  }
  base::EachLine<4096>(file.get(), kMostText, [&](std::string_view line) {
    ReadLine(line, one);
    ReadLine(line, two);
    return one->inode != 0 && two->inode != 0;
  });
}

// Returns the other end of `fd` if the lists have `fd`, too.  Lists of another
// network namespace do not have it.
std::uint32_t OtherEndByProc(int fd, const Tuple& tuple, stream::Role role) {
  const Names own(tuple, role);
  const Names other(tuple, stream::OtherRole(role));
  std::uint32_t mine = 0;
  std::uint32_t theirs = 0;
  // An IPv6 socket with a mapped address is in the second list.
  constexpr struct {
    const char* name;
    std::size_t address_size;
  } kLists[] = {{"/proc/thread-self/net/tcp", 4},
                {"/proc/thread-self/net/tcp6", 16}};
  for (const auto& list : kLists) {
    if (list.address_size == 4 && !own.v4()) continue;
    Wanted here(own, list.address_size);
    Wanted there(other, list.address_size);
    ReadFile(list.name, &here, &there);
    if (here.inode != 0) mine = here.inode;
    if (there.inode != 0) theirs = there.inode;
  }
  return mine != 0 && mine == SocketInode(fd) ? theirs : 0;
}

}  // namespace

std::uint32_t SocketInode(int fd) { return TokenInode(fd, fd); }

std::uint32_t TokenInode(int token, int socket) {
  struct statx one {};
  struct statx known {};
  if (!Identify(token, &one) || !Identify(socket, &known) ||
      one.stx_dev_major != known.stx_dev_major ||
      one.stx_dev_minor != known.stx_dev_minor) {
    return 0;
  }
  return static_cast<std::uint32_t>(one.stx_ino);
}

base::UniqueFd OpenToken(int fd) {
  char path[48];
  std::snprintf(path, sizeof path, "/proc/thread-self/fd/%d", fd);
  base::UniqueFd token(base::OpenHigh([&path] {
    return ::syscall(SYS_openat, AT_FDCWD, path, O_PATH | O_CLOEXEC, 0);
  }));
  // The number may now be that of another file.  A token of the number would
  // open that file.
  if (SocketInode(token.get()) == 0) token.reset();
  return token;
}

bool SocketDiag::Open(int fd) {
  const std::uint64_t wanted = NamespaceOf(fd);
  if (netlink_.ok() && wanted != 0 && cookie_ == wanted) return true;
  // The socket is the first, or the connection is of another namespace.  Or the
  // kernel does not name namespaces, and this thread's namespace may have
  // changed.
  netlink_.reset(base::OpenHighForParent([] {
    return ::syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC,
                     NETLINK_SOCK_DIAG);
  }));
  cookie_ = netlink_.ok() ? NamespaceOf(netlink_.get()) : 0;
  return netlink_.ok() && cookie_ == wanted;
}

SocketDiag::Answer SocketDiag::Ask(const Tuple& tuple, stream::Role whose,
                                   std::uint32_t scope,
                                   std::uint32_t* inode) const {
  const Names names(tuple, whose);
  struct {
    nlmsghdr header;
    inet_diag_req_v2 which;
  } ask{};
  ask.header.nlmsg_len = sizeof ask;
  ask.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  ask.header.nlmsg_flags = NLM_F_REQUEST;
  ask.which.sdiag_family = names.v4() ? AF_INET : AF_INET6;
  ask.which.sdiag_protocol = IPPROTO_TCP;
  ask.which.idiag_states = ~0u;
  inet_diag_sockid& id = ask.which.id;
  id.idiag_sport = htons(names.local_port);
  id.idiag_dport = htons(names.remote_port);
  id.idiag_if = scope != 0 ? scope : kLoopbackIndex;
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const std::size_t size = names.v4() ? 4 : 16;
  std::memcpy(id.idiag_src, names.local + 16 - size, size);
  std::memcpy(id.idiag_dst, names.remote + 16 - size, size);
  if (::syscall(SYS_sendto, netlink_.get(), &ask, sizeof ask, 0, nullptr, 0) <
      0) {
    return Answer::kUnavailable;
  }
  // The kernel has answered before the call above returned.
  alignas(nlmsghdr) char text[1024];
  const long n = ::syscall(SYS_recvfrom, netlink_.get(), text, sizeof text,
                           MSG_DONTWAIT, nullptr, nullptr);
  const auto* header = reinterpret_cast<const nlmsghdr*>(text);
  if (n < 0 || !NLMSG_OK(header, n)) return Answer::kUnavailable;
  if (header->nlmsg_type == NLMSG_ERROR) {
    nlmsgerr error{};
    if (header->nlmsg_len < NLMSG_LENGTH(sizeof error)) {
      return Answer::kUnavailable;
    }
    std::memcpy(&error, NLMSG_DATA(header), sizeof error);
    return error.error == -ENOENT ? Answer::kNone : Answer::kUnavailable;
  }
  inet_diag_msg found{};
  if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      header->nlmsg_len < NLMSG_LENGTH(sizeof found)) {
    return Answer::kUnavailable;
  }
  std::memcpy(&found, NLMSG_DATA(header), sizeof found);
  // If there is no connection, a listener answers for its port.
  if (found.id.idiag_sport != id.idiag_sport ||
      found.id.idiag_dport != id.idiag_dport || found.idiag_inode == 0) {
    return Answer::kNone;
  }
  *inode = found.idiag_inode;
  return Answer::kFound;
}

bool SocketDiag::IsOurs(int fd, const Tuple& tuple, stream::Role role,
                        std::uint32_t scope) const {
  std::uint32_t inode = 0;
  return Ask(tuple, role, scope, &inode) == Answer::kFound &&
         inode == SocketInode(fd);
}

std::uint32_t SocketDiag::OtherEnd(int fd, const Tuple& tuple,
                                   stream::Role role, std::uint32_t scope) {
  const int saved = errno;
  std::uint32_t inode = 0;
  bool by_proc = false;
  if (Open(fd)) {
    const Answer answer = Ask(tuple, stream::OtherRole(role), scope, &inode);
    // A kernel without netlink of this kind says that the socket does not
    // exist.
    by_proc = answer == Answer::kUnavailable ||
              (answer == Answer::kNone && !IsOurs(fd, tuple, role, scope));
    // If namespaces have no name, a look at this end tells whether the answer
    // is from the right one.
    if (answer == Answer::kFound && cookie_ == 0 &&
        !IsOurs(fd, tuple, role, scope)) {
      inode = 0;
    }
  } else {
    by_proc = !netlink_.ok();
  }
  if (by_proc) inode = OtherEndByProc(fd, tuple, role);
  errno = saved;
  return inode;
}

bool SocketDiag::OthersHave(int fd, const Tuple& tuple, stream::Role role,
                            std::uint32_t scope) {
  std::uint32_t inode = 0;
  if (!Open(fd)) return true;
  switch (Ask(tuple, role, scope, &inode)) {
    case Answer::kFound:
      return inode != SocketInode(fd);
    case Answer::kNone:
      return false;
    default:
      return true;
  }
}

}  // namespace rcsock::rendezvous
