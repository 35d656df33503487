// A promoted connection on which nothing moves costs nothing: no thread of
// either process runs, its conductor included.  Counted in context switches,
// not in time: those by which a thread goes to sleep.  (That another program
// takes its processor for a moment makes one of the other kind, on a busy
// machine; who computes all the time is seen by his ticks.)
//
// usage: idle SHIM
//
// Over RDMA in a guest: PAIR_ADDRESS says which device, RCSOCK_LANES=rdma.

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/posix/under.h"

namespace {

using under::Fail;

constexpr int kWindowMs = 2000;
// Of all threads of both processes in the window.  Reading /proc wakes nobody.
// (Each conductor may wake once, two seconds after the meeting, whose timer has
// been taken back: the timerfd stays armed.)
constexpr long kMost = 2;

// How the server waits for a byte.  "restless" looks ten times a second: the
// test must see that.  "hears": its bytes all go one way, from the server, so
// that over RDMA without a key the lane is open and not proposed on, and the
// conductors look after it.  "twice": by a stream that is in two sets.
const char* const kWaits[] = {"recv",  "poll",  "select",  "epoll",
                              "hears", "twice", "restless"};
bool Rdma() { return std::getenv("PAIR_ADDRESS") != nullptr; }

void Await(int fd, const std::string& how) {
  if (how == "poll") {
    pollfd one{fd, POLLIN, 0};
    CHECK_THAT(::poll(&one, 1, -1) == 1);
  } else if (how == "select") {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    CHECK_THAT(::select(fd + 1, &in, nullptr, nullptr, nullptr) == 1);
  } else if (how == "epoll" || how == "twice" || how == "restless") {
    const int set = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    const int limit = how == "restless" ? 100 : -1;
    int n;
    do {
      n = ::epoll_wait(set, &event, 1, limit);
    } while (n == 0);
    CHECK_THAT(n == 1);
    ::close(set);
  }
  char byte = 0;
  CHECK_THAT(::recv(fd, &byte, 1, 0) == 1 && byte == 'e');
}

// The test's pipes: `report` tells that this end is silent from now on, `go`
// ends the silence.
int App(bool client, const std::string& how, int port, int report, int go) {
  int fd;
  if (client) {
    fd = under::Connect(port);
  } else {
    const int listener = under::Listen(&port);
    CHECK_THAT(::write(report, &port, sizeof port) == sizeof port);
    fd = under::Accept(listener);
    ::close(listener);
  }
  char byte = 'x';
  const bool hears = how == "hears";
  // (Never waited in.)
  const int second = how == "twice" ? ::epoll_create1(EPOLL_CLOEXEC) : -1;
  epoll_event event{};
  event.events = EPOLLIN;
  if (second >= 0) {
    CHECK_THAT(::epoll_ctl(second, EPOLL_CTL_ADD, fd, &event) == 0);
  }
  const std::uint64_t end = under::NowMs() + (Rdma() ? 3000 : 300);
  for (bool last = false; !last;) {
    if (hears) {
      // (The accepting end sends first without a key.)
      if (client) {
        CHECK_THAT(::recv(fd, &byte, 1, 0) == 1);
      } else {
        byte = under::NowMs() >= end ? 'l' : 'm';
        CHECK_THAT(::send(fd, &byte, 1, 0) == 1);
        ::usleep(1000);
      }
    } else if (client) {
      byte = under::NowMs() >= end ? 'l' : 'm';
      CHECK_THAT(::send(fd, &byte, 1, 0) == 1);
      CHECK_THAT(::recv(fd, &byte, 1, 0) == 1);
    } else {
      CHECK_THAT(::recv(fd, &byte, 1, 0) == 1);
      CHECK_THAT(::send(fd, &byte, 1, 0) == 1);
    }
    last = byte == 'l';
  }
  const int silent = 0;
  CHECK_THAT(::write(report, &silent, sizeof silent) == sizeof silent);
  if (client) {
    CHECK_THAT(::read(go, &byte, 1) == 0);  // the test closes its end
    CHECK_THAT(::send(fd, "e", 1, 0) == 1);
  } else {
    Await(fd, how);
  }
  ::close(fd);
  return 0;
}

struct Seen {
  long switches = 0;
  long ticks = 0;  // of CPU
  bool running = false;
  std::string text;  // by thread
};

void Look(pid_t pid, Seen* seen) {
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("Name:", 0) == 0) seen->text += "\n" + line;
      if (line.find("ctxt_switches:") != std::string::npos) {
        if (line.rfind("voluntary", 0) == 0) {
          seen->switches += std::atol(line.c_str() + line.find(':') + 1);
        }
        seen->text += " " + line.substr(line.find(':') + 1);
      } else if (line.rfind("State:", 0) == 0) {
        seen->running |= line.find('S') == std::string::npos ||
                         line.find("(sleeping)") == std::string::npos;
      }
    }
  }
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::stringstream all;
  all << file.rdbuf();
  std::istringstream rest(all.str().substr(all.str().rfind(')') + 2));
  std::string word;
  for (int field = 3; field <= 15 && rest >> word; ++field) {
    if (field >= 14) seen->ticks += std::atol(word.c_str());
  }
}

