#include "lib/posix/sharing/unread.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "lib/base/guard.h"
#include "lib/base/sealed_memory.h"

namespace rcsock::posix {

std::atomic<int> unread_streams{0};

struct Unread::Header {
  std::uint64_t magic;
  std::uint64_t socket;
  std::uint64_t length;
  std::atomic<std::uint64_t> head;
  std::uint64_t came_ns;
  std::atomic<std::uint32_t> error;
  std::uint32_t unused[5];
};

namespace {

constexpr std::uint64_t kMagic = 0x31746e756b736372;  // "rcskunt1"
constexpr std::size_t kData = 64;

}  // namespace

bool Unread::Make(const iovec* pieces, int count, std::uint64_t socket,
                  std::uint64_t came_ns, int error) {
  static_assert(sizeof(Header) == kData);
  Close();
  std::size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += pieces[i].iov_len;
  if (bytes > kMost) return false;
  const std::size_t length = kData + bytes;
  // Without a descriptor the pages are still possible, for fork alone.
  base::UniqueFd fd =
      base::CreateSealed("rcsock-unread", length, base::Seals::kNoMoreSeals);
  void* map =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE,
             fd.ok() ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, fd.get(), 0);
  if (map == MAP_FAILED) return false;
  map_ = map;
  mapped_ = length;
  length_ = bytes;
  socket_ = socket;
  fd_ = std::move(fd);
  header()->socket = socket;
  header()->length = bytes;
  header()->came_ns = came_ns;
  header()->error.store(static_cast<std::uint32_t>(error),
                        std::memory_order_relaxed);
  char* to = static_cast<char*>(map) + kData;
  for (int i = 0; i < count; ++i) {
    if (pieces[i].iov_len == 0) continue;
    std::memcpy(to, pieces[i].iov_base, pieces[i].iov_len);
    to += pieces[i].iov_len;
  }
  header()->magic = kMagic;
  return true;
}

bool Unread::Open(int fd) {
  const std::uint64_t length = base::SealedSize(fd);
  if (length < kData || length > kData + kMost) return false;
  void* map =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return false;
  auto* at = static_cast<Header*>(map);
  if (at->magic != kMagic || at->length != length - kData) {
    ::munmap(map, length);
    return false;
  }
  Close();
  map_ = map;
  mapped_ = length;
  length_ = length - kData;
  socket_ = at->socket;
  fd_.reset(base::RelocateHigh(fd));
  return true;
}

std::uint64_t Unread::Claimed(int fd) {
  std::uint64_t socket = 0;
  return ::syscall(SYS_pread64, fd, &socket, sizeof socket,
                   offsetof(Header, socket)) == sizeof socket
             ? socket
             : 0;
}

void Unread::Close() {
  if (map_ != nullptr) ::munmap(map_, mapped_);
  map_ = nullptr;
  mapped_ = 0;
  length_ = 0;
  fd_.reset();
}

std::uint64_t Unread::came_ns() const {
  return map_ != nullptr ? header()->came_ns : 0;
}

bool Unread::Failed() const {
  return map_ != nullptr &&
         header()->error.load(std::memory_order_acquire) != 0;
}

int Unread::TakeError() {
  if (map_ == nullptr) return 0;
  const std::uint32_t error =
      header()->error.exchange(0, std::memory_order_acq_rel);
  // Another process that shares the memory may have written anything.
  return error == 0 ? 0 : error < 134 ? static_cast<int>(error) : ECONNRESET;
}

void Unread::KeepError(int error) {
  if (map_ == nullptr) return;
  header()->error.store(static_cast<std::uint32_t>(error),
                        std::memory_order_release);
}

std::size_t Unread::size() const {
  if (map_ == nullptr) return 0;
  const std::uint64_t head = header()->head.load(std::memory_order_acquire);
  return head < length_ ? static_cast<std::size_t>(length_ - head) : 0;
}

std::size_t Unread::Take(const iovec* iov, int count, std::size_t total,
                         bool peek) {
  if (map_ == nullptr) return 0;
  const char* bytes = static_cast<const char*>(map_) + kData;
  std::uint64_t head = header()->head.load(std::memory_order_acquire);
  for (;;) {
    if (head >= length_) return 0;
    const std::size_t left = static_cast<std::size_t>(length_ - head);
    std::size_t n = 0;
    if (iov == nullptr) {
      n = left < total ? left : total;
    } else {
      for (int i = 0; i < count && n < left; ++i) {
        const std::size_t room = iov[i].iov_len;
        const std::size_t part = room < left - n ? room : left - n;
        if (!base::TryPut(iov[i].iov_base, bytes + head + n, part)) {
          base::tls_fault = true;
          break;
        }
        n += part;
      }
    }
    // The bytes never change, so a copy made before the head moved is good.
    if (peek || header()->head.compare_exchange_strong(
                    head, head + n, std::memory_order_acq_rel)) {
      return n;
    }
  }
}

// The start of a process asks for what it has inherited.
[[gnu::cold]] std::uint64_t SocketInode(int fd) {
  // The raw fstat gives the kernel's own answer, not that of an interposer such
  // as fakeroot.  And TSan takes a look by number for a use of what a close
  // ends.  A caller without a latch asks afterwards whether the number was
  // still the stream's.
  struct stat status {};
  if (fd < 0 || ::syscall(SYS_fstat, fd, &status) != 0 ||
      !S_ISSOCK(status.st_mode)) {
    return 0;
  }
  return status.st_ino;
}

}  // namespace rcsock::posix
