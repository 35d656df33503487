// A peer that gets a real lane by the rules and then writes nonsense: into all
// the memory it shares, as control messages, as frames on the TCP connection,
// as messages of the rendezvous.  Its victim, an echo server under the preload,
// must neither crash nor hang nor go on burning time, and goes on serving
// others.
//
// usage: hostile_peer SHIM [FIRST_SEED [ROUNDS [threads|epoll]]]

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/lane/shm/layout.h"
#include "lib/rendezvous/wire.h"
#include "lib/ring/imm.h"
#include "lib/stream/frames.h"
#include "lib/stream/stream.h"
#include "tests/posix/lane_peer.h"
#include "tests/posix/under.h"

namespace {

using namespace rcsock;  // NOLINT: a test of all rooms
using under::Fail;
using under::Random;
using under::Seeking;
using under::SocketAnchor;

constexpr int kHonestTrips = 20;

// --- The victim --------------------------------------------------------------

void Ended(int report) { CHECK_THAT(::write(report, "e", 1) == 1); }

void EchoBlocking(int fd, int report) {
  std::vector<char> bytes(65536);
  for (;;) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    ssize_t sent = 0;
    while (sent < n) {
      const ssize_t m = ::send(fd, bytes.data() + sent,
                               static_cast<std::size_t>(n - sent), 0);
      if (m < 0 && errno == EINTR) continue;
      if (m <= 0) break;
      sent += m;
    }
    if (sent < n) break;
  }
  ::close(fd);
  Ended(report);
}

// What the main process tells: 'c' and a port: connect to it; else: end.
int TakeOrder(int orders) {
  char what = 'x';
  int port = 0;
  if (::read(orders, &what, 1) != 1 || what != 'c') return -1;
  CHECK_THAT(::read(orders, &port, sizeof port) == sizeof port);
  return under::Connect(port);
}

void VictimThreads(int listener, int orders, int report) {
  for (;;) {
    pollfd both[2] = {{listener, POLLIN, 0}, {orders, POLLIN, 0}};
    ::poll(both, 2, -1);
    int fd = -1;
    if (both[0].revents != 0) {
      fd = ::accept(listener, nullptr, nullptr);
    } else if (both[1].revents != 0) {
      fd = TakeOrder(orders);
      if (fd < 0) return;
    }
    if (fd >= 0) std::thread(EchoBlocking, fd, report).detach();
  }
}

void VictimEpoll(int listener, int orders, int report) {
  const int set = ::epoll_create1(0);
  const auto add = [set](int fd) {
    epoll_event event{EPOLLIN, {.fd = fd}};
    CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
  };
  add(listener);
  add(orders);
  std::map<int, std::string> pending;
  std::vector<char> bytes(65536);
  for (;;) {
    epoll_event events[16];
    const int n = ::epoll_wait(set, events, 16, -1);
    for (int i = 0; i < n; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener || fd == orders) {
        const int got = fd == listener ? ::accept4(listener, nullptr, nullptr,
                                                   SOCK_NONBLOCK)
                                       : TakeOrder(orders);
        if (got < 0 && fd == orders) return;
        if (got < 0) continue;
        CHECK_THAT(::fcntl(got, F_SETFL, O_NONBLOCK) == 0);
        pending[got];
        add(got);
        continue;
      }
      std::string& left = pending[fd];
      bool over = false;
      if (left.empty()) {
        const ssize_t r = ::read(fd, bytes.data(), bytes.size());
        over = r == 0 || (r < 0 && errno != EAGAIN && errno != EINTR);
        if (r > 0) left.assign(bytes.data(), static_cast<std::size_t>(r));
      }
      if (!left.empty()) {
        const ssize_t w = ::write(fd, left.data(), left.size());
        over = w < 0 && errno != EAGAIN && errno != EINTR;
        if (w > 0) left.erase(0, static_cast<std::size_t>(w));
      }
      if (over) {
        pending.erase(fd);
        ::close(fd);
        Ended(report);
        continue;
      }
      epoll_event event{left.empty() ? EPOLLIN : EPOLLOUT, {.fd = fd}};
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
    }
  }
}

int Victim(const std::string& mode, int orders, int report) {
  int port;
  const int listener = under::Listen(&port);
  CHECK_THAT(::write(report, &port, sizeof port) == sizeof port);
  if (mode == "threads") {
    VictimThreads(listener, orders, report);
  } else {
    VictimEpoll(listener, orders, report);
  }
  return 0;
}

// --- Somebody honest

