#include "lib/lane/rdma/sleepers.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <climits>
#include <new>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/critical.h"
#include "lib/base/sleep.h"
#include "lib/verbs/verbs.h"

namespace rcsock::lane::rdma {

// The sets of one group that this thread has taken and not put back. A set
// stays here while a handler interrupts its sleep, and when a handler jumps out
// of its sleep.
struct HeldSets {
  std::uint64_t group = 0;
  std::uint32_t slots = 0;  // a bit for each set
};
// Not in an anonymous namespace: gold loses the symbol of a local variable of
// this model, and the address is then another variable's.
extern thread_local constinit HeldSets tls_held
    __attribute__((tls_model("initial-exec")));
thread_local constinit HeldSets tls_held;

namespace {

bool Watch(int set, int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  return ::syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event) == 0;
}

std::uint64_t NextGroup() {
  static constinit std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

Sleepers::Sleepers(Source* source) : source_(source), id_(NextGroup()) {
  for (auto& set : sets_) set.store(kNone, std::memory_order_relaxed);
}

bool Sleepers::Open() {
  wake_fd_.reset(base::OpenHighForParent(
      [&] { return ::syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK); }));
  return wake_fd_.ok();
}

void Sleepers::Close() {
  wake_fd_.reset();
  for (auto& set : sets_) {
    const int fd = set.exchange(kNone, std::memory_order_seq_cst);
    if (fd >= 0) base::CloseRaw(fd);
  }
}

// The sleep has the set to itself until PutSet, so the edges in it are its own.
// Outside of handlers a thread has one sleep at a time. Sets that the thread
// still holds then belong to sleeps that a handler has jumped out of.
int Sleepers::TakeSet() {
  if (tls_held.group != id_) {
    tls_held = {id_, 0};
  } else if (tls_held.slots != 0 && !base::InHandler()) {
    for (std::uint32_t left = tls_held.slots; left != 0; left &= left - 1) {
      PutSet(std::countr_zero(left));
    }
  }
  for (int slot = 0; slot < kMostSets; ++slot) {
    int fd = sets_[slot].load(std::memory_order_relaxed);
    if (fd == kTaken || !sets_[slot].compare_exchange_strong(
                            fd, kTaken, std::memory_order_seq_cst)) {
      continue;
    }
    if (fd == kNone) {
      const int saved = errno;
      fd = base::OpenHighForParent(
          [&] { return ::syscall(SYS_epoll_create1, EPOLL_CLOEXEC); });
      if (fd < 0 || !Watch(fd, source_->fd()) || !Watch(fd, wake_fd_.get())) {
        if (fd >= 0) base::CloseRaw(fd);
        sets_[slot].store(kNone, std::memory_order_seq_cst);
        errno = saved;
        return -1;
      }
      errno = saved;
    }
    set_fds_[slot] = fd;
    tls_held.slots |= std::uint32_t{1} << slot;
    return slot;
  }
  return -1;
}

void Sleepers::PutSet(int slot) {
  if (slot < 0) return;
  if (tls_held.group == id_) tls_held.slots &= ~(std::uint32_t{1} << slot);
  sets_[slot].store(set_fds_[slot], std::memory_order_seq_cst);
}

Sleepers::Words* Sleepers::Get() {
  base::LatchGuard hold(latch_);
  if (free_.empty()) {
    const std::uint32_t made = count_.load(std::memory_order_relaxed);
    if (made == kMost) return nullptr;
    try {
      free_.reserve(made + kChunk);  // room for all: Put never allocates
      owned_.reserve(owned_.size() + 1);
      owned_.push_back(std::make_unique<Words[]>(kChunk));
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    Words* chunk = owned_.back().get();
    for (std::uint32_t i = kChunk; i-- > 0;) {
      chunk[i].index = made + i;
      free_.push_back(&chunk[i]);
    }
    chunks_[made / kChunk].store(chunk, std::memory_order_release);
    count_.store(made + kChunk, std::memory_order_release);
  }
  Words* words = free_.back();
  free_.pop_back();
  return words;
}

void Sleepers::Put(Words* words) {
  base::LatchGuard hold(latch_);
  free_.push_back(words);
}

bool Sleepers::Futex(Words* words, bool tx) {
  const int saved = errno;
  const long woken =
      ::syscall(SYS_futex, &words->word[tx], FUTEX_WAKE | FUTEX_PRIVATE_FLAG,
                INT_MAX, nullptr, nullptr, 0);
  errno = saved;
  return woken > 0;
}

void Sleepers::KickLeader() {
  const int saved = errno;
  const std::uint64_t one = 1;
  // A full counter is readable already.
  [[maybe_unused]] long n =
      ::syscall(SYS_write, wake_fd_.get(), &one, sizeof(one));
  errno = saved;
}

// The order everywhere: a sleeper first announces itself, by its bit or
// leader_. Then it looks at its word, or the kernel does for a futex. A waker
// changes the word, then looks whether a sleeper has announced itself. All
// accesses are sequentially consistent, so one of the two sees the other.
void Sleepers::Wake(Words* words, bool tx) {
  words->word[tx].fetch_add(kChange, std::memory_order_seq_cst);
  const std::uint64_t bit = Bit(words->index, tx);
  auto& waiting = BitWord(words->index);
  if ((waiting.load(std::memory_order_seq_cst) & bit) != 0) {
    waiting.fetch_and(~bit, std::memory_order_seq_cst);
    Futex(words, tx);
  }
  const std::uint64_t leader = leader_.load(std::memory_order_seq_cst);
  if ((leader & kAsleep) != 0 && leader >> 32 == words->index + 1) {
    KickLeader();
  }
}

void Sleepers::WakeLocal(Words* words) {
  for (const bool tx : {false, true}) {
    words->word[tx].fetch_add(kChange, std::memory_order_seq_cst);
    BitWord(words->index)
        .fetch_and(~Bit(words->index, tx), std::memory_order_seq_cst);
    Futex(words, tx);
  }
  const std::uint64_t leader = leader_.load(std::memory_order_seq_cst);
  if (leader >> 32 == words->index + 1 && Resign(leader)) {
    source_->Disarm(false);
    KickLeader();
  }
  PassOn();
}

bool Sleepers::Resign(std::uint64_t ticket) {
  return leader_.compare_exchange_strong(ticket, 0, std::memory_order_seq_cst);
}

// Makes a waiting thread lead if no thread leads. Called when a thread has
// stopped leading, or may have been woken to lead and does not. A waiter sets
// its bit, then looks at leader_. Here leader_ is 0 first, and then the bits
// are looked at.
//
// A bit outlasts its sleeper's time-out. So the search goes on until it has
// really woken a thread. A sleeper that is only about to sleep finds its word
// changed, and leads as well if it comes first.
void Sleepers::PassOn() {
  if (leader_.load(std::memory_order_seq_cst) != 0) return;
  const std::uint32_t count = count_.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < count; i += 32) {
    auto& waiting = waiting_[i / 32];
    std::uint64_t bits = waiting.load(std::memory_order_seq_cst);
    while (bits != 0) {
      const auto k = static_cast<std::uint32_t>(std::countr_zero(bits));
      const std::uint64_t bit = std::uint64_t{1} << k;
      bits &= ~bit;
      if ((waiting.fetch_and(~bit, std::memory_order_seq_cst) & bit) == 0) {
        continue;
      }
      const std::uint32_t index = i + k / 2;
      Words* words = chunks_[index / kChunk].load(std::memory_order_acquire) +
                     index % kChunk;
      words->word[k % 2].fetch_add(1, std::memory_order_seq_cst);
      if (Futex(words, k % 2 != 0)) return;
    }
  }
}

bool Sleepers::BecomeLeader(Words* words, bool tx, std::uint32_t token,
                            std::uint64_t* ticket, int* slot) {
  base::Critical critical;
  const std::uint32_t generation =
      generation_.fetch_add(1, std::memory_order_relaxed);
  *ticket = std::uint64_t{words->index + 1} << 32 | (generation & ~kAsleep);
  std::uint64_t none = 0;
  if (!leader_.compare_exchange_strong(none, *ticket,
                                       std::memory_order_seq_cst)) {
    return false;
  }
  *slot = TakeSet();
  source_->Arm();
  bool settled = source_->DrainToSleep();
  while (!settled && Token(words, tx) == token) {
    settled = source_->DrainToSleep();
  }
  // kAsleep is set, then the word is looked at. Wake changes the word, then
  // looks whether the leader is asleep. So what the drain above has found for
  // this lane rings for no thread.
  std::uint64_t leader = *ticket;
  const bool leads = leader_.compare_exchange_strong(leader, *ticket | kAsleep,
                                                     std::memory_order_seq_cst);
  *ticket |= kAsleep;
  if (leads && Token(words, tx) == token) return true;
  PutSet(*slot);
  // A thread that has resigned in favour of this one has disarmed, too.
  if (leads && Resign(*ticket)) source_->Disarm(false);
  // Drains once this thread no longer counts as a sleeper. Its arming may have
  // been taken back amid the drain above, which then took another thread's
  // arming for this one.
  if (!settled) source_->Drain();
  return false;
}

// The part of the leader that sleeps. Cancellation in the sleep ends it, too.
struct Sleepers::Led {
  Sleepers* of;
  std::uint64_t ticket;
  int slot;
  unsigned forks = verbs::forks.load(std::memory_order_relaxed);
  Led(Sleepers* one, std::uint64_t number, int set)
      : of(one), ticket(number), slot(set) {}
  Led(const Led&) = delete;
  Led& operator=(const Led&) = delete;
  ~Led() {
    // If a handler has forked meanwhile, and this is the child, the source is
    // the parent's.
    if (verbs::forks.load(std::memory_order_relaxed) != forks) return;
    base::Critical critical;
    of->PutSet(slot);
    // First of all, so that a change that the drain finds for this very lane
    // does not ring for it. A thread that has resigned in favour of this one
    // has disarmed, too.
    if (!of->Resign(ticket)) of->source_->Arm();
    of->source_->Disarm(false);
    of->source_->Drain();
  }
};

// 0: the caller looks at the word again.
int Sleepers::Lead(Words* words, bool tx, std::uint32_t token,
                   const timespec* left, bool* slept) {
  std::uint64_t ticket = 0;
  int slot = -1;
  if (!BecomeLeader(words, tx, token, &ticket, &slot)) return 0;
  const Led led(this, ticket, slot);
  *slept = true;
  return Doze(slot < 0 ? -1 : set_fds_[slot], left);
}

// A handler that runs here, or has been put off to here, has called WakeLocal.
// Then there is an edge, also for a thread that is only about to sleep.
int Sleepers::Doze(int set, const timespec* left) {
  if (set >= 0) {
    epoll_event events[2];
    const int n = base::EpollSleep(set, events, 2, left);
    return n == 0 ? -ETIMEDOUT : n > 0 ? 0 : n;
  }
  // Out of descriptors, or the device has gone: slow, but right.
  ::pthread_testcancel();
  const int saved = errno;
  timespec brief{0, 1'000'000};
  if (left != nullptr && left->tv_sec == 0 && left->tv_nsec < brief.tv_nsec) {
    brief = *left;
  }
  const int why = ::syscall(SYS_nanosleep, &brief, nullptr) == 0 ? 0 : errno;
  errno = saved;
  return -why;
}

int Sleepers::Sleep(Words* words, bool tx, std::uint32_t token,
                    const timespec* timeout) {
  auto& word = words->word[tx];
  const std::uint64_t bit = Bit(words->index, tx);
  auto& waiting = BitWord(words->index);
  std::uint64_t deadline = 0;
  timespec left{};
  if (timeout != nullptr) {
    left = *timeout;
    deadline = base::NowNs() +
               static_cast<std::uint64_t>(left.tv_sec) * 1'000'000'000u +
               static_cast<std::uint64_t>(left.tv_nsec);
  }
  const timespec* limit = timeout != nullptr ? &left : nullptr;
  bool slept = false;
  int result = 0;
  // A thread that was woken to lead and does not lets another lead, also when
  // it is cancelled.
  struct Next {
    Sleepers* of;
    ~Next() { of->PassOn(); }
  };
  const Next next{this};
  for (;;) {
    // Before the word: a handler that has run here has changed it.
    if (result == -EINTR) break;
    const std::uint32_t seen = word.load(std::memory_order_seq_cst);
    if (seen >> kShift != token) {
      result = slept ? 0 : -EAGAIN;
      break;
    }
    if (result != 0) break;
    if (slept && deadline != 0) {
      const std::uint64_t now = base::NowNs();
      if (now >= deadline) {
        result = -ETIMEDOUT;
        break;
      }
      left = {static_cast<time_t>((deadline - now) / 1'000'000'000u),
              static_cast<long>((deadline - now) % 1'000'000'000u)};
    }
    if (leader_.load(std::memory_order_seq_cst) == 0) {
      result = Lead(words, tx, token, limit, &slept);
      continue;
    }
    waiting.fetch_or(bit, std::memory_order_seq_cst);
    if (leader_.load(std::memory_order_seq_cst) != 0) {
      result = base::FutexSleep(&word, seen, limit, false);
      slept = slept || result == 0;
      if (result == -EAGAIN) result = 0;
    }
  }
  return result;
}

}  // namespace rcsock::lane::rdma
