#ifndef RCSOCK_TESTS_STREAM_EXPLORER_H_
#define RCSOCK_TESTS_STREAM_EXPLORER_H_

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "tests/stream/sim_world.h"

namespace rcsock::stream {

struct Bounds {
  int bytes = 2;  // each way
  int epochs = 2;
  int kills = 1;
  int demotions = 1;
  int deaths = 1;  // of the lane, per epoch
  bool ack_lag = false;
  bool leave = false;     // demotions leave unread bytes to the peer
  bool early = false;     // ... and come at any step of the switch
  bool outlives = false;  // the ring is there behind a freeze: shared memory
  bool shutdowns = true;
  bool closes = false;  // an application closes; then it reads no more
  bool greedy = false;  // the application reads at once
  int min_tail = 0;  // not 0: the lane's other end is not known to be the peer
  // 0 or 1: ... and is not: a stranger holds it, and the peer has no lane.
  int stranger_of = -1;
  int words = 2;   // what the stranger says at most, credit apart
  int broken = 0;  // Stream::Broken
  std::size_t max_states = 60'000'000;
};

enum class Act : std::uint8_t {
  kWrite,
  kRead,
  kTcp,
  kLand,
  kTimer,
  kNotice,
  kLaneUp,
  kCredit,
  kShutdown,
  kClose,
  kDrop,
  kDie1,  // noticed by this end only
  kDie2,  // noticed by both
  kDemote,
  kKill,
  kKillLossy,
  kKillReset,
  kHear,
  // The stranger's.
  kEvilCredit,
  kEvilAccept,
  kEvilRefuse,
  kEvilSwitch,
  kEvilPropose,
  kEvilData,
  kCount,
};

inline const char* Name(Act act) {
  static const char* const kNames[] = {"app writes",
                                       "app reads",
                                       "reads TCP",
                                       "lane delivers",
                                       "timer",
                                       "notices the lane's death",
                                       "lane up",
                                       "credit returns",
                                       "app shuts down",
                                       "app closes",
                                       "in flight lost",
                                       "LANE DIES (for this end)",
                                       "LANE DIES (for both)",
                                       "demotes",
                                       "KILL",
                                       "KILL, in flight lost",
                                       "KILL, the kernel drops its queue",
                                       "hears of the peer's leaving",
                                       "stranger credits all",
                                       "stranger: ACCEPT",
                                       "stranger: REFUSE",
                                       "stranger: SWITCH",
                                       "stranger: PROPOSE",
                                       "stranger: data"};
  return kNames[static_cast<int>(act)];
}

// Both ends, the lane and TCP between them: copy it, and it is another world.
struct World {
  struct App {
    bool alive = true;
    bool shut = false;
    bool closed = false;
    bool went_clean = false;  // closed, and the anchor with it, without a reset
    bool saw_end = false;
    std::uint8_t written = 0;
    std::uint8_t read = 0;
    std::uint8_t must_deliver = 0;  // set when killed
  };

  const Bounds* bounds;
  SimTcp tcp;
  lane::sim::SimLink link{16, 16};
  SimAnchor anchor[2];
  lane::sim::SimLane lane[2];
  Stream stream[2];
  App app[2];
  std::uint8_t epoch = 0;
  bool up[2] = {true, true};  // LaneUp has been called for this epoch
  bool dead_lane = false;
  std::uint8_t mask = 0;
  std::uint8_t kills = 0;
  std::uint8_t demotions = 0;
  std::uint8_t words = 0;
  std::uint8_t heard[2] = {0, 0};  // of the peer's leaving
  const char* error = nullptr;

