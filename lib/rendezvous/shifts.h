#ifndef RCSOCK_LIB_RENDEZVOUS_SHIFTS_H_
#define RCSOCK_LIB_RENDEZVOUS_SHIFTS_H_

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "lib/base/unique_fd.h"
#include "lib/rendezvous/lateness.h"

namespace rcsock::rendezvous {

class Core;

// Enough for the conductor's turns, and small for systems that account for
// stacks.
constexpr std::size_t kConductorStack = 1 << 20;

// The two threads of the conductor, and which of them works. The patient one
// gives way to the program's threads, so that no request waits for its turns.
// Where programs leave it no CPU, the prompt one takes over: a stream must not
// wait for its switch.
//
// Threads: each of the two calls Await and Pass. Any thread calls PromptOnly,
// PatientHas and Threads.
class Shifts {
 public:
  // Which thread works. kOffered: the patient one, if it comes soon.
  enum Shift : std::uint32_t { kPrompt, kPatient, kOffered, kNone };

  explicit Shifts(Core* core) : core_(core) {}

  // The prompt thread calls it before the first shift: makes the patient
  // thread, which is offered that shift. Where there can be none, the prompt
  // thread has all shifts.
  void Begin();
  // Called by the thread that works, or once there are no shifts: ends them.
  void Finish() { Give(kNone); }
  // The prompt thread calls it: finishes, and awaits the patient thread's end.
  void End();

  // Waits for the thread's shift. Returns false once there are no shifts.
  bool Await(Shift own);
  // Called between two turns: may end the thread's shift.
  void Pass(Shift own);
  // The patient thread has no shift any more, once its turn is over.
  void PromptOnly() { prompt_only_.store(true, std::memory_order_relaxed); }

  // Whether the shift is the patient thread's, or offered to it.
  bool PatientHas() const {
    const std::uint32_t now = now_.load(std::memory_order_acquire);
    return now == kPatient || now == kOffered;
  }

  // How many threads there are.
  int Threads() const {
    return patient_lives_.load(std::memory_order_acquire) ? 2 : 1;
  }

 private:
  static void* PatientMain(void* shifts);
  // Returns false where the kernel does not count.
  bool Read(Lateness::Counts* counts) const;
  // Returns whether the patient thread waits too long for its CPU.
  bool IsLate(std::uint64_t now);
  void Give(Shift next);

  Core* const core_;
  pthread_t patient_{};
  std::atomic<bool> patient_lives_{false};
  std::atomic<bool> prompt_only_{false};
  std::atomic<std::uint32_t> begun_{0};  // 1: the patient thread has begun
  // The thread that works next sees all that was done before.
  std::atomic<std::uint32_t> now_{kPrompt};
  base::UniqueFd waits_;  // what the kernel counts for the patient thread
  Lateness lateness_;     // belongs to the thread that works
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_SHIFTS_H_
