#ifndef RCSOCK_LIB_BASE_RESOLVE_H_
#define RCSOCK_LIB_BASE_RESOLVE_H_

#include <cstdint>

namespace rcsock::real {

// No handler comes in: one that jumped away would leave the loader's lock
// taken.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  std::uint64_t before_ = 0;
};

// As Resolve (lib/base/real.h), of one who has blocked them: several names at
// once.
void* ResolveBlocked(void** slot, const char* name);

}  // namespace rcsock::real

#endif  // RCSOCK_LIB_BASE_RESOLVE_H_