  explicit World(const Bounds* b)
      : bounds(b),
        anchor{SimAnchor(&tcp, 0), SimAnchor(&tcp, 1)},
        lane{lane::sim::SimLane(&link, 0), lane::sim::SimLane(&link, 1)},
        stream{Stream(Role::kConnector, &anchor[0], Limits{}),
               Stream(Role::kAcceptor, &anchor[1], Limits{})} {
    tcp.units = true;
    tcp.budget[0] = tcp.budget[1] = 0;
    link.auto_credit = b->stranger_of < 0;
    link.outlives = b->outlives;
    for (Stream& s : stream) {
      s.Adopt(0, 0);
      StreamTestAccess::Break(&s, b->broken);
    }
  }
  World(const World& other)
      : bounds(other.bounds),
        tcp(other.tcp),
        link(other.link),
        stream{other.stream[0], other.stream[1]},
        app{other.app[0], other.app[1]},
        epoch(other.epoch),
        up{other.up[0], other.up[1]},
        dead_lane(other.dead_lane),
        mask(other.mask),
        kills(other.kills),
        demotions(other.demotions),
        words(other.words),
        heard{other.heard[0], other.heard[1]},
        error(other.error) {
    for (int i = 0; i < 2; ++i) {
      anchor[i] = SimAnchor(&tcp, i);
      lane[i] = lane::sim::SimLane(&link, i);
      stream[i].Rebind(&lane[i], &anchor[i]);
    }
  }
  World& operator=(const World&) = delete;

  // The second is what a flipped COMMIT begins with.
  static std::uint8_t ByteOf(int end, int index) {
    int first = end == 0 ? 'a' : 'A';
    return static_cast<std::uint8_t>(index == 1 ? ~first : first + index);
  }
  // Begins with the peer's first byte, so that COMMIT must be flipped.
  static Nonce NonceOf(int end) {
    Nonce nonce;
    nonce.fill(static_cast<std::uint8_t>(0x80 + end));
    nonce[0] = ByteOf(1 - end, 0);
    return nonce;
  }

  // The end whose lane's other end is a stranger's.
  bool Victim(int i) const { return i == bounds->stranger_of; }
  // The other has no lane at all.
  bool Plain(int i) const { return bounds->stranger_of == 1 - i; }

  bool Idle(int i) const {
    const Stream& s = stream[i];
    return app[i].alive && s.tx() == Tx::kRaw && s.rx() == Rx::kRaw &&
           !StreamTestAccess::HasLane(s) && !StreamTestAccess::Shut(s) &&
           !StreamTestAccess::TcpEnded(s) && !StreamTestAccess::TxBroken(s);
  }

  // What end i has read, and what a look (MSG_PEEK, FIONREAD) shows behind it.
  std::size_t Shown(int i) const {
    const std::size_t raw =
        stream[i].AtKernel() ? tcp.pipe[1 - i].bytes.size() : 0;
    return app[i].read + stream[i].Readable() + raw;
  }

  // The same by reading, which looks at TCP itself.
  std::size_t Taken(int i) const {
    World other(*this);
    other.tcp.budget[i] = -1;
    while (!other.app[i].saw_end && other.AppRead(i)) {
    }
    return other.app[i].read;
  }

  // False: not possible here.
  bool Do(Act act, int i) {
    const std::size_t shown[2] = {Shown(0), Shown(1)};
    if (!Step(act, i)) return false;
    for (int k = 0; k < 2; ++k) {
      if (app[0].alive && app[1].alive && !app[k].closed &&
          Shown(k) < shown[k] && Taken(k) < shown[k]) {
        error = "bytes that could be read can't any more";
      }
    }
    return true;
  }

