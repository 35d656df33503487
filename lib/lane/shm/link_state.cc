#include "lib/lane/shm/link_state.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <new>
#include <utility>

#include "lib/base/config.h"
#include "lib/base/critical.h"
#include "lib/base/spin_budget.h"
#include "lib/lane/shm/bells.h"
#include "lib/lane/shm/memory.h"

namespace rcsock::lane::shm {
namespace {

// A write to anything but an eventfd might block, or mean something.
bool IsEventFd(int fd) {
  // A memfd, which would grow with each kick.
  if (::syscall(SYS_fcntl, fd, F_GET_SEALS) >= 0) return false;
  char path[32] = "/proc/thread-self/fd/";
  constexpr std::size_t kPrefix = sizeof("/proc/thread-self/fd/") - 1;
  *std::to_chars(path + kPrefix, path + sizeof(path) - 1, fd).ptr = '\0';
  char target[64];
  const long length = ::syscall(SYS_readlink, path, target, sizeof(target));
  // Without /proc nothing shows what it is. The peer is of this process's uid
  // anyway.
  if (length < 0) return errno == ENOENT || errno == EACCES;
  constexpr char kName[] = "anon_inode:[eventfd]";
  return length == sizeof(kName) - 1 &&
         std::memcmp(target, kName, sizeof(kName) - 1) == 0;
}

// The peers' eventfds that this process holds, over all links.
constinit std::atomic<int> kept_bells{0};

// An eighth of the descriptors that the program may have. Many peers with many
// event loops would take them all.
int MostKept() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur / 8, INT_MAX));
}

}  // namespace

void BumpAndWake(std::atomic<std::uint32_t>& word, bool shared) {
  // The bump comes first. A thread with an old token that is not asleep yet
  // does not fall asleep, since the kernel compares under its lock. A thread
  // that is asleep is woken.
  word.fetch_add(1, std::memory_order_seq_cst);
  base::FutexWake(&word, INT_MAX, shared);
}

LinkState::LinkState(int side, base::UniqueFd page_fd, LinkPage* page)
    : side_(side), page_fd_(std::move(page_fd)), page_(page) {
  for (auto& fd : peer_fds_) fd.store(-1, std::memory_order_relaxed);
}

LinkState::~LinkState() {
  Abandon();
  for (auto& entry : table_) delete entry.load(std::memory_order_relaxed);
}

// Frees nothing: in a child of _Fork the heap may be locked for ever.
void LinkState::Abandon() {
  ForgetSocket();
  segments_.store(0, std::memory_order_relaxed);
  for (auto& entry : table_) {
    SegmentState* segment = entry.load(std::memory_order_relaxed);
    if (segment == nullptr) continue;
    UnmapMemory(std::exchange(segment->memory, nullptr), sizeof(Segment));
  }
  for (auto& fd : peer_fds_) {
    const int number = fd.exchange(-1, std::memory_order_relaxed);
    if (number < 0) continue;
    base::CloseRaw(number);
    kept_bells.fetch_sub(1, std::memory_order_relaxed);
  }
  UnmapMemory(peer_bells_.exchange(nullptr, std::memory_order_relaxed),
              sizeof(BellPage));
  UnmapMemory(std::exchange(page_, nullptr), sizeof(LinkPage));
  page_fd_.reset();
}

bool LinkState::AddSegment(Segment* memory) {
  base::LatchGuard hold(latch_);
  const int n = segments_.load(std::memory_order_relaxed);
  if (n == kMaxSegments) return false;
  auto* state = new (std::nothrow) SegmentState{memory};
  if (state == nullptr) return false;
  const int leader = n - n % kHotGroup;
  state->hot = HotOf(
      leader == n ? memory
                  : table_[leader].load(std::memory_order_relaxed)->memory,
      n);
  table_[n].store(state, std::memory_order_release);
  segments_.store(n + 1, std::memory_order_release);
  return true;
}

StreamMemory LinkState::stream(int index) const {
  SegmentState* state = segment(index);
  return state == nullptr
             ? StreamMemory{}
             : StreamOf(state->memory, state->hot, index % kSegmentStreams);
}

bool LinkState::Open(int index) {
  SegmentState* state = segment(index);
  if (state == nullptr) return false;
  state->used.fetch_or(Bit(index), std::memory_order_relaxed);
  return (state->open.fetch_or(Bit(index), std::memory_order_acq_rel) &
          Bit(index)) == 0;
}

void LinkState::Close(int index) {
  segment(index)->open.fetch_and(~Bit(index), std::memory_order_acq_rel);
}

bool LinkState::IsOpen(int index) const {
  const SegmentState* state = segment(index);
  return state != nullptr &&
         (state->open.load(std::memory_order_acquire) & Bit(index)) != 0;
}

