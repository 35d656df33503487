#include "lib/api/rsocket/channel.h"

#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "lib/api/rsocket/channels.h"
#include "lib/api/rsocket/record.h"
#include "lib/base/backoff.h"
#include "lib/include/rcsock/rcsock.h"

namespace rcsock::rsocket {

namespace {

constexpr unsigned char kMagic[8] = {0xf5, 'r', 'c', 's', 'r', 'i', 'o', 2};
constexpr std::size_t kMostMaps = 4096;

constexpr std::size_t kMostOwed = 4 << 20;

// The longest wait for the rest of a hello: it is one segment, or a few in a
// row.
constexpr std::int64_t kMostPieceMs = 1000;
// The longest wait for a direct write of the peer's to end.
constexpr std::int64_t kMostBusyMs = 5000;

std::int64_t NowMs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

std::uint64_t PidNamespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

constexpr int kMostPieces = 64;

// Takes the first `length` bytes of a vector, or what its first 64 pieces that
// are not empty have.
int Cut(const iovec* from, int count, std::size_t length, iovec* to) {
  int n = 0;
  for (int i = 0; i < count && length > 0 && n < kMostPieces; ++i) {
    const std::size_t piece = std::min(from[i].iov_len, length);
    if (piece == 0) continue;
    to[n++] = {from[i].iov_base, piece};
    length -= piece;
  }
  return n;
}

}  // namespace

struct Channel::Hello {
  unsigned char magic[8];
  std::uint32_t iomap_size;
  std::uint32_t pid;
  std::uint64_t pid_namespace;
  std::uint64_t cookie_at;
  std::uint64_t busy_at;
  unsigned char cookie[16];
};

// --- Handshake

void Channel::Accepted(const Channel* listener) {
  if (listener != nullptr) {
    for (int i = 0; i < 4; ++i) options[i] = listener->options[i].load();
  }
  phase_ = Phase::kMaybe;
}

void Channel::SendHello() {
  if (::getrandom(cookie_, sizeof cookie_, 0) !=
      static_cast<ssize_t>(sizeof cookie_)) {
    std::memset(cookie_, 0, sizeof cookie_);
  }
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  hello.iomap_size = static_cast<std::uint32_t>(iomap_size());
  hello.pid = static_cast<std::uint32_t>(::getpid());
  hello.pid_namespace = PidNamespace();
  hello.cookie_at = reinterpret_cast<std::uintptr_t>(cookie_);
  hello.busy_at = reinterpret_cast<std::uintptr_t>(&busy_);
  std::memcpy(hello.cookie, cookie_, sizeof cookie_);
  // The hello is the first bytes of a connection, so its buffers are empty.
  if (rcs_send(fd_, &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL) !=
      static_cast<ssize_t>(sizeof hello)) {
    phase_ = Phase::kPlain;
  }
}

void Channel::TakeHello(const Hello& hello) {
  peer_iomap_ =
      static_cast<int>(std::min<std::uint32_t>(hello.iomap_size, kMostMaps));
  peer_pid_ = hello.pid_namespace != 0 && hello.pid_namespace == PidNamespace()
                  ? static_cast<int>(hello.pid)
                  : 0;
  // A peer that claims to be this process must be this process. Otherwise it
  // would have us write to, and wait for, memory of our own.
  if (peer_pid_ == ::getpid() && !Channels::IsOtherEnd(fd_, hello.cookie_at)) {
    peer_pid_ = 0;
  }
  peer_cookie_at_ = hello.cookie_at;
  peer_busy_at_ = hello.busy_at;
  std::memcpy(peer_cookie_, hello.cookie, sizeof peer_cookie_);
}

void Channel::Step() {
  const base::MutexGuard hold(rx_);
  StepLatched();
}

void Channel::SpeakFirst() {
  const base::MutexGuard hold(rx_);
  StepLatched();
  // From here on a hello gets no answer: the peer takes our bytes for the
  // answer.
  if (phase() == Phase::kMaybe) phase_ = Phase::kSpoken;
}

void Channel::StepLatched() {
  if (phase() == Phase::kConnecting) {
    pollfd one{fd_, POLLOUT, 0};
    if (rcs_poll(&one, 1, 0) <= 0) return;
    sockaddr_storage peer;
    socklen_t size = sizeof peer;
    if (rcs_getpeername(fd_, reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
      phase_ = Phase::kPlain;  // the application asks for the error
      return;
    }
    phase_ = Phase::kHello;
    SendHello();
  }
  const Phase now = phase();
  if (now != Phase::kHello && now != Phase::kMaybe && now != Phase::kSpoken) {
    return;
  }
  // Reads only once bytes are known to be there. Another read would take the
  // error of the connection, which the application must see.
  pollfd one{fd_, POLLIN, 0};
  if (rcs_poll(&one, 1, 0) == 0) return;
  int there = 0;
  if (rcs_ioctl(fd_, FIONREAD, &there) != 0 || there == 0) {
    phase_ = Phase::kPlain;
    return;
  }
  Hello hello{};
  const ssize_t n =
      rcs_recv(fd_, &hello, sizeof hello, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0 || std::memcmp(hello.magic, kMagic,
                            std::min<std::size_t>(static_cast<std::size_t>(n),
                                                  sizeof kMagic)) != 0) {
    phase_ = Phase::kPlain;
    return;
  }
  if (n < static_cast<ssize_t>(sizeof hello)) {
    // The hello comes in pieces. Or the peer sends no hello, but bytes that
    // begin like a hello, and waits.
    const std::int64_t ms = NowMs();
    if (begun_ms_ == 0) begun_ms_ = ms;
    if (ms - begun_ms_ < kMostPieceMs) return;
    begun_ms_ = 0;
    phase_ = Phase::kPlain;
    return;
  }
  begun_ms_ = 0;
  if (rcs_recv(fd_, &hello, sizeof hello, MSG_DONTWAIT) != n) {
    phase_ = Phase::kPlain;
    return;
  }
  if (now == Phase::kSpoken) {
    phase_ = Phase::kPlain;
    return;
  }
  TakeHello(hello);
  if (now == Phase::kMaybe) SendHello();
  if (phase() == now) phase_ = Phase::kFramed;
}

// --- Receiving

// The peer has broken the rules, so the bytes that follow have no meaning.
void Channel::BreakLatched() {
  rcs_shutdown(fd_, SHUT_RDWR);
  data_left_ = write_left_ = 0;
  end_ = true;
}

bool Channel::TakeRecord() {
  static_assert(sizeof(Record) == sizeof head_);
  Record record;
  std::memcpy(&record, head_, sizeof record);
  head_have_ = 0;
  switch (record.type) {
    case kData:
      if (record.length == 0 || record.length > kMostPayload) return false;
      data_left_ = record.length;
      return true;
    case kMap:
      return TakeMap(record);
    case kUnmap:
      std::erase_if(remotes_,
                    [&](const Remote& r) { return r.offset == record.offset; });
      return record.length == 0;
    case kWrite:
      return TakeWrite(record);
    case kAsk:
      // All that came before it is in its place by now.
      record.type = kTaken;
      return Queue(record) <= kMostOwed && record.length == 0;
    case kTaken:
      writes_taken_ = std::min(record.offset, writes_asked_);
      return record.length == 0;
    case kWantKey:
      return GiveKey(record.offset) <= kMostOwed && record.length == 0;
    case kKey:
      return TakeKey(record);
    case kCounter:
      if (record.extent != sizeof *counter_) return false;
      peer_counter_ = ExposureOf(record);
      return record.length == 0;
    default:
      return false;
  }
}

bool Channel::TakeMap(const Record& record) {
  if (record.length != 0 || record.extent == 0 ||
      record.offset + record.extent < record.offset ||
      remotes_.size() >= static_cast<std::size_t>(iomap_size())) {
    return false;
  }
  remotes_.push_back(
      {record.offset, record.extent, record.address, record.valid, {}, 0});
  return true;
}

bool Channel::TakeWrite(const Record& record) {
  if (record.length == 0 || record.length > kMostPayload) return false;
  write_to_ = nullptr;
  write_left_ = record.length;
  // A device has placed it already, and the program may have changed it since.
  // The lane has been left, or this record would not have come: nothing counts
  // any more.
  if (record.extent != 0 && counter_ != nullptr &&
      record.extent <= std::atomic_ref(*counter_).load()) {
    return true;
  }
  for (const Local& local : locals_) {
    if (record.offset >= local.offset &&
        record.offset - local.offset <= local.length &&
        record.length <= local.length - (record.offset - local.offset)) {
      write_to_ = static_cast<unsigned char*>(local.buffer) +
                  (record.offset - local.offset);
      return true;
    }
  }
  return true;  // unmapped while the record was under way
}

bool Channel::TakeKey(const Record& record) {
  for (Remote& remote : remotes_) {
    if (remote.offset != record.offset) continue;
    if (remote.length != record.extent) return false;
    remote.exposed = ExposureOf(record);
  }
  return record.length == 0;
}

rcs_exposure Channel::ExposureOf(const Record& record) {
  return {record.address, record.extent,
          static_cast<std::uint32_t>(record.valid >> 32),
          static_cast<std::uint32_t>(record.valid)};
}

// Puts the record behind what is owed already.
std::size_t Channel::Queue(const Record& record) {
  const base::MutexGuard hold(tx_);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&record);
  FlushLatched();
  owed_.insert(owed_.end(), bytes, bytes + sizeof record);
  FlushLatched();
  return owed_.size();
}

void Channel::ProgressLatched() {
  while (!end_ && error_ == 0 && data_left_ == 0) {
    ssize_t n;
    if (write_left_ > 0) {
      unsigned char nowhere[4096];
      n = write_to_ != nullptr
              ? rcs_recv(fd_, write_to_, write_left_, MSG_DONTWAIT)
              : rcs_recv(fd_, nowhere,
                         std::min<std::size_t>(write_left_, sizeof nowhere),
                         MSG_DONTWAIT);
      if (n > 0) {
        write_left_ -= static_cast<std::size_t>(n);
        if (write_to_ != nullptr) write_to_ += n;
      }
    } else {
      n = rcs_recv(fd_, head_ + head_have_, sizeof(Record) - head_have_,
                   MSG_DONTWAIT);
      if (n > 0) {
        head_have_ += static_cast<std::size_t>(n);
        if (head_have_ == sizeof(Record) && !TakeRecord()) BreakLatched();
      }
    }
    if (n == 0) end_ = true;
    if (n < 0) {
      // The stream says it once, and the application has not heard it.
      if (errno != EAGAIN && errno != EINTR) error_ = errno;
      return;
    }
  }
}

void Channel::Progress() {
  if (!framed()) return;
  {
    const base::MutexGuard hold(rx_);
    ProgressLatched();
  }
  const base::MutexGuard hold(tx_);
  FlushLatched();
}

bool Channel::Readable() {
  const base::MutexGuard hold(rx_);
  if (end_ || error_ != 0) return true;
  if (data_left_ == 0) return false;
  pollfd one{fd_, POLLIN, 0};
  return rcs_poll(&one, 1, 0) > 0;
}

ssize_t Channel::Recv(const iovec* iov, int count, int flags) {
  const base::MutexGuard hold(rx_);
  ProgressLatched();
  if (end_) return 0;
  if (data_left_ == 0) {
    errno = error_ != 0 ? std::exchange(error_, 0) : EAGAIN;
    return -1;
  }
  iovec pieces[kMostPieces];
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen =
      static_cast<std::size_t>(Cut(iov, count, data_left_, pieces));
  if (message.msg_iovlen == 0) return 0;
  const ssize_t n =
      rcs_recvmsg(fd_, &message, (flags & ~MSG_WAITALL) | MSG_DONTWAIT);
  if (n == 0) end_ = true;
  if (n > 0 && (flags & MSG_PEEK) == 0) {
    data_left_ -= static_cast<std::uint64_t>(n);
  }
  return n;
}

// --- Sending

bool Channel::FlushLatched() {
  while (owed_at_ < owed_.size()) {
    const ssize_t n =
        rcs_send(fd_, owed_.data() + owed_at_, owed_.size() - owed_at_,
                 MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      // Any other error is final: no caller need try again.
      owes_ = errno == EAGAIN;
      return false;
    }
    owed_at_ += static_cast<std::size_t>(n);
  }
  owed_.clear();
  owed_at_ = 0;
  owes_ = false;
  return true;
}

bool Channel::SendOwed() {
  const base::MutexGuard hold(tx_);
  return !FlushLatched() && errno == EAGAIN;
}

ssize_t Channel::SendRecord(const Record& record, const iovec* iov, int count,
                            std::size_t length) {
  if (!FlushLatched()) return -1;
  // Room first: a record that has been begun must be ended.
  owed_.reserve(sizeof record + length);
  iovec pieces[kMostPieces + 1];
  pieces[0] = {const_cast<Record*>(&record), sizeof record};
  const int n_pieces = 1 + Cut(iov, count, length, pieces + 1);
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = static_cast<std::size_t>(n_pieces);
  const ssize_t n = rcs_sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0) return -1;
  std::size_t done = static_cast<std::size_t>(n);
  for (int i = 0; i < n_pieces; ++i) {
    const std::size_t taken = std::min(done, pieces[i].iov_len);
    done -= taken;
    const auto* rest = static_cast<unsigned char*>(pieces[i].iov_base);
    owed_.insert(owed_.end(), rest + taken, rest + pieces[i].iov_len);
  }
  if (!owed_.empty()) owes_ = true;
  return static_cast<ssize_t>(length);
}