  bool Step(Act act, int i) {
    Stream& s = stream[i];
    App& a = app[i];
    App& peer = app[1 - i];
    const bool lane_open =
        StreamTestAccess::HasLane(s) && !StreamTestAccess::Frozen(s);
    if (!a.alive) return false;
    switch (act) {
      case Act::kWrite: {
        if (a.written == (Plain(i) ? 1 : bounds->bytes) || a.shut) return false;
        std::uint8_t byte = ByteOf(i, a.written);
        iovec iov{&byte, 1};
        ssize_t n = s.Write(&iov, 1, 1);
        if (n == 1) {
          ++a.written;
        } else if (n == -EAGAIN) {
          return false;
        } else if (peer.alive && !peer.closed) {
          error = "a write failed although the peer lives";
        }
        break;
      }
      case Act::kRead:
        if (a.closed || a.saw_end || !AppRead(i)) return false;
        break;
      case Act::kTcp:
        if (tcp.pipe[1 - i].bytes.empty() && !tcp.pipe[1 - i].fin &&
            !tcp.pipe[1 - i].rst) {
          return false;
        }
        if (StreamTestAccess::TcpEnded(s)) return false;
        tcp.budget[i] = 1;
        s.Progress();
        // What is raw is the application's to read.
        if (tcp.budget[i] == 1 && !a.closed && !a.saw_end) AppRead(i);
        tcp.budget[i] = 0;
        break;
      case Act::kLand:
        if (!link.ring[1 - i].Land()) return false;
        s.Progress();
        break;
      case Act::kCredit:
        if (!bounds->ack_lag || link.ring[i].acked == link.ring[i].consumed ||
            dead_lane) {
          return false;
        }
        link.ring[i].ReturnCredit();
        s.Progress();
        break;
      case Act::kTimer:
        if (s.tx() != Tx::kProp && s.tx() != Tx::kComm) return false;
        if (bounds->broken == 64) return false;
        s.Timer();
        break;
      case Act::kNotice:
        if (!dead_lane || (mask >> i & 1) == 0 || !lane_open) return false;
        if (link.state[i] != base::Reason::kNone) return false;
        link.state[i] = base::Reason::kLaneError;
        s.Progress();
        break;
      case Act::kLaneUp:
        if (Plain(i)) return false;
        if (!up[i]) {
          up[i] = true;
        } else {
          if (epoch >= bounds->epochs || !Idle(0) || !Idle(1) || !up[0] ||
              !up[1]) {
            return false;
          }
          ++epoch;
          link.Reset();
          heard[0] = heard[1] = 0;
          dead_lane = false;
          mask = 0;
          up[1 - i] = false;
        }
        s.LaneUp(&lane[i], epoch, NonceOf(i), NonceOf(1 - i),
                 i == 0 || bounds->min_tail == 0,
                 static_cast<std::uint8_t>(bounds->min_tail));
        if (bounds->stranger_of >= 0) up[1 - i] = true;
        if (bounds->outlives) s.Progress();  // as its owner does
        break;
      case Act::kShutdown:
        if (a.shut || !bounds->shutdowns) return false;
        a.shut = true;
        s.ShutdownWrite();
        break;
      case Act::kClose:
        // (What the kernel has for it, unread, the owner makes a reset of.)
        if (a.closed || !bounds->closes) return false;
        a.shut = a.closed = true;
        s.Close(s.AtKernel() && !tcp.pipe[1 - i].bytes.empty());
        break;
      case Act::kDrop:
        if (!dead_lane || link.ring[i].dropping) return false;
        link.ring[i].DropInFlight();
        break;
      case Act::kDie1:
      case Act::kDie2:
        if (dead_lane || bounds->deaths == 0 || !up[0] || !up[1]) return false;
        if (!StreamTestAccess::HasLane(stream[0]) &&
            !StreamTestAccess::HasLane(stream[1])) {
          return false;
        }
        if (act == Act::kDie2 && i == 1) return false;
        dead_lane = true;
        mask = act == Act::kDie2 ? 3 : static_cast<std::uint8_t>(1 << i);
        break;
      case Act::kDemote:
        if (demotions >= bounds->demotions || !lane_open ||
            (s.tx() != Tx::kLane && !bounds->early)) {
          return false;
        }
        ++demotions;
        s.Demote(base::Reason::kPolicy, bounds->leave);
        break;
      case Act::kKill:
      case Act::kKillLossy:
      case Act::kKillReset:
        if (kills >= bounds->kills) return false;
        // (A reset, and its peer's window was full.)
        if (act == Act::kKillReset &&
            (tcp.pipe[1 - i].bytes.empty() || tcp.pipe[i].bytes.empty() ||
             !bounds->outlives)) {
          return false;
        }
        ++kills;
        Kill(i, act);
        break;
      case Act::kHear: {
        const auto left = static_cast<std::uint8_t>(
            static_cast<int>(link.left[1 - i]) | link.forgoes[1 - i] << 2);
        if (!bounds->outlives || left == heard[i] || !peer.alive) return false;
        heard[i] = left;
        s.Progress();
        break;
      }
      case Act::kEvilCredit:
        // (The lane itself takes none for what it has not sent.)
        if (!Victim(i) || link.ring[i].acked == link.ring[i].posted) {
          return false;
        }
        link.ring[i].consumed = link.ring[i].posted;
        link.ring[i].ReturnCredit();
        s.Progress();
        break;
      case Act::kEvilAccept:
      case Act::kEvilRefuse:
      case Act::kEvilSwitch:
      case Act::kEvilPropose:
      case Act::kEvilData:
        if (!Victim(i) || !lane_open || words == bounds->words) return false;
        ++words;
        Say(act, i);
        s.Progress();
        break;
      case Act::kCount:
        return false;
    }
    // What he has read, he has read.
    if (bounds->stranger_of >= 0 &&
        link.ring[bounds->stranger_of].posted != 0) {
      error = "a stranger gets the application's bytes";
    }
    for (int k = 0; k < 2; ++k) {
      if (!app[k].alive) continue;
      if (bounds->greedy && !app[k].closed) {
        while (!app[k].saw_end && AppRead(k)) {
        }
      }
      std::uint32_t changes = stream[k].TakeChanges();
      if ((changes & kSettled) != 0) stream[k].ReleaseLane();
      changes |= stream[k].TakeChanges();
      if ((changes & kFinished) != 0) {
        if (!app[k].closed) error = "finished before close";
        CloseAnchor(k, (changes & kMustReset) != 0);
        continue;
      }
      if (StreamTestAccess::Failed(stream[k])) {
        error = "one honest end takes the other for hostile";
      }
    }
    if (tcp.error != nullptr) error = tcp.error;
    return true;
  }

