#ifndef RCSOCK_LIB_POSIX_HOOKS_URING_CARRY_H_
#define RCSOCK_LIB_POSIX_HOOKS_URING_CARRY_H_

namespace rcsock::posix::uring {

// Whether rcsock may complete requests of a ring that was made with these
// IORING_SETUP_* flags.
bool MayCarry(unsigned flags);

}  // namespace rcsock::posix::uring

#endif  // RCSOCK_LIB_POSIX_HOOKS_URING_CARRY_H_
