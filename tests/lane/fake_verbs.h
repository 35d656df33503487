#ifndef RCSOCK_TESTS_LANE_FAKE_VERBS_H_
#define RCSOCK_TESTS_LANE_FAKE_VERBS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/verbs/verbs.h"

namespace rcsock::lane::test {

// A device in memory, with as much of a Reliable Connection as a lane uses: for
// sanitizers, and for what no driver would do when asked.  One at a time: it
// puts itself into verbs::calls.
class FakeVerbs {
 public:
  struct Options {
    bool iwarp = false;
    bool immediate = true;  // posted is delivered; else a thread does it
    bool software = false;  // its identity is Soft-RoCE's
    std::uint32_t inline_max = 256;
    int qp_error = 0;  // errno of rdma_create_qp
    int max_cqe = 32'767;
    int max_qp_wr = 1024;
    int max_srq_wr = 32'767;  // 0: it has no SRQs
    bool claims_srqs = true;  // ... and says so
    int vectors = 1;
    int max_cqs = 1000;
    // The bytes of WRITEs become visible in any order, up to the next
    // completion at their receiver: words of a short one, pieces of a long one.
    // The specification allows it (ibv_query_qp_data_in_order(3)), adaptive
    // routing does it between requests, and relaxed ordering within one.
    bool unordered = false;
    // Which keys it grants.
    enum class Keys : std::uint8_t { kAll, kStrict, kRelaxed };
    Keys keys = Keys::kAll;
    // The next region has the key of the last one that has gone, as with mlx5.
    bool reuses_keys = false;
    // A connected QP fetches so many receives of its SRQ before messages come.
    std::uint32_t fetches = 1;
    // What a QP in error gives back comes with Flush(), and so does
    // LAST_WQE_REACHED; else within the call that puts it into error.
    bool late_flushes = false;
    bool reports_last_wqe = true;
    // It fires for every completion, whatever it was armed for.
    bool solicits = true;
    bool infiniband = false;  // its link is; else Ethernet
    // Time passes only as Time says, and writes arrive by Advance().
    bool timed = false;
  };
  // What things take, in nanoseconds and bytes for each of them.
  struct Time {
    double link = 12.5;  // 100 Gb/s
    double copy = 10;    // of each CPU
    double doorbell = 100;
    double request = 25;
    double one_way = 1000;
    bool sender_copies = true;  // what it posts, just before
    // A lock of the provider that no other thread holds; and which of them it
    // does without.
    double lock = 0;
    bool lane_domains = false;    // a thread domain for each lane
    bool shared_domains = false;  // ... for each shared receive queue
    bool unlocked_polls = false;
  };
  void SetTime(const Time& time) { time_ = time; }
  // The present of whoever calls next: what it posts leaves then, and later by
  // what its copies and doorbells take.
  void SetNow(double now) { now_ = now; }
  double now() const { return now_; }
  // What has arrived by then, arrives.  Not before anybody else's present.
  void Advance(double until);

  explicit FakeVerbs(const Options& options);
  ~FakeVerbs();

  ibv_context* context() { return &context_; }
  // An id for CreateLane; Connect joins the QPs made on two of them.
  rdma_cm_id* NewId();
  void Connect(rdma_cm_id* a, rdma_cm_id* b);
  // Nothing is under way.
  bool Idle();
  // Nothing is delivered while it is held.
  void Hold(bool hold);
  // Delivers the oldest so many writes that are held.
  void Deliver(std::size_t writes);
  // As many of them while a CQ is armed the next time, before that returns.
  void DeliverOnArm(std::size_t writes);
  // The QP goes into error by itself, with all that is under way from it.
  void Fail(rdma_cm_id* id);
  // The QPs in error give back what they have fetched, and report it.
  void Flush();
  // The flush of a receive that a QP takes with it comes all the same, with a
  // later completion of its CQ.
  void LeaveStale(bool leave);
  // Events of completions are not told while it is held, and are told then.
  // Held for ever, they are lost.
  void HoldEvents(bool hold);
  // Whether what asks to be solicited is.
  void Solicit(bool solicit);
  // The oldest asynchronous event.  False: there is none.
  bool NextEvent(ibv_async_event* event);
  // No CQ can be armed from now on.
  void RefuseArms();
  // The next poll that finds so many completions takes them, and fails.
  void FailPoll(int completions);
  // The device takes so many more requests, and then no more.
  void RefuseSends(int after);
  // The next calls that post receives take one of them, and then fail.
  void RefuseReceives(int calls);
  // Called in each call that posts to a QP, puts it into error or destroys it,
  // by the thread that makes it: siw sends there.  (Not beside such a call.)
  void OnSend(std::function<void()> fn) { on_send_ = std::move(fn); }
  // As a raw peer: writes to what `key` covers, and an immediate.  False: the
  // device refuses.
  bool Write(rdma_cm_id* from, std::uint64_t address, std::uint32_t key,
             const void* data, std::size_t length);
  bool Immediate(rdma_cm_id* from, std::uint32_t bits, bool send = false);
  bool Send(rdma_cm_id* from, const std::string& bytes);

