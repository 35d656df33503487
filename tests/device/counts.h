#ifndef RCSOCK_TESTS_DEVICE_COUNTS_H_
#define RCSOCK_TESTS_DEVICE_COUNTS_H_

#include <atomic>
#include <cstdint>

// What the devices of all processes of a test have done.  $FAKE_DEVICE_COUNTS
// is a file that each of them maps, so a process that is killed has counted as
// well.  with_device reads the names here.
namespace fake_device {

#define FAKE_DEVICE_COUNTS(X)                                          \
  X(processes)      /* that have used a device */                      \
  X(established)    /* ends of connections */                          \
  X(rejected)       /* connections */                                  \
  X(disconnected)   /* ends that have been told */                     \
  X(posts)          /* calls of ibv_post_send */                       \
  X(requests)       /* in them */                                      \
  X(writes)         /* RDMA WRITEs that have arrived */                \
  X(messages)       /* that took a receive */                          \
  X(reads)          /* RDMA READs that were answered */                \
  X(bytes)          /* of payload that have arrived */                 \
  X(completions)    /* that were polled */                             \
  X(failures)       /* of these, with an error */                      \
  X(flushed)        /* of these, flushed */                            \
  X(events)         /* of completion channels, told */                 \
  X(events_fetched) /* by ibv_get_cq_event */                          \
  X(delayed_events) /* told later than their completion */             \
  X(lost_events)    /* never told: a script's */                       \
  X(late_arms)      /* of a CQ whose event had not been fetched */     \
  X(rnr)            /* messages that found no receive */               \
  X(overtaken)      /* WRITEs that an earlier one came after */        \
  X(late_flushes)   /* QPs flushed after ibv_modify_qp had returned */ \
  X(last_wqe)       /* IBV_EVENT_QP_LAST_WQE_REACHED */                \
  X(lost_receives)  /* of an SRQ, lost with a QP */                    \
  X(relaxed_keys)                                                      \
  X(strict_keys)                                                       \
  X(refused_keys)                                                      \
  X(refused_inline) /* QPs that asked for too much inline data */      \
  X(refused_limits) /* CQs, SRQs, MRs and QPs that were too many */    \
  X(overruns)       /* of a CQ */                                      \
  X(async_events)   /* told */                                         \
  X(of_parent)      /* objects of the parent's used in a child */      \
  X(dmabufs)        /* registered */                                   \
  X(pds_made)                                                          \
  X(pds_gone)                                                          \
  X(mrs_made)                                                          \
  X(mrs_gone)                                                          \
  X(cqs_made)                                                          \
  X(cqs_gone)                                                          \
  X(srqs_made)                                                         \
  X(srqs_gone)                                                         \
  X(qps_made)                                                          \
  X(qps_gone)                                                          \
  X(channels_made)                                                     \
  X(channels_gone)                                                     \
  X(ids_made)                                                          \
  X(ids_gone)

struct Counts {
#define X(name) std::atomic<std::uint64_t> name;
  FAKE_DEVICE_COUNTS(X)
#undef X
};

// The file's, or this process's own where there is none.
Counts& Counted();

inline void Count(std::atomic<std::uint64_t> Counts::*which,
                  std::uint64_t by = 1) {
  (Counted().*which).fetch_add(by, std::memory_order_relaxed);
}

}  // namespace fake_device

#endif  // RCSOCK_TESTS_DEVICE_COUNTS_H_
