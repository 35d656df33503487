#include "lib/rendezvous/rdma.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/rendezvous/connection.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/device.h"
#include "lib/rendezvous/rdma_meeting.h"
#include "lib/rendezvous/session.h"

namespace rcsock::rendezvous {
namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

// Handshakes of this process under way at once.
constexpr int kMaxConnecting = 16;
// The other end of a busy connection may be about to look for its peer.
constexpr milliseconds kHoldLimit{300};
constexpr std::size_t kMaxHeld = 64;
constexpr std::size_t kMaxUsed = 16384;
// To bind a lower port takes a privilege that servers drop before they accept.
constexpr std::uint16_t kFirstFreePort = 1024;

}  // namespace

std::unique_ptr<Rdma> Rdma::Make(Core* core, base::Reason* why) {
  *why = base::Reason::kNoDevice;
  if (!verbs::AnyDevice()) return nullptr;
  verbs::Error error;
  *why = base::Reason::kNoRdmaLibrary;
  if (!verbs::Load(&error)) {
    LogError(error);
    return nullptr;
  }
  std::shared_ptr<Cm> cm = Cm::Make(core, &error);
  if (cm == nullptr) {
    LogError(error);
    *why = VerbsReason(error);
    switch (error.code) {
      // A container sees the host's devices in /sys, but has none in /dev, or
      // may not open them.
      case ENODEV:
      case ENOENT:
      case ENXIO:
      case EACCES:
      case EPERM:
        *why = base::Reason::kNoDevice;
        break;
      default:
        break;
    }
    return nullptr;
  }
  return std::make_unique<Rdma>(core, std::move(cm));
}

Rdma::Rdma(Core* core, std::shared_ptr<Cm> cm)
    : core_(core),
      cm_(std::move(cm)),
      key_(MakeClusterKey(base::GetConfig().key, base::GetConfig().key_size)),
      held_timer_(core->io),
      address_timer_(core->io),
      connects_(core),
      ends_(core),
      lane_ends_(core) {}

Rdma::~Rdma() = default;

void Rdma::Close() {
  held_timer_.cancel();
  address_timer_.cancel();
  held_.clear();
  for (auto& [key, directory] : directories_) directory->Close();
  directories_.clear();
  own_.clear();
  queue_.clear();
  LoseLanes(nullptr, base::Reason::kNoThread);
  lane_ends_.Close();
  for (auto& device : devices_) device->Close();
  devices_.clear();
  connects_.Close();
  ends_.Close();
  for (auto& connection : parked_) LeaveToTheKernel(std::move(connection));
  parked_.clear();
  cm_->Close();
}

void Rdma::CloseInherited() const {
  for (const auto& [key, directory] : directories_) directory->CloseInherited();
}

std::uint16_t Rdma::ServicePort(const ibv_context* context,
                                std::uint16_t port) {
  // iWARP's port space is TCP's own.  The application has the port already, or
  // will want it.
  return verbs::IsIwarp(context) || port < kFirstFreePort
             ? base::GetConfig().rdma_port
             : port;
}

// --- Devices

std::shared_ptr<Device> Rdma::DeviceOf(const rdma_cm_id* id,
                                       base::Reason* why) {
  for (const auto& device : devices_) {
    if (device->context() == id->verbs) return device;
  }
  std::shared_ptr<Device> device = Device::Make(core_, cm_, id, why);
  if (device != nullptr) devices_.push_back(device);
  return device;
}

void Rdma::FlushSoon() {
  for (const auto& device : devices_) device->FlushSoon();
}

void Rdma::LoseDevice(const ibv_context* context) {
  for (const auto& device : std::vector(devices_)) {
    if (device->context() == context) return device->Lose();
  }
}

void Rdma::CloseDirectories(const Address& address) {
  for (auto it = directories_.begin(); it != directories_.end();) {
    if (it->first.first == address) {
      it->second->Close();
      it = directories_.erase(it);
    } else {
      ++it;
    }
  }
}

void Rdma::Forget(Device* device) {
  const ibv_context* context = device->context();
  lane_ends_.DropIf([context](const Connection& connection) {
    return connection.id()->verbs == context;
  });
  std::erase_if(
      held_, [context](const Held& held) { return held.id->verbs == context; });
  for (auto it = own_.begin(); it != own_.end();) {
    if (it->second->context() != context) {
      ++it;
      continue;
    }
    // A directory of that address is on the device, too.
    CloseDirectories(it->first);
    it = own_.erase(it);
  }
  std::erase_if(devices_,
                [device](const auto& known) { return known.get() == device; });
}

void Rdma::LoseIf(const std::function<bool(const rdma_cm_id*)>& lost,
                  base::Reason why) {
  std::vector<std::shared_ptr<Connection>> all;
  for (Connection* connection : connections_) {
    if (lost(connection->id())) all.push_back(connection->shared_from_this());
  }
  for (const auto& connection : all) connection->Lost(why);
}

void Rdma::LoseLanes(const ibv_context* context, base::Reason why) {
  LoseIf(
      [context](const rdma_cm_id* id) {
        return context == nullptr || id->verbs == context;
      },
      why);
}

