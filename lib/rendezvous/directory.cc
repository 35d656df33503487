#include "lib/rendezvous/directory.h"

#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/foreign_fd.h"
#include "lib/base/log.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/device.h"
#include "lib/rendezvous/rdma.h"

namespace rcsock::rendezvous {
namespace {

using std::chrono::milliseconds;

// REQs that the kernel keeps while the conductor's thread is busy.
constexpr int kRdmaBacklog = 128;
constexpr int kNameBacklog = 64;
constexpr std::size_t kMaxMembers = 1024;
constexpr std::uint64_t kMomentNs = 1'000'000'000;
constexpr std::size_t kMaxElsewhere = 1 << 18;
// The port's holder may be about to open its name, or about to end.  The pause
// is 1 ms, then twice as long each time, a second at most.
constexpr int kMaxDoublings = 10;
// A server's next connection comes to its old port.  A port made for a single
// connection is never used again.
constexpr std::chrono::seconds kIdleLimit{5};

}  // namespace

// --- Listener

std::unique_ptr<Listener> Listener::Make(Rdma* rdma, Directory* directory,
                                         const Address& address,
                                         std::uint32_t scope,
                                         std::uint16_t port,
                                         verbs::Error* error) {
  auto listener = std::make_unique<Listener>(rdma, directory);
  listener->address_ = address;
  listener->scope_ = scope;
  listener->id_ = rdma->cm()->Bind(listener.get(), address, scope, port, error);
  if (listener->id_ == nullptr) return nullptr;
  if (verbs::calls.rdma_listen(listener->id_.get(), kRdmaBacklog) != 0) {
    *error = {"rdma_listen", errno, {}};
    const char* device = listener->id_->verbs->device->name;
    std::memcpy(error->device, device,
                ::strnlen(device, sizeof error->device - 1));
    return nullptr;
  }
  return listener;
}

Listener::~Listener() { rdma_->DropHeldOf(this); }

std::uint16_t Listener::port() const {
  return ntohs(verbs::calls.rdma_get_src_port(id_.get()));
}

// A socket may share this port with accepted connections, but not with a socket
// that listens.
bool Listener::Deaf() const {
  if (!ConnectBlocks(id_->verbs)) return false;
  const sockaddr_storage local = ToSockaddr(address_, scope_, port());
  const base::UniqueFd fd(base::OpenHigh([&] {
    return ::syscall(SYS_socket, local.ss_family, SOCK_STREAM | SOCK_CLOEXEC,
                     0);
  }));
  const int on = 1;
  return fd.ok() &&
         ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ==
             0 &&
         ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&local),
                SizeOf(local)) == 0;
}

void Listener::OnCm(const CmEvent& event) {
  if (event.type == RDMA_CM_EVENT_DEVICE_REMOVAL) {
    return rdma_->LoseDevice(event.id->verbs);  // and this with it
  }
  if (event.type == RDMA_CM_EVENT_ADDR_CHANGE && event.id == id_.get()) {
    // A bond has failed over.  The old id still has the old hardware address,
    // or the old device.
    stale_ = true;
    return rdma_->AddressesMayHaveMoved();
  }
  // A request that is held inherits this owner.
  if (event.id != id_.get()) rdma_->DropHeld(event.id);
}

void Listener::OnRequest(verbs::Id id, const CmEvent& event) {
  rdma_->OnRequest(this, std::move(id), event);
}

// --- Directory

class Directory::Member : public ChannelOwner {
 public:
  Member(Directory* directory, std::shared_ptr<Channel> channel)
      : directory_(directory), channel_(std::move(channel)) {}
  ~Member() override { channel_->Close(); }
  void OnPacket(Packet& packet) override {
    if (directory_ != nullptr && !directory_->Take(this, packet)) Leave();
  }
  void OnChannelEnd(base::Reason /*reason*/) override { Leave(); }
  void Detach() { directory_ = nullptr; }
  int fd() const { return channel_->fd(); }

 private:
  void Leave() {
    if (Directory* directory = std::exchange(directory_, nullptr)) {
      directory->Drop(this);  // destroys this object
    }
  }
  Directory* directory_;
  const std::shared_ptr<Channel> channel_;
};

