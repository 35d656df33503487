#ifndef RCSOCK_LIB_VERBS_VERBS_H_
#define RCSOCK_LIB_VERBS_VERBS_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace rcsock::verbs {

// The call that failed, and its device. Empty: no call did.
struct Error {
  const char* call = nullptr;  // "ibv_create_qp", ...
  int code = 0;                // errno
  char device[32] = {};        // empty if there is none yet
  explicit operator bool() const { return call != nullptr; }
};

// Loads librdmacm and libibverbs, when the first stream looks for a device. So
// a host without them keeps plain TCP, and a program that needs no device does
// not load six libraries. Returns true once they are there. Loads at most once;
// any thread may call it.
bool Load(Error* error);
// Returns true if the kernel knows any RDMA device: one look at sysfs, before
// any library is loaded.
bool AnyDevice();
// In the child of fork. If the parent has used a device, this closes the
// inherited descriptors. Then no object of the parent's may be touched or
// destroyed. The next Load() loads librdmacm once more, for objects of the
// child's own. That Load() fails, until the child executes another program, in
// three cases: OpenCopy cannot copy, the kernel is older than 5.12, or the
// program has librdmacm for itself.
void ForkChild();
// Counts the calls of ForkChild. A thread that comes back from a handler that
// forked finds it changed.
inline constinit std::atomic<unsigned> forks{0};
// True if a child of fork has its own copy of registered memory. If not,
// libibverbs hides that memory's pages from the child (ibv_fork_init).
inline constinit std::atomic<bool> free_of_forks{false};

template <class T>
struct Release {
  void operator()(T* object) const noexcept;
};
template <class T>
using Ptr = std::unique_ptr<T, Release<T>>;

// Each destroys its object. An object that depends on another must go first.
using Pd = Ptr<ibv_pd>;
using Mr = Ptr<ibv_mr>;
using Cq = Ptr<ibv_cq>;
using Srq = Ptr<ibv_srq>;
using Channel = Ptr<ibv_comp_channel>;
using EventChannel = Ptr<rdma_event_channel>;
// Also destroys the QP that was created on it.
using Id = Ptr<rdma_cm_id>;

// All these return null or false on failure, and fill *error. The descriptors
// of channels are close-on-exec, non-blocking, and at the top of the range.
Pd AllocPd(ibv_context* context, Error* error);
// The memory is read only behind a completion, so its key has relaxed ordering.
// Some devices grant no other ordering, and others are a quarter faster with
// it. On iWARP the order is strict, because there a read asks whether writes
// are in their place. If a device refuses one ordering, it is asked for the
// other.
Mr Register(ibv_pd* pd, void* base, std::size_t length, int access,
            Error* error);
// Registers a dma-buf from `offset` on, under the addresses from `base` on. The
// order of its key is strict.
Mr RegisterDmabuf(ibv_pd* pd, int fd, std::uint64_t offset, void* base,
                  std::size_t length, int access, Error* error);
// As Register, with strict order only.
Mr RegisterStrict(ibv_pd* pd, void* base, std::size_t length, int access,
                  Error* error);
Channel CreateChannel(ibv_context* context, Error* error);
// CQs of different `number` interrupt different CPUs, as far as the device can.
Cq CreateCq(ibv_context* context, int entries, ibv_comp_channel* channel,
            Error* error, std::uint32_t number = 0);
Srq CreateSrq(ibv_pd* pd, std::uint32_t entries, std::uint32_t sge,
              Error* error);
EventChannel CreateEventChannel(Error* error);
Id CreateId(rdma_event_channel* channel, void* context, Error* error);
bool ResolveRoute(rdma_cm_id* id, int timeout_ms);
// Moves the descriptors of a context that librdmacm has opened (id->verbs) to
// the top of the range, unless they are there. The descriptor of asynchronous
// events becomes non-blocking.
void AdoptContext(ibv_context* context);
// Makes librdmacm look which devices there are, and close the context of a
// device that has gone. That context had these two descriptors, and is used no
// more. Some drivers' devices cannot go before the context is closed.
void CloseGone(int cmd_fd, int async_fd);
// The QP belongs to the id. Asks for the inline size in *inline_ask, and for
// less until the provider grants it. *inline_ask is then the size last asked
// for, so the device's next QP takes one call; *attr says what was granted.
bool CreateQp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attr,
              std::uint32_t* inline_ask, Error* error);
