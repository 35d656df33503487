#ifndef RCSOCK_TESTS_DEVICE_KERNEL_H_
#define RCSOCK_TESTS_DEVICE_KERNEL_H_

#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

// What librdmacm asks of the kernel: libibverbs.so.1 has it here, for there is
// one of that in a process, whatever happens to librdmacm.  Each returns 0 or
// an errno.
namespace fake_device {
struct KernelChannel;
struct KernelId;
}  // namespace fake_device

struct fake_cm_event {
  void* uid;  // of the id, or of the listener
  int type;
  int status;
  fake_device::KernelId* child;
  bool response;  // to be answered by fake_cm_accept
  sockaddr_storage source;
  sockaddr_storage destination;
  std::uint8_t data[256];
  std::uint8_t length;
};

#pragma GCC visibility push(default)
extern "C" {
int fake_cm_open(fake_device::KernelChannel** channel, int* fd);
void fake_cm_close(fake_device::KernelChannel* channel, int fd);
// EAGAIN: none.
int fake_cm_get(fake_device::KernelChannel* channel, int fd,
                fake_cm_event* event);
int fake_cm_create(fake_device::KernelChannel* channel, void* uid,
                   fake_device::KernelId** id);
// How many of its events have been read.
std::uint32_t fake_cm_destroy(fake_device::KernelId* id);
int fake_cm_bind(fake_device::KernelId* id, const sockaddr* address,
                 bool* device);
int fake_cm_resolve_addr(fake_device::KernelId* id, const sockaddr* to);
int fake_cm_resolve_route(fake_device::KernelId* id);
int fake_cm_listen(fake_device::KernelId* id, int backlog);
int fake_cm_connect(fake_device::KernelId* id, ibv_qp* qp, const void* data,
                    std::size_t length);
int fake_cm_accept(fake_device::KernelId* id, void* uid, ibv_qp* qp,
                   const void* data, std::size_t length);
int fake_cm_reject(fake_device::KernelId* id, const void* data,
                   std::size_t length);
int fake_cm_disconnect(fake_device::KernelId* id);
int fake_cm_set_timeout(fake_device::KernelId* id, std::uint8_t timeout);
std::uint8_t fake_cm_timeout(fake_device::KernelId* id);
void fake_cm_addresses(fake_device::KernelId* id, sockaddr_storage* source,
                       sockaddr_storage* destination);
// Whether there is the device that this context was opened for.
bool fake_cm_present(const ibv_context* context);
}
#pragma GCC visibility pop

#endif  // RCSOCK_TESTS_DEVICE_KERNEL_H_
