#ifndef RCSOCK_LIB_LANE_SHM_RECORD_COPY_H_
#define RCSOCK_LIB_LANE_SHM_RECORD_COPY_H_

#include <cstddef>
#include <cstdint>

#include "lib/lane/iov_cursor.h"

namespace rcsock::lane::shm {

// How the bytes of a sender get into its ring.
//
// The receiver has read the lines of the ring, so a plain store takes each away
// from it.  Where the two run on one core, that is the fastest way there is.
// Between cores, and above all between caches (another complex of cores,
// another socket), it is a round trip for each line, and a copy by streaming
// stores, which go to memory past all caches, is faster.  Which of these it is
// can't be asked: the scheduler moves the two ends, and a hypervisor what they
// run on.  So it is measured: now and then some pieces are copied in the other
// way, ever more seldom while that is the slower one.
class RecordCopy {
 public:
  // The receiver pays for bytes that are in no cache.  So a sender must gain
  // more by streaming than the receiver loses.
  struct Limits {
    std::uint16_t gain;  // from so many times the speed on it streams
    std::uint16_t back;  // ... and from less on no more
  };
  // Measured, records of 16 KiB, plain against streamed: where the ends share a
  // core 1.1 to 1.6 times the cost, a cache 5 to 6 times, neither 20 times. One
  // way in bulk streaming has 0.5, 1.4 and 5 times the speed in all, since the
  // two ends work at the same time;
  static constexpr Limits kBulk{3, 2};
  // for a message by itself the receiver's part comes behind the sender's, and
  // round trips of 16 KiB take 1.1 times as long within a cache.
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

  bool streams() const { return streams_; }

  // The next long piece goes the other way.
  bool tries() const { return tries_; }
  // It took `cost`, in time for a byte.
  void Took(std::uint32_t cost);

 private:
  [[gnu::noinline]] void CopyLong(std::byte* to, const std::byte* from,
                                  std::size_t n);

  // A try is so many pieces: a lap of the ring of records, whose lines are
  // where the other way has left them, and eight that count.
  static constexpr std::uint16_t kTry = 24;
  static constexpr std::uint16_t kCount = 8;
  static constexpr std::uint16_t kFirstWait = 32;
  // 128 MiB in records: a try that takes ten times as long is 3 %.
  static constexpr std::uint16_t kLongestWait = 8192;

  const Limits limits_;
  std::uint32_t cost_ = 0;     // of late; 0: not known
  std::uint32_t tried_ = 0;    // the sum of those that count
  std::uint32_t longest_ = 0;  // of them
  std::uint16_t left_ = kFirstWait;
  std::uint16_t wait_ = kFirstWait;
  bool streams_ = false;
  bool tries_ = false;
};

}  // namespace rcsock::lane::shm

#endif  // RCSOCK_LIB_LANE_SHM_RECORD_COPY_H_
