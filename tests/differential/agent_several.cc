// Calls with several messages at once, and the rarer ways to move bytes.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "tests/differential/agent.h"

#ifndef TCP_INQ
#define TCP_INQ 36
#endif

namespace differential {

namespace {

// Messages over one buffer, some of two parts.
struct Several {
  std::vector<mmsghdr> headers;
  std::vector<iovec> parts;

  Several(char* bytes, std::size_t length, std::uint8_t index) {
    const std::size_t count = static_cast<std::size_t>(Messages(index));
    headers.resize(count);
    parts.resize(2 * count);
    // One of nothing, among others.
    const std::size_t empty = index >= 8 ? 1 : count;
    std::size_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
      std::size_t n = i == empty ? 0 : length / count;
      // (Never of nothing, if there is anything: see Async.)
      if (i == 0) n += length % count;
      const std::size_t first = i % 2 == 0 ? n : n / 2;
      parts[2 * i] = {bytes + at, first};
      parts[2 * i + 1] = {bytes + at + first, n - first};
      at += n;
      headers[i] = {};
      headers[i].msg_hdr.msg_iov = &parts[2 * i];
      headers[i].msg_hdr.msg_iovlen = 2;
      // What no call has answered stays.
      headers[i].msg_len = 12345;
    }
  }
};

}  // namespace

std::string DoSendSeveral(const Slot& slot, const Op& op, long* value) {
  const std::size_t length = Length(op.a);
  const int connection = slot.connection < 0 ? 0 : slot.connection;
  std::vector<char> bytes = Bytes(connection, length);
  Several several(bytes.data(), length, op.b);
  const int flags = ((op.c & 1) != 0 ? MSG_DONTWAIT : 0) |
                    ((op.c & 2) != 0 ? MSG_NOSIGNAL : 0);
  const int before = sigpipes.load();
  errno = 0;
  const int all = static_cast<int>(several.headers.size());
  int n = -1;
  for (int at = 0; at < all;) {
    const int more = ::sendmmsg(slot.fd, several.headers.data() + at,
                                static_cast<unsigned>(all - at), flags);
    if (more > 0) n = at += more;
    if (!failed) break;
    if (more < 0 && !Again(slot.fd)) break;
  }
  std::string text = Outcome(n) + " of";
  for (int i = 0; i < n; ++i) {
    const unsigned moved = several.headers[static_cast<std::size_t>(i)].msg_len;
    text += Print(" %u", moved);
    *value += moved;
  }
  tx_at[connection] += static_cast<std::uint64_t>(*value);
  return text + Print(" sigpipe %d", sigpipes.load() - before);
}