bool LinkState::MarkUsed(int index) {
  SegmentState* state = segment(index);
  return state != nullptr &&
         (state->used.fetch_or(Bit(index), std::memory_order_acq_rel) &
          Bit(index)) != 0;
}

void LinkState::SetCookie(int index, void* cookie) {
  if (SegmentState* state = segment(index)) {
    state->near[index % kSegmentStreams].cookie.store(
        cookie, std::memory_order_release);
  }
}

void LinkState::SetLane(int index, const void* lane) {
  segment(index)->near[index % kSegmentStreams].lane.store(
      lane, std::memory_order_relaxed);
}

void LinkState::SetBeside(int index, int which, const void* line) {
  if (SegmentState* state = segment(index)) {
    state->near[index % kSegmentStreams].beside[which].store(
        line, std::memory_order_relaxed);
  }
}

void LinkState::SetBell(int index, int bell) {
  segment(index)->bells[index % kSegmentStreams].store(
      static_cast<std::uint8_t>(bell), std::memory_order_relaxed);
}

bool LinkState::SetPeerBellPage(base::UniqueFd fd, std::uint32_t most_ring) {
  if (!CheckMemory(fd.get(), sizeof(BellPage))) return false;
  void* page = MapMemory(fd.get(), sizeof(BellPage), false);
  if (page == nullptr) return false;
  const BellPage* none = nullptr;
  if (!peer_bells_.compare_exchange_strong(none, static_cast<BellPage*>(page),
                                           std::memory_order_acq_rel)) {
    // Senders may be looking at the first page.
    UnmapMemory(page, sizeof(BellPage));
    return false;
  }
  // Read once. A peer that says one thing here and another later disagrees with
  // this process about where its bytes lie, and harms its own streams.
  const std::uint32_t theirs =
      static_cast<BellPage*>(page)->most_ring.load(std::memory_order_relaxed);
  ring_bytes_.store(
      RingFor(theirs == 0 ? most_ring : std::min(theirs, most_ring)),
      std::memory_order_relaxed);
  return true;
}

void LinkState::SetPeerBell(int k, base::UniqueFd fd) {
  if (k < 0 || k >= kBells || !fd.ok() || !IsEventFd(fd.get())) return;
  // Bell 0 is always kept: by way of the peer's conductor it reaches the
  // others.
  if (k != 0 && kept_bells.load(std::memory_order_relaxed) >= MostKept()) {
    return;
  }
  base::UniqueFd high(base::RelocateHigh(fd.release()));
  int none = -1;
  // The first eventfd stays: senders may be writing to it.
  if (peer_fds_[k].compare_exchange_strong(none, high.get(),
                                           std::memory_order_acq_rel)) {
    high.release();
    kept_bells.fetch_add(1, std::memory_order_relaxed);
  }
}

void LinkState::SetSocket(int fd, std::span<const std::byte> rung,
                          std::span<const std::byte> memory) {
  const base::Critical critical;
  base::LatchGuard hold(socket_latch_);
  message_ = rung;
  memory_message_ = memory;
  socket_.store(fd, std::memory_order_relaxed);
}

