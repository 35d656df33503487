// What it costs a set with a lane that a connection of this host is beside it
// on TCP: system calls for its order while that one has news, and none while it
// is silent.
//
// usage: beside_tcp SHIM

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/posix/under.h"
#include "tools/rcsock/perf/mark.h"
#include "tools/rcsock/perf/trace.h"

namespace {

using under::Fail;

// So many waits find something on the lane, one after the other.
constexpr int kWaits = 400;

// What the set has been told of before: nothing beside the lane; a connection
// that has just come; one that has been silent since; it, but for an eventfd
// beside it; and its first byte behind the silence.
const char* const kPasts[] = {"alone", "fresh", "silent", "event", "woken"};

int WaitFor(int set) {
  epoll_event events[8];
  CHECK_THAT(::epoll_wait(set, events, 8, 10'000) == 1);
  return events[0].data.fd;
}

void Add(int set, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

// The test's pipes: `report` tells what it may do next.
int Server(const std::string& past, int report) {
  const auto say = [&](int what) {
    CHECK_THAT(::write(report, &what, sizeof what) == sizeof what);
  };
  int port;
  const int listener = under::Listen(&port);
  say(port);
  const int lane = under::Accept(listener);
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  Add(set, lane);
  char byte = 0;
  while (byte != 'l') {
    CHECK_THAT(WaitFor(set) == lane && ::recv(lane, &byte, 1, 0) == 1);
    CHECK_THAT(::send(lane, &byte, 1, 0) == 1);
  }
  const int event = ::eventfd(0, EFD_CLOEXEC);
  CHECK_THAT(event >= 0);
  Add(set, event);
  int tcp = -1;
  if (past != "alone") {
    say(0);
    tcp = under::Accept(listener);
    Add(set, tcp);
  }
  if (past != "alone" && past != "fresh") {
    // (It is seen to be silent when the kernel is asked.)
    epoll_event none;
    for (int i = 0; i < 2; ++i) {
      ::usleep(1'200'000);
      CHECK_THAT(::epoll_wait(set, &none, 1, 0) == 0);
    }
  }
  if (past == "event") {
    eventfd_t one = 1;
    CHECK_THAT(::eventfd_write(event, one) == 0);
    CHECK_THAT(WaitFor(set) == event && ::eventfd_read(event, &one) == 0);
  }
  if (past == "woken") {
    say(1);
    CHECK_THAT(WaitFor(set) == tcp && ::recv(tcp, &byte, 1, 0) == 1);
  }
  CHECK_THAT(::send(lane, "g", 1, 0) == 1);
  CHECK_THAT(under::Readable(lane, 10'000));
  rcsock::perf::Mark();
  for (int i = 0; i < kWaits; ++i) {
    CHECK_THAT(WaitFor(set) == lane && ::recv(lane, &byte, 1, 0) == 1);
  }
  rcsock::perf::Mark();
  CHECK_THAT(::send(lane, "e", 1, 0) == 1);
  CHECK_THAT(::recv(lane, &byte, 1, 0) == 0);
  return 0;
}

int Client(int port) {
  const int fd = under::Connect(port);
  const std::uint64_t end = under::NowMs() + 500;
  char byte = 0;
  while (byte != 'l') {
    byte = under::NowMs() >= end ? 'l' : 'm';
    CHECK_THAT(::send(fd, &byte, 1, 0) == 1);
    CHECK_THAT(::recv(fd, &byte, 1, 0) == 1);
  }
  CHECK_THAT(::recv(fd, &byte, 1, 0) == 1 && byte == 'g');
  const std::string all(kWaits, 'a');
  CHECK_THAT(::send(fd, all.data(), all.size(), 0) == kWaits);
  CHECK_THAT(::recv(fd, &byte, 1, 0) == 1 && byte == 'e');
  ::close(fd);
  return 0;
}

int Hear(int from) {
  int number = -1;
  if (!under::Readable(from, 10'000) ||
      ::read(from, &number, sizeof number) != sizeof number) {
    Fail("the server says nothing");
  }
  return number;
}

// How often the server has asked the kernel.
long Run(const std::string& shim, const std::string& past) {
  int report[2];
  int result[2];
  CHECK_THAT(::pipe(report) == 0 && ::pipe(result) == 0);
  const std::vector<std::string> settings = {"RCSOCK_PROMOTE_OPS=1"};
  const pid_t tracer = ::fork();
  CHECK_THAT(tracer >= 0);
  if (tracer == 0) {
    rcsock::perf::SyscallCounts counts;
    std::string error;
    const int status = rcsock::perf::CountSyscalls(
        [&] {
          under::Become(shim,
                        {"app", "server", past, std::to_string(report[1])},
                        settings);
        },
        &counts, &error);
    if (!error.empty()) Fail("%s", error.c_str());
    long asks = counts.marks == 2 ? 0 : -1;
    for (const char* call : {"epoll_wait", "epoll_pwait", "epoll_pwait2"}) {
      asks += counts.calls[call];
    }
    CHECK_THAT(::write(result[1], &asks, sizeof asks) == sizeof asks);
    ::_exit(status);
  }
  const int port = Hear(report[0]);
  const pid_t client =
      under::Start(shim, {"app", "client", std::to_string(port)}, settings);
  // This process has no rcsock.
  int tcp = -1;
  if (past != "alone") {
    CHECK_THAT(Hear(report[0]) == 0);
    tcp = under::Connect(port);
  }
  if (past == "woken") {
    CHECK_THAT(Hear(report[0]) == 1);
    CHECK_THAT(::send(tcp, "w", 1, 0) == 1);
  }
  under::Finish(client, 30, past + " client");
  under::Finish(tracer, 30, past + " server");
  const under::Stats stats = under::ReadStats(client);
  if (stats.Get("", "promoted") != 1) Fail("no lane: %s", stats.text.c_str());
  long asks = -1;
  CHECK_THAT(::read(result[0], &asks, sizeof asks) == sizeof asks);
  if (tcp >= 0) ::close(tcp);
  for (const int end : {report[0], report[1], result[0], result[1]}) {
    ::close(end);
  }
  return asks;
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(120);
  if (argc == 5 && std::strcmp(argv[2], "server") == 0) {
    return Server(argv[3], std::atoi(argv[4]));
  }
  if (argc == 4 && std::strcmp(argv[2], "client") == 0) {
    return Client(std::atoi(argv[3]));
  }
  if (argc != 2) return 2;
  under::Work();
  bool good = true;
  for (const std::string past : kPasts) {
    const long asks = Run(argv[1], past);
    std::printf("%s: %ld system calls for %d waits\n", past.c_str(), asks,
                kWaits);
    std::fflush(stdout);
    // (Else the kernel's descriptors have their look every fourth wait at
    // most.  A wait that meets the conductor at the set asks once more.)
    const bool asked = past == "fresh" || past == "woken";
    good &= asks >= 0 && (asked ? asks >= kWaits : asks <= kWaits / 4 + 5);
  }
  return good ? 0 : 1;
}
