#include "lib/rendezvous/inspection.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "lib/rendezvous/channel.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/wire.h"

namespace rcsock::rendezvous {
namespace {

// Clients that may wait while the conductor is busy.  One more has to come
// again.
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
         length == sizeof peer && (peer.uid == 0 || PeerHasOurUid(fd));
}

}  // namespace

void Inspection::Open() {
  sockaddr_un name;
  const socklen_t length = InspectionName(core_->uuid, &name);
  listener_ = NameListener::Make(
      core_, name, length, kBacklog,
      [this](base::PeerSocket asker) { Answer(std::move(asker)); });
}

void Inspection::Close() {
  if (listener_ != nullptr) listener_->Close();
  listener_.reset();
}

void Inspection::Answer(base::PeerSocket asker) {
  if (!MayAsk(asker.get())) return;
  const base::UniqueFd answer(core_->Inspect());
  const int send = answer.get();
  const auto message = NewMessage<StatMsg>();
  SendPacket(asker.get(), &message, sizeof message, &send, answer.ok() ? 1 : 0);
}

}  // namespace rcsock::rendezvous
