// Messages of an RDMA lane between two ends of one thread, on a device in
// memory.  For count_instructions --all: a breakpoint where counting begins and
// one where it ends, so that what the device does is left out.
//
// usage: rdma_calls post|read|trip BYTES TIMES
//
//   post   what a sender takes for a message that is answered
//   read   what the receiver takes to find and copy it
//   trip   both, at both ends
#include <sys/uio.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/lane/fake_pair.h"

namespace {

using rcsock::lane::Lane;

bool counting = false;
ibv_context_ops device;

void Mark() { asm volatile("int3"); }

// What the device does, uncounted.
template <typename F>
int Uncounted(F call) {
  const bool was = counting;
  if (was) Mark();
  const int r = call();
  if (was) Mark();
  return r;
}

int PostSend(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  return Uncounted([&] { return device.post_send(qp, wr, bad); });
}
int PostSrq(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return Uncounted([&] { return device.post_srq_recv(srq, wr, bad); });
}
int Poll(ibv_cq* cq, int count, ibv_wc* wc) {
  return Uncounted([&] { return device.poll_cq(cq, count, wc); });
}

template <typename F>
void Counted(bool count, F call) {
  if (count) Mark();
  counting = count;
  call();
  counting = false;
  if (count) Mark();
}

void Pass(Lane* from, Lane* to, std::vector<char>* bytes, bool post,
          bool read) {
  const iovec iov{bytes->data(), bytes->size()};
  std::size_t done = 0;
  Counted(post, [&] { done = from->Post(&iov, 1, 0, bytes->size()); });
  if (done != bytes->size()) std::abort();
  Counted(read, [&] { done = to->Read(&iov, 1, 0, bytes->size(), false); });
  if (done != bytes->size()) std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: rdma_calls post|read|trip BYTES TIMES\n");
    return 2;
  }
  const std::string mode = argv[1];
  std::vector<char> bytes(std::strtoul(argv[2], nullptr, 0));
  const int times = std::atoi(argv[3]);
  rcsock::base::InitClock();
  auto made = rcsock::lane::test::MakeFakePair({}, 64 << 10);
  if (made.pair == nullptr) return 1;
  // No other thread: a breakpoint would end it.
  for (auto& side : made.pair->side) side.flusher.reset();
  ibv_context_ops& ops = made.verbs->context()->ops;
  device = ops;
  ops.post_send = PostSend;
  ops.post_srq_recv = PostSrq;
  ops.poll_cq = Poll;
  for (int i = -100; i < times; ++i) {
    for (int from = 0; from < 2; ++from) {
      Pass(&made.pair->end(from), &made.pair->end(1 - from), &bytes,
           i >= 0 && mode != "read", i >= 0 && mode != "post");
    }
  }
  ops = device;
  return 0;
}