void Rdma::LosePort(const ibv_context* context, int port, base::Reason why) {
  LoseIf(
      [context, port](const rdma_cm_id* id) {
        return id->verbs == context && id->port_num == port;
      },
      why);
}

void Rdma::LoseQp(const ibv_context* context, std::uint32_t qp_num,
                  base::Reason why) {
  LoseIf(
      [context, qp_num](const rdma_cm_id* id) {
        return id->verbs == context && id->qp != nullptr &&
               id->qp->qp_num == qp_num;
      },
      why);
}

bool Rdma::LookAtDevices() {
  bool more = false;
  for (const auto& device : std::vector(devices_)) {
    more = device->OnAsync() || more;
  }
  return more;
}

void Rdma::LastWqeReached(const ibv_context* context, std::uint32_t qp_num) {
  for (Connection* connection : connections_) {
    const rdma_cm_id* id = connection->id();
    if (id->verbs != context || id->qp == nullptr || id->qp->qp_num != qp_num) {
      continue;
    }
    connection->LastWqeReached();
    return lane_ends_.Reported(connection);
  }
}

// --- Connecting

bool Rdma::TakeTurn(const std::shared_ptr<RdmaMeeting>& meeting) {
  if (connecting_ < kMaxConnecting) {
    ++connecting_;
    return true;
  }
  queue_.Add(meeting);
  return false;
}

void Rdma::Park(std::shared_ptr<Connection> connection) {
  Connection* parked = connection.get();
  parked_.push_back(std::move(connection));
  EndIfGone(parked);
}

void Rdma::EndIfGone(Connection* connection) {
  if (!connection->gone() || connects_.Runs(connection)) return;
  const auto parked = std::find_if(
      parked_.begin(), parked_.end(),
      [connection](const auto& it) { return it.get() == connection; });
  if (parked == parked_.end()) return;
  std::shared_ptr<Connection> ends = std::move(*parked);
  parked_.erase(parked);
  ends_.Add(std::move(ends));
}

void Rdma::Unpark(Connection* connection) {
  std::erase_if(parked_, [connection](const auto& parked) {
    return parked.get() == connection;
  });
}

void Rdma::EndTurn() {
  --connecting_;
  if (queue_.empty()) return;
  // Later, since the caller is in the middle of something.
  boost::asio::post(core_->io, [core = core_] {
    Step step(core);
    Rdma* self = core->rdma();
    if (self == nullptr) return;
    self->queue_.Advance([self] { return self->connecting_ < kMaxConnecting; },
                         [self](RdmaMeeting* next) {
                           ++self->connecting_;
                           next->OnTurn();
                         });
  });
}

// --- Accepting

Listener* Rdma::OwnListener(const Address& address, std::uint32_t scope,
                            base::Reason* why) {
  const Address key = Scoped(address, scope);
  auto it = own_.find(key);
  if (it != own_.end()) {
    if (it->second->Hears()) return it->second.get();
    // Peers know the port of the old listener.
    CloseDirectories(key);
    own_.erase(it);
  }
  verbs::Error error;
  std::unique_ptr<Listener> listener;
  // iWARP's ports are TCP's: TCP may use a port that was picked at random.
  for (int i = 0; i < 8 && listener == nullptr; ++i) {
    listener = Listener::Make(this, nullptr, address, scope, 0, &error);
    if (listener == nullptr && error.code != EADDRINUSE) break;
  }
  if (listener == nullptr) {
    LogError(error);
    *why = VerbsReason(error);
    return nullptr;
  }
  // DeviceOf has the device watched from now on: otherwise nothing would notice
  // that the device goes.
  if (DeviceOf(listener->id(), why) == nullptr) return nullptr;
  return own_.emplace(key, std::move(listener)).first->second.get();
}

std::shared_ptr<Directory> Rdma::DirectoryOf(const Address& address,
                                             std::uint32_t scope,
                                             std::uint16_t port,
                                             base::Reason* why) {
  Listener* own = OwnListener(address, scope, why);
  if (own == nullptr) return nullptr;
  const std::uint16_t service = ServicePort(own->context(), port);
  auto& directory = directories_[{Scoped(address, scope), service}];
  if (directory != nullptr) {
    directory->MendHearing();
  } else {
    directory =
        std::make_shared<Directory>(this, address, scope, service, own->port());
  }
  return directory;
}

void Rdma::Retire(Directory* directory) {
  for (auto it = directories_.begin(); it != directories_.end(); ++it) {
    if (it->second.get() != directory) continue;
    directory->Close();
    directories_.erase(it);
    return;
  }
}

RdmaMeeting* Rdma::Waiting(const Tuple& tuple) {
  Session* session = core_->FindSession(tuple, stream::Role::kAcceptor);
  RdmaMeeting* meeting = session == nullptr ? nullptr : session->rdma();
  return meeting != nullptr && meeting->waiting() ? meeting : nullptr;
}