  // The stranger, to end i.  He knows the nonces and all offsets.
  void Say(Act act, int i) {
    lane::sim::SimLane evil(&link, 1 - i);
    Ctl ctl;
    ctl.epoch = epoch;
    switch (act) {
      case Act::kEvilAccept:
        ctl = StreamTestAccess::StrangersAccept(stream[i]);
        break;
      case Act::kEvilRefuse:
        ctl.kind = CtlKind::kRefuse;
        break;
      case Act::kEvilSwitch:
        ctl.kind = CtlKind::kSwitch;
        ctl.offset = stream[i].rx_off();
        break;
      case Act::kEvilPropose:
        // With it what he would have taken for the peer's last words.
        ctl.kind = CtlKind::kPropose;
        ctl.offset = app[1 - i].written;
        ctl.tail = 64;
        break;
      default: {
        std::uint8_t byte = '!';
        const iovec iov{&byte, 1};
        evil.Post(&iov, 1, 0, 1);
        link.ring[1 - i].LandAll();
        return;
      }
    }
    const CtlBytes bytes = Encode(ctl);
    evil.PostCtl(bytes.data(), bytes.size());
    link.ring[1 - i].LandAll();
  }

  bool AppRead(int i) {
    App& a = app[i];
    const App& peer = app[1 - i];
    std::uint8_t byte = 0;
    iovec iov{&byte, 1};
    ssize_t n = stream[i].Read(&iov, 1, 1, false);
    if (n == -EAGAIN) return false;
    if (n == 1) {
      if (byte != ByteOf(1 - i, a.read)) {
        error = "a byte is lost, repeated, or not the application's";
      }
      ++a.read;
      if (a.read > peer.written) error = "more bytes than were written";
      return true;
    }
    const bool taken = peer.went_clean && peer.read == a.written;
    if (n < 0 && ((peer.alive && !peer.closed) || taken)) {
      error = "a read failed although the peer lives, or has read everything";
    }
    if (n == 0 && (peer.alive || taken) &&
        (!peer.shut || a.read != peer.written)) {
      error = "EOF before the end";
    }
    a.saw_end = true;
    return true;
  }

