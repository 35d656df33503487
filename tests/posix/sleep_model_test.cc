// Models of who sleeps and who wakes, searched exhaustively: each way in which
// the steps of the threads can interleave.  The rules are those of ShmLane
// (SleepTx, SleepRx, PublishCredit, AfterPublish), Sock::SleepOn,
// Sock::OnStarved, rdma::Sleepers, EpollSet and poll().  Each was, or could
// have been, a wake-up that is lost: a test for each takes one rule away and
// must find a state in which nobody moves and somebody still waits.
//
// A step is one atomic access, or what is done under a latch.  The order of
// memory is not modelled: where it matters, the code has fences that make it
// what is assumed here, and argues for them.

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>
#include <vector>

namespace rcsock {
namespace {

template <class State>
struct Hash {
  std::size_t operator()(const State& state) const {
    std::uint64_t hash = 14695981039346656037u;
    for (const std::uint8_t one : state) hash = (hash ^ one) * 1099511628211u;
    return static_cast<std::size_t>(hash);
  }
};

template <class Model>
struct Search {
  // How many states; 0 if in one of them nothing can move and not all is done.
  static int Run(const Model& model) {
    using State = typename Model::State;
    std::unordered_set<State, Hash<State>> seen;
    std::deque<State> todo;
    seen.insert(model.First());
    todo.push_back(model.First());
    std::vector<State> next;
    while (!todo.empty()) {
      const State state = todo.front();
      todo.pop_front();
      next.clear();
      model.Steps(state, &next);
      if (next.empty() && !model.Done(state)) return 0;
      for (const State& one : next) {
        if (seen.insert(one).second) todo.push_back(one);
      }
    }
    return static_cast<int>(seen.size());
  }
};

template <class Model>
bool Hangs(const Model& model) {
  return Search<Model>::Run(model) == 0;
}

// --- A writer that waits for room

struct Room {
  // Rules to leave out.
  bool heard_without_bump = false;  // LookForCredit by another thread
  bool no_look = false;             // SleepTx: credit after the wish
  bool look_before_wish = false;
  bool bit_after_bump = false;  // PublishCredit: takes the wish away too late
  bool timer_tells_nobody = false;  // OnStarved, where there is some room
  bool no_timer_again = false;      // ... and where the reader has moved
  // The reader may stop for ever; then the timer must help.
  bool pauses = false;
  int all = 7;  // messages to be written

  static constexpr int kRing = 4;   // messages
  static constexpr int kDue = 1;    // credit is published for so many
  static constexpr int kWorth = 3;  // and a wake-up is worth it
  enum {
    kTry,
    kWatch,
    kToken,
    kLook,
    kWish,
    kLookAgain,
    kSleep,
    kAsleep,
    kEnd,
    kTake = 0,
    kPublish,
    kAsk,
    kClear,
    kBump,
    kWake,
  };
  enum {
    kWriter,
    kReader,
    kPosted,
    kTaken,
    kCredit,
    kSeen,
    kWord,
    kHeld,
    kBit,
    kUntold,
    kPaused,
    kTimer,
    kPostedThen,
    kTakenThen,
    kDemoted,
    kOther,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const { return {}; }
  bool Done(const State& s) const { return s[kWriter] == kEnd; }

  // The latch is the writer's up to its wish, but between two steps of kTry.
  static bool Latched(const State& s) {
    return s[kWriter] >= kWatch && s[kWriter] <= kLook;
  }
  static void Wakes(State* s) {
    if ((*s)[kWriter] == kAsleep) (*s)[kWriter] = kTry;
  }
  void Hear(State* s, bool bump) const {
    if ((*s)[kCredit] <= (*s)[kSeen]) return;
    (*s)[kSeen] = (*s)[kCredit];
    if (bump) ++(*s)[kWord];
  }
  static bool HasRoom(const State& s) { return s[kPosted] - s[kSeen] < kRing; }

  void Steps(const State& from, std::vector<State>* to) const {
    State s = from;
    switch (s[kWriter]) {
      case kTry:
        Hear(&s, true);
        if (s[kDemoted] != 0) {
          s[kWriter] = kEnd;
        } else if (!HasRoom(s)) {
          s[kWriter] = kWatch;
        } else if (++s[kPosted] == all) {
          s[kWriter] = kEnd;
        }
        break;
      case kWatch:
        s[kPostedThen] = s[kPosted];
        if (pauses && s[kTimer] == 0) {
          s[kTimer] = 1;
          s[kTakenThen] = s[kTaken];
        }
        s[kWriter] = kToken;
        break;
      case kToken:
        s[kHeld] = s[kWord];
        s[kWriter] = kLook;
        break;
      case kLook:
        Hear(&s, true);
        s[kWriter] = HasRoom(s) ? kTry : look_before_wish ? kLookAgain : kWish;
        break;
      case kWish:
        s[kBit] = 1;
        s[kWriter] = no_look || look_before_wish ? kSleep : kLookAgain;
        break;
      case kLookAgain:
        s[kWriter] = s[kCredit] > s[kSeen] ? kTry
                     : look_before_wish    ? kWish
                                           : kSleep;
        break;
      case kSleep:
        s[kWriter] = s[kWord] != s[kHeld] ? kTry : kAsleep;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);

    s = from;
    const bool more = s[kTaken] < s[kPosted];
    switch (s[kReader]) {
      case kTake:
        if (s[kPaused] != 0 || !more) break;
        ++s[kTaken];
        ++s[kUntold];
        if (s[kTaken] - s[kCredit] >= kDue) s[kReader] = kPublish;
        break;
      case kPublish:
        s[kCredit] = s[kTaken];
        s[kReader] = kAsk;
        break;
      case kAsk:
        s[kReader] = s[kBit] == 0 || (s[kUntold] < kWorth && more) ? kTake
                     : bit_after_bump                              ? kBump
                                                                   : kClear;
        break;
      case kClear:
        s[kUntold] = 0;
        s[kBit] = 0;
        s[kReader] = bit_after_bump ? kTake : kBump;
        break;
      case kBump:
        ++s[kWord];
        s[kReader] = kWake;
        break;
      case kWake:
        Wakes(&s);
        s[kReader] = bit_after_bump ? kClear : kTake;
        break;
    }
    if (s != from) to->push_back(s);
    if (pauses && from[kReader] == kTake && from[kPaused] == 0) {
      s = from;
      s[kPaused] = 1;
      to->push_back(s);
    }

    // Another thread of the writer's process takes news of credit (poll, or
    // the timer below).
    if (!Latched(from) && from[kOther] < 1 && from[kCredit] > from[kSeen]) {
      s = from;
      ++s[kOther];
      Hear(&s, !heard_without_bump);
      to->push_back(s);
    }
    if (from[kTimer] != 0 && !Latched(from)) {
      s = from;
      s[kTimer] = 0;
      Hear(&s, true);
      if (HasRoom(s)) {
        if (s[kPosted] == s[kPostedThen] && !timer_tells_nobody) {
          ++s[kWord];
          Wakes(&s);
        }
      } else if (s[kTaken] != s[kTakenThen]) {
        if (!no_timer_again) s[kTimer] = 1;
        s[kPostedThen] = s[kPosted];
        s[kTakenThen] = s[kTaken];
      } else {
        s[kDemoted] = 1;
        ++s[kWord];
        Wakes(&s);
      }
      to->push_back(s);
    }
  }
};

TEST(RoomModel, NobodyWaitsForEver) {
  EXPECT_FALSE(Hangs(Room{}));
  EXPECT_FALSE(Hangs(Room{.pauses = true}));
}
TEST(RoomModel, NewsThatAnotherThreadTakes) {
  EXPECT_TRUE(Hangs(Room{.heard_without_bump = true}));
}
TEST(RoomModel, WishThenLookThenSleep) {
  EXPECT_TRUE(Hangs(Room{.no_look = true}));
  EXPECT_TRUE(Hangs(Room{.look_before_wish = true}));
}
TEST(RoomModel, TheWishIsTakenAwayBeforeTheBump) {
  EXPECT_TRUE(Hangs(Room{.bit_after_bump = true, .all = 9}));
}
// tests/posix/threads, reader_pauses and both_write.
TEST(RoomModel, LittleRoomIsToldThoughTheReaderPauses) {
  EXPECT_TRUE(Hangs(Room{.timer_tells_nobody = true, .pauses = true}));
}
TEST(RoomModel, TheTimerRunsWhileSomebodyMayWait) {
  EXPECT_TRUE(Hangs(Room{.no_timer_again = true, .pauses = true}));
}

// --- Readers that wait for a message, or for the stream to change

struct Input {
  bool no_look = false;          // SleepRx: the slot after the wish
  bool bit_after_bump = false;   // AfterPublish
  bool pin_after_look = false;   // SleepOn
  bool ask_before_bump = false;  // WakeRx: pins_ before rx_seq_
  // Two readers, as many messages; or one, and the stream changes instead.
  bool changes = false;