  // What must not happen, and what must be gone in the end.
  struct Counts {
    int overtaken = 0;  // WRITEs that an earlier one came after
    int relaxed = 0;    // keys
    int overruns = 0;   // of a CQ
    int starved = 0;    // a message found no receive
    int empty = 0;      // messages without bytes
    int fetches = 0;    // calls of ibv_get_cq_event
    int objects = 0;    // PDs, MRs, CQs, SRQs, channels, QPs
    int posts = 0;      // calls of ibv_post_send
    int requests = 0;   // in them
    int writes = 0;     // that carried a message
    int arms = 0;
    int events = 0;         // of completions
    int late_arms = 0;      // an event of the CQ had not been fetched
    int lost_events = 0;    // a channel was full
    int pieces = 0;         // of WRITEs that came apart
    int lost_receives = 0;  // they, or their completions, went with the QP
    int rnr_timers = 0;     // that were set
    int limits = 0;         // of SRQs
    int queues = 0;         // SRQs that were made
    int stale = 0;          // flushes that came behind their QP
    int refused_qps = 0;    // calls of rdma_create_qp
    int receive_posts = 0;  // calls of ibv_post_recv and ibv_post_srq_recv
    // Locks of the provider that were taken: of send queues, of registers for
    // doorbells, of CQs with something in them, and of queues of receives.
    int send_locks = 0;
    int register_locks = 0;
    int cq_locks = 0;
    int receive_locks = 0;
    std::set<int> vectors;  // of CQs
  };
  Counts counts();
  bool QpFailed(rdma_cm_id* id);

 private:
  struct Channel {
    ibv_comp_channel channel;  // first; its descriptor is of a pipe
    int tell = -1;
  };
  struct Srq;
  // The places of what has completed are free once the program has polled it.
  struct Entry {
    ibv_wc wc;
    std::uint32_t sends = 0;  // how many requests it tells of
    bool receive = false;
    Srq* srq = nullptr;  // the receive's; null: its QP's own queue
  };
  struct Cq {
    ibv_cq cq;  // first
    std::deque<Entry> entries;
    std::deque<Entry> stale;  // come with the next one
    bool armed = false;
    bool solicited = false;  // only
    int unfetched = 0;
  };
  struct Queue {
    std::deque<ibv_recv_wr> receives;
    std::deque<ibv_sge> sges;
    std::size_t size = 0;
    std::size_t taken = 0;  // receives that no poll has told of
    std::size_t limit = 0;  // of an SRQ; reports when fewer are left
    // The oldest one, to `to`.  False: there is none.
    bool Take(Queue* to);
    int Post(ibv_recv_wr* wr, ibv_recv_wr** bad);
  };
  struct Srq {
    ibv_srq srq;  // first
    Queue queue;
  };
  struct Mr {
    ibv_mr mr;  // first
    int access;
  };
  struct Late {  // a piece of a WRITE that is not visible yet
    std::uint64_t address;
    std::uint32_t key;
    std::vector<std::uint8_t> bytes;
  };
  struct Qp {
    ibv_qp qp;               // first
    std::vector<Late> late;  // to this end
    Queue own;               // where it has no SRQ
    Queue fetched;           // of its SRQ
    double link_free = 0;
    bool connected = false;  // it has been
    bool flushes = false;    // in error, and has not given it back
    Qp* peer = nullptr;
    bool failed = false;
    std::uint32_t outstanding = 0;  // requests that no poll has told of
    std::uint32_t done = 0;         // ... and that no completion tells of, yet
    std::uint32_t depth = 0;
  };
  struct Work {
    Qp* from;
    ibv_wr_opcode opcode;
    std::uint64_t wr_id;
    bool signalled;
    bool solicited;
    std::vector<std::uint8_t> bytes;  // inline
    const void* at = nullptr;         // not inline
    std::uint32_t lkey = 0;           // ... its memory's
    std::uint32_t length;
    std::uint64_t address;
    std::uint32_t key;
    std::uint32_t imm;
    double arrives = 0;
  };
  struct Ack {  // of a request, on its way back
    double arrives;
    Qp* to;
    Entry entry;
  };

