#ifndef RCSOCK_TESTS_LANE_RDMA_PAIR_H_
#define RCSOCK_TESTS_LANE_RDMA_PAIR_H_

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "lib/base/clock.h"
#include "lib/lane/board.h"
#include "lib/lane/rdma/domain.h"
#include "lib/lane/rdma/qp_lane.h"
#include "tests/lane/lane_conformance.h"

namespace rcsock::lane::test {

class EventRinger final : public Ringer {
 public:
  EventRinger() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~EventRinger() override { ::close(fd_); }
  bool Armed(int) const override { return armed.load() > 0; }
  void Kick(int) override {
    const std::uint64_t one = 1;
    [[maybe_unused]] ssize_t n = ::write(fd_, &one, sizeof(one));
  }
  int fd() const { return fd_; }

  std::atomic<int> armed{0};

 private:
  const int fd_;
};

// What an epoll set makes of a source and a board.
class BoardPoller final : public Poller {
 public:
  BoardPoller(Board* board, EventRinger* ringer, int bell)
      : board_(board), ringer_(ringer), bell_(bell) {
    Watch(ringer_->fd());
  }
  ~BoardPoller() override { ::close(fd_); }
  void Watch(Source* source) {
    source_ = source;
    Watch(source->fd());
  }
  int Poll(Completion* out, int capacity) override {
    source_->Drain();
    return board_->Poll(bell_, out, capacity);
  }
  void Arm() override {
    ringer_->armed.fetch_add(1);
    source_->Arm();
    source_->Drain();
  }
  void Disarm() override {
    pollfd fds[2] = {{source_->fd(), POLLIN, 0}, {ringer_->fd(), POLLIN, 0}};
    ::poll(fds, 2, 0);
    std::uint64_t count;
    [[maybe_unused]] ssize_t n = ::read(ringer_->fd(), &count, sizeof(count));
    source_->Disarm(fds[0].revents != 0);
    ringer_->armed.fetch_sub(1);
  }
  int fd() const override { return fd_; }
  void Kick() override { ringer_->Kick(bell_); }

 private:
  void Watch(int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    ::epoll_ctl(fd_, EPOLL_CTL_ADD, fd, &event);
  }

  Board* const board_;
  EventRinger* const ringer_;
  const int bell_;
  Source* source_ = nullptr;
  const int fd_ = ::epoll_create1(EPOLL_CLOEXEC);
};

// The conductor's part: flushes what waits, soon after it began to.
class Flusher {
 public:
  explicit Flusher(rdma::Domain* domain) : domain_(domain) {
    domain_->SetFlushTimer(
        [](void* self) { static_cast<Flusher*>(self)->Ask(1); }, this);
    thread_ = std::thread([this] {
      std::unique_lock hold(mutex_);
      while (asked_ != 2) {
        some_.wait(hold, [this] { return asked_ != 0; });
        if (asked_ == 2) return;
        asked_ = 0;
        hold.unlock();
        domain_->FlushDeferred();
        hold.lock();
      }
    });
  }
  ~Flusher() {
    domain_->SetFlushTimer(nullptr, nullptr);
    Ask(2);
    thread_.join();
  }

 private:
  void Ask(int what) {
    std::scoped_lock hold(mutex_);
    asked_ = std::max(asked_, what);
    some_.notify_one();
  }

  rdma::Domain* const domain_;
  std::mutex mutex_;
  std::condition_variable some_;
  int asked_ = 0;  // 2: to end
  std::thread thread_;
};

// What one process has.
struct RdmaSide {
  static constexpr int kBell = 2;

  EventRinger ringer;
  Board board{&ringer};
  std::shared_ptr<rdma::Domain> domain;
  std::unique_ptr<rdma::RdmaLane> lane;
  BoardPoller poller{&board, &ringer, kBell};
  std::unique_ptr<Flusher> flusher;
  char cookie = 0;

  rdma::QpLane& qp_lane() { return static_cast<rdma::QpLane&>(*lane); }
};

// Two lanes whose QPs somebody else has connected, and will take apart.
class RdmaPair final : public LanePair {
 public:
  // Small sends may wait from now on.
  void Coalesce() {
    for (auto& s : side) s.flusher = std::make_unique<Flusher>(s.domain.get());
  }
  // Both READY; called when the QPs are connected.
  bool Meet() {
    for (int i = 0; i < 2; ++i) {
      side[i].lane->Connected();
      side[i].lane->SetCookie(&side[i].cookie);
      side[i].poller.Watch(side[i].lane->source());
    }
    // As the connecting end, which has the other's offer from its REP.
    std::uint8_t bytes[rdma::kOfferSize];
    rdma::Offer offer;
    rdma::EncodeOffer(side[1].lane->offer(), bytes);
    if (!rdma::DecodeOffer(bytes, &offer)) return false;
    side[0].lane->SetPeer(offer);
    if (!side[0].lane->SendReady() || !side[1].lane->SendReady()) return false;
    const std::uint64_t limit = base::NowNs() + 5'000'000'000u;
    bool ready[2] = {false, false};
    while (!ready[0] || !ready[1]) {
      if (base::NowNs() > limit) return false;
      for (int i = 0; i < 2; ++i) ready[i] = side[i].lane->PeerReady();
      std::this_thread::yield();
    }
    Pump();
    // The READY is not the test's.
    for (auto& s : side) {
      s.lane->Peek();
      s.lane->Arrived();
    }
    return true;
  }
  ~RdmaPair() override {
    for (auto& s : side) {
      s.lane.reset();
      s.flusher.reset();
    }
    if (disconnect) disconnect();
  }

  Lane& end(int i) override { return *side[i].lane; }
  Poller* poller(int i) override { return &side[i].poller; }
  void* cookie(int i) override { return &side[i].cookie; }
  void Kill(int i) override { side[i].lane->Lost(base::Reason::kPeerGone); }
  // Completions of sends come by the same descriptor.
  bool ExactKicks() const override { return false; }
  // Until all that was sent has arrived.
  void Pump() override {
    const std::uint64_t limit = base::NowNs() + 5'000'000'000u;
    while (!Settled() && base::NowNs() < limit) std::this_thread::yield();
  }

  bool Large() const override { return large; }

  RdmaSide side[2];
  std::function<void()> disconnect;
  // Says whether the device has carried out all that was posted.  It is set for
  // a device that may leave an older credit word behind, whose credit the pair
  // cannot wait for.
  std::function<bool()> idle;
  bool large = true;

 private:
  bool Settled() {
    for (RdmaSide& one : side) one.domain->FlushDeferred();
    const auto drain = [this] {
      for (RdmaSide& one : side) one.lane->source()->Drain();
    };
    drain();
    if (idle) {
      if (!idle()) return false;
      drain();  // what came before the device was idle
    }
    bool all = true;
    for (int i = 0; i < 2; ++i) {
      rdma::QpLane& from = side[i].qp_lane();
      rdma::QpLane& to = side[1 - i].qp_lane();
      if (frozen(i) || frozen(1 - i)) continue;
      all = all && from.Quiet() &&
            to.landed_messages() == from.sent_messages() &&
            (idle || to.credit_seen() == from.published()) &&
            to.wakes_seen() == from.wakes_sent();
    }
    return all;
  }
  bool frozen(int i) { return side[i].qp_lane().closed(); }
};

}  // namespace rcsock::lane::test

#endif  // RCSOCK_TESTS_LANE_RDMA_PAIR_H_