ssize_t Channel::Send(const iovec* iov, int count) {
  std::size_t total = 0;
  int pieces = 0;
  for (int i = 0; i < count && pieces < kMostPieces; ++i) {
    if (iov[i].iov_len > 0) ++pieces;
    total =
        std::min(kMostPayload, total + std::min(iov[i].iov_len, kMostPayload));
  }
  if (total == 0) return 0;
  Record record{};
  record.type = kData;
  record.length = static_cast<std::uint32_t>(total);
  const base::MutexGuard hold(tx_);
  SettlePlacedLatched();
  return SendRecord(record, iov, count, total);
}

// --- Mappings

int Channel::Map(void* buffer, std::size_t length, off_t* offset) {
  const base::MutexGuard hold(rx_);
  if (locals_.size() >= static_cast<std::size_t>(peer_iomap_)) return ENOBUFS;
  const auto at =
      *offset == -1
          ? static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(buffer))
          : static_cast<std::uint64_t>(*offset);
  for (const Local& local : locals_) {
    if (at < local.offset + local.length && local.offset < at + length) {
      return EINVAL;
    }
  }
  locals_.push_back({buffer,
                     length,
                     at,
                     std::make_unique<std::atomic<std::uint32_t>>(1),
                     {}});
  Record record{};
  record.type = kMap;
  record.offset = at;
  record.extent = length;
  record.address = reinterpret_cast<std::uintptr_t>(buffer);
  // A child's memory is not where the peer would write: the peer sends records.
  record.valid =
      child_ ? 0 : reinterpret_cast<std::uintptr_t>(locals_.back().valid.get());
  Queue(record);
  mapped_ = true;
  *offset = static_cast<off_t>(at);
  return 0;
}

