// A libFuzzer target (tests/fuzz/run): the messages of a link between processes
// (docs/rendezvous.md), as they come from a peer, with any number of
// descriptors. Records, one behind the other: a byte that says how many
// descriptors, one how many bytes follow.

#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "lib/base/foreign_fd.h"
#include "lib/rendezvous/wire.h"

namespace {

using namespace rcsock::rendezvous;  // NOLINT

void Must(bool condition) {
  if (!condition) std::abort();
}

int OpenDescriptors() {
  DIR* const all = ::opendir("/proc/self/fd");
  Must(all != nullptr);
  int count = 0;
  while (::readdir(all) != nullptr) ++count;
  ::closedir(all);
  return count;
}

// As whatever it says that it is: only what is that to the byte is taken.
template <typename Message>
int Take(const Packet& packet) {
  Message message;
  if (!packet.Read(&message)) return 0;
  Must(packet.length == sizeof message);
  Must(std::memcmp(&message, packet.bytes, sizeof message) == 0);
  Header header;
  Must(packet.ReadHeader(&header));
  Must(header.version == kVersion && header.type == Message::kType);
  return 1;
}

template <typename... Messages>
int TakeAny(const Packet& packet) {
  return (Take<Messages>(packet) + ...);
}

void Look(const Packet& packet) {
  Header header;
  if (packet.ReadHeader(&header)) {
    Must(header.magic == kMagic && header.length == packet.length);
  }
  Must(
      (TakeAny<Hello, LinkMsg, LinkAck, BellMsg, SegmentMsg, OpenMsg, OpenedMsg,
               ReadyMsg, RejectMsg, ClosedMsg, DirAdd, DirRemove, StatMsg>(
          packet)) <= 1);
  ClosedMsg closed;
  if (packet.Read(&closed)) {
    const auto reason = CheckedReason(closed.reason);
    Must(reason < rcsock::base::Reason::kCount);
    Must(static_cast<std::uint32_t>(reason) != 0);
  }
}

bool Send(int fd, const std::uint8_t* bytes, std::size_t length, int fd_count) {
  iovec iov{const_cast<std::uint8_t*>(bytes), length};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  constexpr int kMost = kMostReceived;
  alignas(cmsghdr) char control[CMSG_SPACE(kMost * sizeof(int))] = {};
  if (fd_count > 0) {
    const auto size = static_cast<std::size_t>(fd_count) * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    int fds[kMost];
    std::fill(fds, fds + fd_count, 2);
    std::memcpy(CMSG_DATA(header), fds, size);
  }
  return ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  const int before = OpenDescriptors();
  int ends[2];
  Must(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  while (size >= 3) {
    const int fd_count = data[0] % (kMostReceived + 1);
    const std::size_t follow = data[1];
    // (What the input has not is 0.)
    const std::size_t given = std::min(follow, size - 3);
    std::uint8_t bytes[sizeof(Header) + 255] = {};
    std::size_t length = 0;
    if (data[2] != 0) {
      const auto total = static_cast<std::uint16_t>(sizeof(Header) + follow);
      const Header header{kMagic, kVersion, static_cast<Type>(data[2]), total};
      std::memcpy(bytes, &header, sizeof header);
      length = sizeof header;
    }
    std::memcpy(bytes + length, data + 3, given);
    length += follow;
    data += 3 + given;
    size -= 3 + given;
    if (!Send(ends[0], bytes, length, fd_count)) break;
    Packet packet;
    const Received received = Receive(ends[1], &packet);
    Must(packet.fd_count <= kMostReceived);
    if (length > kMaxPacket || fd_count > kMaxFds) {
      Must(received == Received::kMalformed);
    } else if (length == 0 && fd_count == 0) {
      Must(received == Received::kEnd);
    } else {
      Must(received == Received::kPacket);
      Must(packet.length == length && packet.fd_count == fd_count);
      Must(std::memcmp(packet.bytes, bytes, length) == 0);
      Look(packet);
    }
    Packet none;
    Must(Receive(ends[1], &none) == Received::kNothing);
  }
  ::close(ends[0]);
  ::close(ends[1]);
  rcsock::base::AwaitCloses();
  Must(OpenDescriptors() == before);
  return 0;
}