bool LinkState::SendMemory(std::uint64_t id, int fd) {
  std::byte bytes[64];
  const base::Critical critical;
  const base::LatchGuard hold(socket_latch_);
  const int socket = socket_.load(std::memory_order_relaxed);
  const std::size_t size = memory_message_.size();
  if (socket < 0 || size < sizeof id || size > sizeof bytes) return false;
  std::memcpy(bytes, memory_message_.data(), size);
  std::memcpy(bytes + size - sizeof id, &id, sizeof id);
  iovec iov{bytes, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return ::syscall(SYS_sendmsg, socket, &message,
                   MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

void LinkState::Mark(int side, Ready what, int bell, int index) {
  auto& word = page_->ready[side][bell].words[what][index / kSegmentStreams];
  const int segment = index / kSegmentStreams;
  auto& summary = page_->summary[side][bell].words[what][segment / 64];
  const std::uint64_t bit = Bit(index);
  const std::uint64_t summary_bit = std::uint64_t{1} << (segment % 64);
  // The draining thread has written to the summary. This thread fetches its
  // line once, for writing and beside the word, and not twice after the word.
  FetchToWrite(&summary);
  // The operation is also a full fence, whether the bit is new or not. The
  // fence lies between this end's message and the peer's Drain, which clears
  // the bit and then looks at the ring.
  word.fetch_or(bit, std::memory_order_seq_cst);
  // Drain clears the summary before it takes the word. If the summary is set
  // here, that clearing is yet to come, and Drain takes the word with this bit
  // after it. Each message looks: the thread that set the word's first bit may
  // have been stopped before it came to this line.
  if ((summary.load(std::memory_order_seq_cst) & summary_bit) == 0) {
    summary.fetch_or(summary_bit, std::memory_order_seq_cst);
  }
}

void LinkState::Ring(int bell) {
  const BellPage* page = peer_bells_.load(std::memory_order_acquire);
  if (page != nullptr) {
    const std::uint64_t armed =
        page->bells[bell].armed.load(std::memory_order_seq_cst);
    if ((armed & 1) == 0) return;
    // One kick for each generation: the kick has woken every sleeper that armed
    // up to that generation, and each arms anew before it sleeps again.
    if (kicked_[bell].load(std::memory_order_relaxed) == armed) return;
    int fd = peer_fds_[bell].load(std::memory_order_acquire);
    if (fd < 0) {
      // By way of the peer's conductor.  The bit, then the kick: the peer reads
      // its bell 0, then looks at the bits.
      fd = peer_fds_[0].load(std::memory_order_acquire);
      if (fd < 0) return RingByMessage(bell, armed);
      page_->rung[1 - side_].bells.fetch_or(BellBit(bell),
                                            std::memory_order_seq_cst);
    }
    // Recorded after the kick, so that a thread that skips its own kick knows
    // that another has been made.
    KickFd(fd);
    kicked_[bell].store(armed, std::memory_order_relaxed);
    base::tls_spin.WokePeer(base::GetConfig().spin_us);
    return;
  }
  page_->rung[1 - side_].bells.fetch_or(BellBit(bell),
                                        std::memory_order_seq_cst);
  KickFd(peer_fds_[0].load(std::memory_order_acquire));
}

void LinkState::RingByMessage(int bell, std::uint64_t armed) {
  // The bit, then the message; the peer reads a message, then looks at the
  // bits. If the socket is full, a message that the peer has not read yet does
  // as well.
  page_->rung[1 - side_].bells.fetch_or(BellBit(bell),
                                        std::memory_order_seq_cst);
  const int saved = errno;
  bool there = true;
  {
    const base::Critical critical;
    base::LatchGuard hold(socket_latch_);
    const int fd = socket_.load(std::memory_order_relaxed);
    if (fd >= 0) {
      there = ::syscall(SYS_sendto, fd, message_.data(), message_.size(),
                        MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0) >= 0 ||
              errno == EAGAIN;
    }
  }
  errno = saved;
  // If there was no memory for the message, the next Ring tries again.
  if (there) kicked_[bell].store(armed, std::memory_order_relaxed);
}

// Summary, then word, then, in the caller, the ring. The peer writes them in
// the opposite order. All are full fences.
void LinkState::ClearSummary(Ready what, int bell, int word,
                             std::uint64_t segments) {
  page_->summary[side_][bell].words[what][word].fetch_and(
      ~segments, std::memory_order_seq_cst);
}

std::uint64_t LinkState::TakeReady(Ready what, int bell, int segment) {
  return page_->ready[side_][bell].words[what][segment].exchange(
      0, std::memory_order_seq_cst);
}

void LinkState::PutBack(int bell, int segment, const std::uint64_t bits[2]) {
  const std::uint64_t mask = std::uint64_t{1} << (segment % 64);
  for (int what : {kReadyRx, kReadyTx}) {
    if (bits[what] == 0) continue;
    page_->ready[side_][bell].words[what][segment].fetch_or(
        bits[what], std::memory_order_seq_cst);
    page_->summary[side_][bell].words[what][segment / 64].fetch_or(
        mask, std::memory_order_seq_cst);
  }
}

void LinkState::Kill(base::Reason why) {
  base::Reason none = base::Reason::kNone;
  if (why == base::Reason::kNone ||
      !dead_.compare_exchange_strong(none, why, std::memory_order_seq_cst)) {
    return;
  }
  // dead_ is stored before the futex words are bumped. A sleeper takes its
  // token, then looks at dead_. So it sees dead_, or its token is old. A lane
  // that opens now sees dead_ too.
  for (int s = 0; s < segments(); ++s) {
    SegmentState* state = table_[s].load(std::memory_order_acquire);
    const std::uint64_t open = state->open.load(std::memory_order_seq_cst);
    for (int i = 0; i < kSegmentStreams; ++i) {
      const int index = s * kSegmentStreams + i;
      if ((open & Bit(index)) == 0) continue;
      FutexLine& futex = state->memory->futex[i][side_];
      BumpAndWake(state->wakes[i], false);
      BumpAndWake(futex.rx);
      BumpAndWake(futex.tx);
      const int bell = state->bells[i].load(std::memory_order_relaxed);
      Mark(side_, kReadyRx, bell, index);
      Mark(side_, kReadyTx, bell, index);
    }
  }
}

}  // namespace rcsock::lane::shm