bool Channel::Revoke(Local& local) {
  // The peer sets its busy word, then looks at `valid`. Here `valid` changes
  // first, and the busy word is looked at after. Both are sequentially
  // consistent, and the system call orders as well. So one end sees the other's
  // word: no write goes on after this returns.
  local.valid->store(0, std::memory_order_seq_cst);
  if (peer_pid_ > 0 && !child_) {
    std::uint32_t busy = 0;
    const std::int64_t end = NowMs() + kMostBusyMs;
    for (base::Backoff backoff;
         ReadPeer(peer_pid_, peer_busy_at_, &busy, sizeof busy) && busy != 0;
         backoff.Wait()) {
      unsigned char cookie[sizeof peer_cookie_];
      if (!ReadPeer(peer_pid_, peer_cookie_at_, cookie, sizeof cookie) ||
          std::memcmp(cookie, peer_cookie_, sizeof cookie) != 0) {
        break;  // another process by now
      }
      // The peer may have been stopped in the write.
      if (NowMs() >= end) return false;
    }
  }
  return true;
}

int Channel::Unmap(void* buffer, std::size_t length) {
  const base::MutexGuard hold(rx_);
  const auto found =
      std::find_if(locals_.begin(), locals_.end(), [&](const Local& local) {
        return local.buffer == buffer && local.length == length;
      });
  if (found == locals_.end()) return EINVAL;
  if (!Revoke(*found)) return EBUSY;
  Hide(*found);
  Record record{};
  record.type = kUnmap;
  record.offset = found->offset;
  if (write_left_ > 0 && write_to_ >= buffer &&
      write_to_ < static_cast<unsigned char*>(buffer) + length) {
    write_to_ = nullptr;
  }
  // A peer that has not heard of the end yet still looks at the word.
  (void)found->valid.release();
  locals_.erase(found);
  Queue(record);
  return 0;
}

