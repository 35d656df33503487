// How data connections are made, and how they find their lanes.

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <span>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/meter.h"

namespace rcsock::perf {
namespace {

constexpr int kAcceptMs = 20'000;
constexpr double kConnectSeconds = 10;
constexpr std::size_t kMaxPending = 1024;
constexpr int kQuietRounds = 5;
constexpr int kFewRounds = 4;
constexpr std::size_t kGroup = 128;
constexpr std::int64_t kPatienceNs = 3'000'000'000;
constexpr std::int64_t kLittlePatienceNs = 300'000'000;
constexpr char kPing = 'p';

struct Pending {
  Fd fd;
  std::string got;
};

enum class Known { kYes, kNotYet, kNo };

// Reads the rest.  Only this test's client knows the token.
Known ReadToken(const std::string& token, Pending* pending) {
  char bytes[kTokenSize];
  const ssize_t n = ::recv(pending->fd.get(), bytes,
                           kTokenSize - pending->got.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Known::kNotYet;
  if (n <= 0) return Known::kNo;
  pending->got.append(bytes, static_cast<std::size_t>(n));
  if (token.compare(0, pending->got.size(), pending->got) != 0) {
    return Known::kNo;
  }
  return pending->got.size() == kTokenSize ? Known::kYes : Known::kNotYet;
}

void Round(std::span<const Fd> connections, char what) {
  std::array<char, kSettleSize> message{};
  message[0] = what;
  for (const Fd& fd : connections) {
    SendAll(fd.get(), message.data(), message.size());
  }
  for (const Fd& fd : connections) {
    if (!ReceiveAll(fd.get(), message.data(), message.size())) {
      Fail("the server has closed a connection");
    }
  }
}

// Returns false if the connections still use TCP at `end`.
bool Quieten(std::span<const Fd> connections, std::int64_t end) {
  std::uint64_t before = 0;
  int quiet = 0;
  do {
    Round(connections, kPing);
    // Paced: a lane is made in the background.
    ::usleep(2000);
    std::uint64_t now = 0;
    for (const Fd& fd : connections) now += TcpBytes(fd.get());
    quiet = now == before ? quiet + 1 : 0;
    before = now;
  } while (quiet < kQuietRounds && NowNs() < end);
  return quiet == kQuietRounds;
}

}  // namespace

std::vector<Fd> AcceptAll(int listener, const Job& job) {
  NeedDescriptors(job.spec.connections + 64);
  SetNonBlocking(listener);
  Fd set(::epoll_create1(EPOLL_CLOEXEC));
  if (!set) FailErrno("epoll_create1");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listener;
  ::epoll_ctl(set.get(), EPOLL_CTL_ADD, listener, &event);

  std::vector<Fd> known;
  std::map<int, Pending> pending;
  while (known.size() < job.spec.connections) {
    epoll_event ready;
    const int n = ::epoll_wait(set.get(), &ready, 1, kAcceptMs);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      Fail("only {} of {} connections have come", known.size(),
           job.spec.connections);
    }
    int fd = ready.data.fd;
    if (fd == listener) {
      fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0 && (errno == EMFILE || errno == ENFILE)) FailErrno("accept");
      if (fd < 0) continue;
      if (pending.size() == kMaxPending) pending.clear();
      event.data.fd = fd;
      ::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event);
      pending[fd].fd = Fd(fd);
    }
    const auto at = pending.find(fd);
    if (at == pending.end()) continue;
    const Known how = ReadToken(job.token, &at->second);
    if (how == Known::kNotYet) continue;
    ::epoll_ctl(set.get(), EPOLL_CTL_DEL, fd, nullptr);
    if (how == Known::kYes) {
      SetNoDelay(fd);
      known.push_back(std::move(at->second.fd));
    }
    pending.erase(at);
  }
  return known;
}

std::vector<Fd> ConnectAll(const Job& job, Histogram* took) {
  NeedDescriptors(job.spec.connections + 64);
  const Address address = Resolve(job.host, job.port);
  std::vector<Fd> connections;
  connections.reserve(job.spec.connections);
  for (std::uint64_t i = 0; i < job.spec.connections; ++i) {
    const std::int64_t start = NowNs();
    Fd fd = TryConnect(address, kConnectSeconds);
    if (!fd) {
      FailErrno("connection {} of {} to {} port {}", i + 1,
                job.spec.connections, job.host, job.port);
    }
    took->Record(static_cast<std::uint64_t>(NowNs() - start));
    SetNoDelay(fd.get());
    SendAll(fd.get(), job.token.data(), job.token.size());
    connections.push_back(std::move(fd));
  }
  return connections;
}

void Settle(const Job& job, const std::vector<Fd>& connections) {
  const std::int64_t end =
      NowNs() + static_cast<std::int64_t>(job.spec.settle * 1e9);
  std::int64_t patience = kPatienceNs;
  const std::span<const Fd> all(connections);
  if (!UnderRcsock(job.spec.transport)) {
    for (int round = 0; round < kFewRounds; ++round) Round(all, kPing);
  } else {
    // A few at a time.  Thousands that look for lanes at once would exceed the
    // limit of searches.
    for (std::size_t at = 0; at < all.size() && NowNs() < end; at += kGroup) {
      const auto group = all.subspan(at, std::min(kGroup, all.size() - at));
      if (!Quieten(group, std::min(end, NowNs() + patience))) {
        patience = kLittlePatienceNs;
      }
    }
  }
  Round(all, kGo);
}

bool SettleEcho(int fd) {
  std::array<char, kSettleSize> message;
  do {
    if (!ReceiveAll(fd, message.data(), message.size())) return false;
    SendAll(fd, message.data(), message.size());
  } while (message[0] != kGo);
  return true;
}

std::uint64_t TcpBytes(const std::vector<Fd>& connections) {
  std::uint64_t bytes = 0;
  for (const Fd& fd : connections) bytes += TcpBytes(fd.get());
  return bytes;
}

}  // namespace rcsock::perf
