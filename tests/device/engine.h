#ifndef RCSOCK_TESTS_DEVICE_ENGINE_H_
#define RCSOCK_TESTS_DEVICE_ENGINE_H_

#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/device/counts.h"
#include "tests/device/options.h"

namespace fake_device {

using Clock = std::chrono::steady_clock;

struct Conn;
struct Cq;
struct KernelChannel;
struct KernelId;
struct Mr;
struct Qp;
struct Srq;
struct State;

// --- The objects of verbs.  The part that a program sees comes first.

// Eight bytes or more for each event; the device writes, the program reads.
struct Fifo {
  int write_fd = -1;  // in the device threads' table
};

struct Context {
  verbs_context base{};
  ibv_device* device = nullptr;
  State* state = nullptr;
  Fifo async;
  bool gone = false;
};

struct Pd {
  ibv_pd base{};
  State* state = nullptr;
  int users = 0;
};

struct Mr {
  ibv_mr base{};
  State* state = nullptr;
  unsigned access = 0;
  // Of a dma-buf: where the device has the bytes of base.addr.
  std::uint8_t* device = nullptr;
};

struct CompChannel {
  ibv_comp_channel base{};
  State* state = nullptr;
  Fifo fifo;
};

struct Entry {
  ibv_wc wc{};
  std::uint32_t frees = 0;  // requests of the send queue
  bool shared = false;      // a receive of an SRQ
  bool solicited = false;
};

struct Cq {
  ibv_cq base{};
  State* state = nullptr;
  std::deque<Entry> entries;
  bool armed = false;
  bool solicited = false;  // only
  std::uint32_t unfetched = 0;
  std::uint32_t fetched = 0;
  std::uint32_t acknowledged = 0;
  int users = 0;
};

struct Receive {
  std::uint64_t wr_id = 0;
  std::vector<ibv_sge> sges;
};

struct ReceiveQueue {
  std::deque<Receive> posted;
  std::size_t size = 0;
  std::size_t most_sge = 1;
  int Post(ibv_recv_wr* wr, ibv_recv_wr** bad);
};

struct Srq {
  ibv_srq base{};
  State* state = nullptr;
  ReceiveQueue queue;
  std::uint32_t limit = 0;
  int users = 0;
};

struct Request {
  std::uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  bool signalled = false;
  bool fence = false;
  bool inlined = false;
  bool solicited = false;
  bool done = false;
  std::vector<std::uint8_t> bytes;  // inline
  std::vector<ibv_sge> sges;        // not inline
  std::uint32_t length = 0;
  std::uint64_t address = 0;
  std::uint32_t key = 0;
  std::uint32_t imm = 0;
  std::uint32_t number = 0;
};

// A WRITE that is not visible yet.
struct Late {
  std::uint32_t key;
  std::uint64_t address;
  std::vector<std::uint8_t> bytes;
};

struct Qp {
  ibv_qp base{};
  State* state = nullptr;
  Conn* conn = nullptr;
  bool had_conn = false;
  bool silent = false;  // its device has failed: nothing completes any more
  ibv_qp_cap cap{};
  bool all_signalled = false;
  std::uint8_t min_rnr_timer = 0;
  std::uint8_t rnr_retry = 7;
  std::uint8_t retry_count = 7;
  std::uint8_t ack_timeout = 0;
  // Sending.
  std::deque<Request> requests;
  std::size_t next = 0;           // the first that has not been sent
  std::uint32_t next_offset = 0;  // of it
  std::uint32_t next_number = 0;
  std::uint32_t used = 0;   // of the queue, until the completion is polled
  std::uint32_t frees = 0;  // retired since the last completion
  int reads = 0;            // under way
  int rnr_tries = 0;
  bool waits = false;  // for the receiver to be ready
  bool failing = false;
  // Receiving.
  ReceiveQueue own;
  std::uint32_t expected = 0;
  std::uint32_t offset = 0;
  bool has_current = false;
  Receive current;
  std::vector<Late> late;
  bool owes_ack = false;
  bool lands_soon = false;
  // After an error.
  bool has_fetched = false;  // a receive of the SRQ, to be flushed
  Receive fetched;
  std::uint32_t async_fetched = 0;
  std::uint32_t async_acknowledged = 0;
};

// --- rdma_cm's kernel

enum class CmState : std::uint8_t {
  kIdle,
  kBound,
  kAddrResolved,
  kRouteResolved,
  kListen,
  kReqSent,
  kReqReceived,
  kRepSent,
  kRepReceived,
  kEstablished,
  kDreqSent,
  kDreqReceived,
  kClosed,
};

struct CmEvent {
  void* uid = nullptr;  // of the id, or of the listener
  int type = 0;
  int status = 0;
  KernelId* id = nullptr;
  KernelId* child = nullptr;
  bool response = false;  // an ESTABLISHED that librdmacm has to answer
  std::string data;
};

struct KernelChannel {
  State* state = nullptr;
  Fifo fifo;
  std::deque<CmEvent> events;
};

struct KernelId {
  State* state = nullptr;
  KernelChannel* channel = nullptr;
  void* uid = nullptr;
  std::uint64_t serial = 0;
  CmState cm = CmState::kIdle;
  bool on_device = false;
  sockaddr_storage source{};
  sockaddr_storage destination{};
  int fd = -1;  // has the name of the source
  int backlog = 0;
  Conn* conn = nullptr;
  std::uint8_t ack_timeout = 0;
  std::uint32_t reported = 0;
  bool ended = false;  // the peer has gone, and nobody has been told
  bool accepted = false;
};

// --- The wire

enum class Kind : std::uint8_t {
  kReq,
  kRep,
  kRtu,
  kRej,
  kDreq,
  kDrep,
  kWrite,
  kWriteImm,
  kSend,
  kReadRequest,
  kReadResponse,
  kAck,
  kNak,
  kRnr,
  kNoQp,
};

struct Head {
  Kind kind;
  std::uint8_t solicited;
  std::uint16_t status;
  std::uint32_t number;  // of the request
  std::uint32_t total;
  std::uint32_t offset;
  std::uint64_t address;
  std::uint32_t key;
  std::uint32_t imm;
  std::uint32_t length;  // of what follows
  std::uint32_t spare;
};

constexpr std::size_t kMtu = 16 * 1024;

// One socket, which belongs to an id.
struct Conn {
  State* state = nullptr;
  std::uint64_t serial = 0;
  int fd = -1;
  KernelId* id = nullptr;
  std::uint64_t listener = 0;  // until its REQ has come
  Qp* qp = nullptr;
  bool qp_gone = false;
  bool full = false;   // waits for the socket to take more
  bool no_qp = false;  // the peer has none any more
  bool ended = false;
  std::deque<std::string> out;    // frames that go before any data
  std::deque<std::string> early;  // frames for a QP that is not ready
};

// --- The device of one process

// The device's threads have a descriptor table of their own, in which nobody
// else sees, closes or inherits their sockets.  One sleeps for these; the other
// for what the program posts, and for timers.  All is done under one mutex.
struct State {
  std::mutex mutex;
  std::condition_variable some;  // work
  std::condition_variable done;  // a task, an acknowledgement
  const Options options;
  std::mt19937 random;
  State* before = nullptr;  // the parent's, which this process never touches