  enum { kLook, kPin, kAgain, kWish, kLookAgain, kSleep, kAsleep, kEnd };
  enum { kPost, kAsk, kClear, kBump, kWake, kChange, kSeqBump, kPins, kOver };
  enum {
    kReader,
    kHeldWord = kReader + 2,
    kHeldSeq = kHeldWord + 2,
    kSender = kHeldSeq + 2,
    kPosted,
    kTaken,
    kWord,
    kSeq,
    kBit,
    kPinned,
    kChanged,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    if (changes) {
      s[kReader + 1] = kEnd;
      s[kSender] = ask_before_bump ? kPins : kChange;
    }
    return s;
  }
  bool Done(const State& s) const {
    return s[kReader] == kEnd && s[kReader + 1] == kEnd;
  }
  static void Wakes(State* s) {
    for (int i = 0; i < 2; ++i) {
      if ((*s)[kReader + i] != kAsleep) continue;
      (*s)[kReader + i] = kLook;
      --(*s)[kPinned];
    }
  }

  void Steps(const State& from, std::vector<State>* to) const {
    for (int i = 0; i < 2; ++i) {
      State s = from;
      std::uint8_t& at = s[kReader + i];
      switch (at) {
        case kLook:  // under the latch, with what was read before
          s[kHeldSeq + i] = s[kSeq];
          s[kHeldWord + i] = s[kWord];
          if (s[kChanged] != 0) {
            at = kEnd;
          } else if (s[kTaken] < s[kPosted]) {
            ++s[kTaken];
            at = kEnd;
          } else {
            at = pin_after_look ? kAgain : kPin;
          }
          break;
        case kPin:
          ++s[kPinned];
          at = pin_after_look ? kWish : kAgain;
          break;
        case kAgain:
          if (s[kSeq] != s[kHeldSeq + i]) {
            if (!pin_after_look) --s[kPinned];
            at = kLook;
          } else {
            at = pin_after_look ? kPin : kWish;
          }
          break;
        case kWish:
          s[kBit] = 1;
          at = no_look ? kSleep : kLookAgain;
          break;
        case kLookAgain:
          at = kSleep;
          if (s[kTaken] < s[kPosted]) {
            --s[kPinned];
            at = kLook;
          }
          break;
        case kSleep:
          at = kAsleep;
          if (s[kWord] != s[kHeldWord + i]) {
            --s[kPinned];
            at = kLook;
          }
          break;
        default:
          break;
      }
      if (s != from) to->push_back(s);
    }
    State s = from;
    std::uint8_t& at = s[kSender];
    switch (at) {
      case kPost:
        if (s[kPosted] == 2) break;
        ++s[kPosted];
        at = kAsk;
        break;
      case kAsk:
        at = s[kBit] == 0 ? kPost : bit_after_bump ? kBump : kClear;
        break;
      case kClear:
        s[kBit] = 0;
        at = bit_after_bump ? kPost : kBump;
        break;
      case kBump:
        ++s[kWord];
        at = kWake;
        break;
      case kWake:
        Wakes(&s);
        at = changes          ? ask_before_bump ? kChange : kOver
             : bit_after_bump ? kClear
                              : kPost;
        break;
      case kChange:
        s[kChanged] = 1;
        at = kSeqBump;
        break;
      case kSeqBump:
        ++s[kSeq];
        at = ask_before_bump ? kOver : kPins;
        break;
      case kPins:
        at = s[kPinned] != 0 ? kBump : ask_before_bump ? kChange : kOver;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
  }
};

TEST(InputModel, NobodyWaitsForEver) {
  EXPECT_FALSE(Hangs(Input{}));
  EXPECT_FALSE(Hangs(Input{.changes = true}));
}
TEST(InputModel, WishThenLookThenSleep) {
  EXPECT_TRUE(Hangs(Input{.no_look = true}));
}
TEST(InputModel, TheWishIsTakenAwayBeforeTheBump) {
  EXPECT_TRUE(Hangs(Input{.bit_after_bump = true}));
}
TEST(InputModel, CountedBeforeTheLastLook) {
  EXPECT_TRUE(Hangs(Input{.pin_after_look = true, .changes = true}));
}
TEST(InputModel, ChangedBeforeTheCountIsLookedAt) {
  EXPECT_TRUE(Hangs(Input{.ask_before_bump = true, .changes = true}));
}

// --- Threads on lanes that have one completion queue between them

// The rules of lane::rdma::Sleepers and of RdmaPoller's arming: one thread, the
// leader, sleeps on the queue's channel in an epoll set of its own, the others
// on their lanes' words.  Lane 0 is nobody's: of a sleeper that has given up
// (its bit may have stayed).  Lane i is thread i's.
struct Leader {
  // Rules to leave out.
  bool no_drain = false;            // Lead: armed, then drained
  bool no_poll_again = false;       // DrainLocked: armed, then polled once more
  bool no_ask_again = false;        // DrainIfAsked: whether another has asked
  bool look_before_said = false;    // Lead: kAsleep, then the word
  bool look_before_bit = false;     // Sleep: the bit, then leader_
  bool silent_resigns = false;      // PassOn by who has led
  bool bits_before_resign = false;  // ... whose ticket has gone by then
  bool first_bit_only = false;      // PassOn: until somebody has been woken
  bool no_nudge = false;            // PassOn: the word of who is about to sleep
  bool word_after_wake = false;     // Wake: the word, then who sleeps
  bool one_set = false;             // TakeSet: alone with it
  bool disarms_twice = false;  // Led: the arm that WakeLocal has taken back
  // Situations.
  bool fetches = false;   // a provider whose events are fetched, each
  bool stale = false;     // lane 0 has its bit
  bool gives_up = false;  // thread 1 may, at any time
  bool changes = false;   // lane 1 changes: WakeLocal
  bool both_hear = true;  // else only lane 2 ever has a message

  static constexpr int kThreads = 2;
  static constexpr int kLanes = kThreads + 1;
  static constexpr int kOther = 0;  // the thread that calls WakeLocal
  enum {
    kToken,
    kLook,
    kSeen,
    kAskLeader,
    kBit,
    kAskAgain,
    kFutex,
    kAsleep,
    kTakeLead,
    kArm,
    kSay,
    kLookAtWord,
    kResign,
    kDisarm,
    kDoze,
    kDozing,
    kLedResign,
    kLedDisarm,
    // Drain
    kAsk,
    kTry,
    kUnask,
    kPoll,
    kTellWord,
    kTellBit,
    kTellFutex,
    kTellLeader,
    kFetch,
    kArmQueue,
    kUnlock,
    // PassOn
    kPass,
    kPassBit,
    kPassWord,
    kPassFutex,
    kReturn,
    kEnd,
    // WakeLocal
    kChange,
    kLocalWord,
    kLocalBit,
    kLocalFutex,
    kLocalResign,
    kLocalDisarm,
    kLocalKick,
  };
  // Of each thread, the one that calls WakeLocal too.
  enum {
    kAt,
    kBack,
    kMask,
    kIsToken,
    kIsSeen,
    kSet,
    kGone,
    kOldBits,
    kOfThread
  };
  enum {
    kWord = kOfThread * (kThreads + 1),  // changes; of each lane
    kNudge = kWord + kLanes,
    kLeader = kNudge + kLanes,  // a thread
    kLeaderAsleep,
    kBits,
    kLanded,
    kChanged,
    kPosted,
    kQueue,
    kQueueArmed,    // the device's
    kThoughtArmed,  // the poller's
    kFired,
    kEventDue,
    kEvents,
    kChannelEdges,  // in which sets
    kKickEdges,
    kSetsTaken,
    kArmed,
    kLatch,
    kAsked,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;
  static std::uint8_t& Of(State& s, int thread, int what) {
    return s[static_cast<std::size_t>(thread * kOfThread + what)];
  }
  static std::uint8_t Bit(int i) { return static_cast<std::uint8_t>(1 << i); }

