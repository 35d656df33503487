#include "lib/rendezvous/channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <span>
#include <utility>

#include "lib/base/config.h"
#include "lib/base/identity.h"
#include "lib/rendezvous/core.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

namespace rcsock::rendezvous {
namespace {

using boost::system::error_code;

// The most messages taken in one turn, so that one peer's flood leaves the
// others their turns.
constexpr int kReadBatch = 32;
// A socket buffer holds about 270 messages.  A burst of new streams is more,
// and the peer's thread may be off its CPU for a while.
constexpr std::size_t kMaxQueued = 8192;
constexpr std::chrono::seconds kStuckLimit{5};

// Returns the uid that the peer had when it connected.
uid_t PeerUid(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
      length != sizeof peer) {
    return base::kNoUid;
  }
  return base::Known(peer.uid);
}

}  // namespace

Channel::Channel(Core* core, base::PeerSocket fd, bool accepted)
    : core_(core),
      fd_(std::move(fd)),
      peer_uid_(PeerUid(fd_.get())),
      descriptor_(core->io),
      stuck_(core) {
  sockaddr_un name{};
  socklen_t length = sizeof name;
  auto* address = reinterpret_cast<sockaddr*>(&name);
  const long r = ::syscall(accepted ? SYS_getpeername : SYS_getsockname,
                           fd_.get(), address, &length);
  constexpr socklen_t kPath = offsetof(sockaddr_un, sun_path);
  // A path proves nothing: the file can be unlinked and the path bound again.
  if (r != 0 || length <= kPath || length > sizeof name ||
      name.sun_path[0] != '\0') {
    return;
  }
  name_length_ = length - kPath;
  std::memcpy(name_, name.sun_path, name_length_);
  // Abstract names are unique within a network namespace only.  Before Linux
  // 5.14 the cookie stays 0.
  std::uint64_t space = 0;
  socklen_t size = sizeof space;
  ::syscall(SYS_getsockopt, fd_.get(), SOL_SOCKET, SO_NETNS_COOKIE, &space,
            &size);
  std::memcpy(name_ + name_length_, &space, sizeof space);
  name_length_ += sizeof space;
  space_known_ = space != 0;
}

// Neither call of Asio throws on a descriptor or a timer that is open.
// NOLINTNEXTLINE(bugprone-exception-escape)
Channel::~Channel() { Close(); }

bool Channel::Start() {
  error_code error;
  descriptor_.assign(fd_.get(), error);
  if (error) {
    fd_.reset();
    return false;
  }
  WaitReadable();
  return true;
}

void Channel::Lend(std::shared_ptr<lane::shm::Link> link) {
  static const RungMsg rung = NewMessage<RungMsg>();
  static const MemoryMsg memory = NewMessage<MemoryMsg>();
  borrower_ = std::move(link);
  borrower_->SetSocket(fd_.get(), std::as_bytes(std::span(&rung, 1)),
                       std::as_bytes(std::span(&memory, 1)));
}

void Channel::Close() {
  if (!fd_.ok()) return;
  if (borrower_ != nullptr) borrower_->SetSocket(-1, {}, {});
  borrower_.reset();
  if (descriptor_.is_open()) descriptor_.release();
  stuck_.Stop();
  queue_.clear();
  fd_.reset();
}

void Channel::End(base::Reason reason) {
  if (!fd_.ok()) return;
  Close();
  boost::asio::post(core_->io, [self = shared_from_this(), reason] {
    Step step(self->core_);
    if (auto owner = self->owner_.lock()) owner->OnChannelEnd(reason);
  });
}

void Channel::WaitReadable() {
  descriptor_.async_wait(boost::asio::posix::descriptor_base::wait_read,
                         [self = shared_from_this()](const error_code& error) {
                           if (error) return;
                           Step step(self->core_);
                           self->OnReadable();
                         });
}

void Channel::OnReadable() {
  Take();
  if (fd_.ok()) WaitReadable();
}

void Channel::Take(int turns) {
  const int most = turns * kReadBatch;
  for (int i = 0; i < most; ++i) {
    if (!fd_.ok()) return;
    Packet packet;
    switch (Receive(fd_.get(), &packet)) {
      case Received::kPacket:
        // If there is no owner, the packet is dropped with its descriptors.
        if (auto owner = owner_.lock()) owner->OnPacket(packet);
        continue;
      case Received::kNothing:
        return;
      case Received::kEnd:
        return End(base::Reason::kPeerGone);
      case Received::kMalformed:
        return End(base::Reason::kProtocol);
      case Received::kNoFds:
        return End(base::Reason::kNoFds);
    }
  }
}

void Channel::Send(const void* bytes, std::size_t length, const int* fds,
                   int fd_count) {
  if (!fd_.ok()) return;
  if (queue_.empty()) {
    const int r = SendPacket(fd_.get(), bytes, length, fds, fd_count);
    // A peer that has gone may have left something to read.  OnReadable finds
    // the end after that.
    if (r == 0 || r == -EPIPE || r == -ECONNRESET) return;
    if (r != -EAGAIN && r != -ENOBUFS) return End(base::Reason::kPeerGone);
  }
  if (queue_.size() >= kMaxQueued || length > kMaxPacket) {
    return End(base::Reason::kProtocol);
  }
  Queued entry;
  std::memcpy(entry.bytes.data(), bytes, length);
  entry.length = length;
  for (int i = 0; i < fd_count; ++i) {
    entry.fds.emplace_back(base::CopyHigh(fds[i]));
    if (!entry.fds.back().ok()) return End(base::Reason::kNoFds);
  }
  queue_.push_back(std::move(entry));
  if (queue_.size() == 1) WaitWritable();
}

void Channel::WaitWritable() {
  stuck_.Start(kStuckLimit, shared_from_this(), &Channel::OnStuck);
  descriptor_.async_wait(boost::asio::posix::descriptor_base::wait_write,
                         [self = shared_from_this()](const error_code& error) {
                           if (error) return;
                           Step step(self->core_);
                           self->Flush();
                         });
}

void Channel::Flush() {
  while (fd_.ok() && !queue_.empty()) {
    const Queued& entry = queue_.front();
    int fds[kMaxFds];
    int count = 0;
    for (const auto& fd : entry.fds) fds[count++] = fd.get();
    const int r =
        SendPacket(fd_.get(), entry.bytes.data(), entry.length, fds, count);
    if (r == -EAGAIN || r == -ENOBUFS) return WaitWritable();
    if (r == -EPIPE || r == -ECONNRESET) {
      queue_.clear();
      break;
    }
    if (r != 0) return End(base::Reason::kPeerGone);
    queue_.pop_front();
  }
  stuck_.Stop();
}

bool PeerHasOurUid(int fd) {
  const uid_t own = base::OwnUid();
  return own != base::kNoUid && PeerUid(fd) == own;
}

bool PeerIsTrusted(int fd) {
  const uid_t uid = PeerUid(fd);
  const uid_t own = base::OwnUid();
  if (uid == base::kNoUid || own == base::kNoUid) return false;
  const base::Config& config = base::GetConfig();
  const auto* end = config.peers + config.peer_count;
  return uid == own || std::find(config.peers, end, uid) != end;
}

}  // namespace rcsock::rendezvous
