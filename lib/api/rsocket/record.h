#ifndef RCSOCK_LIB_API_RSOCKET_RECORD_H_
#define RCSOCK_LIB_API_RSOCKET_RECORD_H_

// What a framed stream carries.

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "lib/api/rsocket/channel.h"

namespace rcsock::rsocket {

// The most that one record carries. Bytes that are not sent at once are kept.
constexpr std::size_t kMostPayload = 256 * 1024;

enum Type : std::uint32_t {
  kData = 1,
  kMap,
  kUnmap,
  kWrite,
  kAsk,
  kTaken,
  kWantKey,  // of the mapping `offset`, for the present lane
  kKey,      // of the mapping `offset`: `valid` is key and lane
  kCounter,  // where the number of what has been placed goes; as kKey
};

// On the wire as in memory: both ends are x86-64.
struct Channel::Record {
  std::uint32_t type;
  std::uint32_t length;  // of the payload
  std::uint64_t offset;
  std::uint64_t extent;   // kMap; kWrite that may have been placed: its number
  std::uint64_t address;  // kMap
  std::uint64_t valid;    // kMap
};

// Reads memory of another process.
inline bool ReadPeer(int pid, std::uint64_t at, void* to, std::size_t length) {
  const iovec here{to, length};
  const iovec there{reinterpret_cast<void*>(at), length};
  return ::process_vm_readv(pid, &here, 1, &there, 1, 0) ==
         static_cast<ssize_t>(length);
}

}  // namespace rcsock::rsocket

#endif  // RCSOCK_LIB_API_RSOCKET_RECORD_H_