void Rdma::OnRequest(Listener* listener, verbs::Id id, const CmEvent& event) {
  Req req;
  const Parsed parsed = DecodeReq(event.data.data(), event.length, &req);
  if (parsed != Parsed::kOk) {
    return Reject(std::move(id), req.nonce,
                  {parsed == Parsed::kOtherVersion ? RejCode::kOtherVersion
                                                   : RejCode::kRefused,
                   0});
  }
  sockaddr_storage local;
  sockaddr_storage peer;
  std::memcpy(&local, &id->route.addr.src_storage, sizeof local);
  std::memcpy(&peer, &id->route.addr.dst_storage, sizeof peer);
  Address local_address;
  Address peer_address;
  std::uint16_t port;  // rdma_cm's own, which says nothing
  if (!Normalise(local, &local_address, &port) ||
      !Normalise(peer, &peer_address, &port)) {
    return Reject(std::move(id), req.nonce, {RejCode::kRefused, 0});
  }
  const Tuple tuple = MakeTuple(stream::Role::kAcceptor, local_address,
                                req.s_port, peer_address, req.c_port);
  if (!CheckReq(event.data.data(), tuple, key_)) {
    return Reject(std::move(id), req.nonce, {RejCode::kKey, 0});
  }
  if (RdmaMeeting* meeting = Waiting(tuple)) {
    return meeting->OnRequest(std::move(id), req);
  }
  if (Directory* directory = listener->directory()) {
    directory->Asked();
    if (const std::uint16_t owner = directory->PortOf(tuple)) {
      return Reject(std::move(id), req.nonce, {RejCode::kRedirect, owner});
    }
  }
  if (held_.size() >= kMaxHeld) {
    return Reject(std::move(id), req.nonce, {RejCode::kLater, 0});
  }
  held_.push_back({std::move(id), tuple, req,
                   std::chrono::steady_clock::now() + kHoldLimit});
  WaitHeld();
}

void Rdma::Reject(verbs::Id id, const stream::Nonce& nonce, Rej rej) {
  const RejBytes bytes = EncodeRej(rej, nonce, key_);
  RCSOCK_LOG(2, "REQ rejected: code %d", static_cast<int>(rej.code));
  verbs::calls.rdma_reject(id.get(), bytes.data(), bytes.size());
}

void Rdma::Answer(const Tuple& tuple, std::uint16_t port) {
  for (auto it = held_.begin(); it != held_.end(); ++it) {
    if (!(it->tuple == tuple)) continue;
    Held held = std::move(*it);
    held_.erase(it);
    if (port != 0) {
      return Reject(std::move(held.id), held.req.nonce,
                    {RejCode::kRedirect, port});
    }
    if (RdmaMeeting* meeting = Waiting(tuple)) {
      return meeting->OnRequest(std::move(held.id), held.req);
    }
    return;
  }
}

void Rdma::DropHeld(const rdma_cm_id* id) {
  std::erase_if(held_, [id](const Held& held) { return held.id.get() == id; });
}

void Rdma::DropHeldOf(const Listener* listener) {
  std::erase_if(held_, [listener](const Held& held) {
    return held.id->context == static_cast<const CmOwner*>(listener);
  });
}

void Rdma::WaitHeld() {
  // All REQs are held for equally long, so the first is always the next.
  if (held_waiting_ || held_.empty()) return;
  held_waiting_ = true;
  held_timer_.expires_at(held_.front().until);
  held_timer_.async_wait([core = core_](const error_code& error) {
    if (error) return;
    Step step(core);
    if (Rdma* self = core->rdma()) self->OnHeldTimer();
  });
}

void Rdma::OnHeldTimer() {
  held_waiting_ = false;
  const auto now = std::chrono::steady_clock::now();
  while (!held_.empty() && held_.front().until <= now) {
    Held held = std::move(held_.front());
    held_.pop_front();
    Reject(std::move(held.id), held.req.nonce, {RejCode::kLater, 0});
  }
  WaitHeld();
}

void Rdma::StopListening() {
  while (!held_.empty()) {
    Held held = std::move(held_.front());
    held_.pop_front();
    Reject(std::move(held.id), held.req.nonce, {RejCode::kLater, 0});
  }
  for (auto& [key, directory] : directories_) directory->Close();
  directories_.clear();
  own_.clear();
}

bool Rdma::UseNonce(const stream::Nonce& nonce) {
  if (!used_.insert(nonce).second) return false;
  used_order_.push_back(nonce);
  if (used_order_.size() > kMaxUsed) {
    used_.erase(used_order_.front());
    used_order_.pop_front();
  }
  return true;
}

// --- Completions

void* Rdma::NewCookie(RdmaMeeting* meeting) {
  last_cookie_ += 2;
  void* cookie = reinterpret_cast<void*>(last_cookie_ | 1);
  cookies_[cookie] = meeting;
  return cookie;
}

void Rdma::OnCompletion(const lane::Completion& completion) {
  auto it = cookies_.find(completion.cookie);
  if (it != cookies_.end()) it->second->OnCompletion();
}

Rdma::Counts Rdma::counts() const {
  return {devices_.size(),
          own_.size(),
          directories_.size(),
          held_.size(),
          static_cast<std::size_t>(connecting_),
          connections_.size(),
          parked_.size() + ends_.size(),
          connects_.size(),
          lane_ends_.size()};
}

}  // namespace rcsock::rendezvous