  State First() const {
    State s{};
    Of(s, kOther, kAt) = changes ? kChange : kEnd;
    if (stale) s[kBits] = Bit(0);
    if (!both_hear) s[kPosted] = Bit(1);
    s[kPosted] |= Bit(0);
    return s;
  }
  bool Done(const State& s) const {
    State at = s;
    for (int i = 0; i <= kThreads; ++i) {
      if (Of(at, i, kAt) != kEnd) return false;
    }
    return true;
  }

  static void WakeFutex(State* s, int lane) {
    if (lane != 0 && Of(*s, lane, kAt) == kAsleep) Of(*s, lane, kAt) = kSeen;
  }
  static void Kick(State* s) { (*s)[kKickEdges] = 3; }
  static bool Resigns(State* s, int thread) {
    if ((*s)[kLeader] != thread) return false;
    (*s)[kLeader] = 0;
    (*s)[kLeaderAsleep] = 0;
    return true;
  }
  void TakeSet(State* s, int thread) const {
    const int set = !one_set && ((*s)[kSetsTaken] & 1) != 0 ? 1 : 0;
    Of(*s, thread, kSet) = static_cast<std::uint8_t>(set);
    (*s)[kSetsTaken] |= Bit(set);
  }
  static void PutSet(State* s, int thread) {
    (*s)[kSetsTaken] &= static_cast<std::uint8_t>(~Bit(Of(*s, thread, kSet)));
  }
  static int Lowest(unsigned mask) {
    int i = 0;
    while ((mask >> i & 1) == 0) ++i;
    return i;
  }