Directory::Directory(Rdma* rdma, const Address& address, std::uint32_t scope,
                     std::uint16_t port, std::uint16_t own_port)
    : rdma_(rdma),
      address_(address),
      scope_(scope),
      port_(port),
      own_port_(own_port),
      timer_(rdma->core()),
      idle_timer_(rdma->core()) {}

// Asio's cancel and release say that they throw.  Here they have nothing to
// throw.
// NOLINTNEXTLINE(bugprone-exception-escape)
Directory::~Directory() { Close(); }

void Directory::Close() {
  timer_.Stop();
  timer_runs_ = true;  // for ever
  idle_timer_.Stop();
  LetGo();
  listener_.reset();
  if (channel_ != nullptr) channel_->Close();
  channel_.reset();
  state_ = State::kIdle;
}

void Directory::LetGo() {
  if (name_ != nullptr) name_->Close();
  name_.reset();
  for (auto& member : members_) member->Detach();
  members_.clear();
  elsewhere_.clear();
}

void Directory::CloseInherited() const {
  auto close = [](int fd) {
    if (fd >= 0) base::CloseRaw(fd);
  };
  if (name_ != nullptr) close(name_->fd());
  if (channel_ != nullptr) close(channel_->fd());
  for (const auto& member : members_) close(member->fd());
}

void Directory::Add(const Tuple& tuple) {
  waiting_.insert(tuple);
  if (state_ == State::kMember) {
    SendAdd(tuple);
  } else if (state_ != State::kOwner) {
    tries_ = 0;
    Try();
  }
}

void Directory::Remove(const Tuple& tuple) {
  waiting_.erase(tuple);
  MayBeIdle();
  if (state_ != State::kMember) return;
  auto message = NewMessage<DirRemove>();
  std::memcpy(message.tuple, &tuple, sizeof message.tuple);
  channel_->Send(message);
}

void Directory::SendAdd(const Tuple& tuple) {
  auto message = NewMessage<DirAdd>();
  std::memcpy(message.tuple, &tuple, sizeof message.tuple);
  message.port = own_port_;
  channel_->Send(message);
}

std::uint16_t Directory::PortOf(const Tuple& tuple) const {
  auto it = elsewhere_.find(tuple);
  return it == elsewhere_.end() ? 0 : it->second.port;
}

void Directory::Try() {
  if (timer_runs_ || state_ == State::kOwner || state_ == State::kMember) {
    return;
  }
  if (TryOwn() || TryJoin()) return;
  if (!waiting_.empty()) TryAgain();
}

void Directory::TryAgain() {
  timer_runs_ = true;
  timer_.Start(milliseconds(1 << tries_), weak_from_this(),
               &Directory::OnTimer);
  if (tries_ < kMaxDoublings) ++tries_;
}

void Directory::OnTimer() {
  timer_runs_ = false;
  if (state_ == State::kOwner) {
    OpenName();
  } else {
    Try();
  }
}

bool Directory::Listen() {
  verbs::Error error;
  listener_ = Listener::Make(rdma_, this, address_, scope_, port_, &error);
  if (listener_ != nullptr) return true;
  if (error.code != EADDRINUSE && error.code != EADDRNOTAVAIL) LogError(error);
  return false;
}

void Directory::MendHearing() {
  if (owner() && !listener_->Hears()) ListenAnew();
}

void Directory::ListenAnew() {
  RCSOCK_LOG(1, "RDMA port %u was no longer listened to", port_);
  listener_.reset();
  if (Listen()) return;
  // Another process has the port.  Its directory may take in what this one
  // knows.
  LetGo();
  state_ = State::kIdle;
  Try();
}

bool Directory::TryOwn() {
  if (!Listen()) return false;
  state_ = State::kOwner;
  tries_ = 0;
  RCSOCK_LOG(2, "RDMA port %u is ours", port_);
  OpenName();
  return true;
}

socklen_t Directory::Name(sockaddr_un* name) const {
  return AbstractName("rcsock/1/rdma/", {{Scoped(address_, scope_), port_}},
                      name);
}

