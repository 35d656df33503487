#ifndef RCSOCK_LIB_BASE_SLEEP_H_
#define RCSOCK_LIB_BASE_SLEEP_H_

#include <cstdint>
#include <ctime>

namespace rcsock::base {

// FutexWait for the sleep of an application's call: a point at which
// pthread_cancel ends the thread, asleep or about to be, as it does in the
// kernel's blocking calls.  The callers' frames are unwound.
int FutexSleep(const void* word, std::uint32_t expected,
               const timespec* timeout, bool shared);

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_SLEEP_H_
