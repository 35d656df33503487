#ifndef RCSOCK_LIB_BASE_RESOLVE_H_
#define RCSOCK_LIB_BASE_RESOLVE_H_

#include <cstdint>

namespace rcsock::real {

// Blocks all signals in its scope. A handler that jumped away would leave the
// loader's lock taken.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  std::uint64_t before_ = 0;
};

// As Resolve (lib/base/real.h), for a caller that has blocked the signals: it
// looks up several names at once.
void* ResolveBlocked(void** slot, const char* name);

// Whether `found` is rcsock's own, for a call that this libc lacks.
bool StandsInForLibc(const void* found);

}  // namespace rcsock::real

#endif  // RCSOCK_LIB_BASE_RESOLVE_H_
