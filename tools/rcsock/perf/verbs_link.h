#ifndef RCSOCK_TOOLS_RCSOCK_PERF_VERBS_LINK_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_VERBS_LINK_H_

#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// Reliable connections by rdma_cm, and messages over them by writes with
// immediate data, as a program made for verbs would send them.  Only the way of
// loading libibverbs and librdmacm is rcsock's.  Whatever fails throws Error.

namespace rcsock::perf {

// What a message is, beside the bytes of its write.  No message follows kBye
// and its answer, kEnd. kStart says that the accepting end may send: on iWARP
// it must not send first.
enum class What : std::uint32_t { kData, kCredit, kDone, kBye, kEnd, kStart };

struct LinkOptions {
  std::size_t size = 64;  // of a message
  std::size_t slots = 1;  // messages under way, each way
  std::size_t connections = 1;
  // Both ends say goodbye, so the peer's is not the last message from it.
  bool both = false;
  // How long a wait polls before it sleeps.  Negative: for ever.
  std::int64_t spin_ns = 0;

  // Returns the slots for this many bytes under way: at least 4, at most 256.
  static std::size_t SlotsFor(std::size_t window, std::size_t size);
};

struct Message {
  int link;
  What what;
};

class Links;

// One connection.
class Link {
 public:
  Link(Links* links, int index, rdma_cm_id* id);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  rdma_conn_param* Parameters();
  void Established(const rdma_cm_event* event);

  // The bytes that SendData of this slot sends, and the bytes that the peer has
  // written to the slot.
  std::byte* Outgoing(std::size_t slot);
  const std::byte* Incoming(std::size_t slot) const;
  // Writes slot `slot` of the peer, and tells the peer.
  void SendData(std::size_t slot);
  // Tells the peer without a write.
  void Send(What what);
  // Waits until the peer's device has everything.
  void Flush();
  void PostReceive(std::size_t slot);

 private:
  // What the peer has to know, in the private data of the connection.
  struct Target {
    std::uint64_t address;
    std::uint32_t key;
    std::uint32_t size;
  };

  void Post(ibv_send_wr* first, ibv_send_wr* last, unsigned count, bool flush);
  void Reap();

  Links* const links_;
  const int index_;
  rdma_cm_id* const id_;
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
  ibv_mr* region_ = nullptr;
  std::byte* tx_ = nullptr;
  Target here_{};
  Target there_{};
  rdma_conn_param parameters_{};
  std::uint32_t inline_ = 0;
  std::uint64_t posted_ = 0;     // work requests
  std::uint64_t signalled_ = 0;  // work requests up to the last signalled one
  std::uint64_t reaped_ = 0;     // work requests known to be complete
  bool ended_ = false;           // the peer has said goodbye
  friend class Links;
};

// All connections of one end.  They share their completion queues.
class Links {
 public:
  explicit Links(const LinkOptions& options);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // Accepts all connections.  Calls `listening` with the port before the first.
  // For `port` 0 the system chooses it.
  void Accept(const std::string& host, std::uint16_t port,
              const std::function<void(std::uint16_t)>& listening);
  void Connect(const std::string& host, std::uint16_t port);

  Link& operator[](std::size_t i) { return *links_[i]; }
  std::size_t size() const { return links_.size(); }
  std::size_t slots() const { return options_.slots; }

  // Returns the messages that have come.  Waits for the first, asleep or
  // spinning.  The result is valid until the next call.
  const std::vector<Message>& Receive();
  // Returns the messages that have come, without waiting.
  const std::vector<Message>& Look();

 private:
  friend class Link;
  // Returns how many work requests a link's send queue holds.
  std::size_t Requests() const;
  void Open(ibv_context* context);
  int Poll();
  void SleepOrArm();
  void Completed(const ibv_wc& completion);

  const LinkOptions options_;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* received_ = nullptr;
  ibv_cq* sent_ = nullptr;
  bool iwarp_ = false;
  bool armed_ = false;
  unsigned events_ = 0;  // not acknowledged yet
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<Message> messages_;
};

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_VERBS_LINK_H_
