// A library that brings liburing and libaio into a program that knows neither:
// opened late, by loader.cc.
#include <libaio.h>
#include <liburing.h>

// The bytes are sent, and as many are received.  What is not there on this
// machine is said by the first step: -errno.
extern "C" __attribute__((visibility("default"))) int TalkByUring(int fd,
                                                                  char* bytes,
                                                                  int count) {
  io_uring ring{};
  const int made = ::io_uring_queue_init(4, &ring, 0);
  if (made != 0) return made;
  const auto run = [&ring] {
    if (::io_uring_submit(&ring) != 1) return -1;
    io_uring_cqe* cqe = nullptr;
    if (::io_uring_wait_cqe(&ring, &cqe) != 0) return -1;
    const int result = cqe->res;
    ::io_uring_cqe_seen(&ring, cqe);
    return result;
  };
  const auto length = static_cast<unsigned>(count);
  ::io_uring_prep_send(::io_uring_get_sqe(&ring), fd, bytes, length, 0);
  int result = run();
  if (result == count) {
    ::io_uring_prep_recv(::io_uring_get_sqe(&ring), fd, bytes, length,
                         MSG_WAITALL);
    result = run();
  }
  ::io_uring_queue_exit(&ring);
  return result;
}

extern "C" __attribute__((visibility("default"))) int TalkByAio(int fd,
                                                                char* bytes,
                                                                int count) {
  io_context_t context{};
  const int made = ::io_setup(1, &context);
  if (made != 0) return made;
  const auto length = static_cast<unsigned>(count);
  const auto run = [&](iocb* block) {
    io_event event{};
    if (::io_submit(context, 1, &block) != 1) return -1;
    if (::io_getevents(context, 1, 1, &event, nullptr) != 1) return -1;
    return static_cast<int>(event.res);
  };
  iocb block{};
  ::io_prep_pwrite(&block, fd, bytes, length, 0);
  int result = run(&block);
  if (result == count) {
    ::io_prep_pread(&block, fd, bytes, length, 0);
    result = run(&block);
  }
  ::io_destroy(context);
  return result;
}
