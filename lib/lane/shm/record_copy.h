#ifndef RCSOCK_LIB_LANE_SHM_RECORD_COPY_H_
#define RCSOCK_LIB_LANE_SHM_RECORD_COPY_H_

#include <cstddef>
#include <cstdint>

#include "lib/lane/iov_cursor.h"
#include "lib/lane/shm/layout.h"

namespace rcsock::lane::shm {

// How the sender's bytes get into its ring.
//
// The receiver has read the lines of the ring, so a plain store takes each line
// away from it. If both ends run on one core, plain stores are the fastest way.
// Between cores, and above all between complexes of cores or sockets, they cost
// a round trip for each line. Streaming stores go to memory past all caches,
// and cost the sender less there. But then the receiver has to fetch the bytes
// from memory.
//
// No rule says which way is faster. The scheduler moves the two ends, a
// hypervisor moves the processors that they run on, and machines differ in what
// memory gives. So this class measures. Now and then the two ways take turns,
// ever more seldom while the other way is no better.
class RecordCopy {
 public:
  // If the sender does not fill the ring, nothing here shows what the receiver
  // pays for bytes that are in no cache. So a sender must gain more by
  // streaming than the receiver loses.
  struct Limits {
    std::uint16_t gain;  // streams from so many times the speed on
    std::uint16_t back;  // ... and from less on no more
  };
  // Measured with records of 16 KiB. A plain copy costs the sender 0.7 to 1.6
  // times a streamed one if the ends share a core. If they share a cache it
  // costs 2.4 to 3.6 or 5 to 6 times as much, by machine, else 6 to 7 or 20.
  // One way in bulk, streaming then has 0.4, 0.5 or 1.4, and 2 or 5 times the
  // speed in all.
  static constexpr Limits kBulk{5, 4};
  // The receiver's part of a single message comes after the sender's. There
  // round trips of 16 KiB take 1.1 times as long if the plain copy costs 5 to 6
  // times as much.
  static constexpr Limits kAlone{10, 7};

  explicit RecordCopy(Limits limits) : limits_(limits) {}

  // memcpy. What is stored after the call is seen after these bytes. Short
  // pieces are copied plainly: they prove little, and small data is wanted in a
  // cache.
  void Copy(std::byte* to, const std::byte* from, std::size_t n) {
    if (n < kLongPiece) [[likely]] {
      CopyBytes(to, from, n);
    } else {
      CopyLong(to, from, n);
    }
  }
  // The ring had no room. Until the next piece the sender waits for the
  // receiver, so the turns are compared by all the time that they take.
  void NoRoom() { waited_ = true; }

  // Returns true if the next long piece is streamed.
  bool streams() const { return streams_ != OthersTurn(); }
  // Returns true if the time of the next long piece is wanted.
  bool measures() const { return turn_ != 0; }
  // A long piece of `n` bytes has taken `ticks`, and began `gap` ticks after
  // the end of the piece before it.
  void Took(std::size_t n, std::uint64_t ticks, std::uint64_t gap);

 private:
  [[gnu::noinline]] void CopyLong(std::byte* to, const std::byte* from,
                                  std::size_t n);
  bool OthersTurn() const { return turn_ != 0 && turn_ % 2 == 0; }
  void BeginTurn(int turn);
  void EndTurn();
  bool OtherIsBetter() const;

  // A turn takes two laps of the ring. The first lap does not count, since its
  // lines are where the other way has left them. The other way must be better
  // in each pair of turns. A thread that was off its CPU in one turn proves
  // nothing about the copy.
  static constexpr std::uint32_t kLap = kRingBytes;
  static constexpr int kPairs = 3;
  static constexpr std::uint32_t kFirstWait = 2 * kLap;
  // A turn that takes ten times as long is 4 % of this wait.
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
  std::uint64_t ended_ = 0;  // when the last piece ended; 0: not known
  Sums own_;
  Sums other_;
};

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_RECORD_COPY_H_
