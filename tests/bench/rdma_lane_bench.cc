// How far the RDMA lane is from the bare verbs under it.
//
// Two threads that sleep, two QPs, the device that $RDMA_IP leads to.  Bare: an
// RDMA write with immediate for each message (iWARP: a write and a send), and
// whoever waits arms the completion queue and blocks in ibv_get_cq_event.
// Repetitions are interleaved, and medians compared.
// Usage: rdma_lane_bench [repetitions] [ring bytes]

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "tests/lane/rdma_cm_pair.h"

namespace {

using rcsock::base::NowNs;
using rcsock::lane::Lane;
using rcsock::lane::test::CmConnector;
using rcsock::lane::test::MakeCmPair;
using rcsock::lane::test::RdmaPair;
namespace verbs = rcsock::verbs;

constexpr std::size_t kRawBuffer = 4 * 1024 * 1024;
constexpr int kReceives = 512;

// One end of a connection without any lane.
struct RawEnd {
  verbs::Pd pd;
  verbs::Channel channel;
  verbs::Cq cq;
  std::byte* memory = nullptr;  // half to send from, half to be written to
  verbs::Mr mr;
  rdma_cm_id* id = nullptr;
  bool iwarp = false;
  std::uint64_t remote = 0;
  std::uint32_t key = 0;
  std::uint32_t inline_bytes = 256;
  int sent = 0;       // since the last signalled one
  int signalled = 0;  // not yet completed
  int received = 0;

  bool Open(rdma_cm_id* at) {
    verbs::Error error;
    id = at;
    iwarp = verbs::IsIwarp(id->verbs);
    pd = verbs::AllocPd(id->verbs, &error);
    channel = verbs::CreateChannel(id->verbs, &error);
    if (pd == nullptr || channel == nullptr) return false;
    ::fcntl(channel->fd, F_SETFL, 0);
    cq = verbs::CreateCq(id->verbs, 4096, channel.get(), &error);
    memory = static_cast<std::byte*>(
        ::mmap(nullptr, 2 * kRawBuffer, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    mr = verbs::Register(pd.get(), memory, 2 * kRawBuffer,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                         &error);
    if (cq == nullptr || mr == nullptr) return false;
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq.get();
    attr.cap.max_send_wr = 1024;
    attr.cap.max_recv_wr = kReceives;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    attr.qp_type = IBV_QPT_RC;
    if (!verbs::CreateQp(id, pd.get(), &attr, &inline_bytes, &error)) {
      return false;
    }
    for (int i = 0; i < kReceives; ++i) Receive();
    return true;
  }
  void Close() {
    verbs::calls.rdma_destroy_qp(id);
    mr.reset();
    ::munmap(memory, 2 * kRawBuffer);
    if (acks != 0) verbs::calls.ibv_ack_cq_events(cq.get(), acks);
    cq.reset();
    channel.reset();
    pd.reset();
  }
  void Receive() {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory), 4, mr->lkey};
    ibv_recv_wr wr{};
    wr.wr_id = 1;
    if (iwarp) {
      wr.sg_list = &sge;
      wr.num_sge = 1;
    }
    ibv_recv_wr* bad;
    ibv_post_recv(id->qp, &wr, &bad);
  }
  void Send(std::size_t at, std::uint32_t length) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory) + at, length,
                mr->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.rdma.remote_addr = remote + at;
    wr.wr.rdma.rkey = key;
    wr.opcode = iwarp ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM;
    if (length <= inline_bytes) wr.send_flags = IBV_SEND_INLINE;
    ibv_sge four{reinterpret_cast<std::uintptr_t>(memory), 4, mr->lkey};
    ibv_send_wr send{};
    if (iwarp) {
      send.sg_list = &four;
      send.num_sge = 1;
      send.opcode = IBV_WR_SEND;
      wr.next = &send;
    }
    if (++sent == 16) {
      sent = 0;
      ++signalled;
      (iwarp ? send : wr).send_flags |= IBV_SEND_SIGNALED;
    }
    ibv_send_wr* bad;
    if (ibv_post_send(id->qp, &wr, &bad) != 0) std::abort();
  }
  void Poll() {
    ibv_wc wc[16];
    const int n = ibv_poll_cq(cq.get(), 16, wc);
    for (int i = 0; i < n; ++i) {
      if (wc[i].status != IBV_WC_SUCCESS) std::abort();
      if (wc[i].wr_id == 1) {
        ++received;
        Receive();
      } else {
        --signalled;
      }
    }
  }
  // Until so many messages have come, sleeping.
  void Await(int messages) {
    while (received < messages) {
      Poll();
      if (received >= messages) break;
      ibv_req_notify_cq(cq.get(), 0);
      Poll();
      if (received >= messages) break;
      ibv_cq* which;
      void* context;
      verbs::calls.ibv_get_cq_event(channel.get(), &which, &context);
      ++acks;
    }
  }
  unsigned acks = 0;
};

struct RawPair {
  CmConnector cm;
  RawEnd end[2];

  bool Open() {
    if (!cm.Open() || !end[0].Open(cm.id(0)) ||
        !cm.Connect([&](rdma_cm_id* id) { return end[1].Open(id); })) {
      return false;
    }
    for (int i = 0; i < 2; ++i) {
      end[i].remote =
          reinterpret_cast<std::uintptr_t>(end[1 - i].memory) + kRawBuffer;
      end[i].key = end[1 - i].mr->rkey;
    }
    return true;
  }
  ~RawPair() {
    for (auto& e : end) e.Close();
  }
};

// Runs `a` and `b` at once; nanoseconds until both are through.
std::uint64_t Both(const std::function<void()>& a,
                   const std::function<void()>& b) {
  const std::uint64_t start = NowNs();
  std::thread other(b);
  a();
  other.join();
  return NowNs() - start;
}

