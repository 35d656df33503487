#include "lib/rendezvous/shifts.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <system_error>

#include "lib/base/clock.h"
#include "lib/base/helper_thread.h"
#include "lib/base/latch.h"
#include "lib/base/scheduling.h"
#include "lib/rendezvous/core.h"

namespace rcsock::rendezvous {
namespace {

// So long the patient thread has to take a shift that it is offered. It takes
// far less where programs sleep.
constexpr std::uint64_t kOfferNs = 1'000'000;
constexpr timespec kOffer{0, kOfferNs};

}  // namespace

void Shifts::Begin() {
  lateness_.Begin(base::NowNs());
  now_.store(kOffered, std::memory_order_relaxed);
  if (base::StartThread(&patient_, &PatientMain, this, kConductorStack) != 0) {
    PromptOnly();
    now_.store(kPrompt, std::memory_order_relaxed);
    return;
  }
  patient_lives_.store(true, std::memory_order_release);
  // A new descriptor has the program's next number for a moment. That moment is
  // the start's, and so are calls that a later filter may kill for.
  while (begun_.load(std::memory_order_acquire) == 0) {
    base::FutexWait(&begun_, 0, nullptr, false);
  }
}

void Shifts::End() {
  Finish();
  if (!patient_lives_.load(std::memory_order_relaxed)) return;
  ::pthread_join(patient_, nullptr);
  patient_lives_.store(false, std::memory_order_release);
}

void* Shifts::PatientMain(void* shifts) {
  auto* const self = static_cast<Shifts*>(shifts);
  ::pthread_setname_np(::pthread_self(), "rcsock-patient");
  self->waits_.reset(base::OpenHighForParent([] {
    return ::syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/schedstat",
                     O_RDONLY | O_CLOEXEC, 0);
  }));
  if (!base::GiveWay()) self->PromptOnly();
  self->begun_.store(1, std::memory_order_release);
  base::FutexWake(&self->begun_, 1, false);
  // The slice that this thread has begun is still one of the other kind.
  ::syscall(SYS_sched_yield);
  self->core_->TakeTurns(kPatient);
  self->waits_.reset();
  return nullptr;
}

bool Shifts::Await(Shift own) {
  std::uint64_t until = 0;
  for (;;) {
    std::uint32_t now = now_.load(std::memory_order_acquire);
    if (now == own) return true;
    if (now == kNone) return false;
    if (now != kOffered) {
      base::FutexWait(&now_, now, nullptr, false);
      continue;
    }
    const std::uint64_t time = base::NowNs();
    if (own == kPrompt && until == 0) until = time + kOfferNs;
    const bool takes = own == kPrompt
                           ? time >= until
                           : !prompt_only_.load(std::memory_order_relaxed);
    if (!takes) {
      base::FutexWait(&now_, now, own == kPrompt ? &kOffer : nullptr, false);
      continue;
    }
    if (!now_.compare_exchange_strong(now, own, std::memory_order_acq_rel)) {
      continue;
    }
    if (own == kPrompt) {
      lateness_.BeginPrompt(time);
    } else {
      Lateness::Counts counts;
      if (Read(&counts)) lateness_.BeginPatient(time, counts);
    }
  }
}

void Shifts::Pass(Shift own) {
  const bool prompt_only = prompt_only_.load(std::memory_order_relaxed);
  const std::uint64_t now = base::NowNs();
  if (own == kPrompt) {
    if (prompt_only || !lateness_.PromptIsOver(now)) return;
    lateness_.Offer(now);
    Give(kOffered);
  } else if (prompt_only || (lateness_.MayLook(now) && IsLate(now))) {
    lateness_.BeginPrompt(now);
    Give(kPrompt);
  }
}

bool Shifts::Read(Lateness::Counts* counts) const {
  char text[64];
  const long n = ::syscall(SYS_pread64, waits_.get(), text, sizeof text, 0);
  const char* const end = text + std::max(n, 0L);
  const auto first = std::from_chars(text, end, counts->ran);
  // Both are 0 where the kernel does not count.
  return counts->ran != 0 && first.ptr != end &&
         std::from_chars(first.ptr + 1, end, counts->waited).ec == std::errc();
}

bool Shifts::IsLate(std::uint64_t now) {
  Lateness::Counts counts;
  if (Read(&counts)) return lateness_.Look(now, counts);
  PromptOnly();
  return true;
}

void Shifts::Give(Shift next) {
  now_.store(next, std::memory_order_release);
  base::FutexWake(&now_, 1, false);
}

}  // namespace rcsock::rendezvous
