#include "lib/rendezvous/probe.h"

#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lib/rendezvous/core.h"

namespace rcsock::rendezvous {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

Probe::Probe(Core* core)
    : core_(core), descriptor_(core->io), timer_(core->io) {}

Probe::~Probe() {
  if (descriptor_.is_open()) descriptor_.release();
}

void Probe::Retire() {
  done_ = nullptr;
  timer_.expires_after(std::chrono::seconds(2));
  timer_.async_wait([self = shared_from_this()](const error_code&) {});
}

bool Probe::Start(const sockaddr_storage& local, const sockaddr_storage& peer,
                  std::function<void(int)> done) {
  fd_.reset(base::OpenHigh([&] {
    return ::syscall(SYS_socket, peer.ss_family,
                     SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  }));
  if (!fd_.ok()) return false;
  if (::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&local),
             SizeOf(local)) != 0 ||
      (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&peer),
                 SizeOf(peer)) != 0 &&
       errno != EINPROGRESS)) {
    return false;
  }
  error_code error;
  descriptor_.assign(fd_.get(), error);
  if (error) {
    errno = error.value();
    return false;
  }
  done_ = std::move(done);
  descriptor_.async_wait(stream_descriptor::wait_write,
                         [self = shared_from_this()](const error_code& failed) {
                           if (failed) return;
                           Step step(self->core_);
                           if (self->done_ == nullptr) return;
                           int result = 0;
                           socklen_t length = sizeof result;
                           if (::getsockopt(self->fd_.get(), SOL_SOCKET,
                                            SO_ERROR, &result, &length) != 0) {
                             result = errno;
                           }
                           std::exchange(self->done_, nullptr)(result);
                         });
  return true;
}

}  // namespace rcsock::rendezvous
