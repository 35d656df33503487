#ifndef RCSOCK_LIB_POSIX_SOCKET_SOCK_LAYOUT_H_
#define RCSOCK_LIB_POSIX_SOCKET_SOCK_LAYOUT_H_

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "lib/base/latch.h"
#include "lib/base/paired.h"
#include "lib/base/reason.h"
#include "lib/lane/shm/layout.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/socket/budget.h"
#include "lib/posix/socket/interest_latch.h"
#include "lib/posix/socket/lane_state.h"
#include "lib/posix/socket/sock_anchor.h"
#include "lib/posix/socket/sock_ancillary.h"
#include "lib/posix/socket/sock_calls.h"
#include "lib/posix/socket/sock_claim.h"
#include "lib/posix/socket/sock_control.h"
#include "lib/posix/socket/sock_end.h"
#include "lib/posix/socket/sock_exec.h"
#include "lib/posix/socket/sock_hold.h"
#include "lib/posix/socket/sock_holders.h"
#include "lib/posix/socket/sock_left.h"
#include "lib/posix/socket/sock_noted.h"
#include "lib/posix/socket/sock_notice.h"
#include "lib/posix/socket/sock_options.h"
#include "lib/posix/socket/sock_peer.h"
#include "lib/posix/socket/sock_read_ahead.h"
#include "lib/posix/socket/sock_search.h"
#include "lib/posix/socket/sock_settle.h"
#include "lib/posix/socket/sock_sleepers.h"
#include "lib/posix/socket/sock_starvation.h"
#include "lib/posix/socket/sock_tally.h"
#include "lib/posix/socket/sock_watch.h"
#include "lib/posix/socket/sock_way_back.h"
#include "lib/posix/socket/sock_zero_copy.h"
#include "lib/rendezvous/rendezvous.h"
#include "lib/stream/stream.h"

