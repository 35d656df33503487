#ifndef RCSOCK_TESTS_POSIX_HOSTILE_ATTACKER_H_
#define RCSOCK_TESTS_POSIX_HOSTILE_ATTACKER_H_

#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "lib/lane/shm/layout.h"
#include "lib/rendezvous/wire.h"
#include "lib/ring/imm.h"
#include "lib/stream/frames.h"
#include "lib/stream/stream.h"
#include "tests/posix/lane_peer.h"
#include "tests/posix/under.h"

namespace hostile {

using namespace rcsock;  // NOLINT: a test of all rooms

// Gets a lane by the rules, and breaks them from then on.
class Attacker {
 public:
  Attacker(int fd, stream::Role role, std::uint64_t seed)
      : fd_(fd),
        role_(role),
        random_{seed},
        anchor_(fd),
        stream_(role, &anchor_, stream::Limits{}) {
    stream_.Adopt(0, 0);
  }

  // False: no lane came.
  bool GetLane() {
    base::Reason why;
    rendezvous::Conductor* conductor = rendezvous::Conductor::Get(&why);
    CHECK_THAT(conductor != nullptr);
    const std::uint64_t end = under::NowMs() + 5000;
    while (under::NowMs() < end) {
      seeking_ = std::make_shared<under::Seeking>(fd_, role_);
      RoundTrip(8);
      conductor->Seek(seeking_);
      while (seeking_->answer.load(std::memory_order_acquire) == 0) {
        RoundTrip(8);
        ::sched_yield();
      }
      if (seeking_->answer.load() == 1) return true;
    }
    return false;
  }

  void Attack() {
    switch (random_.Below(4)) {
      case 0:  // the stream does not even know of its lane
        break;
      case 1:
        Up();
        break;
      case 2:
        Up();
        Promote();
        break;
      case 3:
        Up();
        Promote();
        Bulk();
        break;
    }
    FindShared();
    const std::uint64_t style = random_.Below(6);
    for (std::uint64_t n = 1 + random_.Below(300); n > 0; --n) {
      switch (style < 5 && random_.Below(3) != 0 ? style : random_.Below(9)) {
        case 0:
          Scribble(1 + random_.Below(64));
          break;
        case 1:
          SendControl();
          break;
        case 2:
          SendFrame();
          break;
        case 3:
          SendRendezvous();
          break;
        case 4:
          ForgeSlot();
          break;
        case 5:
          Bells();
          break;
        case 6:
          RoundTrip(1 + random_.Below(5000));
          break;
        case 7:
          Bulk();
          break;
        case 8:
          if (random_.Below(50) == 0) ::shutdown(fd_, SHUT_WR);
          ::sched_yield();
          break;
      }
    }
  }