void Trips(int fd, std::uint64_t seed, std::uint64_t* offset) {
  for (int i = 0; i < kHonestTrips; ++i) {
    std::uint8_t bytes[3000];
    const std::size_t length = i % 4 == 0 ? sizeof bytes : 10;
    for (std::size_t k = 0; k < length; ++k) {
      bytes[k] = under::ByteAt(seed, *offset + k);
    }
    CHECK_THAT(::send(fd, bytes, length, 0) == static_cast<ssize_t>(length));
    CHECK_THAT(::recv(fd, bytes, length, MSG_WAITALL) ==
               static_cast<ssize_t>(length));
    for (std::size_t k = 0; k < length; ++k) {
      CHECK_THAT(bytes[k] == under::ByteAt(seed, *offset + k));
    }
    *offset += length;
  }
}

int Honest(int port, int orders, int report) {
  const int fd = under::Connect(port);
  std::uint64_t offset = 0;
  char order;
  for (std::uint64_t n = 1; ::read(orders, &order, 1) == 1 && order == 'g';
       ++n) {
    Trips(fd, 0, &offset);
    const int other = under::Connect(port);
    std::uint64_t begin = 0;
    Trips(other, n, &begin);
    ::close(other);
    CHECK_THAT(::write(report, "k", 1) == 1);
  }
  return 0;
}

// --- The attacker ------------------------------------------------------------

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
      seeking_ = std::make_shared<Seeking>(fd_, role_);
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
  Random random_;
  SocketAnchor anchor_;
  stream::Stream stream_;
  std::shared_ptr<Seeking> seeking_;
  bool up_ = false;
  std::vector<Range> ranges_;
  lane::shm::StreamMemory stream_memory_;
  std::vector<int> channels_;
  std::vector<int> bells_;
};

// --- The rounds

struct Child {
  pid_t pid = -1;
  int orders = -1;  // we write
  int report = -1;  // we read
};

Child StartUnder(const std::string& shim, std::vector<std::string> args,
                 const std::vector<std::string>& settings) {
  int orders[2];
  int report[2];
  CHECK_THAT(::pipe(orders) == 0 && ::pipe(report) == 0);
  args.push_back(std::to_string(orders[0]));
  args.push_back(std::to_string(report[1]));
  for (const int fd : {orders[1], report[0]}) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  Child child;
  child.pid = under::Start(shim, args, settings);
  ::close(orders[0]);
  ::close(report[1]);
  child.orders = orders[1];
  child.report = report[0];
  return child;
}

