#ifndef RCSOCK_TESTS_STREAM_SIM_WORLD_H_
#define RCSOCK_TESTS_STREAM_SIM_WORLD_H_

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "lib/lane/sim/sim_lane.h"
#include "lib/stream/stream.h"

namespace rcsock::stream {

// One direction of the simulated kernel connection.
struct SimPipe {
  std::string bytes;
  bool fin = false;
  bool rst = false;
  int error = ECONNRESET;  // what rst is told as
};

struct SimTcp {
  SimPipe pipe[2];  // pipe[i]: sent by end i
  bool kshut[2] = {false, false};
  bool dead[2] = {false, false};
  bool resets[2] = {false, false};  // answers what this end sends
  std::size_t capacity = 1 << 20;
  // Successful Recv calls that each end may still make; negative: no limit.
  int budget[2] = {-1, -1};
  // Frames whole, raw bytes one by one: the steps of the exhaustive search.
  bool units = false;
  // Non-zero: seeded partial reads and writes.
  std::uint64_t rng = 0;
  const char* error = nullptr;

  std::uint64_t Random() {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
  }
};

class SimAnchor final : public Anchor {
 public:
  SimAnchor() = default;
  SimAnchor(SimTcp* tcp, int end) : tcp_(tcp), end_(end) {}

  ssize_t Send(const iovec* iov, int count) override {
    SimPipe& to = tcp_->pipe[end_];
    std::size_t total = 0;
    for (int i = 0; i < count; ++i) total += iov[i].iov_len;
    if (tcp_->kshut[end_]) {
      tcp_->error = "written after the kernel shutdown";
      return -EPIPE;
    }
    if (tcp_->resets[end_]) return -ECONNRESET;
    const int budget = tcp_->budget[end_];
    SimPipe& from = tcp_->pipe[1 - end_];
    if (from.rst && (budget < 0 || (budget > 0 && from.bytes.empty()))) {
      // It has come: told once, to whoever asks first.
      from.rst = false;
      from.fin = true;
      return -from.error;
    }
    if (tcp_->dead[1 - end_]) {
      // The first write after the peer's end is answered by RST.
      if (tcp_->rng == 0 || tcp_->Random() % 2 == 0) {
        return static_cast<ssize_t>(total);
      }
      return -EPIPE;
    }
    std::size_t room =
        tcp_->capacity - std::min(tcp_->capacity, to.bytes.size());
    std::size_t n = std::min(room, total);
    if (tcp_->rng != 0 && n > 1 && tcp_->Random() % 2 == 0) {
      n = 1 + tcp_->Random() % n;
    }
    if (n == 0) return total == 0 ? 0 : -EAGAIN;
    std::size_t left = n;
    for (int i = 0; i < count && left != 0; ++i) {
      std::size_t part = std::min(left, iov[i].iov_len);
      to.bytes.append(static_cast<const char*>(iov[i].iov_base), part);
      left -= part;
    }
    return static_cast<ssize_t>(n);
  }
  ssize_t Recv(void* to, std::size_t length) override {
    SimPipe& from = tcp_->pipe[1 - end_];
    int& budget = tcp_->budget[end_];
    if (budget == 0) return -EAGAIN;
    if (from.bytes.empty()) {
      if (from.rst) {
        from.rst = false;
        from.fin = true;
        return -from.error;
      }
      return from.fin ? 0 : -EAGAIN;
    }
    if (budget > 0) --budget;
    std::size_t n = std::min(length, from.bytes.size());
    if (tcp_->units && length > kFrameSize) n = 1;
    if (tcp_->rng != 0 && n > 1 && tcp_->Random() % 2 == 0) {
      n = 1 + tcp_->Random() % n;
    }
    std::memcpy(to, from.bytes.data(), n);
    from.bytes.erase(0, n);
    return static_cast<ssize_t>(n);
  }
  ssize_t RecvV(const iovec* iov, int count, bool peek) override {
    for (int i = 0; i < count; ++i) {
      if (iov[i].iov_len == 0) continue;
      SimPipe& from = tcp_->pipe[1 - end_];
      const std::string before = peek ? from.bytes : std::string();
      const ssize_t n = Recv(iov[i].iov_base, iov[i].iov_len);
      if (peek && n > 0) from.bytes = before;
      return n;
    }
    return -EAGAIN;
  }
  int ShutdownWrite() override {
    if (tcp_->kshut[end_]) tcp_->error = "two kernel shutdowns";
    tcp_->kshut[end_] = true;
    tcp_->pipe[end_].fin = true;
    return 0;
  }

