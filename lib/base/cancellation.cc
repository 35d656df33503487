#include "lib/base/cancellation.h"

namespace rcsock::base {

constinit std::atomic<bool> cancels{false};

}  // namespace rcsock::base