void Await(int fd, char what, const char* who) {
  char got;
  if (!under::Readable(fd, 10'000)) {
    if (std::getenv("UNDER_STAY") != nullptr) {
      std::fprintf(stderr, "%s does not answer\n", who);
      ::pause();
    }
    Fail("%s does not answer", who);
  }
  if (::read(fd, &got, 1) != 1 || got != what) Fail("%s has ended", who);
}

long Ticks(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  std::size_t at = line.rfind(')');
  CHECK_THAT(at != std::string::npos);
  long fields[13];
  const char* text = line.c_str() + at + 3;
  for (long& field : fields) {
    text = std::strchr(text, ' ');
    CHECK_THAT(text != nullptr);
    field = std::atol(++text);
  }
  return fields[10] + fields[11];  // utime, stime
}

// A tenth of a second in which it hardly runs must come.
void ExpectQuiet(pid_t pid) {
  long ticks = 0;
  for (int i = 0; i < 50; ++i) {
    const long before = Ticks(pid);
    ::poll(nullptr, 0, 100);  // what is measured, not waited for
    ticks = Ticks(pid) - before;
    if (ticks <= 2) return;
  }
  if (std::getenv("UNDER_STAY") != nullptr) {
    std::fprintf(stderr, "victim %d busy\n", pid);
    ::pause();
  }
  Fail("the victim is busy: %ld ticks", ticks);
}

struct Counts {
  int lanes = 0;
  int promoted = 0;
};

void Round(const Child& victim, int port, const Child& honest,
           std::uint64_t seed, Counts* counts) {
  Random random{seed * 31 + 7};
  const bool we_connect = random.Below(2) == 0;
  int up[2];
  int down[2];
  CHECK_THAT(::pipe2(up, O_CLOEXEC) == 0 && ::pipe2(down, O_CLOEXEC) == 0);
  int listener = -1;
  if (!we_connect) {
    int own_port;
    listener = under::Listen(&own_port);
    char order[1 + sizeof own_port] = {'c'};
    std::memcpy(order + 1, &own_port, sizeof own_port);
    CHECK_THAT(::write(victim.orders, order, sizeof order) == sizeof order);
  }
  std::fflush(nullptr);
  const pid_t attacker = ::fork();
  if (attacker == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(down[1]);
    const int fd = we_connect ? under::Connect(port) : under::Accept(listener);
    auto* attack = new Attacker(
        fd, we_connect ? stream::Role::kConnector : stream::Role::kAcceptor,
        seed);
    const bool lane = attack->GetLane();
    if (lane) attack->Attack();
    const bool leaves = random.Below(3) == 0;
    if (leaves) ::close(fd);
    const char word = !lane ? 'n' : attack->promoted > 0 ? 'p' : 'l';
    CHECK_THAT(::write(up[1], &word, 1) == 1);
    char byte;
    (void)!::read(down[0], &byte, 1);
    ::_exit(0);
  }
  ::close(up[1]);
  ::close(down[0]);
  if (listener >= 0) ::close(listener);
  // While the attack goes on, and after it.
  CHECK_THAT(::write(honest.orders, "g", 1) == 1);
  Await(honest.report, 'k', "the honest one");
  char word = 0;
  if (!under::Readable(up[0], 20'000) || ::read(up[0], &word, 1) != 1) {
    int status = 0;
    ::waitpid(attacker, &status, WNOHANG);
    Fail("the attacker: status %x", static_cast<unsigned>(status));
  }
  counts->lanes += word != 'n';
  counts->promoted += word == 'p';
  CHECK_THAT(::write(honest.orders, "g", 1) == 1);
  Await(honest.report, 'k', "the honest one, afterwards");
  if (seed % 4 == 0) ExpectQuiet(victim.pid);
  ::close(down[1]);
  int status = 0;
  CHECK_THAT(::waitpid(attacker, &status, 0) == attacker);
  if (status != 0) {
    Fail("the attacker: status %x", static_cast<unsigned>(status));
  }
  // The attacked connection and the two short ones of the honest.
  for (int i = 0; i < 3; ++i) Await(victim.report, 'e', "the victim");
  ::close(up[0]);
}

void Run(const std::string& shim, const std::string& mode, std::uint64_t first,
         int rounds) {
  const std::vector<std::string> settings = {"RCSOCK_PROMOTE_OPS=1"};
  const Child victim = StartUnder(shim, {"victim", mode}, settings);
  int port;
  CHECK_THAT(::read(victim.report, &port, sizeof port) == sizeof port);
  const Child honest =
      StartUnder(shim, {"honest", std::to_string(port)}, settings);
  CHECK_THAT(::write(honest.orders, "g", 1) == 1);
  Await(honest.report, 'k', "the honest one, before");
  Await(victim.report, 'e', "the victim, before");
  Counts counts;
  for (int i = 0; i < rounds; ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    if (std::getenv("UNDER_VERBOSE") != nullptr) {
      std::fprintf(stderr, "%s %llu\n", mode.c_str(),
                   static_cast<unsigned long long>(seed));
    }
    Round(victim, port, honest, seed, &counts);
  }
  ExpectQuiet(victim.pid);
  CHECK_THAT(::write(honest.orders, "x", 1) == 1);
  under::Finish(honest.pid, 10, "the honest one");
  CHECK_THAT(::write(victim.orders, "x", 1) == 1);
  under::Finish(victim.pid, 10, "the victim");
  const under::Stats own = under::ReadStats(honest.pid);
  const under::Stats stats = under::ReadStats(victim.pid);
  std::printf("%s: %d rounds, %d lanes, %d promoted\nhonest: %svictim: %s",
              mode.c_str(), rounds, counts.lanes, counts.promoted,
              own.text.c_str(), stats.text.c_str());
  std::fflush(stdout);
  if (own.Get("", "promoted") < 1) Fail("the honest one got no lane");
  if (counts.lanes < rounds * 3 / 4) Fail("hardly a lane to attack");
  if (rounds > 20 && counts.promoted < rounds / 5) {
    Fail("hardly a stream to attack");
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "victim" && argc == 5) {
    return Victim(argv[2], std::atoi(argv[3]), std::atoi(argv[4]));
  }
  if (what == "honest" && argc == 5) {
    return Honest(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
  }
  if (what.empty()) return 2;
  ::alarm(argc > 3 ? 600 : 60);
  const std::uint64_t first =
      argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 15;
  for (const char* mode : {"threads", "epoll"}) {
    if (argc > 4 && std::strcmp(argv[4], mode) != 0) continue;
    Run(what, mode, first, rounds);
  }
  return 0;
}
