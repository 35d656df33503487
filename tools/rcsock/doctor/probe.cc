// The two ends of a connection that is made to see whether it gets a lane.
// Both ends run under the preload, so they find what any program would find.

#include "tools/rcsock/doctor/probe.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/reason.h"
#include "tools/rcsock/doctor/gpus.h"
#include "tools/rcsock/doctor/host.h"
#include "tools/rcsock/printable.h"
#include "tools/rcsock/stat/ask.h"
#include "tools/rcsock/stat/kernel.h"
#include "tools/rcsock/stat/picture.h"

namespace rcsock::tools {
namespace {

// The size of all messages, both ways: a letter, and its content.
constexpr std::size_t kMessage = 64;
// 'h' hello, 'e' echo, 'r' report.
constexpr char kHello[] = "hrcsock-doctor 1";
constexpr int kPatienceMs = 5000;
// When to look whether there can be a lane at all.
constexpr int kFirstGuessMs = 200;
constexpr int kRoundTrips = 500;
constexpr std::uint8_t kUnknown = 0xff;  // in place of a base::Reason
constexpr int kMostClients = 16;

using Message = std::array<char, kMessage>;

bool SendAll(int fd, const Message& message) {
  std::size_t done = 0;
  while (done < message.size()) {
    const ssize_t n =
        ::send(fd, message.data() + done, message.size() - done, MSG_NOSIGNAL);
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

bool ReceiveAll(int fd, Message* message) {
  std::size_t done = 0;
  while (done < message->size()) {
    const ssize_t n =
        ::recv(fd, message->data() + done, message->size() - done, 0);
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

Message Text(const std::string& text) {
  Message message{};
  std::memcpy(message.data(), text.data(),
              std::min(text.size(), message.size() - 1));
  return message;
}

CollectOptions OfThisProcess() {
  CollectOptions options;
  options.pid = ::getpid();
  options.timeout_ms = 1000;
  return options;
}

// Reads what this process reports of one of its connections.
bool Look(int fd, posix::SnapshotStream* stream) {
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0) {
    return false;
  }
  bool found = false;
  AskAll(OfThisProcess(), ::getpid(), [&](const ProcessPicture& process) {
    for (const StreamPicture& one : process.streams) {
      if (one.is.fd != fd) continue;
      *stream = one.is;
      found = true;
      return false;
    }
    return true;
  });
  return found;
}

// Guesses from outside if there is no thread to ask: then the process has never
// looked for a lane.
void Guess(int fd, posix::SnapshotStream* stream) {
  stream->reason = kUnknown;  // there may be no descriptors to look with
  for (const ProcessPicture& process : Collect(OfThisProcess()).processes) {
    for (const StreamPicture& one : process.streams) {
      if (one.is.fd == fd) *stream = one.is;
    }
  }
  // Too little traffic cannot be the reason.
  if (stream->reason == static_cast<std::uint8_t>(base::Reason::kShortLived)) {
    stream->reason = kUnknown;
  }
}

void SetTimeouts(int fd) {
  timeval limit{kPatienceMs / 1000 + 5, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// --- The end that listens ----------------------------------------------------

void Serve(int fd) {
  SetTimeouts(fd);
  Message message;
  if (ReceiveAll(fd, &message) && message == Text(kHello) &&
      SendAll(fd, message)) {
    while (ReceiveAll(fd, &message)) {
      if (message[0] == 'r') {
        posix::SnapshotStream stream{};
        message = Look(fd, &stream)
                      ? Text(fmt::format("r{} {}", LaneName(stream.lane),
                                         ReasonName(stream.reason)))
                      : Text("rtcp ?");
      }
      if (!SendAll(fd, message)) break;
    }
  }
  ::close(fd);
}

int ListenOn(const std::string& host, std::uint16_t port) {
  const bool any = host.empty();
  const int fd =
      ::socket(any ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  int r = -1;
  if (any && fd >= 0) {
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(port);
    r = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  }
  int four = fd;
  if (r != 0) {
    // There is no IPv6 here, or only on loopback.
    const int saved = errno;
    if (any && saved != EAFNOSUPPORT && saved != EADDRNOTAVAIL) {
      errno = saved;
      return -1;
    }
    if (any) four = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(any ? INADDR_ANY : INADDR_LOOPBACK);
    address.sin_port = htons(port);
    r = ::bind(four, reinterpret_cast<sockaddr*>(&address), sizeof address);
  }
  return r == 0 && ::listen(four, 16) == 0 ? four : -1;
}

int RunServer(const std::string& host, std::uint16_t port) {
  const int listener = ListenOn(host, port);
  if (listener < 0) {
    std::fprintf(stderr, "rcsock: port %u: %s\n", port, std::strerror(errno));
    return 1;
  }
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&name), &length);
  // The port has one place in both families.
  const unsigned bound =
      ntohs(reinterpret_cast<const sockaddr_in&>(name).sin_port);
  if (port == 0) {
    std::printf("%u\n", bound);
  } else {
    std::printf(
        "rcsock doctor listens on port %u; on the other host: rcsock doctor "
        "THIS_HOST%s\n",
        bound, bound == kDoctorPort ? "" : fmt::format(":{}", bound).c_str());
  }
  std::fflush(stdout);
  static std::atomic<int> clients{0};
  for (;;) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      std::fprintf(stderr, "rcsock: accept: %s\n", std::strerror(errno));
      return 1;
    }
    if (clients.load() >= kMostClients) {
      ::close(fd);
      continue;
    }
    ++clients;
    const auto serve = [fd] {
      Serve(fd);
      --clients;
    };
    try {
      std::thread(serve).detach();
    } catch (const std::system_error&) {
      serve();  // no more threads: the next client waits
    }
  }
}

// --- The end that connects ---------------------------------------------------

int ConnectTo(const std::string& host, std::uint16_t port,
              ProbeResult* result) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int r =
      ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (r != 0) {
    result->error = fmt::format("{}: {}", host, ::gai_strerror(r));
    return -1;
  }
  int fd = -1;
  int error = 0;
  for (const addrinfo* at = found; at != nullptr && fd < 0; at = at->ai_next) {
    const int one = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (one < 0) {
      error = errno;
      continue;
    }
    SetTimeouts(one);
    if (::connect(one, at->ai_addr, at->ai_addrlen) == 0) {
      fd = one;
    } else {
      error = errno == EINPROGRESS ? ETIMEDOUT : errno;
      ::close(one);
    }
  }
  ::freeaddrinfo(found);
  if (fd < 0) {
    result->refused = error == ECONNREFUSED;
    result->error = fmt::format("{}:{}: {}", host, port, std::strerror(error));
  }
  return fd;
}

// Makes one round trip and verifies it.  Returns false and sets *error on
// failure.
bool RoundTrip(int fd, std::uint32_t number, std::string* error) {
  Message sent;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    sent[i] = static_cast<char>(number * 7 + i);
  }
  sent[0] = 'e';
  Message got;
  if (!SendAll(fd, sent) || !ReceiveAll(fd, &got)) {
    *error = errno == EAGAIN ? "the peer does not answer any more"
                             : "the peer has ended the connection";
    return false;
  }
  if (got == sent) return true;
  *error = "the bytes came back changed";
  return false;
}

// Makes traffic until the lane is there, or the time is over.
void AwaitLane(int fd, ProbeResult* result) {
  const std::uint64_t start = base::NowNs();
  posix::SnapshotStream stream{};
  bool guessed = false;
  for (std::uint32_t n = 0;; ++n) {
    for (int i = 0; i < 16; ++i) {
      if (!RoundTrip(fd, n, &result->error)) return;
    }
    const bool told = Look(fd, &stream);
    const double ms = static_cast<double>(base::NowNs() - start) * 1e-6;
    const bool on_lane = told && stream.state == posix::SnapshotState::kOnLane;
    if (!told && !guessed && ms > kFirstGuessMs) {
      guessed = true;
      Guess(fd, &stream);
    }
    const bool hopeless =
        guessed &&
        stream.reason == static_cast<std::uint8_t>(base::Reason::kPolicy);
    if (!on_lane && !hopeless && ms < kPatienceMs) {
      ::usleep(2000);  // the peer may need this processor
      continue;
    }
    result->promoted_ms = ms;
    result->lane = on_lane ? LaneName(stream.lane) : "tcp";
    result->device = stream.device;
    if (!told) Guess(fd, &stream);
    if (!on_lane) {
      result->reason = ReasonName(stream.reason);
      result->reason_text =
          result->reason == "?"
              ? HasConductor(::getpid())
                    ? "rcsock's own thread is stuck in a call to the driver"
                    : "rcsock's own thread could not be started, or asked"
              : ReasonWords(stream.reason);
    }
    return;
  }
}

ProbeResult RunClient(const std::string& host, std::uint16_t port) {
  ProbeResult result;
  const int fd = ConnectTo(host, port, &result);
  if (fd < 0) return result;
  Message message;
  if (!SendAll(fd, Text(kHello)) || !ReceiveAll(fd, &message)) {
    result.error = fmt::format(
        "{}:{} does not answer as a doctor of this version does", host, port);
    return result;
  }
  if (message != Text(kHello)) {
    result.error = fmt::format("at {}:{} listens something else", host, port);
    return result;
  }
  AwaitLane(fd, &result);
  if (!result.error.empty()) return result;
  std::vector<double> times;
  for (std::uint32_t n = 0; n < kRoundTrips; ++n) {
    const std::uint64_t from = base::NowNs();
    if (!RoundTrip(fd, n, &result.error)) return result;
    times.push_back(static_cast<double>(base::NowNs() - from) * 1e-3);
  }
  std::nth_element(times.begin(), times.begin() + kRoundTrips / 2, times.end());
  result.median_us = times[kRoundTrips / 2];
  result.round_trips = kRoundTrips;
  if (SendAll(fd, Text("r")) && ReceiveAll(fd, &message)) {
    message.back() = '\0';
    const std::string said = message.data();
    const std::size_t space = said.find(' ');
    if (said[0] == 'r' && space != std::string::npos) {
      result.peer_lane = tools::Printable(said.substr(1, space - 1));
      result.peer_reason = tools::Printable(said.substr(space + 1));
    }
  }
  ::close(fd);
  return result;
}

}  // namespace

int ProbeMain(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string mode = argv[1];
  const std::string host = argv[2];
  const std::string text = argv[3];
  std::uint16_t port = 0;
  std::from_chars(text.data(), text.data() + text.size(), port);
  if (mode == "listen") return RunServer(host, port);
  if (mode == "verbs") return VerbsMain(host, -1);
  if (mode == "gpu-verbs") return VerbsMain(host, port);
  if (mode == "gpus") return GpusMain();
  const ProbeResult result = RunClient(host, port);
  const nlohmann::json json = {{"error", result.error},
                               {"refused", result.refused},
                               {"lane", result.lane},
                               {"device", result.device},
                               {"reason", result.reason},
                               {"reason_text", result.reason_text},
                               {"peer_lane", result.peer_lane},
                               {"peer_reason", result.peer_reason},
                               {"promoted_ms", result.promoted_ms},
                               {"median_us", result.median_us},
                               {"round_trips", result.round_trips}};
  std::printf("%s\n", json.dump(-1, ' ', false,
                                nlohmann::json::error_handler_t::replace)
                          .c_str());
  return 0;
}

}  // namespace rcsock::tools
