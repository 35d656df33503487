// A peer that gets a real lane by the rules and then writes nonsense: into all
// the memory it shares, as control messages, as frames on the TCP connection,
// as messages of the rendezvous.  Its victim, an echo server under the preload,
// must neither crash nor hang nor go on burning time, and goes on serving
// others.
//
// usage: hostile_peer SHIM VICTIM [FIRST_SEED [ROUNDS [threads|epoll]]]

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/posix/hostile_attacker.h"
#include "tests/posix/under.h"

namespace {

using under::Fail;
using under::Random;

struct Child {
  pid_t pid = -1;
  int orders = -1;  // we write
  int report = -1;  // we read
};

struct Programs {
  std::string shim;
  std::string victim;
};

Child StartUnder(const Programs& programs, std::vector<std::string> args,
                 const std::vector<std::string>& settings) {
  int orders[2];
  int report[2];
  CHECK_THAT(::pipe(orders) == 0 && ::pipe(report) == 0);
  args.push_back(std::to_string(orders[0]));
  args.push_back(std::to_string(report[1]));
  for (const int fd : {orders[1], report[0]}) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  Child child;
  child.pid = under::Start(programs.shim, args, settings, programs.victim);
  ::close(orders[0]);
  ::close(report[1]);
  child.orders = orders[1];
  child.report = report[0];
  return child;
}

void Await(int fd, char what, const char* who) {
  char got;
  if (!under::Readable(fd, 10'000)) {
    if (std::getenv("UNDER_STAY") != nullptr) {
      std::fprintf(stderr, "%s does not answer\n", who);
      ::pause();
    }
    Fail("%s does not answer", who);
  }
  if (::read(fd, &got, 1) != 1 || got != what) Fail("%s has ended", who);
}

long Ticks(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  std::size_t at = line.rfind(')');
  CHECK_THAT(at != std::string::npos);
  long fields[13];
  const char* text = line.c_str() + at + 3;
  for (long& field : fields) {
    text = std::strchr(text, ' ');
    CHECK_THAT(text != nullptr);
    field = std::atol(++text);
  }
  return fields[10] + fields[11];  // utime, stime
}

// A tenth of a second in which it hardly runs must come.
void ExpectQuiet(pid_t pid) {
  long ticks = 0;
  for (int i = 0; i < 50; ++i) {
    const long before = Ticks(pid);
    ::poll(nullptr, 0, 100);  // what is measured, not waited for
    ticks = Ticks(pid) - before;
    if (ticks <= 2) return;
  }
  if (std::getenv("UNDER_STAY") != nullptr) {
    std::fprintf(stderr, "victim %d busy\n", pid);
    ::pause();
  }
  Fail("the victim is busy: %ld ticks", ticks);
}

struct Counts {
  int lanes = 0;
  int promoted = 0;
};

void Round(const Child& victim, int port, const Child& honest,
           std::uint64_t seed, Counts* counts) {
  Random random{seed * 31 + 7};
  const bool we_connect = random.Below(2) == 0;
  int up[2];
  int down[2];
  CHECK_THAT(::pipe2(up, O_CLOEXEC) == 0 && ::pipe2(down, O_CLOEXEC) == 0);
  int listener = -1;
  if (!we_connect) {
    int own_port;
    listener = under::Listen(&own_port);
    char order[1 + sizeof own_port] = {'c'};
    std::memcpy(order + 1, &own_port, sizeof own_port);
    CHECK_THAT(::write(victim.orders, order, sizeof order) == sizeof order);
  }
  std::fflush(nullptr);
  const pid_t attacker = ::fork();
  if (attacker == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(down[1]);
    const int fd = we_connect ? under::Connect(port) : under::Accept(listener);
    auto* attack =
        new hostile::Attacker(fd,
                              we_connect ? rcsock::stream::Role::kConnector
                                         : rcsock::stream::Role::kAcceptor,
                              seed);
    const bool lane = attack->GetLane();
    if (lane) attack->Attack();
    const bool leaves = random.Below(3) == 0;
    if (leaves) ::close(fd);
    const char word = !lane ? 'n' : attack->promoted > 0 ? 'p' : 'l';
    CHECK_THAT(::write(up[1], &word, 1) == 1);
    char byte;
    (void)!::read(down[0], &byte, 1);
    ::_exit(0);
  }
  ::close(up[1]);
  ::close(down[0]);
  if (listener >= 0) ::close(listener);
  // While the attack goes on, and after it.
  CHECK_THAT(::write(honest.orders, "g", 1) == 1);
  Await(honest.report, 'k', "the honest one");
  char word = 0;
  if (!under::Readable(up[0], 20'000) || ::read(up[0], &word, 1) != 1) {
    int status = 0;
    ::waitpid(attacker, &status, WNOHANG);
    Fail("the attacker: status %x", static_cast<unsigned>(status));
  }
  counts->lanes += word != 'n';
  counts->promoted += word == 'p';
  CHECK_THAT(::write(honest.orders, "g", 1) == 1);
  Await(honest.report, 'k', "the honest one, afterwards");
  if (seed % 4 == 0) ExpectQuiet(victim.pid);
  ::close(down[1]);
  int status = 0;
  CHECK_THAT(::waitpid(attacker, &status, 0) == attacker);
  if (status != 0) {
    Fail("the attacker: status %x", static_cast<unsigned>(status));
  }
  // The attacked connection and the two short ones of the honest.
  for (int i = 0; i < 3; ++i) Await(victim.report, 'e', "the victim");
  ::close(up[0]);
}

void Run(const Programs& programs, const std::string& mode, std::uint64_t first,
         int rounds) {
  const std::vector<std::string> settings = {"RCSOCK_PROMOTE_OPS=1"};
  const Child victim = StartUnder(programs, {"victim", mode}, settings);
  int port;
  CHECK_THAT(::read(victim.report, &port, sizeof port) == sizeof port);
  const Child honest =
      StartUnder(programs, {"honest", std::to_string(port)}, settings);
  CHECK_THAT(::write(honest.orders, "g", 1) == 1);
  Await(honest.report, 'k', "the honest one, before");
  Await(victim.report, 'e', "the victim, before");
  Counts counts;
  for (int i = 0; i < rounds; ++i) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
    if (std::getenv("UNDER_VERBOSE") != nullptr) {
      std::fprintf(stderr, "%s %llu\n", mode.c_str(),
                   static_cast<unsigned long long>(seed));
    }
    Round(victim, port, honest, seed, &counts);
  }
  ExpectQuiet(victim.pid);
  CHECK_THAT(::write(honest.orders, "x", 1) == 1);
  under::Finish(honest.pid, 10, "the honest one");
  CHECK_THAT(::write(victim.orders, "x", 1) == 1);
  under::Finish(victim.pid, 10, "the victim");
  const under::Stats own = under::ReadStats(honest.pid);
  const under::Stats stats = under::ReadStats(victim.pid);
  std::printf("%s: %d rounds, %d lanes, %d promoted\nhonest: %svictim: %s",
              mode.c_str(), rounds, counts.lanes, counts.promoted,
              own.text.c_str(), stats.text.c_str());
  std::fflush(stdout);
  if (own.Get("", "promoted") < 1) Fail("the honest one got no lane");
  if (counts.lanes < rounds * 3 / 4) Fail("hardly a lane to attack");
  if (rounds > 20 && counts.promoted < rounds / 5) {
    Fail("hardly a stream to attack");
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  if (argc < 3) return 2;
  const Programs programs{argv[1], argv[2]};
  ::alarm(argc > 4 ? 600 : 60);
  const std::uint64_t first =
      argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1;
  const int rounds = argc > 4 ? std::atoi(argv[4]) : 15;
  for (const char* mode : {"threads", "epoll"}) {
    if (argc > 5 && std::strcmp(argv[5], mode) != 0) continue;
    Run(programs, mode, first, rounds);
  }
  return 0;
}
