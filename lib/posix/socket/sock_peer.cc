#include "lib/posix/socket/sock_peer.h"

#include <netinet/in.h>

#include <cstring>

#include "lib/base/config.h"
#include "lib/base/latch.h"
#include "lib/posix/policy/prospect.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/thread/signals.h"
#include "lib/rendezvous/address.h"
#include "lib/rendezvous/near_network.h"

namespace rcsock::posix {

namespace {

base::Latch hosts_latch;
constinit rendezvous::HostAddresses hosts RC_GUARDED_BY(hosts_latch);

// Returns `address`, of which the family is known, at its full length.
sockaddr_storage Whole(const sockaddr* address) {
  sockaddr_storage copy{};
  std::memcpy(&copy, address,
              address->sa_family == AF_INET ? sizeof(sockaddr_in)
                                            : sizeof(sockaddr_in6));
  return copy;
}

// Returns whether `address` is one of this host's own at this moment.
bool LocalAddress(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, address, sizeof in);
    if (ntohl(in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET) return true;
  }
  rendezvous::Address normal;
  std::uint16_t port;
  if (!rendezvous::Normalise(Whole(address), &normal, &port)) return false;
  if (rendezvous::IsLoopback(normal)) return true;
  // A program that connects to no address in particular is connected to this
  // host.
  rendezvous::Address none{};
  if (rendezvous::IsMapped(normal)) none[10] = none[11] = 0xff;
  if (normal == none) return true;
  Critical critical;
  hosts_latch.lock();
  const bool local = hosts.Has(normal);
  hosts_latch.unlock();
  return local;
}

}  // namespace

void PeerFacts::ForkLock() { hosts_latch.LockForFork(); }

void PeerFacts::ForkUnlock(bool child) { hosts_latch.UnlockAfterFork(child); }

[[gnu::hot]] void PeerFacts::Set(int fd, const sockaddr* address,
                                 socklen_t length) {
  // A length below the family's is that of an unnamed or foreign address.
  if (address == nullptr || length < sizeof(sockaddr_in) ||
      (address->sa_family != AF_INET &&
       (address->sa_family != AF_INET6 || length < sizeof(sockaddr_in6)))) {
    return;
  }
  local_.store(LocalAddress(address), std::memory_order_relaxed);
  if (sock_->interests.load() != nullptr) {
    Registrations::Get().PeerKnown(sock_);
  }
  if (!accepted()) {
    service_.store(Prospect::ServiceAt(address, length, role_),
                   std::memory_order_relaxed);
  }
  if (base::GetConfig().rules.count > 0) ApplyRules(fd, address);
}

void PeerFacts::ApplyRules(int fd, const sockaddr* address) {
  rendezvous::Address peer;
  std::uint16_t port;
  if (!rendezvous::Normalise(Whole(address), &peer, &port)) return;
  if (accepted()) {
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    rendezvous::Address address_of_ours;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
        !rendezvous::Normalise(own, &address_of_ours, &port)) {
      return;
    }
  }
  terms_ = base::TermsFor(base::GetConfig(), peer.data(), port, accepted());
  sock_->search().AtFirst();
}

void PeerFacts::SetListening(int fd) {
  sock_->listening.store(true);
  LearnService(fd);
}

void PeerFacts::LearnService(int fd) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  auto* address = reinterpret_cast<sockaddr*>(&own);
  if (::getsockname(fd, address, &length) == 0) {
    service_.store(
        Prospect::ServiceAt(address, length, stream::Role::kAcceptor),
        std::memory_order_relaxed);
  }
}

bool PeerFacts::MayMeetFar() const {
  return terms_.shm && !local() && *base::GetConfig().meet_dir != '\0';
}

bool PeerFacts::SeeksRdma() const {
  return SeeksRemote() &&
         !(MayMeetFar() && !(terms_.rdma && rendezvous::RdmaPossible()));
}

[[gnu::hot]] void PeerFacts::Reset() {
  terms_ = base::GetConfig().terms;
  service_.store(0, std::memory_order_relaxed);
  local_.store(false, std::memory_order_relaxed);
  connected_.store(false, std::memory_order_relaxed);
}

}  // namespace rcsock::posix