bool ToError(ibv_qp* qp, Error* error);  // to IBV_QPS_ERR
// Sets how long a peer waits that finds no receive here. No peer does while no
// receive is lost. rdma_cm leaves 655 ms for each try.
bool SetRnrTimer(ibv_qp* qp, Error* error);
// The device reports SRQ_LIMIT_REACHED, once, when fewer receives are left.
// Returns false if it cannot.
bool SetLimit(ibv_srq* srq, std::uint32_t receives);
bool Query(ibv_context* context, ibv_device_attr* attr, Error* error);

// rdma_cm's other calls, as they are: 0, or -1 with errno. Only after Load().
struct Calls {
#define RCSOCK_VERBS_CALLS(X)   \
  X(rdma_resolve_addr)          \
  X(rdma_resolve_route)         \
  X(rdma_bind_addr)             \
  X(rdma_listen)                \
  X(rdma_connect)               \
  X(rdma_accept)                \
  X(rdma_reject)                \
  X(rdma_disconnect)            \
  X(rdma_get_request)           \
  X(rdma_get_cm_event)          \
  X(rdma_ack_cm_event)          \
  X(rdma_set_option)            \
  X(rdma_get_src_port)          \
  X(rdma_destroy_qp)            \
  X(rdma_destroy_id)            \
  X(rdma_create_id)             \
  X(rdma_create_qp)             \
  X(rdma_create_event_channel)  \
  X(rdma_destroy_event_channel) \
  X(rdma_event_str)             \
  X(rdma_get_devices)           \
  X(rdma_free_devices)          \
  X(ibv_alloc_pd)               \
  X(ibv_dealloc_pd)             \
  X(ibv_dereg_mr)               \
  X(ibv_create_cq)              \
  X(ibv_destroy_cq)             \
  X(ibv_create_comp_channel)    \
  X(ibv_destroy_comp_channel)   \
  X(ibv_get_cq_event)           \
  X(ibv_ack_cq_events)          \
  X(ibv_create_srq)             \
  X(ibv_destroy_srq)            \
  X(ibv_modify_qp)              \
  X(ibv_modify_srq)             \
  X(ibv_query_device)           \
  X(ibv_query_port)             \
  X(ibv_get_async_event)        \
  X(ibv_ack_async_event)        \
  X(ibv_get_device_name)        \
  X(ibv_wc_status_str)
#define X(name) decltype(&::name) name;
  RCSOCK_VERBS_CALLS(X)
#undef X
  // ibv_reg_mr is a macro in the header. So is ibv_query_port: write
  // (calls.ibv_query_port)(...).
  ibv_mr* (*ibv_reg_mr)(ibv_pd*, void*, std::size_t, int);
  // Null before rdma-core 28.
  ibv_mr* (*ibv_reg_mr_iova2)(ibv_pd*, void*, std::size_t, std::uint64_t,
                              unsigned);
  // Null before rdma-core 34.
  ibv_mr* (*ibv_reg_dmabuf_mr)(ibv_pd*, std::uint64_t, std::size_t,
                               std::uint64_t, int, int);
};
extern Calls calls;

// ibv_device_attr::vendor_id of drivers that have no hardware, or that need to
// be known: rxe_param.h, siw.h and erdma_hw.h of the kernel.
constexpr std::uint32_t kVendorRxe = 0xffffff;
constexpr std::uint32_t kVendorSiw = 0x626d74;
constexpr std::uint32_t kVendorErdma = 0x1ded;

bool IsIwarp(const ibv_context* context);
// Returns true if the link of a port is InfiniBand's own, and no Ethernet.
bool IsInfiniBand(ibv_context* context, std::uint8_t port);

}  // namespace rcsock::verbs

#endif  // RCSOCK_LIB_VERBS_VERBS_H_
