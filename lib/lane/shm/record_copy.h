#ifndef RCSOCK_LIB_LANE_SHM_RECORD_COPY_H_
#define RCSOCK_LIB_LANE_SHM_RECORD_COPY_H_

#include <cstddef>
#include <cstdint>

#include "lib/lane/iov_cursor.h"
#include "lib/lane/shm/layout.h"

namespace rcsock::lane::shm {

// How the bytes of a sender get into its ring.
//
// The receiver has read the lines of the ring, so a plain store takes each away
// from it.  Where the two run on one core, that is the fastest way there is.
// Between cores, and above all between caches (another complex of cores,
// another socket), it is a round trip for each line, and a copy by streaming
// stores, which go to memory past all caches, costs the sender less; but then
// the receiver has to fetch them from there.  Which of these is faster can't be
// asked: the scheduler moves the two ends, a hypervisor what they run on, and
// machines differ in what memory gives.  So it is measured: now and then the
// two ways take turns, ever more seldom while the other one is no better.
class RecordCopy {
 public:
  // Where the sender does not fill the ring, nothing here tells what the
  // receiver pays for bytes that are in no cache.  So a sender must gain more
  // by streaming than the receiver loses.
  struct Limits {
    std::uint16_t gain;  // from so many times the speed on it streams
    std::uint16_t back;  // ... and from less on no more
  };
  // Measured, records of 16 KiB, what a plain copy costs the sender beside a
  // streamed one: where the ends share a core 0.7 to 1.6 times as much, a cache
  // 2.4 to 3.6 (on another machine 5 to 6), neither 6 to 7 (20).  One way in
  // bulk streaming has 0.4, 0.5 (1.4) and 2 (5) times the speed in all;
  static constexpr Limits kBulk{5, 4};
  // for a message by itself the receiver's part comes behind the sender's, and
  // round trips of 16 KiB take 1.1 times as long where it is 5 to 6 times.
  static constexpr Limits kAlone{10, 7};

  explicit RecordCopy(Limits limits) : limits_(limits) {}

  // memcpy.  What is stored to thereafter is seen after these bytes.  (Short
  // pieces are copied plainly: they say little, and what is small is wanted in
  // a cache.)
  void Copy(std::byte* to, const std::byte* from, std::size_t n) {
    if (n < kLongPiece) [[likely]] {
      CopyBytes(to, from, n);
    } else {
      CopyLong(to, from, n);
    }
  }
  // The ring had no room: until the next piece it is the receiver who is waited
  // for, and the turns are compared by the time that they take in all.
  void NoRoom() { waited_ = true; }

  // How the next long piece is copied.
  bool streams() const { return streams_ != OthersTurn(); }
  // Whether its time is asked for.
  bool measures() const { return turn_ != 0; }
  // A long piece of `n` bytes has taken so many ticks, and came so many after
  // the one before it.
  void Took(std::size_t n, std::uint64_t ticks, std::uint64_t gap);

 private:
  [[gnu::noinline]] void CopyLong(std::byte* to, const std::byte* from,
                                  std::size_t n);
  bool OthersTurn() const { return turn_ != 0 && turn_ % 2 == 0; }
  void BeginTurn(int turn);
  void EndTurn();
  bool OtherIsBetter() const;

  // Of a turn a lap of the ring, whose lines are where the other way has left
  // them, does not count, and a lap does.  It must be better in each pair of
  // turns: a thread that was off its CPU in one says nothing of the copy.
  static constexpr std::uint32_t kLap = kRingBytes;
  static constexpr int kPairs = 3;
  static constexpr std::uint32_t kFirstWait = 2 * kLap;
  // A turn that takes ten times as long is 4 % of it.
  static constexpr std::uint32_t kLongestWait = 512 * kLap;

  struct Sums {
    std::uint64_t ticks = 0;  // of copying
    std::uint64_t gaps = 0;   // between the pieces
  };

  const Limits limits_;
  bool streams_ = false;
  bool waited_ = false;
  std::uint8_t turn_ = 0;  // 0: none, until left_ bytes have passed
  std::uint32_t left_ = kFirstWait;
  std::uint32_t wait_ = kFirstWait;
  std::uint64_t ended_ = 0;  // the last piece; 0: not known
  Sums own_;
  Sums other_;
};

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_RECORD_COPY_H_