bool Channel::TryHold() {
  if (!rx_.TryLockForFork()) return false;
  if (tx_.TryLockForFork()) return true;
  rx_.UnlockAfterFork();
  return false;
}

void Channel::LetGo() {
  tx_.UnlockAfterFork();
  rx_.UnlockAfterFork();
}

// The parent sends what waits to be sent. What has been given to a device is
// that device's business.
void Channel::InChild() {
  rx_.AssertHeld();
  tx_.AssertHeld();
  child_ = true;
  owed_.clear();
  owed_at_ = 0;
  owes_ = placing_ = started_ = false;
  direct_ = Direct::kNo;
  for (Local& local : locals_) local.exposed = {};
  counter_exposed_ = {};
  busy_ = 0;
}

void Channel::Close() {
  const base::MutexGuard hold(rx_);
  for (Local& local : locals_) {
    Revoke(local);
    Hide(local);
    (void)local.valid.release();
  }
  locals_.clear();
  DropCounter();
  const base::MutexGuard send(tx_);
  FlushLatched();
  placed_.Release();
  placing_ = false;
  // A peer that looks here must not take what is left for this channel.
  std::memset(cookie_, 0, sizeof cookie_);
  phase_ = Phase::kPlain;
  mapped_ = false;
  fd_ = -1;
}

}  // namespace rcsock::rsocket