namespace rcsock::posix {

struct Interest;
class Sock;

// kPlain: calls go to the kernel, and are only counted.  kEngine: calls go
// through the Stream, which owns every byte of the anchor.  kUnread: as kPlain,
// but a reader first takes bytes from memory that other holders of the
// connection share.
enum class Mode : std::uint8_t { kPlain, kEngine, kUnread };

// The members of a Sock (sock.h), and the way to its parts.  The order of the
// members decides what lies in one cache line, and so is part of the cost of a
// call.
class alignas(64) SockLayout : public File,
                               public rendezvous::Seeker,
                               public rendezvous::AnchorWatcher {
 protected:
  explicit SockLayout(Sock* self)
      : File(FileKind::kSock),
        anchor_(self),
        zero_copy_(self, completions_),
        control_(self),
        way_back_(self, {tx_latch, rx_latch}),
        across_exec_(self),
        search_(self, next_ops_),
        send_gate_(self),
        peer_(self),
        left_(self, {tx_latch, rx_latch}),
        settling_(self, {tx_latch, rx_latch}),
        notice_(self, {tx_latch, rx_latch}),
        remote_(self),
        starvation_(self, tx_latch),
        ending_(self, {tx_latch, rx_latch}),
        holders_(self, {tx_latch, rx_latch}),
        claim_(self),
        copy_(self),
        tally_(self, {tx_latch, rx_latch}),
        noted_(self),
        read_ahead_(self, rx_latch) {}

  // What a call of a stream on TCP touches lies in one cache line, with the
  // members of the bases.  The kernel has just been there, so each further line
  // is a miss.
  PlainCalls calls_;
  // The count of calls at which search_ begins the next search.
  std::atomic<std::uint32_t> next_ops_{0};
  base::Paired<std::atomic<Mode>> mode_;
  LaneState lane_state_;

  // What a call of a stream on a lane touches, once kLaneMark has told of the
  // lane.
  alignas(64) base::Paired<std::unique_ptr<lane::Lane>> lane_;
  // Shared with stream_, and guarded by the latch of the direction.  The
  // members that follow lie in its last bytes, so that all of this is one line.
  [[no_unique_address]] stream::Quick quick_;
  base::Paired<bool> rd_shut_;
  std::atomic<bool> on_lane_{false};
  std::atomic<bool> input_alone_{false};
  std::atomic<bool> completions_{false};  // zero_copy_ has completions to tell
  // Guarded as lane_ is.
  base::Paired<bool> lane_is_shm_;

 public:
  std::atomic<bool> nonblock{false};
  // Public for callers that look at a lane without the stream.
  base::Latch tx_latch{base::LatchRank::kTx};
  base::Latch rx_latch{base::LatchRank::kRx};
  // Where the next message is likely to go, or the address of this member.
  // This is a hint, and may lead into a lane that has gone.  See QuickSend.
  std::atomic<const void*> next_line{&next_line};
  // Registrations; guarded by interest_latch (registry.h).
  std::atomic<Interest*> interests{nullptr};

  // --- Set by the hooks
  std::atomic<bool> listening{false};
  // If not 0, for as long as TableCopies says this: the status flags of the
  // open file are O_RDWR and `nonblock`, and no option has changed what the
  // socket is ready for.
  std::atomic<std::uint32_t> status_known{0};
  std::atomic<std::uint64_t> rcv_timeout_ns{0};  // SO_RCVTIMEO; 0: none
  std::atomic<std::uint64_t> snd_timeout_ns{0};

  // --- Readiness (interests.cc, poll.cc)
  // The registrations are in user space.
  bool interests_user RC_GUARDED_BY(interest_latch) = false;
  // Why a registration stays in the kernel's set.
  base::Reason interests_stay RC_GUARDED_BY(interest_latch) =
      base::Reason::kNone;
  // The registrations wait to get to user space.  Written with interest_latch.
  std::atomic<bool> moves{false};
  Sock* moving_next RC_GUARDED_BY(interest_latch) = nullptr;

  // posix_spawn may give the descriptor to a program, whatever close-on-exec
  // says.
  std::atomic<bool> in_spawn_actions{false};

  // --- The parts, each with a header of its own
  LaneState& lane_state() { return lane_state_; }
  PlainCalls& calls() { return calls_; }
  LaneSearch& search() { return search_; }
  PeerFacts& peer() { return peer_; }
  TcpAnchor& anchor() { return anchor_; }
  AnchorWatch& watch() RC_REQUIRES(tx_latch, rx_latch) { return watch_; }
  KeptOptions& options() { return options_; }
  Ancillary& ancillary() { return ancillary_; }
  ZeroCopyUse& zero_copy() { return zero_copy_; }
  ProgramControl& control() { return control_; }
  WayBack& way_back() { return way_back_; }
  Settling& settling() { return settling_; }
  AcrossExec& across_exec() { return across_exec_; }
  SendGate& send_gate() { return send_gate_; }
  Sleepers& sleepers() { return sleepers_; }
  LeftCalls& left() { return left_; }
  LaneNotice& notice() { return notice_; }
  RemoteLane& remote() { return remote_; }
  Starvation& starvation() { return starvation_; }
  Ending& ending() { return ending_; }
  const Ending& ending() const { return ending_; }
  Holders& holders() { return holders_; }
  ClaimKeeper& claim() { return claim_; }
  UnusedCopy& copy() { return copy_; }
  Tally& tally() { return tally_; }
  NotedShare& noted() { return noted_; }
  ReadAhead& read_ahead() { return read_ahead_; }

 protected:
  base::Paired<std::unique_ptr<stream::Stream>> stream_;
  // What the engine has delivered in each direction, but for what quick_
  // counts.
  std::uint64_t lane_tx_ RC_GUARDED_BY(tx_latch) = 0;
  std::uint64_t lane_rx_ RC_GUARDED_BY(rx_latch) = 0;
  TcpAnchor anchor_;
  AnchorWatch watch_ RC_GUARDED_BY_BOTH(tx_latch, rx_latch);
  KeptOptions options_{tx_latch};
  Ancillary ancillary_;
  ZeroCopyUse zero_copy_;
  ProgramControl control_;
  WayBack way_back_;
  AcrossExec across_exec_;
  Sock* pool_next_ = nullptr;
  // When the pool first looked for calls inside; 0: not yet.
  std::uint64_t late_ns_ = 0;
  std::uint32_t found_in_ = 0;  // the pool's last look that found a call inside
  std::atomic<int> refs_{0};
  LaneSearch search_;
  SendGate send_gate_;
  PeerFacts peer_;

  // What a sleep touches is one cache line.
  alignas(64) Sleepers sleepers_;
  LeftCalls left_;

  Settling settling_;
  LaneNotice notice_;
  RemoteLane remote_;
  lane::Kind lane_kind_ = lane::Kind::kShm;  // of the last lane
  std::uint32_t lane_epoch_ = 0;             // of the last lane
  Starvation starvation_;
  std::uint64_t timer_ RC_GUARDED_BY_BOTH(tx_latch, rx_latch) = 0;
  Ending ending_;
  bool leave_uncounted_ RC_GUARDED_BY_BOTH(tx_latch, rx_latch) = false;
  Holders holders_;
  ClaimKeeper claim_;
  UnusedCopy copy_;
  Tally tally_;
  NotedShare noted_;
  ReadAhead read_ahead_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SOCKET_SOCK_LAYOUT_H_