Seen LookAtBoth(pid_t one, pid_t other) {
  Seen seen;
  Look(one, &seen);
  Look(other, &seen);
  return seen;
}

int Hear(int from) {
  int number = -1;
  if (!under::Readable(from, 10'000) ||
      ::read(from, &number, sizeof number) != sizeof number) {
    Fail("an end says nothing");
  }
  return number;
}

void Pause(int ms) { ::poll(nullptr, 0, ms); }

void Run(const std::string& shim, const std::string& how) {
  int report[2];
  int go[2];
  CHECK_THAT(::pipe(report) == 0 && ::pipe(go) == 0);
  const std::vector<std::string> settings = {"RCSOCK_PROMOTE_OPS=1"};
  const auto start = [&](const char* who, int port) {
    return under::Start(
        shim,
        {"app", who, how, std::to_string(port), std::to_string(report[1]),
         std::to_string(go[0]), std::to_string(go[1])},
        settings);
  };
  const pid_t server = start("server", 0);
  const pid_t client = start("client", Hear(report[0]));
  Hear(report[0]);
  Hear(report[0]);
  // Until they have come to rest: the spins are over, the threads asleep. (Over
  // RDMA each end asks once more, after 250 ms, whether all has landed.)
  Seen before = LookAtBoth(server, client);
  const int enough = Rdma() ? 20 : 1;
  for (int i = 0, rests = 0; how != "restless" && rests < enough; ++i) {
    Pause(100);
    const Seen now = LookAtBoth(server, client);
    const bool rest = now.switches == before.switches && !now.running;
    rests = rest ? rests + 1 : 0;
    if (i == 200) Fail("%s: never at rest%s", how.c_str(), now.text.c_str());
    before = now;
  }
  Pause(kWindowMs);
  const Seen after = LookAtBoth(server, client);
  const long switches = after.switches - before.switches;
  const long ticks = after.ticks - before.ticks;
  std::printf("%s: %ld context switches, %ld ticks in %d ms\n", how.c_str(),
              switches, ticks, kWindowMs);
  if (how == "restless") {
    if (switches < 10) Fail("the test does not see what runs");
  } else if (switches > kMost || ticks > 1 || after.running) {
    Fail("%s: it does not rest; before:%s\nafter:%s", how.c_str(),
         before.text.c_str(), after.text.c_str());
  }
  ::close(go[0]);
  ::close(go[1]);
  under::Finish(client, 10, how + " client");
  under::Finish(server, 10, how + " server");
  ::close(report[0]);
  ::close(report[1]);
  for (const pid_t pid : {server, client}) {
    const under::Stats stats = under::ReadStats(pid);
    if (Rdma() && how == "hears") continue;  // nobody has proved itself
    if (stats.Get("", "promoted") != 1) Fail("no lane: %s", stats.text.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(120);
  if (argc == 8 && std::strcmp(argv[1], "app") == 0) {
    ::close(std::atoi(argv[7]));  // the test's end of `go`
    return App(std::strcmp(argv[2], "client") == 0, argv[3], std::atoi(argv[4]),
               std::atoi(argv[5]), std::atoi(argv[6]));
  }
  if (argc != 2) return 2;
  for (const char* how : kWaits) Run(argv[1], how);
  return 0;
}
