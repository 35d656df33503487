#include "tools/rcsock/perf/gpu_buffer.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "lib/include/rcsock/rcsock.h"
#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/net.h"

namespace rcsock::perf {

// The functions of rcsock, if the process runs under it: they are the
// preload's.
struct GpuBuffer::Rcsock {
  static const Rcsock* Get() {
    static const Rcsock calls;
    return calls.Register == nullptr ? nullptr : &calls;
  }
  Rcsock() {
    Find("rcs_register_buffer", &Register);
    Find("rcs_unregister_buffer", &Unregister);
    Find("rcs_send_registered", &Send);
    Find("rcs_sent_done", &Done);
    Find("rcs_recv_registered", &Receive);
  }

  decltype(&rcs_register_buffer) Register = nullptr;
  decltype(&rcs_unregister_buffer) Unregister = nullptr;
  decltype(&rcs_send_registered) Send = nullptr;
  decltype(&rcs_sent_done) Done = nullptr;
  decltype(&rcs_recv_registered) Receive = nullptr;

 private:
  template <class F>
  static void Find(const char* name, F* slot) {
    *slot = reinterpret_cast<F>(::dlsym(RTLD_DEFAULT, name));
  }
};

namespace {

void Must(const std::string& bad) {
  if (!bad.empty()) Fail("{}", bad);
}

}  // namespace

GpuBuffer::GpuBuffer(int ordinal, std::size_t size)
    : rcsock_(Rcsock::Get()), size_(size) {
  Must(memory_.Make(ordinal, size));
  if (rcsock_ == nullptr) {
    host_.resize(size);
  } else if (rcsock_->Register(memory_.at(), size) != 0) {
    FailErrno("register the GPU's memory");
  }
}

GpuBuffer::~GpuBuffer() {
  // A lane may need the memory for longer; then it goes with the process.
  if (rcsock_ != nullptr && rcsock_->Unregister(memory_.at(), size_) != 0) {
    return;
  }
  memory_.Free();
}

void GpuBuffer::Send(int fd, std::size_t size) {
  if (rcsock_ == nullptr) {
    Must(memory_.Take(host_.data(), size));
    SendAll(fd, host_.data(), size);
    return;
  }
  const char* at = static_cast<const char*>(memory_.at());
  rcs_sent sent{};
  while (size > 0) {
    const ssize_t n = rcsock_->Send(fd, at, size, MSG_NOSIGNAL, &sent);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailErrno("send from the GPU");
    at += n;
    size -= static_cast<std::size_t>(n);
    while (rcsock_->Done(fd, &sent, 1) == 0) {
    }
  }
}

std::size_t GpuBuffer::Receive(int fd) {
  for (;;) {
    const ssize_t n = rcsock_ != nullptr ? rcsock_->Receive(fd, memory_.at(),
                                                            size_, MSG_WAITALL)
                                         : ::recv(fd, host_.data(), size_, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailErrno("receive");
    const auto got = static_cast<std::size_t>(n);
    if (got != 0 && rcsock_ == nullptr) Must(memory_.Put(host_.data(), got));
    return got;
  }
}

}  // namespace rcsock::perf
