// Addresses that go, or move from one device to another: a bond fails over.

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "lib/base/log.h"
#include "lib/rendezvous/connection.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/device.h"
#include "lib/rendezvous/rdma.h"

namespace rcsock::rendezvous {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The kernel takes an address from one device before it gives it to another,
// and reports each step.  Further looks come after 40 ms, 80, and so on.
constexpr milliseconds kSettle{20};
constexpr int kMostLooks = 7;

}  // namespace

void Rdma::AddressesMayHaveMoved() {
  address_looks_ = 0;
  if (address_waiting_ &&
      address_timer_.expiry() - steady_clock::now() <= kSettle) {
    return;
  }
  WaitToLook(kSettle);
}

void Rdma::WaitToLook(milliseconds pause) {
  address_waiting_ = true;
  address_timer_.expires_after(pause);
  address_timer_.async_wait([core = core_](const error_code& error) {
    if (error) return;
    Step step(core);
    Rdma* self = core->rdma();
    if (self == nullptr) return;
    self->address_waiting_ = false;
    self->LookAtAddresses();
  });
}

// Asks rdma_cm, as for a new lane: it knows the tables of GIDs, bonds and
// network namespaces.
Rdma::Place Rdma::PlaceOf(const Address& address, std::uint32_t scope) {
  verbs::Error error;
  const verbs::Id id = cm_->Bind(nullptr, address, scope, 0, &error);
  if (id != nullptr) return {id->verbs, id->port_num, false};
  return {nullptr, 0, error.code != ENODEV && error.code != EADDRNOTAVAIL};
}

void Rdma::LookAtAddresses() {
  std::map<std::pair<Address, std::uint32_t>, Place> places;
  const auto place = [&](const Address& address, std::uint32_t scope) {
    const auto key = std::pair(address, scope);
    const auto known = places.find(key);
    if (known != places.end()) return known->second;
    return places[key] = PlaceOf(address, scope);
  };
  LoseIf(
      [&](const rdma_cm_id* id) {
        sockaddr_storage local;
        std::memcpy(&local, &id->route.addr.src_storage, sizeof local);
        Address address;
        std::uint16_t port;
        if (!Normalise(local, &address, &port)) return false;
        const Place now = place(address, ScopeOf(local));
        return !now.unknown && !now.Is(id);
      },
      base::Reason::kDeviceLost);
  bool nowhere = false;
  const auto must_move = [&](const Listener& listener) {
    const Place now = place(listener.address(), listener.scope());
    if (now.context == nullptr) {
      nowhere = true;
      return false;
    }
    return listener.stale() || !now.Is(listener.id());
  };
  for (auto it = own_.begin(); it != own_.end();) {
    if (!must_move(*it->second)) {
      ++it;
      continue;
    }
    const std::uint16_t port = it->second->port();
    const Address address = it->second->address();
    const std::uint32_t scope = it->second->scope();
    const bool iwarp = verbs::IsIwarp(it->second->context());
    // The new listener can have the port only when the old one has gone.
    it->second.reset();
    verbs::Error error;
    base::Reason why;
    it->second = Listener::Make(this, nullptr, address, scope, port, &error);
    if (it->second != nullptr && DeviceOf(it->second->id(), &why) != nullptr &&
        verbs::IsIwarp(it->second->context()) == iwarp) {
      RCSOCK_LOG(1, "RDMA port %u has moved with its address", port);
      ++it;
      continue;
    }
    // Peers have been told a port that is no more, or the services of this
    // transport are elsewhere.  Streams that wait here look again.
    if (it->second == nullptr) LogError(error);
    CloseDirectories(it->first);
    it = own_.erase(it);
  }
  for (const auto& [key, directory] : directories_) {
    if (directory->owner() && must_move(*directory->listener())) {
      directory->ListenAnew();
    }
  }
  if (!nowhere) return;
  if (++address_looks_ < kMostLooks) {
    return WaitToLook(kSettle * (1 << address_looks_));
  }
  // The next stream that waits at such an address looks once more.
  for (const auto& [key, listener] : own_) {
    if (place(listener->address(), listener->scope()).context == nullptr) {
      listener->SetStale();
    }
  }
}

}  // namespace rcsock::rendezvous
