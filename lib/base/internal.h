#ifndef RCSOCK_LIB_BASE_INTERNAL_H_
#define RCSOCK_LIB_BASE_INTERNAL_H_

namespace rcsock::base {

// True while this thread works for rcsock, and not for the application: always
// on the conductor thread, and elsewhere while rcsock calls into other
// libraries. The preload passes the calls of such a thread straight on. It
// moves descriptors that they create, an io_context's for instance, to the top
// of the range.
//
// constinit: otherwise each use would go through a wrapper that asks whether
// the variable has been initialised.
extern thread_local constinit bool tls_internal
    __attribute__((tls_model("initial-exec")));

class InternalScope {
 public:
  InternalScope() : before_(tls_internal) { tls_internal = true; }
  ~InternalScope() { tls_internal = before_; }
  InternalScope(const InternalScope&) = delete;
  InternalScope& operator=(const InternalScope&) = delete;

 private:
  bool before_;
};

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_INTERNAL_H_
