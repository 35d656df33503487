// A peer that keeps to the protocol, but for one word of the memory that it
// shares with us, which says what it likes: every word there is, with values at
// and past every limit, while a stream works.  The honest end's calls return
// what TCP's might, in so many steps, and its memory is its own (run it with
// --config=sanitize).

#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>
#include <climits>
#include <ctime>
#include <string>

#include "lib/lane/shm/bells.h"
#include "lib/lane/shm/layout.h"
#include "lib/lane/shm/memory.h"
#include "lib/lane/shm/shm_poller.h"
#include "lib/ring/tx.h"
#include "tests/stream/shm_ends.h"

namespace rcsock::stream {
namespace {

using namespace lane::shm;  // NOLINT

// Whose end is honest; the other one lies.
constexpr int kHonest = 0;
constexpr int kLiar = 1;

struct Word {
  std::string name;
  void* at;
  bool wide;
};

class Words {
 public:
  void Add(const std::string& name, std::atomic<std::uint32_t>& word) {
    all_.push_back({name, &word, false});
  }
  void Add(const std::string& name, std::atomic<std::uint64_t>& word) {
    all_.push_back({name, &word, true});
  }
  // Each Add below takes a struct apart into all of its members: one more is
  // one that this test does not compile without.
  void Add(const std::string& name, ControlLine& line) {
    auto& [consumed, sleepers, poll, more, left, came, offer, takes, forgoes,
           resets] = line;
    Add(name + ".consumed", consumed);
    Add(name + ".sleepers", sleepers);
    Add(name + ".poll", poll);
    Add(name + ".more", more);
    Add(name + ".left", left);
    Add(name + ".came", came);
    Add(name + ".offer", offer);
    Add(name + ".takes", takes);
    Add(name + ".forgoes", forgoes);
    Add(name + ".resets", resets);
  }
  void Add(const std::string& name, ReachedLine& line) {
    auto& [messages] = line;
    Add(name + ".messages", messages);
  }
  void Add(const std::string& name, FutexLine& line) {
    auto& [rx, tx] = line;
    Add(name + ".rx", rx);
    Add(name + ".tx", tx);
  }
  void Add(const std::string& name, Slot& slot) {
    auto& [head, credit, payload] = slot;
    Add(name + ".head", head);
    Add(name + ".credit", credit);
    static_assert(sizeof payload == kInlineMax, "bytes, which nothing reads");
  }
  void Add(const std::string& name, HotMemory& hot) {
    auto& [control, reached, slots] = hot;
    for (int side = 0; side < 2; ++side) {
      const std::string of = "[" + std::to_string(side) + "]";
      Add(name + ".control" + of, control[side]);
      Add(name + ".reached" + of, reached[side]);
      for (auto& slot : slots) Add(name + ".slot0" + of, slot[side]);
    }
  }
  void Add(Segment& segment, int index) {
    auto& [hot, futex, slots, bytes] = segment;
    static_assert(sizeof bytes == kSegmentStreams * 2 * kRingBytes,
                  "bytes, which nothing reads");
    Add("hot", hot[index]);
    for (int side = 0; side < 2; ++side) {
      const std::string of = "[" + std::to_string(side) + "]";
      Add("futex" + of, futex[index][side]);
      for (int i : {0, 1, 2, static_cast<int>(kSlots - kHotSlots) - 1}) {
        Add("slot" + std::to_string(i + 1) + of, slots[index][i][side]);
      }
    }
  }
  void Add(LinkPage& page) {
    auto& [summary, rung, unused, ready] = page;
    static_cast<void>(unused);
    for (int side = 0; side < 2; ++side) {
      const std::string of = "[" + std::to_string(side) + "]";
      Add("rung" + of, rung[side].bells);
      for (int bell : {0, kSetBells, kBells - 1}) {
        for (int what : {kReadyRx, kReadyTx}) {
          auto& some = summary[side][bell].words[what];
          auto& bits = ready[side][bell].words[what];
          Add("summary" + of, some[0]);
          Add("summary" + of, some[std::size(some) - 1]);
          Add("ready" + of, bits[0]);
          Add("ready" + of, bits[kMaxSegments - 1]);
        }
      }
    }
  }
  void Add(BellPage& page) {
    auto& [bells, heavy, most_ring, unused] = page;
    static_cast<void>(unused);
    for (auto& bell : bells) {
      auto& [armed] = bell;
      Add("bells", armed);
    }
    Add("heavy", heavy);
    Add("most_ring", most_ring);
  }