  // The owner of a closed stream lets go of it; whatever the lane has not
  // delivered is lost.
  void CloseAnchor(int i, bool reset) {
    App& a = app[i];
    a.alive = false;
    SimPipe& in = tcp.pipe[1 - i];
    a.went_clean = !reset && in.bytes.empty();
    if (!reset) a.must_deliver = a.written;
    tcp.dead[i] = true;
    if (reset || !in.bytes.empty()) {
      tcp.pipe[i].rst = true;
    } else {
      tcp.pipe[i].fin = true;
    }
    tcp.kshut[i] = true;
    in.bytes.clear();
    link.ring[0].DropInFlight();
    link.ring[1].DropInFlight();
    dead_lane = true;
    mask = 3;
    up[0] = up[1] = true;
  }

  // How many bytes R has sent before the switch.  Without one these are all.
  static std::uint64_t SentBefore(const Stream& s, std::uint64_t all) {
    return s.Tried() ? StreamTestAccess::X(s) : all;
  }

  void Kill(int i, bool lossy) {
    Kill(i, lossy ? Act::kKillLossy : Act::kKill);
  }
  void Kill(int i, Act how) {
    const bool lossy = how == Act::kKillLossy;
    Stream& s = stream[i];
    const Stream& t = stream[1 - i];
    App& a = app[i];
    // Bytes in shared memory or in the kernel outlive the process; those that a
    // demotion holds on the heap do not, if they are in no ring.
    const bool held = StreamTestAccess::Held(s) != 0;
    const bool has_lane = StreamTestAccess::HasLane(t);
    bool kept = !lossy && !held;
    if (!bounds->outlives) {
      kept = kept && !dead_lane && StreamTestAccess::Queued(s) == 0 &&
             (s.tx() == Tx::kRaw || (has_lane && !StreamTestAccess::Frozen(t) &&
                                     !StreamTestAccess::Frozen(s)));
    } else {
      // (An end that is about to have the lane waits for it: its owner's part.)
      kept = kept && (up[1 - i] || s.tx() == Tx::kRaw) &&
             (!StreamTestAccess::HandsOver(t) || has_lane ||
              StreamTestAccess::Queued(s) == 0);
    }
    // TCP loses as much where the application's bytes are unread; and R what it
    // has sent before the switch, if COMMIT is, or P's way back.
    if (how == Act::kKillReset) {
      kept = kept && StreamTestAccess::In(s) == app[1 - i].written &&
             s.rx() != Rx::kArm && s.tx() != Tx::kStg &&
             (s.rx() != Rx::kFrames ||
              StreamTestAccess::In(t) >= SentBefore(s, a.written));
    }
    // ... and a survivor that is itself dead owes nothing.
    a.must_deliver = kept ? a.written : 0;
    a.alive = false;
    if (lossy) {
      link.ring[i].DropInFlight();
    } else if (bounds->outlives || !link.frozen[1 - i]) {
      link.ring[i].LandAll();
    }
    link.ring[1 - i].DropInFlight();
    dead_lane = true;
    mask = 3;
    tcp.dead[i] = true;
    if (!tcp.kshut[i]) {
      // Unread bytes make the kernel send RST instead of FIN.
      (tcp.pipe[1 - i].bytes.empty() ? tcp.pipe[i].fin : tcp.pipe[i].rst) =
          true;
    }
    tcp.kshut[i] = true;
    tcp.pipe[1 - i].bytes.clear();
    if (how == Act::kKillReset) tcp.pipe[i].bytes.clear();
    up[0] = up[1] = true;
  }

