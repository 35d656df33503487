#ifndef RCSOCK_LIB_API_RSOCKET_CHANNEL_H_
#define RCSOCK_LIB_API_RSOCKET_CHANNEL_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lib/api/rsocket/placing.h"
#include "lib/base/mutex.h"

namespace rcsock::rsocket {

// What an rsocket has beyond a socket: memory that its peer may write to.
//
// If the connecting end of a stream has asked for such mappings
// (RDMA_IOMAPSIZE), the stream begins with a hello each way. From then on it
// carries records: data, a mapping, its end, bytes for a mapping. Every other
// stream is the bytes alone, as any TCP peer understands them.
//
// If both processes are on one shared-memory lane, bytes for a mapping go
// straight into the peer's memory (process_vm_writev). On an RDMA lane they go
// there by rcs_place, by a key that the peer gives for each lane when asked.
// Elsewhere they are a record that the peer copies from its receive ring into
// the mapping.
//
// Any thread may call it. Latches: rx before tx; the mappings are under rx. A
// call sleeps with a latch held only until a device acknowledges what has been
// placed; until the peer has taken what went before a direct write (10 ms); and
// until a direct write of the peer's to an ending mapping is over (5 s).
class Channel {
 public:
  enum class Phase : std::uint8_t {
    kPlain,       // nothing of this
    kIdle,        // options only
    kConnecting,  // the kernel's connect has not ended
    kHello,       // ours is sent, the peer's has not come
    kMaybe,       // accepted: the first bytes will tell
    kSpoken,      // accepted, and has sent plain bytes before it could tell
    kFramed,
  };

  explicit Channel(int fd) : fd_(fd) {}
  Phase phase() const { return phase_.load(std::memory_order_acquire); }
  bool framed() const { return phase() == Phase::kFramed; }
  bool handshaking() const {
    return phase() == Phase::kConnecting || phase() == Phase::kHello;
  }

  // SOL_RDMA: SQSIZE, RQSIZE, INLINE, IOMAPSIZE.
  std::atomic<int> options[4] = {384, 384, 64, 0};
  int iomap_size() const { return options[3].load(); }

  void Connecting() { phase_ = Phase::kConnecting; }
  void Accepted(const Channel* listener);
  // Continues the handshake as far as it can.
  void Step();
  // The caller is about to send without waiting for the first bytes. To the
  // peer that means that there are no records.
  void SpeakFirst();
  // Bytes have come that may be the beginning of a hello.
  bool undecided() const { return begun_ms_.load() != 0; }

  // Takes what has come up to the next byte of data, and sends what is owed.
  void Progress();
  // POLLIN of the data. Requires a Progress() before.
  bool Readable();
  bool SendOwed();  // returns true if something still waits to be sent
  // Bytes taken from the application wait: a caller must send them.
  bool owes() const { return owes_.load(std::memory_order_acquire); }
  // What has been placed may be lost with its lane: a caller must call
  // LookPlaced, which sends it again. StartedPlacing is true once each time
  // this begins.
  bool placing() const { return placing_.load(std::memory_order_acquire); }
  bool StartedPlacing() { return started_.exchange(false); }
  void LookPlaced();
  // Returns when all placed bytes have arrived, or are owed as records.
  void SettlePlaced();

  // Returns -1 with errno on failure; EAGAIN: nothing now. No sleep.
  ssize_t Recv(const iovec* iov, int count, int flags);
  ssize_t Send(const iovec* iov, int count);
  ssize_t Write(const void* from, std::size_t length, std::uint64_t offset);
  // Returns 0, or an errno.
  int Map(void* buffer, std::size_t length, off_t* offset);
  int Unmap(void* buffer, std::size_t length);
  bool mapped() const { return mapped_.load(std::memory_order_relaxed); }
  int fd() const { return fd_; }
  bool HasCookieAt(std::uint64_t address) const {
    return reinterpret_cast<std::uintptr_t>(cookie_) == address;
  }

  // Ends the use of the descriptor's number: the pump must not touch it.
  void Close();

  // Around a fork. TryHold takes both latches or none; InChild is the child's.
  bool TryHold();
  void LetGo();
  void InChild();

  // The pump waits for the application to take data.
  bool parked RC_GUARDED_BY(rx_) = false;
  base::Mutex& rx() RC_RETURNS_LATCH(rx_) { return rx_; }
  bool DataFirst() const RC_REQUIRES(rx_) { return data_left_ > 0; }
  // Nothing more comes except the error that the application is still to get.
  bool Ended() const RC_REQUIRES(rx_) { return end_ || error_ != 0; }

 private:
  struct Hello;
  struct Record;
  struct Local {
    void* buffer;
    std::size_t length;
    std::uint64_t offset;
    // 1 while the peer may write. The peer looks here before each write.
    std::unique_ptr<std::atomic<std::uint32_t>> valid;
    rcs_exposure exposed{};  // on its lane; lane_id 0: none
  };
  struct Remote {
    std::uint64_t offset;
    std::uint64_t length;
    std::uint64_t address;
    std::uint64_t valid;  // address of the peer's word
    rcs_exposure exposed{};
    std::uint32_t asked = 0;  // the lane for which its key has been asked
  };

