#ifndef RCSOCK_LIB_VERBS_PROVIDERS_H_
#define RCSOCK_LIB_VERBS_PROVIDERS_H_

namespace rcsock::verbs {

// The directory of the devices that the kernel knows. As for libibverbs,
// $SYSFS_PATH replaces /sys, except in set-user-ID programs.
class DeviceDirectory {
 public:
  DeviceDirectory();
  // Empty if $SYSFS_PATH is too long.
  const char* path() const { return path_; }

 private:
  char path_[512];
};

// Loads libibverbs' own libraries for the present devices. If libibverbs finds
// no library that fits, it loads all it has, seventeen on Debian. That takes
// three quarters of the time from the first look for a device to the first
// handshake. A device whose library this function cannot guess is left to
// libibverbs. `function` is any of libibverbs, whose directory has the
// libraries.
void LoadProviders(const void* function);

}  // namespace rcsock::verbs

#endif  // RCSOCK_LIB_VERBS_PROVIDERS_H_
