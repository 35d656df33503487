#ifndef RCSOCK_LIB_BASE_REASON_H_
#define RCSOCK_LIB_BASE_REASON_H_

#include <cstdint>

namespace rcsock::base {

// Why a stream is on TCP, or left its lane. The second column is the key in the
// statistics; the third is the text for a person.
#define RCSOCK_REASONS(X)                                                     \
  X(kNone, "none", "on a lane")                                               \
  X(kShortLived, "short_lived", "ended before a lane paid, or was open")      \
  X(kPolicy, "policy", "a rule, a variable or the program keeps it on TCP")   \
  X(kNoDevice, "no_device",                                                   \
    "no RDMA device, and the peer is not in this network namespace")          \
  X(kNoRdmaLibrary, "no_rdma_library", "librdmacm or libibverbs is missing")  \
  X(kNoRoute, "no_route", "no RDMA device leads to the peer")                 \
  X(kRdmaRejected, "rdma_rejected", "the peer's host rejected the lane")      \
  X(kRdmaTimeout, "rdma_timeout", "the RDMA handshake got no answer")         \
  X(kRdmaError, "rdma_error", "an RDMA call or connection failed")            \
  X(kMemlock, "memlock", "the limit of locked memory is reached")             \
  X(kDeviceLost, "device_lost", "the RDMA device or its port went away")      \
  X(kPeerKey, "different_key", "the peer has another cluster key, or none")   \
  X(kPeerPlain, "peer_without_rcsock",                                        \
    "no peer under rcsock, or one that shares its end")                       \
  X(kPeerUid, "different_uid", "the peer runs as another user")               \
  X(kPeerVersion, "peer_version", "the peer speaks another version")          \
  X(kPeerRefused, "peer_refused", "the peer refused the lane")                \
  X(kTimeout, "timeout", "the peer did not answer in time")                   \
  X(kNoMemory, "no_memory", "out of memory or memfds")                        \
  X(kNoFds, "no_fds", "out of file descriptors")                              \
  X(kTooMany, "too_many_streams", "the limit of promoted streams is reached") \
  X(kNoThread, "no_thread", "the conductor thread could not be started")      \
  X(kPinnedFdopen, "pinned_fdopen", "pinned: stdio uses it past rcsock")      \
  X(kPinnedScmRights, "pinned_scm_rights", "pinned: passed to a process")     \
  X(kPinnedFork, "pinned_fork", "pinned: shared with a forked process")       \
  X(kPinnedExec, "pinned_exec", "pinned: kept across exec")                   \
  X(kUnreadExec, "unread_exec",                                               \
    "unread bytes lost to a program without rcsock")                          \
  X(kPinnedIoUring, "pinned_io_uring", "pinned: io_uring may use it")         \
  X(kPinnedSyscall, "pinned_syscall", "pinned: used past rcsock")             \
  X(kPinnedOption, "pinned_option", "pinned: an option no lane can honour")   \
  X(kSandboxed, "sandboxed", "the process filters its system calls")          \
  X(kBusy, "busy", "its calls in the kernel never left a gap to promote it")  \
  X(kBudget, "budget", "busier connections use up the limit of RDMA lanes")   \
  X(kPeerBudget, "peer_budget",                                               \
    "busier connections use up the peer's limit of RDMA lanes")               \
  X(kIdleRings, "idle_rings", "idle: its large rings were given back")        \
  X(kUnproven, "unproven", "only the accepting end sends; no proof yet")      \
  X(kStarved, "starved", "demoted: the peer stopped reading")                 \
  X(kLaneStalled, "lane_stalled",                                             \
    "bytes that the lane had taken did not arrive")                           \
  X(kLaneError, "lane_error", "the lane failed")                              \
  X(kProtocol, "protocol_error", "the peer broke the protocol")               \
  X(kPeerDemoted, "peer_demoted", "the peer asked to leave the lane")         \
  X(kPeerGone, "peer_gone", "the peer process ended")                         \
  X(kPending, "pending", "ended while it was still looking for its peer")     \
  X(kNotProven, "not_proven",                                                 \
    "the peer has not proved that it has the connection")                     \
  X(kSharedMemory, "shared_memory",                                           \
    "the limit of rings in shared memory is reached")                         \
  X(kDeviceLeftAlone, "device_left_alone", "its RDMA device is left alone")   \
  X(kRawCalls, "raw_calls",                                                   \
    "the program makes system calls by machine code of its own")              \
  X(kPeerShared, "peer_shared",                                               \
    "the peer shares its end with a forked or started process")               \
  X(kMeetDir, "meet_dir", "the meeting directory cannot be used")             \
  X(kOtherNamespace, "other_namespace",                                       \
    "the peer may be in another network namespace of this host")              \
  X(kTranslated, "translated_address",                                        \
    "the peer has the gateway's address, which may be translated")            \
  X(kDeviceFull, "device_full",                                               \
    "a limit of the RDMA device, or of its cgroup, is reached")               \
  X(kQuiet, "quiet", "silent for most of the time: has not earned a lane yet")

enum class Reason : std::uint8_t {
#define X(id, key, text) id,
  RCSOCK_REASONS(X)
#undef X
      kCount,
};

inline constexpr const char* kReasonKeys[] = {
#define X(id, key, text) key,
    RCSOCK_REASONS(X)
#undef X
};

constexpr const char* ReasonKey(Reason reason) {
  return kReasonKeys[static_cast<int>(reason)];
}

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_REASON_H_
