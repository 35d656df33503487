#include "lib/base/raw_numbers.h"

#include <sys/syscall.h>

#include <cstdint>

namespace rcsock::base {
namespace {

struct Named {
  int number;
  const char* name;
};

#define ONE(name) \
  Named { SYS_##name, #name }
constexpr Named kNamed[] = {
    // Bytes.
    ONE(read), ONE(write), ONE(readv), ONE(writev), ONE(recvfrom), ONE(sendto),
    ONE(recvmsg), ONE(sendmsg), ONE(recvmmsg), ONE(sendmmsg), ONE(preadv2),
    ONE(pwritev2), ONE(sendfile), ONE(splice), ONE(io_submit),
    ONE(io_uring_setup), ONE(io_uring_enter), ONE(bpf),
    // Readiness. A set that is made past the hooks is no set that rcsock
    // follows.
    ONE(poll), ONE(ppoll), ONE(select), ONE(pselect6), ONE(epoll_create),
    ONE(epoll_create1), ONE(epoll_ctl), ONE(epoll_wait), ONE(epoll_pwait),
    ONE(epoll_pwait2),
    // Descriptors and what they are.
    ONE(close), ONE(close_range), ONE(dup), ONE(dup2), ONE(dup3), ONE(fcntl),
    ONE(ioctl), ONE(connect), ONE(shutdown), ONE(getsockopt), ONE(setsockopt),
    ONE(pidfd_getfd),
    // Handlers of signals, which rcsock wraps (lib/posix/thread/signals.h).
    ONE(rt_sigaction),
    // Processes: these calls change which processes hold the connection, and
    // when it ends.
    ONE(fork), ONE(vfork), ONE(clone), ONE(clone3), ONE(execve), ONE(execveat),
    ONE(exit_group), ONE(unshare)};
#undef ONE

// Requests of terminals begin with 'T', except for these.
bool IsTerminals(std::int64_t request) {
  constexpr std::int64_t kOthers[] = {
      0x5411,  // SIOCOUTQ
      0x541b,  // FIONREAD
      0x5421,  // FIONBIO
      0x5450,  // FIONCLEX
      0x5451,  // FIOCLEX
      0x5452,  // FIOASYNC
  };
  for (const std::int64_t one : kOthers) {
    if (request == one) return false;
  }
  return (request & 0xff00) == 0x5400;
}

// These requests change nothing, and the kernel's answer is right.
bool IsHarmlessFcntl(std::int64_t request) {
  constexpr std::int64_t kGetFd = 1;
  constexpr std::int64_t kGetFl = 3;
  constexpr std::int64_t kAddSeals = 1033;
  constexpr std::int64_t kGetSeals = 1034;
  return request == kGetFd || request == kGetFl || request == kAddSeals ||
         request == kGetSeals;
}

}  // namespace

bool MayUseStreams(const SystemCall& call) {
  if (call.number == SystemCall::kAny) return true;
  if (call.number == SYS_ioctl && IsTerminals(call.request)) return false;
  if (call.number == SYS_fcntl && IsHarmlessFcntl(call.request)) return false;
  for (const Named& one : kNamed) {
    if (one.number == call.number) return true;
  }
  return false;
}

const char* NameOfCall(const SystemCall& call) {
  for (const Named& one : kNamed) {
    if (one.number == call.number) return one.name;
  }
  return "any";
}

bool IsKnownLibrary(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  const std::string_view name =
      slash == std::string_view::npos ? path : path.substr(slash + 1);
  constexpr std::string_view kPrefixes[] = {
      "libasan.so.", "libtsan.so.", "liblsan.so.", "libubsan.so.",
      "libhwasan.so.", "libclang_rt.", "liburing.so.", "liburing-ffi.so.",
      // The preload makes the calls of these libraries.
      "librcsock.so.", "librcsock_",
      // Its leak checker stops the threads and reads their memory.
      "libtcmalloc.so.", "libtcmalloc_and_profiler.so.",
      "libtcmalloc_debug.so.",
      // All calls of these libraries go through libc.
      "libstdc++.so.6", "libgcc_s.so.1"};
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) return true;
  }
  // Libraries that rcsock loads for RDMA: libibverbs, librdmacm, its copy in a
  // child of fork (lib/verbs/library_copy.cc), and the drivers of devices,
  // named like libmlx5-rdmav34.so. They use descriptors of their own.
  for (const std::string_view prefix :
       {"libibverbs.so.", "librdmacm.so.", "memfd:librdmacm (rcsock)"}) {
    if (name.starts_with(prefix)) return true;
  }
  if (name.find("-rdmav") != std::string_view::npos) return true;
  // Two of its stressors make any call, in processes of their own.
  if (name == "stress-ng") return true;
  // valgrind runs the program, and its own code beside it.
  return path.find("/valgrind/") != std::string_view::npos;
}

}  // namespace rcsock::base