  static FakeVerbs* g_fake;
  static int PostSend(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
  static int PollCq(ibv_cq* cq, int most, ibv_wc* out);
  static int Arm(ibv_cq* cq, int solicited);
  static int PostShared(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad);
  static int PostReceive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);

  void Install();
  void Rest();  // of it
  ibv_mr* NewMr(ibv_pd* pd, void* base, std::size_t length, int access);
  void Leave(Work* work);  // its sender, at now_
  bool Step();             // delivers one; false: nothing to do
  bool Apply(Work& work);
  bool Covers(std::uint64_t address, std::uint32_t key,
              std::size_t length) const;
  bool Put(std::uint64_t address, std::uint32_t key, const void* data,
           std::size_t length);
  // Adds a WRITE that is not visible yet, in pieces.
  void Delay(Qp* to, const Work& work, const void* data);
  // One of what is late at `to`, or all of it, becomes visible.
  void Land(Qp* to, bool all);
  // With what a SEND carries, or an immediate.
  bool Receive(Qp* to, std::uint32_t imm, const void* sent,
               std::uint32_t length, bool solicited = true);
  void Complete(Cq* cq, const Entry& entry, bool solicited = false);
  // Of a request at the head of its queue.
  Entry Sent(Qp* qp, const Work& work, ibv_wc_status status);
  static Entry Flushed(const Qp* qp, const ibv_recv_wr& wr);
  // The program has polled it, or it goes with its QP.
  void Free(const Entry& entry);
  int PostTo(Queue* queue, ibv_recv_wr* wr, ibv_recv_wr** bad);
  void Lock(int* count);
  void Tell(const Cq* cq);
  void FailQp(Qp* qp);
  void Fetch(Qp* qp);
  void Flush(Qp* qp);
  void FlushFetched(Qp* qp);
  void Run();

  const Options options_;
  ibv_device device_{};
  ibv_context context_{};
  int cqs_ = 0;  // mutex_'s
  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<Work> queue_;
  std::map<std::uint32_t, Mr*> mrs_;
  std::set<Qp*> qps_;
  std::set<Srq*> srqs_;
  std::vector<std::unique_ptr<rdma_cm_id>> ids_;
  std::uint32_t next_key_ = 1;
  std::vector<std::uint32_t> free_keys_;
  std::uint32_t next_qp_ = 17;
  Counts counts_;
  bool held_ = false;
  std::size_t on_arm_ = 0;
  bool refuse_arms_ = false;
  int fail_poll_ = 0;
  int takes_sends_ = -1;  // -1: all
  int refuse_receives_ = 0;
  bool leave_stale_ = false;
  bool hold_events_ = false;
  bool solicit_ = true;
  std::vector<const Cq*> held_events_;
  Time time_;
  double now_ = 0;
  std::deque<Ack> acks_;
  std::deque<ibv_async_event> events_;
  std::function<void()> on_send_;
  std::mt19937 order_{11};
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace rcsock::lane::test

#endif  // RCSOCK_TESTS_LANE_FAKE_VERBS_H_
