#ifndef RCSOCK_LIB_BASE_CAPABILITY_H_
#define RCSOCK_LIB_BASE_CAPABILITY_H_

// Names for Clang's thread safety analysis: which latch guards a field, and
// which latches a function requires, takes and releases.  `clang++
// -Wthread-safety` checks them (tools/check_locks); g++ ignores them.
//
//   int count RC_GUARDED_BY(latch_);           read and written under latch_
//   bool shut RC_GUARDED_BY_BOTH(tx_, rx_);    read and written under both
//   Node* head RC_PT_GUARDED_BY(latch_);       what head points to is guarded
//   void Add() RC_REQUIRES(latch_);            the caller holds latch_
//   void Add() RC_EXCLUDES(latch_);            the caller does not hold latch_
//
// RC_NO_LOCK_CHECK turns the analysis off for one function.  Each use says why.

#if defined(__clang__)
#define RC_LOCK_ATTRIBUTE(x) __attribute__((x))
#else
#define RC_LOCK_ATTRIBUTE(x)
#endif

#define RC_CAPABILITY(name) RC_LOCK_ATTRIBUTE(capability(name))
#define RC_SCOPED_CAPABILITY RC_LOCK_ATTRIBUTE(scoped_lockable)
#define RC_GUARDED_BY(latch) RC_LOCK_ATTRIBUTE(guarded_by(latch))
#define RC_GUARDED_BY_BOTH(one, other) RC_GUARDED_BY(one) RC_GUARDED_BY(other)
#define RC_PT_GUARDED_BY(latch) RC_LOCK_ATTRIBUTE(pt_guarded_by(latch))
#define RC_REQUIRES(...) RC_LOCK_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define RC_ACQUIRE(...) RC_LOCK_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RC_RELEASE(...) RC_LOCK_ATTRIBUTE(release_capability(__VA_ARGS__))
#define RC_TRY_ACQUIRE(...) \
  RC_LOCK_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define RC_EXCLUDES(...) RC_LOCK_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define RC_ASSERT_HELD(...) RC_LOCK_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define RC_RETURNS_LATCH(latch) RC_LOCK_ATTRIBUTE(lock_returned(latch))
#define RC_NO_LOCK_CHECK RC_LOCK_ATTRIBUTE(no_thread_safety_analysis)

#endif  // RCSOCK_LIB_BASE_CAPABILITY_H_
