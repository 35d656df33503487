#ifndef RCSOCK_LIB_VERBS_PROVIDERS_H_
#define RCSOCK_LIB_VERBS_PROVIDERS_H_

namespace rcsock::verbs {

// Loads libibverbs' own libraries for the devices that there are.  Where it
// finds none that fits it loads all it has, seventeen on Debian, which takes
// three quarters of the time from the first look for a device to the first
// handshake.  What can't be guessed is left to that.  `function`: any of
// libibverbs, whose directory has them.
void LoadProviders(const void* function);

}  // namespace rcsock::verbs

#endif  // RCSOCK_LIB_VERBS_PROVIDERS_H_