  void Step(int i, State s, std::vector<State>* to) const {
    const State from = s;
    std::uint8_t& at = Of(s, i, kAt);
    std::uint8_t& mask = Of(s, i, kMask);
    const std::uint8_t token = s[kWord + i];
    const auto seen = static_cast<std::uint8_t>(token * 16 + s[kNudge + i]);
    const int lane = mask != 0 ? Lowest(mask) : 0;
    const auto without = [](std::uint8_t bits, int one) {
      return static_cast<std::uint8_t>(bits & ~Bit(one));
    };
    switch (at) {
      case kToken:
        Of(s, i, kIsToken) = token;
        at = kLook;
        break;
      case kLook:
        at = ((s[kLanded] | s[kChanged]) & Bit(i)) != 0 ? kEnd : kSeen;
        break;
      case kSeen:
        Of(s, i, kIsSeen) = seen;
        at = token != Of(s, i, kIsToken) ? kPass : kAskLeader;
        break;
      case kAskLeader:
        at = s[kLeader] == 0 ? kTakeLead : look_before_bit ? kAskAgain : kBit;
        break;
      case kBit:
        s[kBits] |= Bit(i);
        at = look_before_bit ? kFutex : kAskAgain;
        break;
      case kAskAgain:
        at = s[kLeader] == 0 ? kSeen : look_before_bit ? kBit : kFutex;
        break;
      case kFutex:
        at = seen == Of(s, i, kIsSeen) ? kAsleep : kSeen;
        break;
      case kTakeLead:
        at = kSeen;
        if (s[kLeader] != 0) break;
        s[kLeader] = static_cast<std::uint8_t>(i);
        TakeSet(&s, i);
        at = kArm;
        break;
      case kArm:
        ++s[kArmed];
        Of(s, i, kBack) = look_before_said ? kLookAtWord : kSay;
        at = kAsk;
        if (no_drain) at = Of(s, i, kBack);
        break;
      case kSay:
        if (s[kLeader] == i) {
          s[kLeaderAsleep] = 1;
          at = look_before_said ? kDoze : kLookAtWord;
        } else {  // WakeLocal has resigned, and disarmed
          PutSet(&s, i);
          at = kSeen;
        }
        break;
      case kLookAtWord:
        at = token != Of(s, i, kIsToken) ? kResign
             : look_before_said          ? kSay
                                         : kDoze;
        if (at == kResign) PutSet(&s, i);
        break;
      case kResign:
        at = Resigns(&s, i) ? kDisarm : kSeen;
        break;
      case kDisarm:
        --s[kArmed];
        at = kSeen;
        break;
      case kDoze:
      case kDozing: {
        const std::uint8_t set = Bit(Of(s, i, kSet));
        const bool channel = (s[kChannelEdges] & set) != 0 && s[kEvents] != 0;
        const bool kick = (s[kKickEdges] & set) != 0;
        s[kChannelEdges] &= static_cast<std::uint8_t>(~set);
        s[kKickEdges] &= static_cast<std::uint8_t>(~set);
        at = channel || kick ? kLedResign : kDozing;
        if (bits_before_resign) Of(s, i, kOldBits) = s[kBits];
        if (at == kLedResign) PutSet(&s, i);
        break;
      }
      case kLedResign:
        if (!Resigns(&s, i) && !disarms_twice) ++s[kArmed];
        at = kLedDisarm;
        break;
      case kLedDisarm:
        --s[kArmed];
        Of(s, i, kBack) = Of(s, i, kGone) != 0 ? kPass : kSeen;
        at = kAsk;
        break;

      case kAsk:
        s[kAsked] = 1;
        at = kTry;
        break;
      case kTry:
        at = Of(s, i, kBack);
        if (s[kAsked] == 0 || s[kLatch] != 0) break;
        s[kLatch] = 1;
        at = kUnask;
        break;
      case kUnask:
        s[kAsked] = 0;
        at = kPoll;
        break;
      case kPoll:
        mask = s[kQueue];
        s[kQueue] = 0;
        s[kLanded] |= mask;
        if (mask != 0 && s[kThoughtArmed] != 0) {
          s[kThoughtArmed] = 0;
          s[kFired] = fetches ? 1 : 0;
        }
        at = mask == 0 ? kFetch : word_after_wake ? kTellBit : kTellWord;
        break;
      case kTellWord:
        ++s[kWord + lane];
        at = kTellBit;
        if (!word_after_wake) break;
        mask = without(mask, lane);
        at = mask != 0 ? kTellBit : kFetch;
        break;
      case kTellBit:
        at = (s[kBits] & Bit(lane)) != 0 ? kTellFutex : kTellLeader;
        s[kBits] = without(s[kBits], lane);
        break;
      case kTellFutex:
        WakeFutex(&s, lane);
        at = kTellLeader;
        break;
      case kTellLeader:
        if (s[kLeaderAsleep] != 0 && s[kLeader] == lane) Kick(&s);
        if (word_after_wake) {
          at = kTellWord;
          break;
        }
        mask = without(mask, lane);
        at = mask != 0 ? kTellWord : kFetch;
        break;
      case kFetch:
        if (s[kArmed] == 0) {
          at = kUnlock;
          break;
        }
        if (s[kFired] != 0) {
          if (s[kEvents] != 0) s[kThoughtArmed] = s[kFired] = 0;
          s[kEvents] = 0;
        }
        at = kArmQueue;
        break;
      case kArmQueue:
        at = kUnlock;
        if (s[kThoughtArmed] != 0 || s[kFired] != 0) break;
        s[kQueueArmed] = s[kThoughtArmed] = 1;
        if (!no_poll_again) at = kPoll;
        break;
      case kUnlock:
        s[kLatch] = 0;
        at = kTry;
        if (no_ask_again) at = Of(s, i, kBack);
        break;

      case kPass:
        mask = s[kLeader] != 0      ? std::uint8_t{0}
               : bits_before_resign ? Of(s, i, kOldBits)
                                    : s[kBits];
        at = silent_resigns && i != kOther ? kReturn : kPassBit;
        break;
      case kPassBit:
        if (mask == 0) {
          at = kReturn;
        } else if ((s[kBits] & Bit(lane)) == 0) {
          mask = without(mask, lane);
        } else {
          s[kBits] = without(s[kBits], lane);
          at = no_nudge ? kPassFutex : kPassWord;
        }
        break;
      case kPassWord:
        ++s[kNudge + lane];
        at = kPassFutex;
        break;
      case kPassFutex: {
        const bool sleeps = lane != 0 && Of(s, lane, kAt) == kAsleep;
        WakeFutex(&s, lane);
        mask = sleeps || first_bit_only ? 0 : without(mask, lane);
        at = kPassBit;
        break;
      }
      case kReturn:
        mask = 0;
        at = i == kOther || Of(s, i, kGone) != 0 ? kEnd : kToken;
        break;

      case kChange:
        s[kChanged] = Bit(1);
        at = kLocalWord;
        break;
      case kLocalWord:
        ++s[kWord + 1];
        at = kLocalBit;
        break;
      case kLocalBit:
        s[kBits] = without(s[kBits], 1);
        at = kLocalFutex;
        break;
      case kLocalFutex:
        WakeFutex(&s, 1);
        at = kLocalResign;
        break;
      case kLocalResign:
        at = Resigns(&s, 1) ? kLocalDisarm : kPass;
        break;
      case kLocalDisarm:
        --s[kArmed];
        at = kLocalKick;
        break;
      case kLocalKick:
        Kick(&s);
        at = kPass;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
  }

  void Steps(const State& from, std::vector<State>* to) const {
    for (int i = 0; i <= kThreads; ++i) Step(i, from, to);
    State s = from;
    // Who gives up does so by its time-out, in its sleep.
    std::uint8_t& at = Of(s, 1, kAt);
    if (gives_up && Of(s, 1, kGone) == 0 &&
        (at == kAsleep || at == kDoze || at == kDozing)) {
      Of(s, 1, kGone) = 1;
      if (bits_before_resign) Of(s, 1, kOldBits) = s[kBits];
      if (at != kAsleep) PutSet(&s, 1);
      at = at == kAsleep ? kPass : kLedResign;
      to->push_back(s);
    }
    for (int lane = 1; lane < kLanes; ++lane) {
      if ((from[kPosted] & Bit(lane)) != 0) continue;
      s = from;
      s[kPosted] |= Bit(lane);
      s[kQueue] |= Bit(lane);
      if (s[kQueueArmed] != 0) s[kEventDue] = 1;
      s[kQueueArmed] = 0;
      to->push_back(s);
    }
    if (from[kEventDue] != 0) {
      s = from;
      s[kEventDue] = 0;
      s[kEvents] = 1;
      s[kChannelEdges] = 3;
      to->push_back(s);
    }
  }
};

TEST(LeaderModel, NobodyWaitsForEver) {
  for (const bool fetches : {false, true}) {
    EXPECT_FALSE(Hangs(Leader{.fetches = fetches}));
    EXPECT_FALSE(Hangs(Leader{.fetches = fetches,
                              .stale = true,
                              .gives_up = true,
                              .both_hear = false}));
  }
  EXPECT_FALSE(Hangs(Leader{.changes = true, .both_hear = false}));
}
TEST(LeaderModel, ArmThenDrainThenSleep) {
  EXPECT_TRUE(Hangs(Leader{.no_drain = true}));
  EXPECT_TRUE(Hangs(Leader{.no_poll_again = true}));
}
TEST(LeaderModel, WhoDrainsLooksWhetherAnotherHasAsked) {
  EXPECT_TRUE(Hangs(Leader{.no_ask_again = true}));
}
TEST(LeaderModel, SaidToBeAsleepThenTheWordIsLookedAt) {
  EXPECT_TRUE(Hangs(Leader{.look_before_said = true}));
}
TEST(LeaderModel, TheBitThenWhoLeads) {
  EXPECT_TRUE(Hangs(
      Leader{.look_before_bit = true, .gives_up = true, .both_hear = false}));
}
TEST(LeaderModel, WhoLeavesPassesOn) {
  EXPECT_TRUE(Hangs(
      Leader{.silent_resigns = true, .gives_up = true, .both_hear = false}));
  EXPECT_TRUE(Hangs(Leader{
      .bits_before_resign = true, .gives_up = true, .both_hear = false}));
}
TEST(LeaderModel, PassedOnUntilSomebodyIsWoken) {
  EXPECT_TRUE(Hangs(Leader{.first_bit_only = true,
                           .stale = true,
                           .gives_up = true,
                           .both_hear = false}));
  EXPECT_TRUE(
      Hangs(Leader{.no_nudge = true, .gives_up = true, .both_hear = false}));
}
TEST(LeaderModel, TheWordThenWhoSleeps) {
  EXPECT_TRUE(Hangs(Leader{.word_after_wake = true}));
}
TEST(LeaderModel, ASetForEachLeader) {
  EXPECT_TRUE(
      Hangs(Leader{.one_set = true, .changes = true, .both_hear = false}));
}
TEST(LeaderModel, ArmsAgainWhatWakeLocalHasDisarmed) {
  EXPECT_TRUE(Hangs(Leader{.disarms_twice = true, .changes = true}));
}

// --- Threads that sleep in one epoll set

// The rules of EpollSet::Wait, HandOn and NothingBehind, and of Bells and
// LinkState::Ring.  The kernel gives an edge of the bell to one of those who
// sleep in the set, whichever it likes; a sender kicks once a generation.  Who
// takes a message is busy for ever, so each must find another thread.
//
// With naps a message may stay in its sender's store buffer until the sender
// enters the kernel, or a heavy fence empties it, which who arms for a nap does
// not make; and all have streams in user space from the beginning.
struct Hands {
  bool no_renewal = false;      // NothingBehind: their generation
  bool no_look_behind = false;  // NothingBehind, after that
  bool no_hand_on = false;      // Wait: on leaving
  bool counted_late = false;    // Stranger: counted, then HasUser
  bool look_before_arm = false;
  bool no_heavy_fence = false;     // Arm, Renew
  bool nap_without_end = false;    // Wait: KernelWait's time
  bool naps_with_an_edge = false;  // Sleep: nobody has looked behind it
  bool no_new_generation = false;  // Deepen: ... and its fence
  // Situations.
  bool naps = false;
  bool leaves = false;  // thread 0 may, with something of the kernel's

  static constexpr int kThreads = 3;
  enum {
    kCount,
    kMaySleep,
    kOutside,
    kLook,
    kSleeper,
    kArm,
    kLookAgain,
    kAsleep,
    kDisarm,
    kNoSleeper,
    kLeavesWork,
    kBehind,
    kLookBehind,
    kLeave,
    kEnd,
  };
  enum { kPost, kAsk, kKick, kUser = 0, kUserKick, kOver };
  enum {
    kAt,
    kOwes = kAt + kThreads,
    kRang = kOwes + kThreads,
    kUnlooked = kRang + kThreads,
    kSender = kUnlooked + kThreads,
    kMover,
    kUsers,
    kStrangers,
    kSleepers,
    kArmed,
    kFresh,  // nobody has kicked for this generation
    kOld,    // the one that the sender has seen is over
    kEdge,
    kPosted,
    kLanded,  // of these, what others see
    kTaken,
    kNaps,
    kGoes = kNaps + kThreads,
    kSize = kGoes + kThreads,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    if (naps) {
      s[kUsers] = 1;
      s[kMover] = kOver;
      for (int i = 0; i < kThreads; ++i) s[kAt + i] = kLook;
    }
    return s;
  }
  bool Done(const State& s) const {
    for (int i = 0; i < kThreads; ++i) {
      if (s[kAt + i] != kEnd) return false;
    }
    return true;
  }

  static void Renew(State* s) { (*s)[kFresh] = (*s)[kOld] = 1; }
  void Fence(State* s) const {
    if (!no_heavy_fence) (*s)[kLanded] = (*s)[kPosted];
  }