// --- Ping-pong: microseconds of half a round trip ----------------------------

double RawTurns(RawPair* pair, std::uint32_t size, int turns) {
  const auto play = [&](int i) {
    RawEnd& end = pair->end[i];
    const int start = end.received;
    for (int turn = 0; turn < turns; ++turn) {
      if (i == 0) end.Send(0, size);
      end.Await(start + turn + 1);
      if (i == 1) end.Send(0, size);
    }
  };
  return static_cast<double>(Both([&] { play(0); }, [&] { play(1); })) / 2e3 /
         turns;
}

void ReadAll(Lane* lane, std::byte* buffer, std::size_t size) {
  std::size_t got = 0;
  while (got < size) {
    const std::uint32_t token = lane->SleepToken(false);
    iovec iov{buffer, size - got};
    const std::size_t n = lane->Read(&iov, 1, 0, size - got, false);
    got += n;
    if (n == 0) lane->SleepRx(token, nullptr);
  }
}

void PostAll(Lane* lane, std::byte* buffer, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    const std::uint32_t token = lane->SleepToken(true);
    iovec iov{buffer, size};
    const std::size_t n = lane->Post(&iov, 1, done, size - done);
    done += n;
    if (n == 0) lane->SleepTx(token, nullptr);
  }
}

double LaneTurns(RdmaPair* pair, std::uint32_t size, int turns) {
  const auto play = [&](int i) {
    Lane& lane = pair->end(i);
    std::vector<std::byte> buffer(size);
    for (int turn = 0; turn < turns; ++turn) {
      if (i == 0) PostAll(&lane, buffer.data(), size);
      ReadAll(&lane, buffer.data(), size);
      if (i == 1) PostAll(&lane, buffer.data(), size);
    }
  };
  return static_cast<double>(Both([&] { play(0); }, [&] { play(1); })) / 2e3 /
         turns;
}

// --- One way: million bytes a second, or thousand messages -------------------

constexpr int kAhead = 32;

double RawOneWay(RawPair* pair, std::uint32_t size, int count) {
  const std::uint64_t ns = Both(
      [&] {
        RawEnd& end = pair->end[0];
        const int start = end.received;
        std::size_t at = 0;
        for (int i = 0; i < count; ++i) {
          // The other end says so after every half window.
          if (i >= kAhead) end.Await(start + (i - kAhead) / (kAhead / 2) + 1);
          end.Send(at, size);
          at += size;
          if (at + size > kRawBuffer) at = 0;
        }
        end.Await(start + count / (kAhead / 2));
      },
      [&] {
        RawEnd& end = pair->end[1];
        const int start = end.received;
        for (int i = 0; i < count / (kAhead / 2); ++i) {
          end.Await(start + (i + 1) * (kAhead / 2));
          end.Send(0, 4);
        }
      });
  return count * 1e3 / static_cast<double>(ns);
}

double LaneOneWay(RdmaPair* pair, std::uint32_t size, int count) {
  const std::uint64_t ns = Both(
      [&] {
        std::vector<std::byte> buffer(size);
        for (int i = 0; i < count; ++i) {
          PostAll(&pair->end(0), buffer.data(), size);
        }
        pair->side[0].domain->FlushDeferred();
      },
      [&] {
        std::vector<std::byte> buffer(128 * 1024);
        Lane* lane = &pair->end(1);
        std::size_t left = std::size_t{size} * count;
        while (left > 0) {
          const std::size_t n = std::min(left, buffer.size());
          const std::uint32_t token = lane->SleepToken(false);
          iovec iov{buffer.data(), n};
          const std::size_t got = lane->Read(&iov, 1, 0, n, false);
          left -= got;
          if (got == 0) lane->SleepRx(token, nullptr);
        }
      });
  return count * 1e3 / static_cast<double>(ns);
}

double Median(std::vector<double>* values) {
  std::sort(values->begin(), values->end());
  return (*values)[values->size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 9;
  const std::size_t ring =
      argc > 2 ? static_cast<std::size_t>(std::atol(argv[2])) : 1024 * 1024;
  rcsock::base::InitClock();
  RawPair raw;
  if (!raw.Open()) {
    std::fprintf(stderr, "rdma_lane_bench: no connection\n");
    return 1;
  }
  std::unique_ptr<RdmaPair> pair = MakeCmPair(ring);
  if (pair == nullptr) {
    std::fprintf(stderr, "rdma_lane_bench: no lane\n");
    return 1;
  }
  const auto compare = [&](const char* what, const char* unit, auto bare,
                           auto lane) {
    std::vector<double> a, b;
    for (int i = 0; i < repetitions; ++i) {
      a.push_back(bare());
      b.push_back(lane());
    }
    const double x = Median(&a);
    const double y = Median(&b);
    std::printf("%-24s bare %10.2f  lane %10.2f %s  ratio %.3f\n", what, x, y,
                unit, y / x);
    std::fflush(stdout);
  };
  for (const std::uint32_t size : {64u, 4096u, 65'536u}) {
    char what[40];
    std::snprintf(what, sizeof(what), "ping-pong %u B", size);
    const int turns = size > 10'000 ? 100 : 500;
    compare(
        what, "us", [&] { return RawTurns(&raw, size, turns); },
        [&] { return LaneTurns(pair.get(), size, turns); });
  }
  for (const std::uint32_t size : {64u, 4096u, 65'536u, 131'072u}) {
    char what[40];
    std::snprintf(what, sizeof(what), "one way %u B", size);
    const int count = size > 10'000 ? 480 : 6400;
    compare(
        what, "thousand/s", [&] { return 1e3 * RawOneWay(&raw, size, count); },
        [&] { return 1e3 * LaneOneWay(pair.get(), size, count); });
  }
  return 0;
}