  int epoll = -1;
  bool up = false;
  bool failed = false;
  std::deque<std::function<void()>> tasks;
  std::multimap<Clock::time_point, std::function<void()>> timers;
  std::set<std::uint64_t> ready;  // Conns with something to send

  std::uint64_t next_serial = 1;
  std::uint32_t next_key = 0;
  std::uint32_t next_qp = 0;
  std::uint32_t next_fifo = 0;
  std::uint64_t events_due = 0;
  bool loses_event = false;  // the next one
  bool present = true;       // the device
  bool unreachable = false;  // all peers
  bool port_up = true;
  std::map<std::uint64_t, Conn*> conns;
  std::map<std::uint64_t, KernelId*> ids;
  std::set<KernelChannel*> channels;
  std::map<std::uint32_t, Mr*> mrs;
  std::map<std::uint32_t, Qp*> qps;
  std::set<Cq*> cqs;
  std::set<Srq*> srqs;
  std::set<Context*> contexts;

  explicit State(Options from)
      : options(std::move(from)), random(options.seed) {}

  bool Chance(std::uint32_t of) { return random() % of == 0; }
  std::uint32_t Below(std::uint32_t most) { return random() % most; }
  // Runs `task` in a device thread, with the mutex, and waits for it.
  void Call(std::unique_lock<std::mutex>* hold, std::function<void()> task);
  // With the mutex.
  void Later(std::chrono::microseconds after, std::function<void()> task);
  void Ready(const Conn* conn);
};

// This process's; made by the first call, and again in a child of fork.
State* Current();
// Ends the process if an object is a parent's.
void CheckOwner(const State* owner, const char* what);

// False with errno where the program may open no descriptor.
bool MakeFifo(State* state, std::unique_lock<std::mutex>* hold, Fifo* fifo,
              int* read_fd);
void CloseFifo(State* state, std::unique_lock<std::mutex>* hold, Fifo* fifo);
// With the mutex.
void Tell(State* state, const Fifo& fifo, const void* record,
          std::size_t length);

// --- Between the parts; all with the mutex.

// transport.cc
void Pump(Conn* conn);  // in a device thread
void SendFrame(Conn* conn, const Head& head, const std::string& data);
void OnFrame(Conn* conn, const std::string& frame);
void OnBatchEnd(Conn* conn);
void OnReady(Qp* qp);        // it may receive now
void OnConnEnd(Conn* conn);  // the peer has none any more
void FailQp(Qp* qp);         // to IBV_QPS_ERR
void FinishFlush(Qp* qp);
void Land(Qp* qp, bool all);
void Complete(Cq* cq, const Entry& entry);
void AsyncEvent(State* state, ibv_event_type type, void* element, int port);

// cm.cc
void OnCmFrame(Conn* conn, const Head& head, const std::string& data);
void OnEnd(Conn* conn);
void OnAccept(State* state, KernelId* listener);
void CloseConn(Conn* conn);
void WatchListener(KernelId* id);

// control.cc: "qp_fatal", "port_err", ...  False: no such word.
bool Control(State* state, const std::string& command);
// A socket that hears them, in the device threads' table.
int OpenControl(State* state);
void OnControl(State* state, int fd);

}  // namespace fake_device

#endif  // RCSOCK_TESTS_DEVICE_ENGINE_H_