  void SendHello() RC_REQUIRES(rx_);
  void TakeHello(const Hello& hello) RC_REQUIRES(rx_);
  // These functions return false if the peer must not have sent the record.
  bool TakeRecord() RC_REQUIRES(rx_);
  bool TakeMap(const Record& record) RC_REQUIRES(rx_);
  bool TakeWrite(const Record& record) RC_REQUIRES(rx_);
  bool TakeKey(const Record& record) RC_REQUIRES(rx_);
  static rcs_exposure ExposureOf(const Record& record);
  void ProgressLatched() RC_REQUIRES(rx_);
  bool FlushLatched() RC_REQUIRES(tx_);
  // Returns how many bytes of payload it took; the rest of the record is owed.
  ssize_t SendRecord(const Record& record, const iovec* iov, int count,
                     std::size_t length) RC_REQUIRES(tx_);
  bool PeerReachable(int lane) RC_REQUIRES(rx_);
  // Returns how many bytes are owed then.
  std::size_t GiveKey(std::uint64_t offset) RC_REQUIRES(rx_);
  // Returns true if the peer's device has a place to count on this lane.
  bool GiveCounter(std::uint32_t lane_id) RC_REQUIRES(rx_);
  void DropCounter() RC_REQUIRES(rx_);
  void Hide(Local& local) RC_REQUIRES(rx_);
  Remote* FindRemote(std::uint64_t offset) RC_REQUIRES(rx_);
  std::size_t Owed() RC_EXCLUDES(tx_);
  bool RefusesToPlace() RC_EXCLUDES(tx_);
  // Returns true if the present lane's key is here; asks for it, once a lane.
  bool Placeable(Remote& to, const rcs_stream_info& info) RC_REQUIRES(rx_);
  ssize_t Place(const Remote& to, const void* from, std::size_t length,
                std::uint64_t offset) RC_REQUIRES(rx_);
  void LookPlacedLatched() RC_REQUIRES(tx_);
  void SettleFirst() RC_REQUIRES(tx_);
  void SettlePlacedLatched() RC_REQUIRES(tx_);
  void Redo() RC_REQUIRES(tx_);
  // Returns true if the peer has taken every record for a mapping; waits a
  // little.
  bool CaughtUp() RC_REQUIRES(rx_);
  // Returns false if a write of the peer's there has not ended.
  bool Revoke(Local& local) RC_REQUIRES(rx_);
  // Returns how many bytes are owed then.
  std::size_t Queue(const Record& record) RC_EXCLUDES(tx_);
  // Returns bytes; 0: not possible.
  ssize_t WriteDirect(const Remote& to, const void* from, std::size_t length,
                      std::uint64_t offset) RC_REQUIRES(rx_);
  void BreakLatched() RC_REQUIRES(rx_);

  void StepLatched() RC_REQUIRES(rx_);

  int fd_;
  std::atomic<Phase> phase_{Phase::kIdle};
  std::atomic<std::int64_t> begun_ms_{0};  // of a hello in pieces; 0: none
  std::atomic<bool> mapped_{false};
  bool end_ RC_GUARDED_BY(rx_) = false;  // nothing more comes
  int error_ RC_GUARDED_BY(rx_) = 0;     // of what comes, not reported yet
  // The peer knows the pid of the parent that this process was forked from.
  bool child_ = false;

  base::Mutex rx_;
  unsigned char head_[40] RC_GUARDED_BY(rx_) = {};
  std::size_t head_have_ RC_GUARDED_BY(rx_) = 0;
  // For a record of data.
  std::uint64_t data_left_ RC_GUARDED_BY(rx_) = 0;
  // For a record for a mapping.
  std::uint64_t write_left_ RC_GUARDED_BY(rx_) = 0;
  unsigned char* write_to_ RC_GUARDED_BY(rx_) = nullptr;
  std::vector<Local> locals_ RC_GUARDED_BY(rx_);
  std::vector<Remote> remotes_ RC_GUARDED_BY(rx_);
  // How many of the peer's writes its device has placed here. The peer's device
  // writes the counter behind each write. The counter has a page of its own,
  // since it is registered.
  std::uint64_t* counter_ RC_GUARDED_BY(rx_) = nullptr;
  rcs_exposure counter_exposed_ RC_GUARDED_BY(rx_){};
  rcs_exposure peer_counter_ RC_GUARDED_BY(rx_){};  // where ours counts

  base::Mutex tx_;
  std::vector<unsigned char> owed_ RC_GUARDED_BY(tx_);
  std::atomic<bool> owes_{false};
  std::size_t owed_at_ RC_GUARDED_BY(tx_) = 0;
  Placing placed_ RC_GUARDED_BY(tx_);
  std::uint64_t place_number_ RC_GUARDED_BY(tx_) = 0;  // of the last write
  std::atomic<bool> placing_{false};
  std::atomic<bool> started_{false};

  // The peer's process.
  int peer_pid_ = 0;
  int peer_iomap_ = 0;
  std::uint64_t peer_cookie_at_ = 0;
  std::uint64_t peer_busy_at_ = 0;
  unsigned char peer_cookie_[16] = {};
  enum class Direct : std::uint8_t { kUnknown, kYes, kNo };
  Direct direct_ RC_GUARDED_BY(rx_) = Direct::kUnknown;
  // Records for mappings: sent, asked about, known to be taken.
  std::atomic<std::uint64_t> writes_sent_{0};
  std::uint64_t writes_asked_ RC_GUARDED_BY(rx_) = 0;
  std::uint64_t writes_taken_ RC_GUARDED_BY(rx_) = 0;
  static constexpr int kAsks = 8;
  int asks_left_ RC_GUARDED_BY(rx_) = kAsks;

  unsigned char cookie_[16] = {};
  std::atomic<std::uint32_t> busy_{0};  // a direct write of ours is under way
};

}  // namespace rcsock::rsocket

#endif  // RCSOCK_LIB_API_RSOCKET_CHANNEL_H_
