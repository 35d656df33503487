#ifndef RCSOCK_LIB_LANE_RDMA_SLEEPERS_H_
#define RCSOCK_LIB_LANE_RDMA_SLEEPERS_H_

#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <vector>

#include "lib/base/latch.h"
#include "lib/base/unique_fd.h"
#include "lib/lane/poller.h"

namespace rcsock::lane::rdma {

// Threads that each sleep on a lane of their own, while all the lanes share one
// descriptor. One thread, the leader, sleeps on the descriptor and drains the
// source for all. The others sleep on their lane's word. A leader that leaves
// wakes a successor.
//
// A word holds the number of changes. Its low 8 bits change when its sleeper
// only has to look whether it can lead.
//
// A leader sleeps on an epoll set that it alone uses meanwhile, in which the
// descriptors are edge-triggered. No thread reads them. So no thread can take a
// wake-up from another. A leader that is to resign, and has not gone to sleep
// yet, needs that. And a sleep is one system call.
//
// A signal handler may jump out of a sleep, after it has called WakeLocal. So
// WakeLocal takes back all that the sleep has left here.
//
// A handler may also sleep here itself, before the sleep that it has
// interrupted is in the kernel. It takes a set of its own, so that the edge
// which ends the interrupted sleep is still there when the handler returns.
// Threads: any.
class Sleepers {
 public:
  // The words of one lane. They live as long as the group, so that a late
  // wake-up still changes a valid word.
  struct alignas(64) Words {
    std::atomic<std::uint32_t> word[2];  // rx, tx
    std::uint32_t index = 0;
  };

  // `source` outlives the group. Its Arm and Disarm do the arming.
  explicit Sleepers(Source* source);
  bool Open();  // false: no descriptor
  // Requires that there are no lanes any more, and will be none.
  void Close();

  // Null: out of memory, or too many.
  Words* Get();
  void Put(Words* words);

  static std::uint32_t Token(const Words* words, bool tx) {
    return words->word[tx].load(std::memory_order_seq_cst) >> kShift;
  }
  // As Lane::SleepRx; `token` comes from Token(). Called outside any critical
  // section.
  int Sleep(Words* words, bool tx, std::uint32_t token,
            const timespec* timeout);
  // Something has changed for this lane: its sleepers return.
  void Wake(Words* words, bool tx);
  // Wake for both directions; in a signal handler too.
  void WakeLocal(Words* words);

 private:
  static constexpr std::uint32_t kShift = 8;
  static constexpr std::uint32_t kChange = 1u << kShift;
  static constexpr std::uint32_t kChunk = 64;
  static constexpr std::uint32_t kMost = 16'384;

  struct Led;
  // Makes the calling thread the leader, and arms. Returns false if it is not
  // to sleep: another thread leads, or there is something to look at.
  bool BecomeLeader(Words* words, bool tx, std::uint32_t token,
                    std::uint64_t* ticket, int* slot);
  int Lead(Words* words, bool tx, std::uint32_t token, const timespec* left,
           bool* slept);
  int TakeSet();  // -1: there is none to be had
  void PutSet(int slot);
  int Doze(int set, const timespec* left);
  bool Resign(std::uint64_t ticket);
  void PassOn();
  // The bit of a sleeper that is not the leader.
  std::atomic<std::uint64_t>& BitWord(std::uint32_t index) {
    return waiting_[index / 32];
  }
  static std::uint64_t Bit(std::uint32_t index, bool tx) {
    return std::uint64_t{1} << (index % 32 * 2 + (tx ? 1 : 0));
  }
  bool Futex(Words* words, bool tx);  // true: a thread slept there
  void KickLeader();

  // In a leader's ticket: the leader sleeps, or will sleep without another
  // look. Before that nobody need kick the leader.
  static constexpr std::uint64_t kAsleep = std::uint64_t{1} << 31;

  Source* const source_;
  const std::uint64_t id_;  // never given twice
  base::UniqueFd wake_fd_;
  // Epoll sets on which no thread sleeps. One is enough for a leader. Leaders
  // that are asked to resign keep theirs until they wake. So do leaders that a
  // handler interrupts or jumps out of.
  static constexpr int kMostSets = 16;
  static constexpr int kNone = -1;
  static constexpr int kTaken = -2;
  std::atomic<int> sets_[kMostSets];
  int set_fds_[kMostSets] = {};  // used by the thread that has the set
  // (index + 1) << 32 | kAsleep | generation, 0: none.
  std::atomic<std::uint64_t> leader_{0};
  std::atomic<std::uint32_t> generation_{0};
  std::atomic<std::uint32_t> count_{0};  // Words made
  std::atomic<std::uint64_t> waiting_[kMost / 32] = {};
  std::atomic<Words*> chunks_[kMost / kChunk] = {};

  base::Latch latch_;
  std::vector<Words*> free_ RC_GUARDED_BY(latch_);
  std::vector<std::unique_ptr<Words[]>> owned_ RC_GUARDED_BY(latch_);
};

}  // namespace rcsock::lane::rdma

#endif  // RCSOCK_LIB_LANE_RDMA_SLEEPERS_H_
