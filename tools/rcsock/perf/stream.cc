// Bytes, one way or both, with a thread for each direction of each connection.

#include <algorithm>
#include <cerrno>
#include <latch>
#include <memory>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/gpu_buffer.h"
#include "tools/rcsock/perf/meter.h"

namespace rcsock::perf {
namespace {

// Sends until the time is up or all is sent.  Then tells the peer that it is
// over.
void Send(Meter* meter, const Spec& spec, int fd, Tally* tally) {
  const bool host = spec.gpu < 0;
  const std::vector<char> message(host ? spec.size : 0, 'x');
  const auto gpu =
      host ? nullptr : std::make_unique<GpuBuffer>(spec.gpu, spec.size);
  std::uint64_t left = spec.BytesEach();
  const bool counted = left != 0;
  while (counted ? left > 0 : !meter->stopped()) {
    std::size_t size = spec.size;
    if (counted) {
      size = static_cast<std::size_t>(std::min<std::uint64_t>(size, left));
      left -= size;
    }
    if (host) {
      SendAll(fd, message.data(), size);
    } else {
      gpu->Send(fd, size);
    }
    Tally::Add(&tally->tx, size);
    Tally::Add(&tally->messages, 1);
  }
  tally->tx_end = NowNs();
  ::shutdown(fd, SHUT_WR);
}

void ReceiveInGpu(const Spec& spec, int fd, Tally* tally) {
  GpuBuffer buffer(spec.gpu, std::max<std::size_t>(spec.size, 64 << 10));
  while (const std::size_t n = buffer.Receive(fd)) {
    Tally::Add(&tally->rx, n);
  }
  tally->rx_end = NowNs();
}

void Receive(const Spec& spec, int fd, Tally* tally) {
  if (spec.gpu >= 0) return ReceiveInGpu(spec, fd, tally);
  std::vector<char> buffer(std::max<std::size_t>(spec.size, 64 << 10));
  for (;;) {
    const ssize_t n = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailErrno("receive");
    if (n == 0) break;
    Tally::Add(&tally->rx, static_cast<std::uint64_t>(n));
  }
  tally->rx_end = NowNs();
}

// Waits for the end that sends nothing: it closes when everything has come.
void AwaitEnd(int fd) {
  char byte;
  while (::recv(fd, &byte, 1, 0) < 0) {
    if (errno != EINTR) FailErrno("receive");
  }
}

}  // namespace

void StreamThreads(Meter* meter, const Job& job, const std::vector<Fd>& fds) {
  const Spec& spec = job.spec;
  const bool both = spec.direction == Direction::kBoth;
  const bool sends =
      both || (spec.direction == Direction::kForward) != job.server;
  for (const Fd& each : fds) {
    const int fd = each.get();
    // The second thread waits until the first has seen the settling through.
    const auto settled = std::make_shared<std::latch>(1);
    meter->StartThread([=, server = job.server](Tally* tally) {
      if (server && !SettleEcho(fd)) Fail("the client has closed a connection");
      meter->Begin();
      settled->count_down();
      if (sends) {
        Send(meter, spec, fd, tally);
        if (!both) AwaitEnd(fd);
      } else {
        Receive(spec, fd, tally);
        ::shutdown(fd, SHUT_WR);
      }
    });
    if (!both) continue;
    meter->StartThread([=](Tally* tally) {
      settled->wait();
      Receive(spec, fd, tally);
    });
  }
}

}  // namespace rcsock::perf