 private:
  SimTcp* tcp_ = nullptr;
  int end_ = 0;
};

// What the tests see of a Stream.
struct StreamTestAccess {
  static void Break(Stream* s, int rule) {
    s->broken_ = static_cast<std::uint16_t>(rule);
  }
  static bool KernelShut(const Stream& s) { return s.kshut_; }
  static bool TcpEnded(const Stream& s) { return s.eof_; }
  static bool HasLane(const Stream& s) { return s.lane_ != nullptr; }
  static bool Proven(const Stream& s) { return s.proven_; }
  static std::size_t Held(const Stream& s) {
    return s.tx_ == Tx::kProp && s.Holds() ? s.copy_.size() : 0;
  }
  // An ACCEPT that a stranger can make: he knows the nonces, and no tail.
  static Ctl StrangersAccept(const Stream& s) {
    Ctl ctl;
    ctl.kind = CtlKind::kAccept;
    ctl.epoch = s.epoch_;
    ctl.mac = TailMac(s.ConnectorNonce(), s.AcceptorNonce(), s.epoch_, s.x_,
                      nullptr, 0);
    return ctl;
  }
  static bool Frozen(const Stream& s) { return s.frozen_; }
  static bool HandsOver(const Stream& s) { return s.hands_over_; }
  static std::uint64_t In(const Stream& s) { return s.InOff(); }
  static std::uint64_t X(const Stream& s) { return s.x_; }
  static bool Shut(const Stream& s) { return s.shut_; }
  static bool TxBroken(const Stream& s) { return s.tx_broken_; }
  static bool Failed(const Stream& s) { return s.failed_; }
  static std::size_t Queued(const Stream& s) { return s.out_.size(); }
  static std::size_t Stashed(const Stream& s) {
    return s.stash_.size() + s.limbo_.size();
  }

  // The state, canonically: what can no longer matter is left out.
  static void Serialise(const Stream& s, std::string* to) {
    auto u8 = [to](int v) { to->push_back(static_cast<char>(v)); };
    auto u64 = [to](std::uint64_t v) {
      to->append(reinterpret_cast<const char*>(&v), 2);  // small numbers
    };
    auto queue = [&](const ByteQueue& q) {
      u64(q.size());
      to->append(reinterpret_cast<const char*>(q.data()), q.size());
    };
    auto tail = [&](const Tail& t) {
      u8(static_cast<int>(t.size()));
      to->append(reinterpret_cast<const char*>(t.Last(t.size())), t.size());
    };
    u8(static_cast<int>(s.tx_) | static_cast<int>(s.rx_) << 4);
    u64(s.tx_off_);
    u64(s.rx_off_);
    const bool lane = s.lane_ != nullptr;
    const bool idle = !lane && s.tx_ == Tx::kRaw && s.rx_ == Rx::kRaw;
    u8(lane | idle << 1 | (s.limbo_.empty() ? 0 : 4));
    if (!idle) {
      u8(s.frozen_ | s.settled_ << 1 | s.used_ << 2 | s.flip_ << 3 |
         s.got_sent_ << 4 | s.accept_ << 5 | s.lane_down_seen_ << 6 |
         s.proven_ << 7);
      u8(static_cast<int>(s.waiting_));
      u8(s.their_tail_);
      u8(s.leaves_later_ != base::Reason::kNone);
      u64(s.epoch_);
      u64(s.x_);
      u64(s.posted_base_);
      // (Beyond what is needed it is all the same.)
      if (s.min_tail_ != 0) {
        u64(std::min<std::uint64_t>(s.tx_off_ - s.tail_from_, s.min_tail_));
      }
    }
    if (!idle || !s.limbo_.empty()) u64(s.rx_x_);
    queue(s.copy_);
    queue(s.limbo_);
    queue(s.kept_);
    if (!s.kept_.empty()) u64(s.kept_at_);
    u8(s.returns_ | s.left_known_ << 1 | s.left_taken_ << 2 |
       s.hands_over_ << 3 | s.awaits_raw_ << 4 |
       static_cast<int>(s.told_left_) << 5);
    if (s.left_known_) u64(s.left_at_);
    u64(s.ahead_);
    u8(s.shut_ | s.kshut_ << 1 | s.closed_ << 2 | s.reset_ << 3 |
       s.finished_ << 4 | s.fin_sent_ << 5 | s.fin_acked_ << 6 |
       s.ack_sent_ << 7);
    u8(s.pfin_known_ | s.eof_ << 1 | s.tx_broken_ << 2 | s.failed_ << 3 |
       (s.so_error_ != 0 ? 16 : 0) | s.peer_resets_ << 5);
    u64(s.pfin_);
    u8(s.pclosed_ | s.probe_out_ << 1);
    if (s.pclosed_) u64(s.probe_landed_);
    u8(s.hs_have_ | s.last_write_ << 6 | (s.send_error_ != 0 ? 128 : 0));
    to->append(reinterpret_cast<const char*>(s.hs_), s.hs_have_);
    queue(s.out_);
    queue(s.stash_);
    queue(s.back_);
    u64(s.back_left_);
    tail(s.tail_tx_);
    tail(s.tail_rx_);
  }
};

inline void SerialiseRing(const lane::sim::SimRing& r, std::string* to) {
  auto u16 = [to](std::uint64_t v) {
    to->append(reinterpret_cast<const char*>(&v), 2);
  };
  u16(r.units.size());
  *to += r.units;
  u16(r.landed);
  u16(r.in_flight);
  u16(r.mirror.size());
  *to += r.mirror;
  u16(r.posted);
  u16(r.consumed);
  u16(r.acked);
  to->push_back(static_cast<char>(r.dropping | r.latched << 1));
  u16(r.held);
}

}  // namespace rcsock::stream

#endif  // RCSOCK_TESTS_STREAM_SIM_WORLD_H_
