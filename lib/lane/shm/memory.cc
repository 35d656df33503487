#include "lib/lane/shm/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "lib/base/sealed_memory.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace rcsock::lane::shm {

// Raw system calls, since the preload interposes the names.

base::UniqueFd CreateMemory(const char* name, std::size_t size) {
  return base::CreateSealed(name, size, base::Seals::kMoreSeals);
}

bool SealReadOnly(int fd) {
  return ::syscall(SYS_fcntl, fd, F_ADD_SEALS,
                   F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0;
}

bool CheckMemory(int fd, std::size_t size) {
  // Seals first: the size cannot change after them.
  const long seals = ::syscall(SYS_fcntl, fd, F_GET_SEALS);
  constexpr long kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & kNeeded) != kNeeded) return false;
  struct stat status;
  return ::fstat(fd, &status) == 0 &&
         status.st_size == static_cast<off_t>(size);
}

void* MapMemory(int fd, std::size_t size, bool writable) {
  void* at =
      ::mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ,
             MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  ::madvise(at, size, MADV_DONTDUMP);
  return at;
}

void UnmapMemory(const void* at, std::size_t size) {
  if (at == nullptr) return;
  const int saved = errno;
  ::munmap(const_cast<void*>(at), size);
  errno = saved;
}

void ForgetMemory(void* at, std::size_t size) {
  (void)::mmap(at, size, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

}  // namespace rcsock::lane::shm
