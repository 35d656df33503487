#ifndef RCSOCK_LIB_LANE_SIM_SIM_LANE_H_
#define RCSOCK_LIB_LANE_SIM_SIM_LANE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "lib/lane/lane.h"

namespace rcsock::lane::sim {

// One direction of a simulated lane. What is posted is in flight until it
// lands. The sender does not know what is read until the credit returns. The
// ring is plain data, so a copy of the link is a copy of that world.
struct SimRing {
  // Units in flight or landed: kind (0 data, 1 control), length (two bytes,
  // little-endian), bytes. The receiver may have read part of the first unit.
  std::string units;
  std::uint32_t landed = 0;  // units at the front that the receiver can see
  std::uint32_t in_flight = 0;
  std::string mirror;  // data without credit yet: what CopyUnacked reads
  std::uint64_t posted = 0;
  std::uint64_t consumed = 0;
  std::uint64_t acked = 0;  // the sender's view of `consumed`
  bool dropping = false;    // the lane is dead, and loses what is posted
  bool latched = false;     // the receiver has frozen, and what lands now ...
  std::uint32_t held = 0;   // ... in so many units, follows what had landed

  bool Land();  // the next unit; false if none is in flight
  void LandAll() {
    while (Land()) {
    }
  }
  void DropInFlight();
  void ReturnCredit();
};

// The world that both ends share. `end` 0 is the connector's.
struct SimLink {
  explicit SimLink(std::size_t room = 64, std::size_t longest = 64)
      : capacity(room), largest(longest) {}

  SimRing ring[2];  // ring[i]: written by end i
  std::size_t capacity;
  std::size_t largest;     // longest single write: longer posts become several
  bool auto_land = false;  // shared memory: what is posted has landed
  bool auto_credit = false;  // ... and what is read is credited
  bool outlives = false;     // ... and what is posted is there after a freeze
  bool frozen[2] = {false, false};
  // How far end i says that it has left the lane, if the memory outlives a
  // process.
  Lane::Left left[2] = {Lane::Left::kNot, Lane::Left::kNot};
  bool forgoes[2] = {false, false};
  bool resets[2] = {false, false};
  // Why end i believes that the lane is dead; kNone: it does not, so far.
  base::Reason state[2] = {base::Reason::kNone, base::Reason::kNone};

  void Reset();  // a fresh lane of the same size
};

// One end. It owns nothing.
class SimLane : public Lane {
 public:
  SimLane() = default;
  // `kind`: what kind() returns.
  SimLane(SimLink* link, int end, Kind kind = Kind::kSim)
      : link_(link), end_(end), kind_(kind) {}

  Kind kind() const override { return kind_; }
  Region RxRegion() const override { return {nullptr, link_->capacity, 0}; }
  Region TxRegion() const override { return {nullptr, link_->capacity, 0}; }
  std::size_t Post(const iovec* iov, int count, std::size_t skip,
                   std::size_t limit) override;
  bool PostCtl(const void* message, std::size_t length) override;
  std::size_t Writable() override;
  std::uint64_t Posted() const override { return Tx().posted; }
  std::uint64_t Acked() override { return Tx().acked; }
  std::size_t CopyUnacked(std::uint64_t from, void* to,
                          std::size_t length) override;
  Head Peek() override;
  std::size_t Read(const iovec* iov, int count, std::size_t skip,
                   std::size_t limit, bool peek) override;
  std::size_t ReadCtl(void* message, std::size_t capacity) override;
  std::size_t Readable() override;
  bool Arrived() override { return Rx().landed != 0; }
  void Credit() override {
    Rx().acked = Rx().consumed;
    TrimMirror(&Rx());
  }
  void SetNotify(std::uint32_t, int) override {}
  bool RxPending() const override { return link_->ring[1 - end_].landed != 0; }
  std::uint32_t SleepToken(bool) const override { return 0; }
  int SleepRx(std::uint32_t, const timespec*) override { return -11; }
  int SleepTx(std::uint32_t, const timespec*) override { return -11; }
  void WakeLocal() override {}
  base::Reason State() const override { return link_->state[end_]; }
  void Freeze() override;
  bool Thaw() override;
  bool Outlives() const override { return link_->outlives; }
  void TellLeft(Left left) override { link_->left[end_] = left; }
  Left PeerLeft() const override {
    return link_->outlives ? link_->left[1 - end_] : Left::kAll;
  }
  void Forgo() override { link_->forgoes[end_] = link_->outlives; }
  bool PeerForgoes() const override { return link_->forgoes[1 - end_]; }
  void SayReset() override { link_->resets[end_] = link_->outlives; }
  void TakeBackReset() override { link_->resets[end_] = false; }
  bool PeerSaysReset() const override { return link_->resets[1 - end_]; }

 private:
  friend struct SimRing;
  static void TrimMirror(SimRing* ring);
  SimRing& Tx() { return link_->ring[end_]; }
  const SimRing& Tx() const { return link_->ring[end_]; }
  SimRing& Rx() { return link_->ring[1 - end_]; }
  void PutUnit(bool ctl, const std::string& bytes);

  SimLink* link_ = nullptr;
  int end_ = 0;
  Kind kind_ = Kind::kSim;
};

}  // namespace rcsock::lane::sim

#endif  // RCSOCK_LIB_LANE_SIM_SIM_LANE_H_
