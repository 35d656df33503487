#ifndef RCSOCK_TESTS_POSIX_STEPPING_H_
#define RCSOCK_TESTS_POSIX_STEPPING_H_

#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include <atomic>

#include "tests/posix/hidden_syscall.h"
#include "tests/posix/pair.h"

// A thread that is traced by itself (the trap flag): a handler runs before each
// of its instructions.
namespace steps {

// Not by the library's names: the handler of traps is not to be wrapped.
[[gnu::always_inline]] inline long Raw(long number, long a, long b, long c,
                                       long d) {
  long result = number;
  register long fourth asm("r10") = d;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(fourth)
               : "rcx", "r11", "memory");
  return result;
}

extern "C" void StepsRestorer();
asm(R"(
  .text
  .globl StepsRestorer
  .type StepsRestorer, @function
StepsRestorer:
  mov $15, %eax  # rt_sigreturn
  syscall
)");

constexpr long kTrap = 0x100;

// SIGUSR1 is blocked while it runs.
inline void HandleTraps(void (*handler)(int, siginfo_t*, void*)) {
  struct {
    void (*handler)(int, siginfo_t*, void*);
    unsigned long flags;
    void (*restorer)();
    unsigned long mask;
  } action{handler, SA_SIGINFO | 0x04000000 /* SA_RESTORER */, &StepsRestorer,
           1ul << (SIGUSR1 - 1)};
  CHECK_THAT(PastCall(SYS_rt_sigaction, SIGTRAP,
                      reinterpret_cast<long>(&action), 0, 8) == 0);
}

// (Below the red zone.)
[[gnu::always_inline]] inline void BeginSteps() {
  asm volatile(
      "lea -128(%%rsp), %%rsp; pushfq; orq %0, (%%rsp); popfq;"
      "lea 128(%%rsp), %%rsp" ::"i"(kTrap)
      : "memory", "cc");
}
[[gnu::always_inline]] inline void EndSteps() {
  asm volatile(
      "lea -128(%%rsp), %%rsp; pushfq; andq %0, (%%rsp); popfq;"
      "lea 128(%%rsp), %%rsp" ::"i"(~kTrap)
      : "memory", "cc");
}

// A handler of traps calls this first.  A trap that is blocked ends the
// process, and libraries block all signals now and then: the call that blocks
// them leaves traps open.  A child would begin with the trap flag and all
// signals blocked, so a thread that makes a child is not traced any more.
inline void KeepTraps(void* context) {
  static thread_local unsigned long open;
  greg_t* regs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* at = reinterpret_cast<const unsigned char*>(regs[REG_RIP]);
  if (at[0] != 0x0f || at[1] != 5) return;  // syscall
  switch (regs[REG_RAX]) {
    case SYS_rt_sigprocmask: {
      if (regs[REG_RSI] == 0 || regs[REG_RDI] == SIG_UNBLOCK) return;
      const auto* set = reinterpret_cast<const unsigned long*>(regs[REG_RSI]);
      open = *set & ~(1ul << (SIGTRAP - 1));
      regs[REG_RSI] = reinterpret_cast<greg_t>(&open);
      return;
    }
    case SYS_clone:
    case SYS_clone3:
    case SYS_fork:
    case SYS_vfork:
      regs[REG_EFL] &= ~kTrap;
  }
}

// A thread that stands at one of its instructions until it may go on.
struct Standing {
  inline static int due = 0;  // the instruction
  inline static std::atomic<bool> stands{false};
  inline static std::atomic<bool> goes{false};
  inline static thread_local volatile int done = 0;

  static void OnTrap(int, siginfo_t*, void* context) {
    KeepTraps(context);
    greg_t* regs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    if (done == due) {
      regs[REG_EFL] &= ~kTrap;
      stands = true;
      while (!goes) Raw(SYS_sched_yield, 0, 0, 0, 0);
    }
    done = done + 1;
  }
  // In the thread that is to stand.
  template <class Call>
  static void Run(const Call& call) {
    done = 0;
    BeginSteps();
    call();
    EndSteps();
  }
};

}  // namespace steps

#endif  // RCSOCK_TESTS_POSIX_STEPPING_H_