  void Step(int i, State s, std::vector<State>* to) const {
    const State from = s;
    std::uint8_t& at = s[kAt + i];
    const bool more = s[kTaken] < s[kLanded];
    switch (at) {
      case kCount:
        if (counted_late && s[kUsers] != 0) {
          at = kLook;
          break;
        }
        at = kMaySleep;
        if (!counted_late) ++s[kStrangers];
        break;
      case kMaySleep:
        at = kOutside;
        if (counted_late) {
          ++s[kStrangers];
        } else if (s[kUsers] != 0) {
          --s[kStrangers];
          at = kLook;
        }
        break;
      case kOutside:
        if (s[kEdge] == 0) break;
        s[kEdge] = 0;
        --s[kStrangers];
        at = kLook;
        s[kOwes + i] = s[kUnlooked + i] = 1;
        break;
      case kLook:
        at = kSleeper;
        if (more) {
          ++s[kTaken];
          at = kLeavesWork;
        }
        break;
      case kSleeper:
        s[kNaps + i] = naps && (s[kUnlooked + i] == 0 || s[kSleepers] == 0 ||
                                naps_with_an_edge);
        ++s[kSleepers];
        s[kOwes + i] = !naps;  // (to strangers, of whom there are none then)
        at = look_before_arm ? kLookAgain : kArm;
        break;
      case kArm:
        ++s[kArmed];
        Renew(&s);
        if (s[kNaps + i] == 0) Fence(&s);
        at = look_before_arm ? kAsleep : kLookAgain;
        break;
      case kLookAgain:
        s[kRang + i] = s[kUnlooked + i] = 0;
        at = look_before_arm && !more ? kArm : more ? kDisarm : kAsleep;
        if (look_before_arm && more) at = kNoSleeper;
        break;
      case kAsleep:
        if (s[kEdge] == 0) break;
        s[kEdge] = 0;
        s[kRang + i] = 1;
        at = kDisarm;
        break;
      case kDisarm:
        --s[kArmed];
        Renew(&s);
        at = kNoSleeper;
        break;
      case kNoSleeper:
        --s[kSleepers];
        s[kUnlooked + i] = s[kRang + i];
        at = s[kGoes + i] == 0       ? kLook
             : s[kUnlooked + i] != 0 ? kBehind
                                     : kLeave;
        break;
      case kLeavesWork:  // each message is another stream's
        if (more && s[kSleepers] != 0) {
          s[kEdge] = 1;
          s[kUnlooked + i] = 0;
        }
        at = s[kUnlooked + i] != 0 ? kBehind : kLeave;
        break;
      case kBehind:
        if (s[kSleepers] != 0 && !no_renewal) {
          Renew(&s);
          Fence(&s);
        }
        s[kUnlooked + i] = s[kSleepers] != 0;
        at = s[kSleepers] != 0 ? kLookBehind : kLeave;
        break;
      case kLookBehind:
        s[kUnlooked + i] = more && !no_look_behind;
        at = kLeave;
        break;
      case kLeave:
        if (!no_hand_on && (s[kUnlooked + i] != 0
                                ? s[kSleepers] + s[kStrangers] != 0
                                : s[kOwes + i] != 0 && s[kSleepers] == 0 &&
                                      s[kStrangers] != 0 && s[kUsers] != 0)) {
          s[kEdge] = 1;
        }
        at = kEnd;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
  }

  void Steps(const State& from, std::vector<State>* to) const {
    for (int i = 0; i < kThreads; ++i) Step(i, from, to);
    for (int i = 0; i < kThreads; ++i) {
      if (from[kAt + i] != kAsleep) continue;
      State s = from;
      if (s[kNaps + i] != 0 && !nap_without_end) {  // Deepen
        s[kNaps + i] = 0;
        if (!no_new_generation) {
          Renew(&s);
          Fence(&s);
        }
        s[kAt + i] = kLookAgain;
        to->push_back(s);
      }
      s = from;
      if (leaves && i == 0) {
        s[kGoes + i] = 1;
        s[kAt + i] = kDisarm;
        to->push_back(s);
        s[kRang + i] = s[kEdge];
        s[kEdge] = 0;
        to->push_back(s);
      }
    }
    State s = from;
    if (s[kLanded] != s[kPosted]) {
      ++s[kLanded];
      to->push_back(s);
      s = from;
    }
    switch (s[kMover]) {
      case kUser:
        s[kUsers] = 1;
        s[kMover] = kUserKick;
        break;
      case kUserKick:
        s[kEdge] = 1;
        s[kMover] = kOver;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
    s = from;
    switch (s[kSender]) {
      case kPost:
        if (s[kUsers] == 0 || s[kPosted] == kThreads) break;
        ++s[kPosted];
        if (!naps) ++s[kLanded];
        s[kSender] = kAsk;
        break;
      case kAsk:
        s[kOld] = 0;
        s[kSender] = s[kArmed] == 0 || s[kFresh] == 0 ? kPost : kKick;
        break;
      case kKick:
        s[kLanded] = s[kPosted];
        s[kEdge] = 1;
        if (s[kOld] == 0) s[kFresh] = 0;
        s[kSender] = kPost;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
  }
};

// tests/posix/threads, epoll_threads_of_one_set.
TEST(HandsModel, NobodyWaitsForEver) {
  EXPECT_FALSE(Hangs(Hands{}));
  EXPECT_FALSE(Hangs(Hands{.naps = true}));
  EXPECT_FALSE(Hangs(Hands{.naps = true, .leaves = true}));
}
TEST(HandsModel, WhoSleepsForGoodHasFenced) {
  EXPECT_TRUE(Hangs(Hands{.no_heavy_fence = true, .naps = true}));
  EXPECT_TRUE(Hangs(Hands{.no_new_generation = true, .naps = true}));
}
TEST(HandsModel, ANapEnds) {
  EXPECT_TRUE(Hangs(Hands{.nap_without_end = true, .naps = true}));
}
TEST(HandsModel, WhoHasAnEdgeDoesNotNapBesideSleepers) {
  EXPECT_TRUE(
      Hangs(Hands{.naps_with_an_edge = true, .naps = true, .leaves = true}));
}
TEST(HandsModel, WhoTakesAnEdgeRenewsForThoseWhoSleep) {
  EXPECT_TRUE(Hangs(Hands{.no_renewal = true}));
}
TEST(HandsModel, WhoHasRenewedLooks) {
  EXPECT_TRUE(Hangs(Hands{.no_look_behind = true}));
}
TEST(HandsModel, WhoLeavesHandsOn) {
  EXPECT_TRUE(Hangs(Hands{.no_hand_on = true}));
}
TEST(HandsModel, CountedThenLooks) {
  EXPECT_TRUE(Hangs(Hands{.counted_late = true}));
}
TEST(HandsModel, ArmThenLookThenSleep) {
  EXPECT_TRUE(Hangs(Hands{.look_before_arm = true}));
}

// --- A hot stream of a large set, which has marks made for it or not

// The rules of EpollSet::Heat, Cool and DrainPoller: while the stream is looked
// at directly its sender may be told to make no mark; before nobody looks any
// more it is told to make them, and there is a fence of all processes between
// that and the last look.  One thread waits, and changes all this between two
// looks.  A message may stay in its sender's store buffer until a mark, a kick
// or the heavy fence.
//
// With `moves` the registration goes to another large set meanwhile, whose bell
// is the same and where another thread waits; it finds the wish made, by a
// thread that has not come to its fence.  (What is marked is listed there by
// whoever takes the mark.)
struct Hot {
  bool no_wish = false;     // Cool: marks again
  bool no_fence = false;    // ... behind the wish
  bool late_fence = false;  // ... but before the list is looked at
  bool not_listed = false;  // DropDirect: MakeReady
  bool not_ready = false;   // Cool: InterestsReady, where it has moved
  bool moves = false;

  static constexpr int kAll = 3;      // messages
  static constexpr int kChanges = 4;  // at most: heated, unmarked, cooled
  enum {
    kLook,
    kList,
    kBits,
    kFence,
    kDrop,
    kLateFence,
    kArm,
    kLookAgain,
    kAsleep,
    kDisarm,
  };
  enum { kPost, kAsk, kMark, kAskArmed, kKick };
  enum { kStays, kGone, kListedThere, kNotified, kOver };
  enum {
    kAt,
    kChanged,
    kDirect,
    kListed,
    kThere,  // the other set's thread
    kThereListed,
    kThereEdge,
    kMover,
    kWish,  // marks
    kBit,
    kArmed,  // of two
    kFresh,
    kOld,
    kEdge,
    kSender,
    kPosted,
    kLanded,
    kTaken,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    s[kDirect] = 1;
    s[kThere] = moves ? kList : kAsleep;
    return s;
  }
  bool Done(const State& s) const { return s[kTaken] == kAll; }
  static void Renew(State* s) { (*s)[kFresh] = (*s)[kOld] = 1; }
  bool Here(const State& s) const { return s[kMover] == kStays; }

  // The thread of the set.
  void Wait(const State& from, std::vector<State>* to) const {
    State s = from;
    const bool more = s[kTaken] < s[kLanded];
    switch (s[kAt]) {
      case kLook:
        if (s[kDirect] != 0 && more) {
          ++s[kTaken];
        } else {
          s[kAt] = kList;
        }
        break;
      case kList:
        s[kAt] = kBits;
        if (s[kListed] == 0) break;
        s[kListed] = 0;
        if (!more) break;
        ++s[kTaken];
        s[kListed] = 1;
        s[kAt] = kLook;
        break;
      case kBits:
        s[kAt] = kArm;
        if (s[kBit] == 0) break;
        s[kBit] = 0;
        if (!Here(s)) {
          s[kThereListed] = s[kMover] >= kListedThere;
          if (s[kThere] == kAsleep) s[kThereEdge] = s[kThereListed];
        } else if (s[kDirect] == 0) {
          s[kListed] = 1;
          s[kAt] = kList;
        }
        break;
      case kFence:
        s[kLanded] = s[kPosted];
        s[kAt] = kDrop;
        break;
      case kDrop:
        if (Here(s)) {
          s[kDirect] = 0;
          s[kListed] = !not_listed;
        } else if (s[kMover] >= kListedThere && !not_ready) {
          s[kThereListed] = 1;
          s[kThereEdge] = 1;
        }
        s[kAt] = late_fence ? kLateFence : kLook;
        break;
      case kLateFence:
        // The look came before.
        s[kListed] = s[kListed] != 0 && more;
        s[kLanded] = s[kPosted];
        s[kAt] = kLook;
        break;
      case kArm:
        ++s[kArmed];
        Renew(&s);
        s[kLanded] = s[kPosted];
        s[kAt] = kLookAgain;
        break;
      case kLookAgain:
        s[kAt] = (s[kDirect] != 0 && more) || s[kListed] != 0 || s[kBit] != 0
                     ? kDisarm
                     : kAsleep;
        break;
      case kAsleep:
        if (s[kEdge] == 0) break;
        s[kEdge] = 0;
        s[kAt] = kDisarm;
        break;
      case kDisarm:
        --s[kArmed];
        Renew(&s);
        s[kAt] = kLook;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
    if (from[kAt] != kLook || from[kChanged] == kChanges || !Here(from)) return;
    s = from;
    ++s[kChanged];
    if (s[kDirect] == 0) {
      s[kDirect] = 1;
      to->push_back(s);
      return;
    }
    if (s[kWish] != 0) {
      s[kWish] = 0;
      to->push_back(s);
      s = from;
      ++s[kChanged];
    }
    s[kWish] = !no_wish;
    s[kAt] = no_fence || late_fence || from[kWish] != 0 ? kDrop : kFence;
    to->push_back(s);
  }

  // The other set's, and who registers it there.
  void Elsewhere(const State& from, std::vector<State>* to) const {
    State s = from;
    const bool more = s[kTaken] < s[kLanded];
    switch (s[kThere]) {
      case kList:
        s[kThere] = kBits;
        if (s[kThereListed] == 0) break;
        s[kThereListed] = 0;
        if (!more) break;
        ++s[kTaken];
        s[kThereListed] = 1;
        s[kThere] = kList;
        break;
      case kBits:
        s[kThere] = kArm;
        if (s[kBit] == 0) break;
        s[kBit] = 0;
        if (Here(s)) {
          if (s[kDirect] == 0) s[kListed] = s[kEdge] = 1;
        } else if (s[kMover] >= kListedThere) {
          s[kThereListed] = 1;
          s[kThere] = kList;
        }
        break;
      case kArm:
        ++s[kArmed];
        Renew(&s);
        s[kLanded] = s[kPosted];
        s[kThere] = kLookAgain;
        break;
      case kLookAgain:
        s[kThere] = s[kThereListed] != 0 || s[kBit] != 0 ? kDisarm : kAsleep;
        break;
      case kAsleep:
        if (s[kThereEdge] == 0) break;
        s[kThereEdge] = 0;
        s[kThere] = kDisarm;
        break;
      case kDisarm:
        --s[kArmed];
        Renew(&s);
        s[kThere] = kList;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
    s = from;
    switch (s[kMover]) {
      case kStays:
        if (!moves) return;
        s[kDirect] = s[kListed] = 0;
        s[kMover] = kGone;
        break;
      case kGone:
        s[kThereListed] = 1;
        s[kMover] = kListedThere;
        break;
      case kListedThere:  // KickSleepers
        s[kThereEdge] = 1;
        s[kMover] = kNotified;
        break;
      case kNotified:  // InterestsNotify
        s[kMover] = kOver;
        if (s[kWish] != 0) break;
        s[kWish] = 1;
        s[kLanded] = s[kPosted];
        s[kThereListed] = s[kThereEdge] = 1;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
  }

  void Steps(const State& from, std::vector<State>* to) const {
    Wait(from, to);
    if (moves) Elsewhere(from, to);
    State s = from;
    if (s[kLanded] != s[kPosted]) {
      ++s[kLanded];
      to->push_back(s);
      s = from;
    }
    switch (s[kSender]) {
      case kPost:
        if (s[kPosted] == kAll) break;
        ++s[kPosted];
        s[kSender] = kAsk;
        break;
      case kAsk:
        s[kSender] = s[kWish] != 0 ? kMark : kAskArmed;
        break;
      case kMark:
        s[kLanded] = s[kPosted];
        s[kBit] = 1;
        s[kSender] = kAskArmed;
        break;
      case kAskArmed:
        s[kOld] = 0;
        s[kSender] = s[kArmed] == 0 || s[kFresh] == 0 ? kPost : kKick;
        break;
      case kKick:
        s[kLanded] = s[kPosted];
        s[kEdge] = s[kThereEdge] = 1;
        if (s[kOld] == 0) s[kFresh] = 0;
        s[kSender] = kPost;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
  }
};

TEST(HotModel, NobodyWaitsForEver) {
  EXPECT_FALSE(Hangs(Hot{}));
  EXPECT_FALSE(Hangs(Hot{.moves = true}));
}
// tests/posix/hot.
TEST(HotModel, WhoIsLookedAtNoMoreIsMarked) {
  EXPECT_TRUE(Hangs(Hot{.no_wish = true}));
}
TEST(HotModel, TheWishThenTheFenceThenTheLook) {
  EXPECT_TRUE(Hangs(Hot{.no_fence = true}));
  EXPECT_TRUE(Hangs(Hot{.late_fence = true}));
  EXPECT_TRUE(Hangs(Hot{.not_listed = true}));
}
TEST(HotModel, WhoHasMovedIsLookedAtBehindTheFence) {
  EXPECT_TRUE(Hangs(Hot{.not_ready = true, .moves = true}));
}

// --- Threads that sleep in poll() for one stream

// The rules of Polling::Sleep, Sock::RingForPoll and Sock::SetNotify: each
// thread has a bell of its own, which the stream gets from the first of them;
// somebody may give it another one meanwhile (a registration in an epoll set).
// What tells of that is the poll bell, which is in the set of each and which
// nobody has to arm.  Who finds a message takes it, so both threads must find
// one. Naps, generations and the sender's store buffer are as in Hands.
struct Polls {
  bool own_bell_only = false;        // not the one that the stream rings
  bool no_look_at_the_bell = false;  // bells_still
  bool counted_late = false;         // poll_sleepers, behind that
  bool look_before_arm = false;
  bool nobody_kicked = false;   // SetNotify: KickPollers
  bool kicks_before = false;    // ... before the stream has the other bell
  bool no_heavy_fence = false;  // Arm
  bool nap_without_end = false;

  enum {
    kLook,
    kBell,
    kCount,
    kRing,
    kArm,
    kStill,
    kLookAgain,
    kAsleep,
    kDisarm,
    kDiscount,
    kEnd,
  };
  enum { kPost, kAsk, kAskArmed, kKick };
  enum { kChange, kKickPollers, kOver };
  // 0: the stream rings none.
  enum { kPollBell = 1, kOwn, kOther = kOwn + 2, kBells };
  enum {
    kAt,
    kHeld = kAt + 2,  // the bell that is armed
    kSet = kHeld + 2,
    kEdge = kSet + 2,
    kNaps = kEdge + 2,
    kNapped = kNaps + 2,
    kRings = kNapped + 2,
    kSleepers,
    kArmed,
    kFresh = kArmed + kBells,
    kOld = kFresh + kBells,  // the generation that the sender has seen
    kSender,
    kSees,  // the bell
    kMover,
    kPosted,
    kLanded,
    kTaken,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;

  State First() const {
    State s{};
    if (kicks_before) s[kMover] = kKickPollers;
    return s;
  }
  bool Done(const State& s) const {
    return s[kAt] == kEnd && s[kAt + 1] == kEnd;
  }

  static void Renew(State* s, int bell) {
    (*s)[kFresh + bell] = (*s)[kArmed + bell] != 0;
    if ((*s)[kSender] == kKick && (*s)[kSees] == bell) (*s)[kOld] = 1;
  }
  static void Kick(State* s, int bell) {
    for (int i = 0; i < 2; ++i) {
      if (((*s)[kSet + i] & 1 << bell) != 0) (*s)[kEdge + i] = 1;
    }
  }

  void Step(int i, State s, std::vector<State>* to) const {
    const State from = s;
    std::uint8_t& at = s[kAt + i];
    const bool more = s[kTaken] < s[kLanded];
    const int held = s[kHeld + i];
    switch (at) {
      case kLook:
        at = kBell;
        if (more) {
          ++s[kTaken];
          at = kEnd;
        }
        break;
      case kBell: {
        const int bell = own_bell_only ? kOwn + i : s[kRings];
        s[kHeld + i] = static_cast<std::uint8_t>(bell);
        s[kSet + i] =
            static_cast<std::uint8_t>(s[kSet + i] | 1 << bell | 1 << kPollBell);
        s[kNaps + i] = s[kNapped + i] == 0;
        at = counted_late ? kRing : kCount;
        break;
      }
      case kCount:
        ++s[kSleepers];
        at = counted_late ? kLookAgain : kRing;
        break;
      case kRing:
        if (s[kRings] == 0) {
          s[kRings] = static_cast<std::uint8_t>(kOwn + i);
          s[kLanded] = s[kPosted];  // TellLane
        }
        at = look_before_arm ? kStill : kArm;
        break;
      case kArm:
        ++s[kArmed + held];
        Renew(&s, held);
        if (s[kNaps + i] == 0 && !no_heavy_fence) s[kLanded] = s[kPosted];
        at = look_before_arm ? kAsleep : kStill;
        break;
      case kStill:
        at = counted_late ? kCount : kLookAgain;
        if (s[kRings] != held && !no_look_at_the_bell && !own_bell_only) {
          at = counted_late ? kLook : look_before_arm ? kDiscount : kDisarm;
          if (counted_late) --s[kArmed + held];
        }
        break;
      case kLookAgain:
        at = more              ? look_before_arm ? kDiscount : kDisarm
             : look_before_arm ? kArm
                               : kAsleep;
        break;
      case kAsleep:
        if (s[kEdge + i] == 0) break;
        s[kEdge + i] = 0;
        s[kNapped + i] = 0;
        at = kDisarm;
        break;
      case kDisarm:
        --s[kArmed + held];
        Renew(&s, held);
        at = kDiscount;
        break;
      case kDiscount:
        --s[kSleepers];
        s[kHeld + i] = s[kNaps + i] = 0;
        at = kLook;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
  }

  void Steps(const State& from, std::vector<State>* to) const {
    for (int i = 0; i < 2; ++i) {
      Step(i, from, to);
      if (from[kAt + i] == kAsleep && from[kNaps + i] != 0 &&
          !nap_without_end) {
        State s = from;
        s[kNapped + i] = 1;
        s[kAt + i] = kDisarm;
        to->push_back(s);
      }
    }
    State s = from;
    if (s[kLanded] != s[kPosted]) {
      ++s[kLanded];
      to->push_back(s);
      s = from;
    }
    switch (s[kMover]) {
      case kChange:
        s[kRings] = kOther;
        s[kLanded] = s[kPosted];  // TellLane
        s[kMover] = nobody_kicked || kicks_before ? kOver : kKickPollers;
        break;
      case kKickPollers:
        if (s[kSleepers] != 0) Kick(&s, kPollBell);
        s[kMover] = kicks_before ? kChange : kOver;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
    s = from;
    const int bell = s[kSees];
    switch (s[kSender]) {
      case kPost:
        if (s[kPosted] == 2) break;
        ++s[kPosted];
        s[kSender] = kAsk;
        break;
      case kAsk:
        s[kSees] = s[kRings];
        s[kSender] = s[kRings] != 0 ? kAskArmed : kPost;
        break;
      case kAskArmed:
        s[kSender] =
            s[kArmed + bell] == 0 || s[kFresh + bell] == 0 ? kPost : kKick;
        if (s[kSender] == kPost) s[kSees] = 0;
        break;
      case kKick:
        s[kLanded] = s[kPosted];
        Kick(&s, bell);
        if (s[kOld] == 0) s[kFresh + bell] = 0;
        s[kSender] = kPost;
        s[kOld] = s[kSees] = 0;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
  }
};

TEST(PollsModel, NobodyWaitsForEver) { EXPECT_FALSE(Hangs(Polls{})); }
TEST(PollsModel, SleepsByTheBellThatTheStreamRings) {
  EXPECT_TRUE(Hangs(Polls{.own_bell_only = true}));
}
TEST(PollsModel, LooksWhetherItIsStillThatBell) {
  EXPECT_TRUE(Hangs(Polls{.no_look_at_the_bell = true}));
}
TEST(PollsModel, CountedThenLooksAtTheBell) {
  EXPECT_TRUE(Hangs(Polls{.counted_late = true}));
}
TEST(PollsModel, AnotherBellThenTheSleepersAreAsked) {
  EXPECT_TRUE(Hangs(Polls{.nobody_kicked = true}));
  EXPECT_TRUE(Hangs(Polls{.kicks_before = true}));
}
TEST(PollsModel, ArmThenLookThenSleep) {
  EXPECT_TRUE(Hangs(Polls{.look_before_arm = true}));
}
TEST(PollsModel, WhoSleepsForGoodHasFenced) {
  EXPECT_TRUE(Hangs(Polls{.no_heavy_fence = true}));
}
TEST(PollsModel, ANapEnds) {
  EXPECT_TRUE(Hangs(Polls{.nap_without_end = true}));
}

// --- A registration with EPOLLONESHOT, armed again as a byte comes

// The rules of EpollSet::Collect, DrainPoller and Ctl: one thread waits,
// another takes one byte for each report and arms the registration again.
struct Once {
  bool link_before_unspend = false;  // Ctl
  bool no_link = false;
  bool ask_before_link = false;    // KickSleepers
  bool look_before_count = false;  // Wait: sleepers_, then the list

  enum {
    kDrain,
    kTakeOff,
    kSpent,
    kReady,
    kCount,
    kLookList,
    kLookBits,
    kAsleep,
    kUncount
  };
  enum { kIdle, kTake, kUnspend, kLink, kAskSleepers, kKickBell };
  enum { kPost, kMark, kAskArmed, kRing };
  enum {
    kWaiter,
    kWorker,
    kSender,
    kBits,
    kListed,
    kIsSpent,
    kEvent,
    kSleepers,
    kEdge,
    kPosted,
    kTaken,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;
  static constexpr int kAll = 3;

  State First() const { return {}; }
  bool Done(const State& s) const { return s[kTaken] == kAll; }

  void Steps(const State& from, std::vector<State>* to) const {
    State s = from;
    switch (s[kWaiter]) {
      case kDrain:
        if (s[kBits] != 0) s[kListed] = 1;
        s[kBits] = 0;
        s[kWaiter] = kTakeOff;
        break;
      case kTakeOff:
        s[kWaiter] = s[kListed] != 0     ? kSpent
                     : look_before_count ? kLookList
                                         : kCount;
        s[kListed] = 0;
        break;
      case kSpent:
        s[kWaiter] = s[kIsSpent] != 0 ? kDrain : kReady;
        break;
      case kReady:
        if (s[kTaken] < s[kPosted]) s[kIsSpent] = s[kEvent] = 1;
        s[kWaiter] = kDrain;
        break;
      case kCount:
        s[kSleepers] = 1;
        s[kWaiter] = look_before_count ? kAsleep : kLookList;
        break;
      case kLookList:
        s[kWaiter] = s[kListed] != 0 ? kUncount : kLookBits;
        break;
      case kLookBits:
        s[kWaiter] = s[kBits] != 0       ? kUncount
                     : look_before_count ? kCount
                                         : kAsleep;
        break;
      case kAsleep:
        if (s[kEdge] == 0) break;
        s[kEdge] = 0;
        s[kWaiter] = kUncount;
        break;
      case kUncount:
        s[kSleepers] = 0;
        s[kWaiter] = kDrain;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);

    s = from;
    switch (s[kWorker]) {
      case kIdle:
        if (s[kEvent] == 0) break;
        s[kEvent] = 0;
        s[kWorker] = kTake;
        break;
      case kTake:
        ++s[kTaken];
        s[kWorker] = link_before_unspend ? kLink : kUnspend;
        break;
      case kUnspend:
        s[kIsSpent] = 0;
        s[kWorker] = link_before_unspend || ask_before_link ? kAskSleepers
                     : no_link                              ? kIdle
                                                            : kLink;
        break;
      case kLink:
        s[kListed] = 1;
        s[kWorker] = link_before_unspend ? kUnspend
                     : ask_before_link   ? kIdle
                                         : kAskSleepers;
        break;
      case kAskSleepers:
        s[kWorker] = s[kSleepers] != 0 ? kKickBell
                     : ask_before_link ? kLink
                                       : kIdle;
        break;
      case kKickBell:
        s[kEdge] = 1;
        s[kWorker] = ask_before_link ? kLink : kIdle;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);

    s = from;
    switch (s[kSender]) {
      case kPost:
        if (s[kPosted] == kAll) break;
        ++s[kPosted];
        s[kSender] = kMark;
        break;
      case kMark:
        s[kBits] = 1;
        s[kSender] = kAskArmed;
        break;
      case kAskArmed:
        s[kSender] = s[kSleepers] != 0 ? kRing : kPost;
        break;
      case kRing:
        s[kEdge] = 1;
        s[kSender] = kPost;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
  }
};

TEST(OnceModel, NobodyWaitsForEver) { EXPECT_FALSE(Hangs(Once{})); }
TEST(OnceModel, UnspentThenListed) {
  EXPECT_TRUE(Hangs(Once{.link_before_unspend = true}));
  EXPECT_TRUE(Hangs(Once{.no_link = true}));
}
TEST(OnceModel, ListedThenTheSleepersAreAsked) {
  EXPECT_TRUE(Hangs(Once{.ask_before_link = true}));
}
TEST(OnceModel, CountedThenLooks) {
  EXPECT_TRUE(Hangs(Once{.look_before_count = true}));
}

// --- Bytes that a stream has beside its ring

// A stream whose ring is looked at in every wait, and its stash, which is read
// first and which only the ready list knows of (EpollSet::Collect).  A switch
// fills the stash meanwhile (WakeRx, InterestsReady).  One thread waits, and
// takes one byte for each report.
struct Stash {
  bool leaves_the_list = false;  // though its ring is empty
  bool listed_before_filled = false;
  bool asked_before_listed = false;  // KickSleepers

  enum {
    kRing,
    kTakeOff,
    kHolds,
    kCount,
    kLookList,
    kLookRing,
    kAsleep,
    kUncount
  };
  enum { kFill, kList, kAskSleepers, kKickBell, kOver };
  enum { kPost, kAskArmed, kRingBell };
  enum {
    kWaiter,
    kSwitch,
    kSender,
    kListed,
    kSleepers,
    kEdge,
    kInRing,
    kInStash,
    kPosted,
    kTaken,
    kSize,
  };
  using State = std::array<std::uint8_t, kSize>;
  static constexpr int kOfRing = 2;
  static constexpr int kOfStash = 2;

  State First() const {
    State s{};
    s[kSwitch] = listed_before_filled  ? kList
                 : asked_before_listed ? kAskSleepers
                                       : kFill;
    return s;
  }
  bool Done(const State& s) const { return s[kTaken] == kOfRing + kOfStash; }
  static void Take(State* s) {
    --(*s)[(*s)[kInStash] != 0 ? kInStash : kInRing];
    ++(*s)[kTaken];
  }

  void Steps(const State& from, std::vector<State>* to) const {
    State s = from;
    const bool any = s[kInRing] + s[kInStash] != 0;
    switch (s[kWaiter]) {
      case kRing:
        if (s[kInRing] != 0 && s[kListed] == 0) {
          Take(&s);
        } else {
          s[kWaiter] = kTakeOff;
        }
        break;
      case kTakeOff:
        s[kWaiter] = s[kListed] != 0 ? kHolds : kCount;
        s[kListed] = 0;
        break;
      case kHolds:
        s[kWaiter] = kRing;
        if (!any) break;
        if (s[kInStash] != 0 && !leaves_the_list) s[kListed] = 1;
        Take(&s);
        break;
      case kCount:
        s[kSleepers] = 1;
        s[kWaiter] = kLookList;
        break;
      case kLookList:
        s[kWaiter] = s[kListed] != 0 ? kUncount : kLookRing;
        break;
      case kLookRing:
        s[kWaiter] = s[kInRing] != 0 ? kUncount : kAsleep;
        break;
      case kAsleep:
        if (s[kEdge] == 0) break;
        s[kEdge] = 0;
        s[kWaiter] = kUncount;
        break;
      case kUncount:
        s[kSleepers] = 0;
        s[kWaiter] = kRing;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);

    s = from;
    switch (s[kSwitch]) {
      case kFill:
        s[kInStash] = kOfStash;
        s[kSwitch] = listed_before_filled ? kAskSleepers : kList;
        break;
      case kList:
        s[kListed] = 1;
        s[kSwitch] = listed_before_filled  ? kFill
                     : asked_before_listed ? kOver
                                           : kAskSleepers;
        break;
      case kAskSleepers:
        s[kSwitch] = s[kSleepers] != 0     ? kKickBell
                     : asked_before_listed ? kFill
                                           : kOver;
        break;
      case kKickBell:
        s[kEdge] = 1;
        s[kSwitch] = asked_before_listed ? kFill : kOver;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);

    s = from;
    switch (s[kSender]) {
      case kPost:
        if (s[kPosted] == kOfRing) break;
        ++s[kPosted];
        ++s[kInRing];
        s[kSender] = kAskArmed;
        break;
      case kAskArmed:
        s[kSender] = s[kSleepers] != 0 ? kRingBell : kPost;
        break;
      case kRingBell:
        s[kEdge] = 1;
        s[kSender] = kPost;
        break;
      default:
        break;
    }
    if (s != from) to->push_back(s);
  }
};

TEST(StashModel, NobodyWaitsForEver) { EXPECT_FALSE(Hangs(Stash{})); }
// tests/posix/backlog.
TEST(StashModel, StaysOnTheListWhileItHasAStash) {
  EXPECT_TRUE(Hangs(Stash{.leaves_the_list = true}));
}
TEST(StashModel, FilledThenListedThenTheSleepersAreAsked) {
  EXPECT_TRUE(Hangs(Stash{.listed_before_filled = true}));
  EXPECT_TRUE(Hangs(Stash{.asked_before_listed = true}));
}

}  // namespace
}  // namespace rcsock