  const std::vector<Word>& all() const { return all_; }

 private:
  std::vector<Word> all_;
};

// `was`: what is there.
std::uint64_t Lie(int number, std::uint64_t was, std::uint64_t random) {
  constexpr std::uint64_t kOne = 1;
  const std::uint64_t fixed[] = {0,
                                 1,
                                 2,
                                 ~kOne + 1,
                                 was + 1,
                                 was - 1,
                                 was + 2,
                                 was + 128,
                                 was - 128,
                                 was + (kOne << 31),
                                 kOne << 31,
                                 kOne << 32,
                                 kOne << 63,
                                 kOne << 62,
                                 was + (kOne << 32),
                                 was ^ kOne << random % 64,
                                 random,
                                 random >> 32,
                                 random >> 56};
  constexpr int kFixed = static_cast<int>(std::size(fixed));
  if (number < kFixed) return fixed[number];
  // A head that is the next one's, with an immediate of every kind.
  const auto kind = static_cast<ring::Kind>(random % 4);
  const auto flags = static_cast<std::uint8_t>(random >> 8 & 3);
  const auto length = static_cast<std::uint32_t>(
      (random >> 16 & 1) != 0 ? random >> 20 & 0x7f : random >> 20 & 0x7fff);
  return ((was >> 32) + number - kFixed) << 32 |
         ring::Encode({kind, flags, length});
}
constexpr int kLies = 19 + 3;

template <typename T>
T* MapAgain(int fd) {
  void* const at =
      ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<T*>(at);
}

class ShmWords : public ShmEnds {
 protected:
  void SetUp() override {
    ShmEnds::SetUp();
    for (int i = 0; i < 2; ++i) {
      bells_[i] = Bells::Create();
      ASSERT_NE(bells_[i], nullptr);
      bells_[i]->EnsureBell(0);
      poller_[i] = std::make_unique<ShmPoller>(bells_[i].get(), kSetBells);
      poller_[i]->AddLink(link_[i]);
    }
    // (An honest process's page can only be read.)
    const base::UniqueFd liars = CreateMemory("bells", sizeof(BellPage));
    ASSERT_TRUE(liars.ok());
    for (int i = 0; i < 2; ++i) {
      const auto dup = [](int fd) {
        return base::UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
      };
      ASSERT_TRUE(link_[1 - i]->SetPeerBellPage(
          dup(i == kLiar ? liars.get() : bells_[i]->page_fd()),
          bells_[1 - i]->most_ring()));
      link_[1 - i]->SetPeerBell(0, dup(bells_[i]->bell_fd(0)));
    }
    page_ = MapAgain<LinkPage>(link_[0]->page_fd());
    bell_page_ = MapAgain<BellPage>(liars.get());
    ASSERT_TRUE(page_ != nullptr && bell_page_ != nullptr);
    words_ = Words();
    // (Our own mapping of it is the peer's as well.)
    words_.Add(*segment(), 0);
    words_.Add(*page_);
    words_.Add(*bell_page_);
  }
  void TearDown() override { Forget(); }
  void Again() {
    Forget();
    StartOver();
  }
  void Forget() {
    ::munmap(page_, sizeof *page_);
    ::munmap(bell_page_, sizeof *bell_page_);
    for (auto& poller : poller_) poller.reset();
  }
  // Where stream 0's bytes begin tells where the segment does.
  Segment* segment() {
    auto* const lane = link_[kLiar]->OpenLane(0).release();
    const std::unique_ptr<lane::Lane> ends(lane);
    std::byte* const at =
        std::min(lane->RxRegion().base, lane->TxRegion().base);
    return reinterpret_cast<Segment*>(at - offsetof(Segment, bytes));
  }

