#ifndef RCSOCK_LIB_API_DEVICE_DATA_H_
#define RCSOCK_LIB_API_DEVICE_DATA_H_

#include <sys/types.h>

#include <cstddef>

#include "lib/gpu/memory.h"
#include "lib/posix/socket/sock.h"

namespace rcsock::api {

// Sends and receives between a stream and memory of a device. The bytes go
// through slots of host memory. The functions return what send and recv return,
// and set errno likewise. docs/gpu.md has what a device adds. `behind`: the
// call has sent a part already. So no signal is due, and an error of the
// stream, not of the device, is kept for the next call.
//
// Threads: any, but one at a time receives from a stream.
ssize_t SendFromDevice(posix::Sock* sock, int fd, gpu::Memory* memory,
                       const std::byte* from, std::size_t length, int flags,
                       bool behind);
ssize_t RecvToDevice(posix::Sock* sock, int fd, gpu::Memory* memory,
                     std::byte* to, std::size_t length, int flags);

}  // namespace rcsock::api

#endif  // RCSOCK_LIB_API_DEVICE_DATA_H_
