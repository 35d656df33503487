#include "lib/lane/rdma/sleepers.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <climits>
#include <mutex>
#include <new>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/critical.h"

namespace rcsock::lane::rdma {

bool Sleepers::Open() {
  wake_fd_.reset(base::RelocateHigh(static_cast<int>(
      ::syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK))));
  return wake_fd_.ok();
}

Sleepers::Words* Sleepers::Get() {
  std::scoped_lock hold(latch_);
  if (free_.empty()) {
    const std::uint32_t made = count_.load(std::memory_order_relaxed);
    if (made == kMost) return nullptr;
    try {
      free_.reserve(made + kChunk);  // all of them: Put never allocates
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
  std::scoped_lock hold(latch_);
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

// The order everywhere: a sleeper says that it is there (its bit, or leader_),
// then looks at its word (the kernel does, for a futex); who wakes it changes
// the word, then looks whether it is there.  All of it sequentially consistent,
// so one of them sees the other.
void Sleepers::Wake(Words* words, bool tx) {
  words->word[tx].fetch_add(kChange, std::memory_order_seq_cst);
  const std::uint64_t bit = Bit(words->index, tx);
  auto& waiting = BitWord(words->index);
  if ((waiting.load(std::memory_order_seq_cst) & bit) != 0) {
    waiting.fetch_and(~bit, std::memory_order_seq_cst);
    Futex(words, tx);
  }
  if (leader_.load(std::memory_order_seq_cst) >> 32 == words->index + 1) {
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

// Somebody has stopped leading, or may have been woken to lead and does not:
// if nobody leads, one who waits is told to.  A waiter sets its bit, then looks
// at leader_; here leader_ is 0 first, and then the bits are looked at.
//
// A bit outlasts its sleeper's time-out.  So the search goes on until it has
// really woken somebody; a sleeper that is only about to sleep finds its word
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

// 0: look at the word again.
int Sleepers::Lead(Words* words, bool tx, std::uint32_t token,
                   const timespec* left, bool* slept) {
  std::uint64_t ticket = 0;
  {
    base::Critical critical;
    const std::uint32_t generation =
        generation_.fetch_add(1, std::memory_order_relaxed);
    ticket = std::uint64_t{words->index + 1} << 32 | generation;
    std::uint64_t none = 0;
    if (!leader_.compare_exchange_strong(none, ticket,
                                         std::memory_order_seq_cst)) {
      return 0;
    }
    source_->Arm();
    source_->Drain();
    if (Token(words, tx) != token) {
      if (Resign(ticket)) source_->Disarm(false);
      return 0;
    }
  }
  // A handler that runs here, or has been put off to here, has called
  // WakeLocal: then the descriptor is readable.
  pollfd fds[2] = {{source_->fd(), POLLIN, 0}, {wake_fd_.get(), POLLIN, 0}};
  const int saved = errno;
  const long r = ::syscall(SYS_ppoll, fds, 2, left, nullptr, 0);
  const int why = r < 0 ? errno : 0;
  errno = saved;
  *slept = true;
  base::Critical critical;
  // First of all, so that a change that the drain finds for this very lane does
  // not ring for it.  Who has resigned for us has disarmed, too.
  if (!Resign(ticket)) source_->Arm();
  if (r > 0 && fds[1].revents != 0) {
    std::uint64_t count;
    [[maybe_unused]] long n =
        ::syscall(SYS_read, wake_fd_.get(), &count, sizeof(count));
    errno = saved;
  }
  source_->Disarm(r > 0 && fds[0].revents != 0);
  source_->Drain();
  return r == 0 ? -ETIMEDOUT : -why;
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
  for (;;) {
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
      result = base::FutexWait(&word, seen, limit, false);
      slept = slept || result == 0;
      if (result == -EAGAIN) result = 0;
    }
  }
  PassOn();
  return result;
}

}  // namespace rcsock::lane::rdma
