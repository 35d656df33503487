#ifndef RCSOCK_LIB_RENDEZVOUS_DIRECTORY_H_
#define RCSOCK_LIB_RENDEZVOUS_DIRECTORY_H_

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lib/base/unique_fd.h"
#include "lib/rendezvous/channel.h"
#include "lib/rendezvous/cm.h"
#include "lib/rendezvous/name_listener.h"
#include "lib/rendezvous/timer.h"

namespace rcsock::rendezvous {

class Directory;
class Rdma;

// An RDMA port at which this process takes REQs.  Belongs to the conductor's
// turn.
class Listener : public CmOwner {
 public:
  // Port 0: any port.  Returns null and sets *error if it fails.
  static std::unique_ptr<Listener> Make(Rdma* rdma, Directory* directory,
                                        const Address& address,
                                        std::uint32_t scope, std::uint16_t port,
                                        verbs::Error* error);
  Listener(Rdma* rdma, Directory* directory)
      : rdma_(rdma), directory_(directory) {}
  ~Listener() override;

  std::uint16_t port() const;
  const Address& address() const { return address_; }
  std::uint32_t scope() const { return scope_; }
  const rdma_cm_id* id() const { return id_.get(); }
  ibv_context* context() const { return id_->verbs; }
  // Returns whether the kernel no longer listens.  siw and erdma end a listener
  // without a report when a connection ends before they have accepted it.
  // Programs that look for open ports make such short connections.
  bool Deaf() const;
  // The address has moved or has gone, so a new listener is needed.
  void SetStale() { stale_ = true; }
  bool stale() const { return stale_; }
  // Whether a connection to the port reaches this listener.
  bool Hears() const { return !stale_ && !Deaf(); }
  // Null: the listener is this process's own, of no directory.
  Directory* directory() const { return directory_; }
  void OnCm(const CmEvent& event) override;
  void OnRequest(verbs::Id id, const CmEvent& event) override;

 private:
  Rdma* const rdma_;
  Directory* const directory_;
  Address address_{};
  std::uint32_t scope_ = 0;
  bool stale_ = false;
  verbs::Id id_;
};

// Knows which processes of this user have the accepted ends of the connections
// to one port.  One process, the owner, holds the port in the RDMA port space
// and keeps the directory under an abstract AF_UNIX name.  The others, the
// members, register those of their streams that wait.  When the owner ends, a
// member takes over.  A directory that no stream needs for some seconds is
// given up: a server may use one port after the other.
//
// Threads: only within a turn of the conductor (Step).
class Directory : public ChannelOwner,
                  public std::enable_shared_from_this<Directory> {
 public:
  Directory(Rdma* rdma, const Address& address, std::uint32_t scope,
            std::uint16_t port, std::uint16_t own_port);
  ~Directory() override;
  void Close();

  // A stream of this process begins to wait, or ends its wait.
  void Add(const Tuple& tuple);
  void Remove(const Tuple& tuple);
  // Returns the RDMA port of the other process in which the tuple waits, or 0.
  std::uint16_t PortOf(const Tuple& tuple) const;
  // A REQ has come to the port.  Its sender will come again.
  void Asked() { MayBeIdle(); }
  // A process of another user holds the port: no peer finds this process.
  bool foreign() const { return state_ == State::kForeign; }
  // Returns whether this process holds the port.
  bool owner() const { return state_ == State::kOwner; }
  // If this process owns the port, and its listener hears nobody, listens anew.
  void MendHearing();
  // The owner's listener, or null.
  Listener* listener() const { return listener_.get(); }
  // Makes the owner listen again at its port, where its address leads now.
  void ListenAnew();
  // Returns whether this process has registered with the owner.
  bool member() const { return state_ == State::kMember; }

  void OnPacket(Packet& packet) override;
  void OnChannelEnd(base::Reason reason) override;
  // Called in a child of fork.
  void CloseInherited() const;

 private:
  enum class State { kIdle, kOwner, kMember, kForeign };
  // A process that has registered with this one.
  class Member;

  void Try();
  bool Listen();
  bool TryOwn();
  bool TryJoin();
  void TryAgain();
  void OnTimer();
  void MayBeIdle();
  void OnIdle();
  void OpenName();
  void OnJoin(base::PeerSocket fd);
  void SendAdd(const Tuple& tuple);
  bool Take(Member* member, Packet& packet);
  void Drop(Member* member);
  // Gives up all that an owner has, except the port.
  void LetGo();
  socklen_t Name(sockaddr_un* name) const;

  Rdma* const rdma_;
  const Address address_;
  const std::uint32_t scope_;
  const std::uint16_t port_;
  const std::uint16_t own_port_;  // of this process's own listener
  State state_ = State::kIdle;
  std::unordered_set<Tuple, TupleHash> waiting_;  // streams of this process
  Timer timer_;
  bool timer_runs_ = false;
  int tries_ = 0;
  std::uint64_t joined_ns_ = 0;
  Timer idle_timer_;

  // kOwner
  std::unique_ptr<Listener> listener_;
  std::shared_ptr<NameListener> name_;
  std::vector<std::shared_ptr<Member>> members_;
  struct Elsewhere {
    std::uint16_t port;
    const Member* member;
  };
  std::unordered_map<Tuple, Elsewhere, TupleHash> elsewhere_;

  // kMember
  std::shared_ptr<Channel> channel_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_DIRECTORY_H_