 private:
  void Up() {
    if (seeking_->lane == nullptr || up_) return;
    up_ = true;
    stream_.LaneUp(seeking_->lane.get(), seeking_->epoch, seeking_->mine,
                   seeking_->peers, true);
  }
  // Best effort from here on: the victim may well have gone its own way.
  void RoundTrip(std::size_t length) {
    std::vector<std::uint8_t> bytes(length);
    iovec iov{bytes.data(), bytes.size()};
    const ssize_t sent = stream_.Write(&iov, 1, length);
    std::size_t got = 0;
    const std::uint64_t end = under::NowMs() + 5;
    while (sent > 0 && got < static_cast<std::size_t>(sent)) {
      stream_.Progress();
      iovec to{bytes.data(), length};
      const ssize_t n = stream_.Read(&to, 1, length, false);
      if (n > 0) {
        got += static_cast<std::size_t>(n);
      } else if (n != -EAGAIN || under::NowMs() > end) {
        break;
      } else {
        ::sched_yield();
      }
    }
    stream_.TakeChanges();
  }
  void Promote() {
    const std::uint64_t end = under::NowMs() + 100;
    while (!(stream_.FastTx() && stream_.FastRx()) && under::NowMs() < end) {
      RoundTrip(16);
    }
    promoted += stream_.FastTx() && stream_.FastRx();
  }
  // Much, and the echo stays unread.
  void Bulk() {
    std::vector<std::uint8_t> bytes(1 + random_.Below(200'000));
    iovec iov{bytes.data(), bytes.size()};
    stream_.Write(&iov, 1, bytes.size());
    stream_.TakeChanges();
  }

  // Every writable page that is shared with the victim; the fds of the link.
  void FindShared() {
    std::ifstream maps("/proc/self/maps");
    std::string line;
    while (std::getline(maps, line)) {
      if (line.find("/memfd:rcsock") == std::string::npos ||
          line.find(" rw-s ") == std::string::npos) {
        continue;
      }
      std::size_t dash;
      const std::uintptr_t from = std::stoull(line, &dash, 16);
      const std::uintptr_t to = std::stoull(line.substr(dash + 1), nullptr, 16);
      ranges_.push_back({from, to});
    }
    CHECK_THAT(ranges_.size() >= 2);
    const auto* bytes =
        reinterpret_cast<const std::byte*>(seeking_->lane->TxRegion().base);
    using lane::shm::Segment;
    constexpr std::size_t kBytes = sizeof(Segment::bytes[0]);
    for (const Range& range : ranges_) {
      const auto at = reinterpret_cast<std::uintptr_t>(bytes);
      if (at < range.from || at >= range.to) continue;
      const std::size_t offset = at - range.from;
      if (offset < offsetof(Segment, bytes)) continue;
      const auto i =
          static_cast<int>((offset - offsetof(Segment, bytes)) / kBytes);
      auto* segment = reinterpret_cast<Segment*>(range.from);
      stream_memory_ = lane::shm::StreamOf(segment, segment->hot, i);
      const auto hot = reinterpret_cast<std::uintptr_t>(stream_memory_.hot);
      const auto more = reinterpret_cast<std::uintptr_t>(stream_memory_.more);
      ranges_.push_back({hot, hot + sizeof(lane::shm::HotMemory)});
      ranges_.push_back({more, more + sizeof(segment->slots[0])});
      break;
    }
    CHECK_THAT(stream_memory_.hot != nullptr);
    DIR* dir = ::opendir("/proc/self/fd");
    CHECK_THAT(dir != nullptr);
    while (const dirent* entry = ::readdir(dir)) {
      const int fd = std::atoi(entry->d_name);
      int type = 0;
      socklen_t length = sizeof type;
      if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 &&
          type == SOCK_SEQPACKET) {
        channels_.push_back(fd);
      }
      char path[64];
      char target[64] = {};
      std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
      if (::readlink(path, target, sizeof target - 1) > 0 &&
          std::strstr(target, "eventfd") != nullptr) {
        bells_.push_back(fd);
      }
    }
    ::closedir(dir);
  }
  std::uint64_t Value(std::uint64_t old) {
    switch (random_.Below(7)) {
      case 0:
        return random_.Next();
      case 1:
        return 0;
      case 2:
        return ~std::uint64_t{0};
      case 3:
        return old + random_.Below(64);
      case 4:
        return old - random_.Below(64);
      case 5:
        return old ^ std::uint64_t{1} << random_.Below(64);
      default:
        return random_.Below(300);
    }
  }
  void Scribble(std::uint64_t words) {
    for (; words > 0; --words) {
      const Range& range = ranges_[random_.Below(ranges_.size())];
      // The first streams of a segment are those in use.
      const std::size_t size =
          random_.Below(2) == 0
              ? range.to - range.from
              : std::min<std::size_t>(range.to - range.from,
                                      4 * sizeof(lane::shm::Segment::bytes[0]));
      auto* word = reinterpret_cast<std::atomic<std::uint64_t>*>(
          range.from + random_.Below(size / 8) * 8);
      word->store(Value(word->load(std::memory_order_relaxed)),
                  std::memory_order_relaxed);
    }
  }
  // Messages with the right number and anything in them.
  void ForgeSlot() {
    const std::uint64_t side = random_.Below(2);
    const std::uint64_t first = random_.Below(lane::shm::kSlots);
    for (std::uint64_t k = 0; k < 1 + random_.Below(20); ++k) {
      auto& slot = stream_memory_.slot(
          static_cast<std::uint32_t>((first + k) % lane::shm::kSlots),
          static_cast<int>(side));
      std::uint64_t number = slot.head.load(std::memory_order_relaxed) >> 32;
      if (random_.Below(2) == 0) number += lane::shm::kSlots;
      if (number == 0) number = (first + k) % lane::shm::kSlots + 1;
      const std::uint32_t imm =
          random_.Below(2) == 0
              ? static_cast<std::uint32_t>(random_.Next())
              : ring::Encode({static_cast<ring::Kind>(random_.Below(4)),
                              static_cast<std::uint8_t>(random_.Below(4)),
                              static_cast<std::uint32_t>(
                                  random_.Below(2 * lane::shm::kRecordMax))});
      if (random_.Below(2) == 0) slot.credit.store(Value(slot.credit.load()));
      slot.head.store(number << 32 | imm, std::memory_order_release);
    }
  }
  std::uint64_t Offset() {
    const std::uint64_t base =
        random_.Below(2) == 0 ? stream_.tx_off() : stream_.rx_off();
    switch (random_.Below(4)) {
      case 0:
        return base;
      case 1:
        return base + random_.Below(100'000);
      case 2:
        return base - random_.Below(100);
      default:
        return random_.Next();
    }
  }
  std::uint32_t Epoch() {
    return random_.Below(5) == 0 ? static_cast<std::uint32_t>(random_.Next())
                                 : seeking_->epoch;
  }
  void SendControl() {
    stream::Ctl ctl;
    ctl.kind = static_cast<stream::CtlKind>(random_.Below(6));
    ctl.flags = static_cast<std::uint8_t>(random_.Below(4));
    ctl.tail = static_cast<std::uint8_t>(random_.Below(80));
    ctl.epoch = Epoch();
    ctl.offset = Offset();
    stream::CtlBytes bytes = stream::Encode(ctl);
    if (random_.Below(6) == 0) bytes[random_.Below(bytes.size())] ^= 1;
    const std::size_t length =
        random_.Below(8) == 0 ? 1 + random_.Below(bytes.size()) : bytes.size();
    seeking_->lane->PostCtl(bytes.data(), length);
  }
  void SendFrame() {
    std::uint8_t bytes[64];
    std::size_t length;
    if (random_.Below(4) == 0) {
      length = 1 + random_.Below(sizeof bytes);
      for (std::uint8_t& byte : bytes) {
        byte = static_cast<std::uint8_t>(random_.Next());
      }
    } else if (random_.Below(4) == 0) {
      const stream::Nonce commit =
          stream::CommitOf(seeking_->peers, random_.Below(2) == 0);
      length = commit.size();
      std::memcpy(bytes, commit.data(), length);
    } else {
      stream::Frame frame;
      frame.kind = static_cast<stream::FrameKind>(1 + random_.Below(11));
      frame.flags = static_cast<std::uint8_t>(random_.Below(3));
      frame.epoch = Epoch();
      frame.offset = Offset();
      const stream::FrameBytes encoded = stream::Encode(frame);
      length = random_.Below(8) == 0 ? 1 + random_.Below(encoded.size())
                                     : encoded.size();
      std::memcpy(bytes, encoded.data(), length);
    }
    ::send(fd_, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  void SendRendezvous() {
    if (channels_.empty()) return;
    // The rarer, so that a link lasts a little.
    if (random_.Below(4) != 0) return;
    using rendezvous::Type;
    std::uint8_t bytes[rendezvous::kMaxPacket] = {};
    const std::uint64_t kind = 1 + random_.Below(10);
    constexpr std::size_t kSizes[] = {
        sizeof(rendezvous::Hello),      sizeof(rendezvous::LinkMsg),
        sizeof(rendezvous::LinkAck),    sizeof(rendezvous::BellMsg),
        sizeof(rendezvous::SegmentMsg), sizeof(rendezvous::OpenMsg),
        sizeof(rendezvous::OpenedMsg),  sizeof(rendezvous::RejectMsg),
        sizeof(rendezvous::ReadyMsg),   sizeof(rendezvous::ClosedMsg)};
    const std::size_t length = kSizes[kind - 1];
    const rendezvous::Header header{rendezvous::kMagic, rendezvous::kVersion,
                                    static_cast<Type>(kind),
                                    static_cast<std::uint16_t>(length)};
    for (std::size_t i = sizeof header; i < length; ++i) {
      bytes[i] =
          static_cast<std::uint8_t>(random_.Below(3) ? 0 : random_.Next());
    }
    std::memcpy(bytes, &header, sizeof header);
    if (length >= 16 && random_.Below(2) == 0) {
      const std::uint32_t index = static_cast<std::uint32_t>(seeking_->index) +
                                  static_cast<std::uint32_t>(random_.Below(2));
      const std::uint32_t epoch = Epoch();
      std::memcpy(bytes + 8, &index, 4);
      std::memcpy(bytes + 12, &epoch, 4);
    }
    int fds[3];
    for (int& each : fds) {
      each = bells_.empty() || random_.Below(2) == 0
                 ? fd_
                 : bells_[random_.Below(bells_.size())];
    }
    rendezvous::SendPacket(
        channels_[random_.Below(channels_.size())], bytes, length, fds,
        random_.Below(2) == 0 ? 0 : static_cast<int>(random_.Below(4)));
  }
  // All bells, the victim's among them: rung, filled up, and emptied before
  // their owner sees them.
  void Bells() {
    if (bells_.empty()) return;
    const int fd = bells_[random_.Below(bells_.size())];
    std::uint64_t value = random_.Below(2) == 0 ? 1 : 0xfffffffffffffffeu;
    pollfd one{fd, POLLIN, 0};
    if (random_.Below(4) == 0) {
      if (::poll(&one, 1, 0) == 1) (void)!::read(fd, &value, sizeof value);
    } else {
      one.events = POLLOUT;
      if (::poll(&one, 1, 0) == 1) (void)!::write(fd, &value, sizeof value);
    }
  }

 public:
  int promoted = 0;

 private:
  struct Range {
    std::uintptr_t from;
    std::uintptr_t to;
  };
  const int fd_;
  const stream::Role role_;
  under::Random random_;
  under::SocketAnchor anchor_;
  stream::Stream stream_;
  std::shared_ptr<under::Seeking> seeking_;
  bool up_ = false;
  std::vector<Range> ranges_;
  lane::shm::StreamMemory stream_memory_;
  std::vector<int> channels_;
  std::vector<int> bells_;
};

}  // namespace hostile

#endif  // RCSOCK_TESTS_POSIX_HOSTILE_ATTACKER_H_