  // Nothing moves any more: is everything where it should be?
  const char* Good() const {
    for (int i = 0; i < 2; ++i) {
      const App& a = app[i];
      const App& p = app[1 - i];
      if (!a.alive) continue;
      if (!p.alive) {
        if (!a.saw_end) return "the survivor never sees the end";
        if (a.read < p.must_deliver) {
          return "bytes that outlived their process were not delivered";
        }
        continue;
      }
      if (a.closed) return "WEDGED: a closed stream never finishes";
      if (p.closed) continue;
      if (p.read != a.written) return "WEDGED: bytes never reach the peer";
      if (a.shut && !p.saw_end) return "WEDGED: EOF never reaches the peer";
      if (a.shut && p.shut &&
          !(StreamTestAccess::KernelShut(stream[i]) &&
            StreamTestAccess::TcpEnded(stream[i]))) {
        return "WEDGED: the stream never finishes";
      }
      // (Who has told a stranger where bytes by TCP end waits for the next.)
      if (StreamTestAccess::HasLane(stream[i]) &&
          StreamTestAccess::Frozen(stream[i]) && up[0] && up[1] &&
          (!Victim(i) || stream[i].rx() == Rx::kRaw)) {
        return "WEDGED: a lane that was left is not let go of";
      }
      Tx tx = stream[i].tx();
      if (tx != Tx::kRaw && tx != Tx::kLane) return "WEDGED between the paths";
      if (!a.shut && !p.shut) {
        World other(*this);
        std::uint8_t byte = 0;
        iovec iov{&byte, 1};
        if (other.stream[i].Write(&iov, 1, 1) != 1) {
          return "WEDGED: nothing can be written";
        }
      }
    }
    return nullptr;
  }

  void Serialise(std::string* to) const {
    to->clear();
    auto u8 = [to](int v) { to->push_back(static_cast<char>(v)); };
    for (int i = 0; i < 2; ++i) {
      const App& a = app[i];
      u8(a.alive | a.shut << 1 | a.saw_end << 2 | up[i] << 3 |
         tcp.kshut[i] << 4 | a.closed << 5 | a.went_clean << 6);
      u8(a.written);
      u8(a.read);
      u8(a.must_deliver);
      const SimPipe& p = tcp.pipe[i];
      u8(static_cast<int>(p.bytes.size()));
      u8(p.fin | p.rst << 1);
      *to += p.bytes;
      if (a.alive) StreamTestAccess::Serialise(stream[i], to);
    }
    // A lane that both have let go of is only its number.
    const bool held = StreamTestAccess::HasLane(stream[0]) ||
                      StreamTestAccess::HasLane(stream[1]) || !up[0] || !up[1];
    u8(epoch | held << 4);
    u8(kills | demotions << 4);
    u8(words);
    if (held) {
      for (int i = 0; i < 2; ++i) {
        SerialiseRing(link.ring[i], to);
        u8(link.frozen[i] | (link.state[i] != base::Reason::kNone) << 1 |
           static_cast<int>(link.left[i]) << 2 | link.forgoes[i] << 4 |
           link.resets[i] << 5);
        u8(heard[i]);
      }
      u8(dead_lane | mask << 1);
    }
  }
};

struct Result {
  const char* error = nullptr;
  std::size_t states = 0;
  std::size_t transitions = 0;
  std::size_t quiescent = 0;
  std::size_t promoted = 0;  // states with both directions on the lane
  bool complete = false;
  int depth = 0;
};

// Breadth first, so that the trace of a failure is a shortest one; it goes to
// stdout if `print`.
Result Explore(const Bounds& bounds, bool print);

}  // namespace rcsock::stream

#endif  // RCSOCK_TESTS_STREAM_EXPLORER_H_
