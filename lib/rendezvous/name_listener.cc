#include "lib/rendezvous/name_listener.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "lib/rendezvous/core.h"

namespace rcsock::rendezvous {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

constexpr int kPerTurn = 16;
constexpr std::chrono::milliseconds kPause{100};

}  // namespace

std::shared_ptr<NameListener> NameListener::Make(Core* core,
                                                 const sockaddr_un& name,
                                                 socklen_t length, int backlog,
                                                 Visitor visitor) {
  base::PeerSocket fd(base::UniqueFd(base::OpenHigh([&] {
    return ::syscall(SYS_socket, AF_UNIX,
                     SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  })));
  // Nobody sends a descriptor to a name.
  if (fd.ok()) fd.RefuseFiles();
  if (!fd.ok() ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
      ::listen(fd.get(), backlog) != 0) {
    return nullptr;
  }
  auto listener =
      std::make_shared<NameListener>(core, std::move(fd), std::move(visitor));
  error_code error;
  listener->descriptor_.assign(listener->fd(), error);
  if (error) return nullptr;
  listener->Wait();
  return listener;
}

NameListener::NameListener(Core* core, base::PeerSocket fd, Visitor visitor)
    : core_(core),
      fd_(std::move(fd)),
      visitor_(std::move(visitor)),
      descriptor_(core->io),
      pause_(core) {}

void NameListener::Close() {
  if (descriptor_.is_open()) descriptor_.release();
  pause_.Stop();
  fd_.reset();
}

void NameListener::Wait() {
  if (!fd_.ok()) return;
  descriptor_.async_wait(stream_descriptor::wait_read,
                         [self = shared_from_this()](const error_code& error) {
                           if (error) return;
                           Step step(self->core_);
                           self->OnReadable();
                         });
}

void NameListener::OnReadable() {
  for (int i = 0; i < kPerTurn && fd_.ok(); ++i) {
    // The kernel keeps the visitors meanwhile.
    if (base::ClosesPileUp()) {
      return pause_.Start(kPause, shared_from_this(), &NameListener::Wait);
    }
    base::PeerSocket fd(base::UniqueFd(base::OpenHigh([&] {
      return ::accept4(fd_.get(), nullptr, nullptr,
                       SOCK_CLOEXEC | SOCK_NONBLOCK);
    })));
    if (fd.ok()) {
      fd.Inherit(fd_);
      visitor_(std::move(fd));
    } else if (errno == EAGAIN) {
      break;
    } else {
      // There are no descriptors, or there is no memory.  The visitor is still
      // in the queue.  A new wait would report it at once, for as long as that
      // lasts.
      return pause_.Start(kPause, shared_from_this(), &NameListener::Wait);
    }
  }
  Wait();
}

}  // namespace rcsock::rendezvous
