#include "lib/rendezvous/inspection.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "lib/rendezvous/core.h"
#include "lib/rendezvous/wire.h"

namespace rcsock::rendezvous {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

// Readers that wait while this thread is busy; one more is told to come again.
constexpr int kBacklog = 8;

socklen_t InspectionName(const Uuid& uuid, sockaddr_un* name) {
  constexpr char kHex[] = "0123456789abcdef";
  static_assert(sizeof kStatPrefix + 2 * sizeof(Uuid) <= sizeof name->sun_path);
  std::memset(name, 0, sizeof *name);
  name->sun_family = AF_UNIX;
  char* out = name->sun_path + 1;
  std::memcpy(out, kStatPrefix, sizeof kStatPrefix - 1);
  out += sizeof kStatPrefix - 1;
  for (std::uint8_t byte : uuid) {
    *out++ = kHex[byte >> 4];
    *out++ = kHex[byte & 15];
  }
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                static_cast<std::size_t>(out - name->sun_path));
}

bool MayAsk(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         length == sizeof peer && (peer.uid == 0 || peer.uid == ::geteuid());
}

}  // namespace

void Inspection::Open() {
  base::UniqueFd fd(base::RelocateHigh(
      ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  sockaddr_un name;
  const socklen_t length = InspectionName(core_->uuid, &name);
  if (!fd.ok() ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return;
  }
  auto listener = std::make_unique<stream_descriptor>(core_->io);
  error_code error;
  listener->assign(fd.get(), error);
  if (error) return;
  listener_ = std::move(listener);
  fd_ = std::move(fd);
  Wait();
}

void Inspection::Close() {
  if (listener_ != nullptr && listener_->is_open()) listener_->release();
  listener_.reset();
  fd_.reset();
}

void Inspection::Wait() {
  listener_->async_wait(stream_descriptor::wait_read,
                        [this](const error_code& error) {
                          if (error) return;
                          Step step(core_);
                          if (listener_ == nullptr) return;
                          Accept();
                          Wait();
                        });
}

void Inspection::Accept() {
  // Edge-triggered: the queue is emptied, or the rest would wait for the next.
  for (int i = 0; i <= kBacklog; ++i) {
    base::UniqueFd fd(base::RelocateHigh(
        ::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
    if (!fd.ok()) return;
    if (!MayAsk(fd.get())) continue;
    const base::UniqueFd answer(core_->Inspect());
    const int send = answer.get();
    const auto message = NewMessage<StatMsg>();
    SendPacket(fd.get(), &message, sizeof message, &send, answer.ok() ? 1 : 0);
  }
}

}  // namespace rcsock::rendezvous