std::string DoRecvSeveral(int fd, const Op& op, bool wait, long* value) {
  const std::size_t length = Length(op.a);
  std::vector<char> bytes(length + 8);
  Several several(bytes.data(), length, op.b);
  const bool peeks = (op.c & 1) != 0;
  const bool drops = (op.c & 4) != 0;
  int flags = (wait ? 0 : MSG_DONTWAIT) | (peeks ? MSG_PEEK : 0) |
              ((op.c & 2) != 0 ? MSG_WAITALL : 0) | (drops ? MSG_TRUNC : 0);
  if (op.c >= 12) flags |= MSG_WAITFORONE;
  // (A signal behind the first message is the socket's error from then on, by a
  // number that no program should see.)
  if (wait && op.kind == Kind::kAsyncSeveral) flags |= MSG_WAITFORONE;
  // The time-out counts between messages: of nothing it ends behind the first.
  timespec time{0, op.b % 4 == 3 ? 1'000'000'000 : 0};
  timespec* const limit = op.b % 4 >= 2 ? &time : nullptr;
  errno = 0;
  const int n =
      ::recvmmsg(fd, several.headers.data(),
                 static_cast<unsigned>(several.headers.size()), flags, limit);
  std::string text = Outcome(n);
  for (std::size_t i = 0; i < several.headers.size(); ++i) {
    const mmsghdr& one = several.headers[i];
    if (static_cast<int>(i) >= n) {
      if (one.msg_len != 12345) text += " touched";
      continue;
    }
    if (!peeks && value != nullptr) *value += one.msg_len;
    text += Print(" %u/%x", one.msg_len,
                  static_cast<unsigned>(one.msg_hdr.msg_flags));
    if (!drops) {
      text += Hash(static_cast<const char*>(one.msg_hdr.msg_iov[0].iov_base),
                   one.msg_len);
    }
  }
  return text;
}

// What waits, but not for long.
std::string DoTimed(int fd, const Op& op, long* value) {
  if (fd < 0 || IsPending()) return "skip";
  // (TCP waits for a byte even where none is asked for.)
  Op some = op;
  if (Length(op.a) == 0) some.a = 0;
  timeval time{0, 20'000};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  const std::string text =
      op.c >= 16 ? DoRecvSeveral(fd, some, true, value)
                 : DoRecv(fd, Length(some.a), op.b, op.c, true, value);
  time = {0, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  return text;
}

// By way of a pipe into the stream.
std::string DoSpliceTo(const Slot& slot, std::size_t length, long* value) {
  if (slot.fd < 0) return "skip";
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) Die("pipe");
  const std::vector<char> bytes = Bytes(slot.connection, length);
  if (length > 0 && ::write(pipe_fds[1], bytes.data(), length) !=
                        static_cast<ssize_t>(length)) {
    Die("write to a pipe");
  }
  const int before = sigpipes.load();
  ssize_t n;
  do {
    n = ::splice(pipe_fds[0], nullptr, slot.fd, nullptr, length,
                 SPLICE_F_NONBLOCK);
  } while (n < 0 && length > 0 && Again(slot.fd));
  const std::string text = Outcome(n);
  *value = std::max<long>(n, 0);
  tx_at[slot.connection] += static_cast<std::uint64_t>(*value);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  return text + Print(" sigpipe %d", sigpipes.load() - before);
}

// recvmsg that also tells what is left.
std::string DoInq(int fd, const Op& op, long* value) {
  const int on = op.b % 4 != 0;
  std::string text =
      Outcome(::setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof on)) + " ";
  std::vector<char> bytes(Length(op.a) + 1);
  iovec one{bytes.data(), Length(op.a)};
  alignas(cmsghdr) char control[64];
  msghdr message{};
  message.msg_iov = &one;
  message.msg_iovlen = 1;
  message.msg_control = control;
  // Too small for it: MSG_CTRUNC.
  message.msg_controllen = op.b % 4 == 3 ? 8 : sizeof control;
  errno = 0;
  const ssize_t n =
      ::recvmsg(fd, &message, MSG_DONTWAIT | ((op.c & 1) ? MSG_PEEK : 0));
  text += Outcome(n) + Hash(bytes.data(), n);
  if (n < 0) return text;
  if ((op.c & 1) == 0) *value = n;
  text += Print(" flags %x", static_cast<unsigned>(message.msg_flags));
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(&message, each)) {
    int left = 0;
    std::memcpy(&left, CMSG_DATA(each), sizeof left);
    text += Print(" level %d type %d left %d", each->cmsg_level,
                  each->cmsg_type, left);
  }
  return text;
}

// A peek that goes on where the last one has ended.
std::string DoPeekOffset(int fd, const Op& op) {
  constexpr int kOffsets[] = {-1, 0, 3, 100};
  const int offset = kOffsets[op.b % 4];
  std::string text = Outcome(
      ::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset));
  std::vector<char> bytes(Length(op.a) + 1);
  for (int i = 0; i < 2; ++i) {
    const ssize_t n =
        ::recv(fd, bytes.data(), Length(op.a), MSG_PEEK | MSG_DONTWAIT);
    text += " " + Outcome(n) + Hash(bytes.data(), n);
  }
  return text;
}

}  // namespace differential
