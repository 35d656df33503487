// Many event loops in one process: a message to one of them wakes that one, and
// no thread that waits for others.  Counted in context switches of threads that
// have nothing to do.
//
// usage: many_loops SHIM

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/posix/under.h"

namespace {

using under::Fail;

// More than there were bells in earlier versions, several times.
constexpr int kLoops = 24;
constexpr int kRounds = 10;

// "poll": with a pipe beside the stream, for else it sleeps on the stream's own
// word.  "both": a message to another loop as well, which the test must see.
const char* const kWays[] = {"epoll", "poll", "both"};

void Loop(int number, const std::string& way, int set, int fd, int quiet) {
  const std::string name = "loop" + std::to_string(number);
  ::pthread_setname_np(::pthread_self(), name.c_str());
  for (bool open = true; open;) {
    if (way == "poll") {
      pollfd both[] = {{fd, POLLIN, 0}, {quiet, POLLIN, 0}};
      CHECK_THAT(::poll(both, 2, -1) == 1);
    } else {
      epoll_event event{};
      CHECK_THAT(::epoll_wait(set, &event, 1, -1) == 1);
    }
    char byte;
    open = ::recv(fd, &byte, 1, 0) == 1;
    if (open) CHECK_THAT(::send(fd, &byte, 1, 0) == 1);
  }
}

int Server(const std::string& way, int report) {
  int port = 0;
  const int listener = under::Listen(&port);
  CHECK_THAT(::write(report, &port, sizeof port) == sizeof port);
  int quiet[2];
  CHECK_THAT(::pipe(quiet) == 0);
  std::vector<std::thread> loops;
  for (int i = 0; i < kLoops; ++i) {
    const int fd = under::Accept(listener);
    const int set = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    if (way != "poll") {
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    loops.emplace_back(Loop, i, way, set, fd, quiet[0]);
  }
  for (auto& loop : loops) loop.join();
  return 0;
}

int Client(const std::string& way, int port, int report, int go) {
  std::vector<int> fds;
  for (int i = 0; i < kLoops; ++i) fds.push_back(under::Connect(port));
  const auto turn = [](int fd) {
    char byte = 'm';
    CHECK_THAT(::send(fd, &byte, 1, 0) == 1);
    CHECK_THAT(::recv(fd, &byte, 1, 0) == 1);
  };
  // All get their lanes, and are used on them.
  const std::uint64_t end = under::NowMs() + 500;
  while (under::NowMs() < end) {
    for (const int fd : fds) turn(fd);
  }
  const int ready = 0;
  CHECK_THAT(::write(report, &ready, sizeof ready) == sizeof ready);
  for (char byte; ::read(go, &byte, 1) == 1;) {
    turn(fds[0]);
    if (way == "both") turn(fds[1]);
    CHECK_THAT(::write(report, &ready, sizeof ready) == sizeof ready);
  }
  for (const int fd : fds) ::close(fd);
  return 0;
}

struct Seen {
  std::map<std::string, long> switches;  // of each loop
  bool running = false;
};

Seen Look(pid_t pid) {
  Seen seen;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream status(task.path() / "status");
    std::string name;
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("Name:", 0) == 0) name = line.substr(6);
      if (line.rfind("State:", 0) == 0) {
        seen.running |= line.find("(sleeping)") == std::string::npos;
      }
      if (name.rfind("loop", 0) == 0 &&
          line.rfind("voluntary_ctxt_switches:", 0) == 0) {
        seen.switches[name] = std::atol(line.c_str() + line.find(':') + 1);
      }
    }
  }
  return seen;
}

// Asleep, and for good: nobody has moved since the last look.
Seen AtRest(pid_t pid) {
  Seen before = Look(pid);
  for (int i = 0; i < 400; ++i) {
    ::poll(nullptr, 0, 50);
    Seen now = Look(pid);
    if (now.switches == before.switches && !now.running) return now;
    before = now;
  }
  Fail("never at rest");
}

void Hear(int from) {
  int word;
  if (!under::Readable(from, 20'000) ||
      ::read(from, &word, sizeof word) != sizeof word) {
    Fail("an end says nothing");
  }
}

void Run(const std::string& shim, const std::string& way) {
  int report[2];
  int go[2];
  CHECK_THAT(::pipe(report) == 0 && ::pipe(go) == 0);
  const auto start = [&](const char* who, int port) {
    return under::Start(
        shim,
        {"app", who, way, std::to_string(port), std::to_string(report[1]),
         std::to_string(go[0]), std::to_string(go[1])},
        {"RCSOCK_PROMOTE_OPS=1"});
  };
  const pid_t server = start("server", 0);
  int port = 0;
  CHECK_THAT(under::Readable(report[0], 20'000) &&
             ::read(report[0], &port, sizeof port) == sizeof port);
  const pid_t client = start("client", port);
  Hear(report[0]);
  const Seen before = AtRest(server);
  CHECK_THAT(before.switches.size() == kLoops);
  Seen after;
  for (int round = 0; round < kRounds; ++round) {
    CHECK_THAT(::write(go[1], "g", 1) == 1);
    Hear(report[0]);
    after = AtRest(server);
  }
  ::close(go[1]);
  ::close(go[0]);
  under::Finish(client, 20, way + " client");
  under::Finish(server, 20, way + " server");
  ::close(report[0]);
  ::close(report[1]);
  long idle = 0;
  for (const auto& [name, count] : after.switches) {
    const long more = count - before.switches.at(name);
    if (name == "loop0") {
      if (more < kRounds) Fail("%s: loop0 has not slept", way.c_str());
    } else {
      idle += more;
    }
  }
  std::printf("%s: %ld switches of loops that have nothing to do\n",
              way.c_str(), idle);
  if (way == "both" ? idle < kRounds : idle > 0) {
    Fail("%s: %ld", way.c_str(), idle);
  }
  const long promoted = under::ReadStats(server).Get("", "promoted");
  if (promoted != kLoops) Fail("%ld lanes of %d", promoted, kLoops);
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(240);
  if (argc == 8 && std::strcmp(argv[1], "app") == 0) {
    ::close(std::atoi(argv[7]));
    return std::strcmp(argv[2], "client") == 0
               ? Client(argv[3], std::atoi(argv[4]), std::atoi(argv[5]),
                        std::atoi(argv[6]))
               : Server(argv[3], std::atoi(argv[5]));
  }
  if (argc != 2) return 2;
  for (const char* way : kWays) Run(argv[1], way);
  return 0;
}