void Directory::OpenName() {
  sockaddr_un name;
  const socklen_t length = Name(&name);
  name_ = NameListener::Make(
      rdma_->core(), name, length, kNameBacklog,
      [this](base::PeerSocket fd) { OnJoin(std::move(fd)); });
  // A process that is ending has the name, or a squatter has it.  Peers find
  // the streams of this process nevertheless.
  if (name_ == nullptr) TryAgain();
}

void Directory::OnJoin(base::PeerSocket fd) {
  if (members_.size() >= kMaxMembers || !PeerHasOurUid(fd.get())) return;
  auto channel = std::make_shared<Channel>(rdma_->core(), std::move(fd));
  auto member = std::make_shared<Member>(this, channel);
  channel->SetOwner(member);
  if (channel->Start()) members_.push_back(std::move(member));
}

bool Directory::Take(Member* member, Packet& packet) {
  DirAdd add;
  DirRemove remove;
  Tuple tuple;
  if (packet.Read(&add) && packet.fd_count == 0) {
    std::memcpy(&tuple, add.tuple, sizeof tuple);
    if (add.port == 0 || elsewhere_.size() >= kMaxElsewhere) return false;
    elsewhere_[tuple] = {add.port, member};
    rdma_->Answer(tuple, add.port);
    MendHearing();  // may drop the member
    return true;
  }
  if (packet.Read(&remove) && packet.fd_count == 0) {
    std::memcpy(&tuple, remove.tuple, sizeof tuple);
    auto it = elsewhere_.find(tuple);
    if (it != elsewhere_.end() && it->second.member == member) {
      elsewhere_.erase(it);
    }
    return true;
  }
  return false;
}

void Directory::Drop(Member* member) {
  std::erase_if(elsewhere_, [member](const auto& entry) {
    return entry.second.member == member;
  });
  std::erase_if(members_,
                [member](const auto& known) { return known.get() == member; });
  MayBeIdle();
}

void Directory::MayBeIdle() {
  if (!waiting_.empty() || !members_.empty()) return;
  idle_timer_.Start(kIdleLimit, weak_from_this(), &Directory::OnIdle);
}

void Directory::OnIdle() {
  if (waiting_.empty() && members_.empty()) rdma_->Retire(this);
}

bool Directory::TryJoin() {
  if (base::ClosesPileUp()) return false;
  base::PeerSocket fd(base::UniqueFd(base::OpenHigh([&] {
    return ::syscall(SYS_socket, AF_UNIX,
                     SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  })));
  if (fd.ok()) fd.RefuseFiles();
  sockaddr_un name;
  const socklen_t length = Name(&name);
  if (!fd.ok() || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name),
                            length) != 0) {
    return false;
  }
  if (!PeerHasOurUid(fd.get())) {
    state_ = State::kForeign;
    return false;
  }
  auto channel = std::make_shared<Channel>(rdma_->core(), std::move(fd));
  channel->SetOwner(weak_from_this());
  if (!channel->Start()) return false;
  channel_ = std::move(channel);
  state_ = State::kMember;
  joined_ns_ = base::NowNs();
  RCSOCK_LOG(2, "RDMA port %u is another process's: registered there", port_);
  for (const Tuple& tuple : waiting_) SendAdd(tuple);
  return true;
}

void Directory::OnPacket(Packet& /*packet*/) {
  // An owner sends nothing, so the peer is no owner.
  channel_->Close();
  OnChannelEnd(base::Reason::kProtocol);
}

void Directory::OnChannelEnd(base::Reason /*reason*/) {
  channel_.reset();
  state_ = State::kIdle;
  // All members try at this moment.  A process that does not get the port waits
  // longer each time.  So does a process that was a member for a moment only:
  // the owner has no place for it.
  if (joined_ns_ + kMomentNs > base::NowNs()) {
    if (!timer_runs_ && !waiting_.empty()) TryAgain();
    return;
  }
  tries_ = 0;
  Try();
}

}  // namespace rcsock::rendezvous
