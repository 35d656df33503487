#include "lib/verbs/verbs.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "lib/base/first_root.h"
#include "lib/base/internal.h"
#include "lib/base/latch.h"
#include "lib/base/listing.h"
#include "lib/base/no_cancel.h"
#include "lib/base/no_sigpipe.h"
#include "lib/base/unique_fd.h"
#include "lib/verbs/library_copy.h"
#include "lib/verbs/providers.h"

namespace rcsock::verbs {

constinit Calls calls{};

namespace {

enum : std::uint32_t { kNotTried, kLoaded, kMissing };
constinit std::atomic<std::uint32_t> g_state{kNotTried};
constinit base::Latch g_latch;
constinit Error g_why;  // g_latch's until kMissing, constant afterwards
constinit std::atomic<bool> g_used{false};  // there has been an event channel
// The program uses librdmacm itself, and librdmacm has one context of a device
// for all users.
constinit bool g_shared = false;
// librdmacm as the first of these processes has loaded it, from its file.
constinit void* g_cm = nullptr;
// The descriptors of librdmacm's contexts, which it closes at the end.
constexpr int kContextFds = 64;
constinit std::atomic<int> g_context_fds[kContextFds] = {};  // number + 1; 0:
                                                             // none
constinit bool g_of_parent = false;  // and the parent had a device

void Fail(Error* error, const char* call, int code,
          const ibv_context* context = nullptr) {
  if (error == nullptr) return;
  *error = Error{};
  error->call = call;
  error->code = code == 0 ? EIO : code;
  if (context != nullptr && context->device != nullptr) {
    std::memcpy(error->device, context->device->name,
                ::strnlen(context->device->name, sizeof error->device - 1));
  }
}

// The libraries export several versions of some names. dlsym gives the default
// version, which the headers describe.
template <typename F>
bool Find(void* cm, void* verbs, const char* name, F** slot) {
  void* found = ::dlsym(cm, name);
  if (found == nullptr) found = ::dlsym(verbs, name);
  *slot = reinterpret_cast<F*>(found);
  return found != nullptr;
}

// Returns null, or the name of what is missing.
const char* LoadCalls() {
  if (!base::InFirstRoot()) return "another root";
  // Never unloaded: the descriptors and threads of a provider live on.
  void* verbs = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (verbs == nullptr) return "dlopen libibverbs.so.1";
  void* cm = nullptr;
  if (g_of_parent) {
    cm = OpenCopy(g_cm);
    if (cm == nullptr) return "fork";
  } else {
    g_shared = ::dlopen("librdmacm.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr;
    cm = ::dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
    if (cm == nullptr) return "dlopen librdmacm.so.1";
    g_cm = cm;
  }
#define X(name) \
  if (!Find(cm, verbs, #name, &calls.name)) return "dlsym " #name;
  RCSOCK_VERBS_CALLS(X)
#undef X
  if (!Find(cm, verbs, "ibv_reg_mr", &calls.ibv_reg_mr)) {
    return "dlsym ibv_reg_mr";
  }
  if (!Find(cm, verbs, "ibv_reg_mr_iova2", &calls.ibv_reg_mr_iova2)) {
    calls.ibv_reg_mr_iova2 = nullptr;
  }
  Find(cm, verbs, "ibv_reg_dmabuf_mr", &calls.ibv_reg_dmabuf_mr);
  LoadProviders(reinterpret_cast<const void*>(calls.ibv_reg_mr));
  // After a fork, kernels before 5.12 give a parent that writes to its queues
  // other pages than the device has. On later kernels this does nothing.
  int (*fork_init)() = nullptr;
  if (Find(cm, verbs, "ibv_fork_init", &fork_init)) fork_init();
  ibv_fork_status (*initialized)() = nullptr;
  free_of_forks.store(
      Find(cm, verbs, "ibv_is_fork_initialized", &initialized) &&
          initialized() == IBV_FORK_UNNEEDED,
      std::memory_order_relaxed);
  g_of_parent = false;
  return nullptr;
}

void NoteContext(int fd) {
  for (auto& one : g_context_fds) {
    int none = 0;
    if (one.load(std::memory_order_relaxed) == fd + 1 ||
        one.compare_exchange_strong(none, fd + 1)) {
      return;
    }
  }
}

bool OfContext(int fd) {
  for (const auto& one : g_context_fds) {
    if (one.load(std::memory_order_relaxed) == fd + 1) return true;
  }
  return false;
}

void SetNonBlocking(int fd) {
  const long flags = ::syscall(SYS_fcntl, fd, F_GETFL);
  if (flags >= 0) ::syscall(SYS_fcntl, fd, F_SETFL, flags | O_NONBLOCK);
}

// A channel's descriptor is a public field that its library reads at each use.
void Adopt(int* fd) {
  *fd = base::RelocateHigh(*fd);
  SetNonBlocking(*fd);
}

// Returns true if a child of fork may use libibverbs after its parent has used
// it. It may not where libibverbs counts the pages that fork must not copy:
// another thread of the parent may have held the lock of that count.
bool FreeOfForks() {
  ibv_fork_status (*initialized)() = nullptr;
  return Find(g_cm, nullptr, "ibv_is_fork_initialized", &initialized) &&
         initialized() == IBV_FORK_UNNEEDED;
}

// Returns true for a file that keeps the objects of a device: the device's own
// file, and the file of its events.
bool IsDevice(int fd) {
  char path[32];
  char target[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const long n = ::syscall(SYS_readlink, path, target, sizeof target - 1);
  if (n <= 0) return false;
  target[n] = '\0';
  return std::strstr(target, "infiniband") != nullptr;
}

}  // namespace

bool Load(Error* error) {
  std::uint32_t state = g_state.load(std::memory_order_acquire);
  if (state == kNotTried) {
    base::LatchGuard lock(g_latch);
    state = g_state.load(std::memory_order_acquire);
    if (state == kNotTried) {
      base::InternalScope internal;
      const base::LibraryOpens opens;
      if (const char* missing = LoadCalls()) {
        Fail(&g_why, missing, ENOENT);
        state = kMissing;
      } else {
        state = kLoaded;
      }
      g_state.store(state, std::memory_order_release);
    }
  }
  if (state == kLoaded) return true;
  if (error != nullptr) *error = g_why;
  return false;
}

void ForkChild() {
  forks.fetch_add(1, std::memory_order_relaxed);
  // Another thread may have been loading.
  g_latch.Reset();
  if (!g_used.load(std::memory_order_relaxed)) return;
  // librdmacm keeps one context of each device for ever, and these are the
  // parent's. Their descriptors here would only keep the parent's objects
  // alive. This makes the numbers that librdmacm will close refer to a file
  // that keeps nothing.
  const base::UniqueFd nothing(base::OpenHigh(
      [] { return ::syscall(SYS_epoll_create1, EPOLL_CLOEXEC); }));
  for (int fd = 0; fd < 65536; ++fd) {
    if (!base::IsInternalFd(fd) || !IsDevice(fd)) continue;
    if (nothing.ok() && OfContext(fd)) {
      ::syscall(SYS_dup3, nothing.get(), fd, O_CLOEXEC);
    } else {
      base::CloseRaw(fd);
    }
  }
  for (auto& one : g_context_fds) one.store(0, std::memory_order_relaxed);
  g_used.store(false, std::memory_order_relaxed);
  // The child's own contexts belong to a copy of librdmacm of its own.
  const bool possible = nothing.ok() && !g_shared && FreeOfForks();
  g_of_parent = true;
  if (!possible) g_why = {"fork", ENOTSUP, {}};
  g_state.store(possible ? kNotTried : kMissing, std::memory_order_release);
}

bool AnyDevice() {
  const DeviceDirectory devices;
  const base::UniqueFd directory(base::OpenHigh([&devices] {
    return ::syscall(SYS_openat, AT_FDCWD, devices.path(),
                     O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }));
  if (!directory.ok()) return false;
  // "abi_version", ".", ".." and one "uverbsN" for each device.
  bool found = false;
  base::EachEntry(directory.get(), [&found](const char* name) {
    found = std::strncmp(name, "uverbs", 6) == 0;
    return !found;
  });
  return found;
}

// --- Objects

template <>
void Release<ibv_pd>::operator()(ibv_pd* pd) const noexcept {
  const base::NoCancel no_cancel;
  calls.ibv_dealloc_pd(pd);
}
template <>
void Release<ibv_mr>::operator()(ibv_mr* mr) const noexcept {
  const base::NoCancel no_cancel;
  calls.ibv_dereg_mr(mr);
}
template <>
void Release<ibv_cq>::operator()(ibv_cq* cq) const noexcept {
  const base::NoCancel no_cancel;
  calls.ibv_destroy_cq(cq);
}
template <>
void Release<ibv_srq>::operator()(ibv_srq* srq) const noexcept {
  const base::NoCancel no_cancel;
  calls.ibv_destroy_srq(srq);
}
template <>
void Release<ibv_comp_channel>::operator()(
    ibv_comp_channel* channel) const noexcept {
  const base::NoCancel no_cancel;
  base::InternalScope internal;  // it closes a descriptor
  calls.ibv_destroy_comp_channel(channel);
}
template <>
void Release<rdma_event_channel>::operator()(
    rdma_event_channel* channel) const noexcept {
  const base::NoCancel no_cancel;
  base::InternalScope internal;
  calls.rdma_destroy_event_channel(channel);
}
template <>
void Release<rdma_cm_id>::operator()(rdma_cm_id* id) const noexcept {
  const base::NoCancel no_cancel;
  base::InternalScope internal;  // the last id of a device may close it
  if (id->qp != nullptr) calls.rdma_destroy_qp(id);
  calls.rdma_destroy_id(id);
}

Pd AllocPd(ibv_context* context, Error* error) {
  errno = 0;
  Pd pd(calls.ibv_alloc_pd(context));
  if (pd == nullptr) Fail(error, "ibv_alloc_pd", errno, context);
  return pd;
}

Mr Register(ibv_pd* pd, void* base, std::size_t length, int access,
            Error* error) {
  // Set if a device grants only strict keys: the next keys are asked for with
  // strict order first.
  static constinit std::atomic<bool> strict_first{false};
  const base::NoCancel no_cancel;
  const bool choice = calls.ibv_reg_mr_iova2 != nullptr;
  const bool first = choice && !IsIwarp(pd->context) &&
                     !strict_first.load(std::memory_order_relaxed);
  for (const bool relaxed : {first, !first}) {
    errno = 0;
    Mr mr(relaxed
              ? (calls.ibv_reg_mr_iova2)(
                    pd, base, length, reinterpret_cast<std::uintptr_t>(base),
                    static_cast<unsigned>(access) | IBV_ACCESS_RELAXED_ORDERING)
              : (calls.ibv_reg_mr)(pd, base, length, access));
    if (mr != nullptr) {
      if (relaxed != first) {
        strict_first.store(!relaxed, std::memory_order_relaxed);
      }
      return mr;
    }
    const bool refused =
        errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS;
    if (!choice || !refused) break;
  }
  Fail(error, "ibv_reg_mr", errno, pd->context);
  return nullptr;
}

Mr RegisterDmabuf(ibv_pd* pd, int fd, std::uint64_t offset, void* base,
                  std::size_t length, int access, Error* error) {
  const base::NoCancel no_cancel;
  errno = EOPNOTSUPP;
  Mr mr(calls.ibv_reg_dmabuf_mr == nullptr
            ? nullptr
            : calls.ibv_reg_dmabuf_mr(pd, offset, length,
                                      reinterpret_cast<std::uintptr_t>(base),
                                      fd, access));
  if (mr == nullptr) Fail(error, "ibv_reg_dmabuf_mr", errno, pd->context);
  return mr;
}

Mr RegisterStrict(ibv_pd* pd, void* base, std::size_t length, int access,
                  Error* error) {
  const base::NoCancel no_cancel;
  errno = 0;
  Mr mr((calls.ibv_reg_mr)(pd, base, length, access));
  if (mr == nullptr) Fail(error, "ibv_reg_mr", errno, pd->context);
  return mr;
}

Channel CreateChannel(ibv_context* context, Error* error) {
  base::InternalScope internal;
  const base::LowNumber low;
  errno = 0;
  Channel channel(calls.ibv_create_comp_channel(context));
  if (channel == nullptr) {
    Fail(error, "ibv_create_comp_channel", errno, context);
  } else {
    Adopt(&channel->fd);
  }
  return channel;
}

Cq CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel,
            Error* error, std::uint32_t number) {
  errno = 0;
  const int vectors = std::max(context->num_comp_vectors, 1);
  Cq cq(calls.ibv_create_cq(
      context, entries, nullptr, channel,
      static_cast<int>(number % static_cast<std::uint32_t>(vectors))));
  if (cq == nullptr) Fail(error, "ibv_create_cq", errno, context);
  return cq;
}

Srq CreateSrq(ibv_pd* pd, std::uint32_t entries, std::uint32_t sge,
              Error* error) {
  ibv_srq_init_attr attr{};
  attr.attr.max_wr = entries;
  attr.attr.max_sge = sge;
  errno = 0;
  Srq srq(calls.ibv_create_srq(pd, &attr));
  if (srq == nullptr) Fail(error, "ibv_create_srq", errno, pd->context);
  return srq;
}

EventChannel CreateEventChannel(Error* error) {
  base::InternalScope internal;
  const base::LibraryOpens opens;
  errno = 0;
  EventChannel channel(calls.rdma_create_event_channel());
  if (channel == nullptr) {
    Fail(error, "rdma_create_event_channel", errno);
  } else {
    g_used.store(true, std::memory_order_relaxed);
    Adopt(&channel->fd);
  }
  return channel;
}

Id CreateId(rdma_event_channel* channel, void* context, Error* error) {
  base::InternalScope internal;
  rdma_cm_id* id = nullptr;
  errno = 0;
  if (calls.rdma_create_id(channel, &id, context, RDMA_PS_TCP) != 0) {
    Fail(error, "rdma_create_id", errno);
    return nullptr;
  }
  return Id(id);
}

bool ResolveRoute(rdma_cm_id* id, int timeout_ms) {
  base::InternalScope internal;
  // On iWARP the first call looks for ibacm, by a file and a socket.
  const base::LibraryOpens opens;
  return calls.rdma_resolve_route(id, timeout_ms) == 0;
}

void AdoptContext(ibv_context* context) {
  if (!base::IsInternalFd(context->cmd_fd)) {
    context->cmd_fd = base::RelocateHigh(context->cmd_fd);
  }
  if (!base::IsInternalFd(context->async_fd)) Adopt(&context->async_fd);
  NoteContext(context->cmd_fd);
  NoteContext(context->async_fd);
}

void CloseGone(int cmd_fd, int async_fd) {
  base::InternalScope internal;
  const base::LibraryOpens opens;
  int count = 0;
  if (ibv_context** list = calls.rdma_get_devices(&count)) {
    for (int i = 0; i < count; ++i) AdoptContext(list[i]);
    calls.rdma_free_devices(list);
    return;
  }
  // If no device is left, librdmacm does not compare, and keeps the contexts
  // that it had open until a device comes. The context must not be touched:
  // librdmacm may have freed it after all. So the context's numbers, which
  // librdmacm will close, come to refer to a file that keeps nothing.
  if (g_shared) return;
  const base::UniqueFd nothing(
      base::OpenHigh([] { return ::syscall(SYS_eventfd2, 0, EFD_CLOEXEC); }));
  if (!nothing.ok()) return;
  for (const int fd : {cmd_fd, async_fd}) {
    if (base::IsInternalFd(fd) && IsDevice(fd)) {
      ::syscall(SYS_dup3, nothing.get(), fd, O_CLOEXEC);
    }
  }
}

bool CreateQp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attr,
              std::uint32_t* inline_ask, Error* error) {
  const ibv_qp_init_attr wanted = *attr;
  // siw grants 80.
  constexpr std::uint32_t kFine = 128;
  constexpr std::uint32_t kStep = 16;
  for (std::uint32_t ask = *inline_ask;; ask = ask > kFine   ? ask / 2
                                               : ask > kStep ? ask - kStep
                                                             : 0) {
    *attr = wanted;
    attr->cap.max_inline_data = ask;
    errno = 0;
    if (calls.rdma_create_qp(id, pd, attr) == 0) {
      *inline_ask = ask;
      return true;
    }
    // Providers report too much inline data by different errors. A call that is
    // wrong for another reason fails without inline data, too. EAGAIN: the
    // limits of the rdma cgroup. EIO, ENODEV: the device has gone.
    if (ask == 0 || errno == ENOMEM || errno == EAGAIN || errno == EIO ||
        errno == ENODEV) {
      Fail(error, "rdma_create_qp", errno, id->verbs);
      return false;
    }
  }
}

// By write(2), in whichever thread the lane runs, with the stream's latches
// held.
bool ToError(ibv_qp* qp, Error* error) {
  const base::NoCancel no_cancel;
  const base::NoSigpipe no_sigpipe(IsIwarp(qp->context));
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  const int r = calls.ibv_modify_qp(qp, &attr, IBV_QP_STATE);
  if (r != 0) Fail(error, "ibv_modify_qp", r, qp->context);
  return r == 0;
}

bool SetRnrTimer(ibv_qp* qp, Error* error) {
  constexpr std::uint8_t k20ms = 22;  // InfiniBand specification, table 46
  const base::NoCancel no_cancel;
  ibv_qp_attr attr{};
  attr.min_rnr_timer = k20ms;
  const int r = calls.ibv_modify_qp(qp, &attr, IBV_QP_MIN_RNR_TIMER);
  if (r != 0) Fail(error, "ibv_modify_qp", r, qp->context);
  return r == 0;
}

bool SetLimit(ibv_srq* srq, std::uint32_t receives) {
  const base::NoCancel no_cancel;
  ibv_srq_attr attr{};
  attr.srq_limit = receives;
  return calls.ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0;
}

bool Query(ibv_context* context, ibv_device_attr* attr, Error* error) {
  const int r = calls.ibv_query_device(context, attr);
  if (r != 0) Fail(error, "ibv_query_device", r, context);
  return r == 0;
}

bool IsInfiniBand(ibv_context* context, std::uint8_t port) {
  if (IsIwarp(context)) return false;
  ibv_port_attr attr{};
  return (calls.ibv_query_port)(
             context, port, reinterpret_cast<_compat_ibv_port_attr*>(&attr)) ==
             0 &&
         attr.link_layer == IBV_LINK_LAYER_INFINIBAND;
}

bool IsIwarp(const ibv_context* context) {
  return context->device->transport_type == IBV_TRANSPORT_IWARP;
}

}  // namespace rcsock::verbs
