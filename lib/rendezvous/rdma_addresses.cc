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

// One look at all addresses. Asks for each address once.
class Rdma::AddressLook {
 public:
  explicit AddressLook(Rdma* rdma) : rdma_(rdma) {}

  Place At(const Address& address, std::uint32_t scope) {
    const auto key = std::pair(address, scope);
    const auto known = places_.find(key);
    if (known != places_.end()) return known->second;
    return places_[key] = rdma_->PlaceOf(address, scope);
  }
  Place Of(const Listener& listener) {
    return At(listener.address(), listener.scope());
  }
  // Returns true if the address of a lane has left the lane's device.
  bool HasLeft(const rdma_cm_id* id) {
    sockaddr_storage local;
    std::memcpy(&local, &id->route.addr.src_storage, sizeof local);
    Address address;
    std::uint16_t port;
    if (!Normalise(local, &address, &port)) return false;
    const Place now = At(address, ScopeOf(local));
    return !now.unknown && !now.Is(id);
  }
  // Returns true if the listener's address leads to another device.
  bool MustMove(const Listener& listener) {
    const Place now = Of(listener);
    if (now.context == nullptr) {
      nowhere_ = true;
      return false;
    }
    return listener.stale() || !now.Is(listener.id());
  }
  // Returns true if MustMove has seen an address that leads nowhere.
  bool nowhere() const { return nowhere_; }

 private:
  Rdma* const rdma_;
  std::map<std::pair<Address, std::uint32_t>, Place> places_;
  bool nowhere_ = false;
};

void Rdma::LookAtAddresses() {
  AddressLook look(this);
  LoseIf([&](const rdma_cm_id* id) { return look.HasLeft(id); },
         base::Reason::kDeviceLost);
  MoveOwn(&look);
  for (const auto& [key, directory] : directories_) {
    if (directory->owner() && look.MustMove(*directory->listener())) {
      directory->ListenAnew();
    }
  }
  if (!look.nowhere()) return;
  if (++address_looks_ < kMostLooks) {
    return WaitToLook(kSettle * (1 << address_looks_));
  }
  // The next stream that waits at this address looks once more.
  for (const auto& [key, listener] : own_) {
    if (look.Of(*listener).context == nullptr) listener->SetStale();
  }
}

void Rdma::MoveOwn(AddressLook* look) {
  for (auto it = own_.begin(); it != own_.end();) {
    if (!look->MustMove(*it->second) || MoveListener(&it->second)) {
      ++it;
      continue;
    }
    // Peers know a port that is no more, or the services of this transport are
    // elsewhere.  Streams that wait here look again.
    CloseDirectories(it->first);
    it = own_.erase(it);
  }
}

// Listens where the address leads now, at the port that peers know.  Returns
// false if that port is not to be had, or if the device has another transport.
bool Rdma::MoveListener(std::unique_ptr<Listener>* listener) {
  const std::uint16_t port = (*listener)->port();
  const Address address = (*listener)->address();
  const std::uint32_t scope = (*listener)->scope();
  const bool iwarp = verbs::IsIwarp((*listener)->context());
  // The new listener can have the port only when the old one has gone.
  listener->reset();
  verbs::Error error;
  *listener = Listener::Make(this, nullptr, address, scope, port, &error);
  if (*listener == nullptr) {
    LogError(error);
    return false;
  }
  base::Reason why;
  if (DeviceOf((*listener)->id(), &why) == nullptr ||
      verbs::IsIwarp((*listener)->context()) != iwarp) {
    return false;
  }
  RCSOCK_LOG(1, "RDMA port %u has moved with its address", port);
  return true;
}

}  // namespace rcsock::rendezvous