  static std::uint64_t Load(const Word& word) {
    return word.wide
               ? static_cast<std::atomic<std::uint64_t>*>(word.at)->load()
               : static_cast<std::atomic<std::uint32_t>*>(word.at)->load();
  }
  static void Store(const Word& word, std::uint64_t value) {
    if (word.wide) {
      static_cast<std::atomic<std::uint64_t>*>(word.at)->store(value);
    } else {
      static_cast<std::atomic<std::uint32_t>*>(word.at)->store(
          static_cast<std::uint32_t>(value));
    }
  }

  // Of either end; what the liar gets to see is not looked at.
  void Use(int i) {
    Stream& s = stream_[i];
    std::vector<std::uint8_t> bytes = Some();
    iovec iov{bytes.data(), bytes.size()};
    const auto tells = [&](const char* what, ssize_t n) {
      const bool possible =
          (n >= 0 && n <= static_cast<ssize_t>(bytes.size())) || n == -EAGAIN ||
          n == -ECONNRESET || n == -EPIPE;
      ASSERT_TRUE(possible || i == kLiar) << what << ": " << n;
      if (i == kHonest && n > 0) ++worked_;
    };
    switch (Below(8)) {
      case 0:
      case 1:
      case 2:
        tells("write", s.Write(&iov, 1, bytes.size()));
        break;
      case 3:
      case 4:
        tells("read", s.Read(&iov, 1, bytes.size(), Below(4) == 0));
        break;
      case 5: {
        lane::Completion out[16];
        const int n = poller_[i]->Poll(out, 16);
        ASSERT_LE(n, 16);
        break;
      }
      case 6:
        if (lane_[i] != nullptr) {
          const timespec brief{0, 1000};
          const bool tx = Below(2) == 0;
          lane_[i]->SetNotify(static_cast<std::uint32_t>(Below(32)), 0);
          const std::uint32_t token = lane_[i]->SleepToken(tx);
          if (tx) {
            lane_[i]->SleepTx(token, &brief);
          } else {
            lane_[i]->SleepRx(token, &brief);
          }
        }
        break;
      case 7:
        if (Below(16) == 0) s.Demote(base::Reason::kPolicy, Below(2) == 0);
        break;
    }
    s.Progress();
    if (i == kHonest && lane_[i] != nullptr &&
        lane_[i]->State() == base::Reason::kProtocol) {
      found_out_ = true;
    }
    if (Below(20) == 0) s.Timer();
    if ((s.TakeChanges() & kSettled) != 0) {
      s.ReleaseLane();
      lane_[i].reset();
    }
  }

  std::unique_ptr<Bells> bells_[2];
  std::unique_ptr<ShmPoller> poller_[2];
  LinkPage* page_ = nullptr;
  BellPage* bell_page_ = nullptr;
  Words words_;
  bool found_out_ = false;
  std::uint64_t worked_ = 0;
};

TEST_F(ShmWords, EachSaysWhatItLikes) {
  const std::size_t count = words_.all().size();
  ASSERT_GT(count, 100u);
  std::uint64_t ended = 0;  // lanes, for what the peer wrote
  for (std::size_t w = 0; w < count; ++w) {
    for (int lie = 0; lie < kLies; ++lie) {
      Again();
      const Word& word = words_.all()[w];
      SCOPED_TRACE(word.name + ", lie " + std::to_string(lie));
      for (int k = 0; !stream_[0].FastTx() || !stream_[1].FastTx(); ++k) {
        ASSERT_LT(k, 100000);
        Up();
        Step(k & 1, Below(20) == 0);
        if (HasFatalFailure()) return;
      }
      for (int step = 0; step < 150; ++step) {
        if (step % 4 == 1) {
          Store(word, Lie(lie, Load(word), tcp_.Random()));
        }
        Use(Below(3) == 0 ? kLiar : kHonest);
        if (HasFatalFailure()) return;
      }
      if (std::exchange(found_out_, false)) ++ended;
      stream_[kHonest].Close(Below(2) == 0);
      for (int k = 0; k < 8; ++k) stream_[kHonest].Progress();
    }
  }
  std::printf("%zu words, %llu lanes ended, %llu calls worked\n", count,
              static_cast<unsigned long long>(ended),
              static_cast<unsigned long long>(worked_));
  EXPECT_GT(ended, 20u);
  EXPECT_GT(worked_, 10'000u);
}

}  // namespace
}  // namespace rcsock::stream
