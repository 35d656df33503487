// Programs that leave rcsock no descriptors, or no memory: their own traffic
// does not notice, and the statistics say why it stayed on TCP.
//
// usage: scarce_resources SHIM

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/posix/under.h"

namespace {

using under::Fail;

// How long the two exchange messages at first, and at most: the search for a
// lane has to come to its end meanwhile.
constexpr int kMs = 40;
constexpr int kMostMs = 10'000;

// Room for `room` more descriptors (-1: as it is), or no file may grow.
void Limit(int room, bool no_files) {
  if (room >= 0) {
    // The lowest free number: all below are in use.
    const int next = ::dup(0);
    CHECK_THAT(next >= 0);
    ::close(next);
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(next + room);
    CHECK_THAT(::setrlimit(RLIMIT_NOFILE, &limit) == 0);
  }
  if (no_files) {
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 0;
    CHECK_THAT(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
}

void Unlimit() {
  for (const auto what : {RLIMIT_NOFILE, RLIMIT_FSIZE}) {
    rlimit limit{};
    ::getrlimit(what, &limit);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(what, &limit);
  }
}

void Move(int fd, bool out, std::uint64_t seed, std::uint64_t* offset,
          std::size_t length) {
  std::vector<std::uint8_t> bytes(length);
  for (std::size_t i = 0; out && i < length; ++i) {
    bytes[i] = under::ByteAt(seed, *offset + i);
  }
  for (std::size_t done = 0; done < length;) {
    const ssize_t n = out ? ::send(fd, &bytes[done], length - done, 0)
                          : ::recv(fd, &bytes[done], length - done, 0);
    if (n <= 0) Fail("%s: %zd, errno %d", out ? "send" : "recv", n, errno);
    done += static_cast<std::size_t>(n);
  }
  for (std::size_t i = 0; i < length; ++i) {
    if (bytes[i] != under::ByteAt(seed, *offset + i)) Fail("foreign bytes");
  }
  *offset += length;
}

int App(bool client, int port, int report, int room, bool no_files, int ms) {
  int fd;
  if (client) {
    fd = under::Connect(port);
  } else {
    const int listener = under::Listen(&port);
    CHECK_THAT(::write(report, &port, sizeof port) == sizeof port);
    fd = under::Accept(listener);
    ::close(listener);
  }
  Limit(room, no_files);
  std::uint64_t offset[2] = {0, 0};
  const std::uint64_t end = under::NowMs() + static_cast<std::uint64_t>(ms);
  // The client ends it: an odd length is the last.
  for (;;) {
    if (client) {
      Move(fd, true, 1, &offset[0], 16);
      Move(fd, false, 2, &offset[1], 16);
      char last = under::NowMs() >= end ? 'l' : 'm';
      CHECK_THAT(::send(fd, &last, 1, 0) == 1);
      if (last == 'l') break;
    } else {
      Move(fd, false, 1, &offset[0], 16);
      Move(fd, true, 2, &offset[1], 16);
      char last = 0;
      CHECK_THAT(::recv(fd, &last, 1, 0) == 1);
      if (last == 'l') break;
    }
  }
  Move(fd, client, 1, &offset[0], 300'000);
  Move(fd, !client, 2, &offset[1], 300'000);
  ::close(fd);
  Unlimit();
  return 0;
}

struct Seen {
  under::Stats server;
  under::Stats client;
};

// `who`: 0 the server has the limit, 1 the client, 2 both.
Seen Run(const std::string& shim, int who, int room, bool no_files, int ms) {
  int report[2];
  CHECK_THAT(::pipe(report) == 0);
  pid_t pids[2];
  int port = 0;
  for (const bool client : {false, true}) {
    const bool limited = who == 2 || client == (who == 1);
    pids[client] = under::Start(
        shim,
        {"app", client ? "client" : "server", std::to_string(port),
         std::to_string(report[1]), std::to_string(limited ? room : -1),
         limited && no_files ? "1" : "0", std::to_string(ms)},
        {"RCSOCK_PROMOTE_OPS=1"});
    if (!client) {
      CHECK_THAT(::read(report[0], &port, sizeof port) == sizeof port);
    }
  }
  const std::string what =
      "limit " + std::to_string(who) + ", room " + std::to_string(room);
  const int limit = 15 + ms / 1000;
  under::Finish(pids[1], limit, what + ", the client");
  under::Finish(pids[0], limit, what + ", the server");
  ::close(report[0]);
  ::close(report[1]);
  return {under::ReadStats(pids[0]), under::ReadStats(pids[1])};
}

// With more time while what must come has not: a busy machine is slow.
template <class Enough>
Seen RunUntil(const std::string& shim, int who, int room, bool no_files,
              const Enough& enough) {
  for (int ms = kMs;; ms *= 4) {
    const Seen seen = Run(shim, who, room, no_files, ms);
    if (enough(seen) || ms > kMostMs) return seen;
  }
}

bool Promoted(const Seen& seen) { return seen.client.Get("", "promoted") != 0; }

bool Says(const Seen& seen, int who, const char* reason) {
  return (who == 1 ? seen.client : seen.server).reasons.count(reason) != 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::alarm(240);
  if (argc == 8 && std::strcmp(argv[1], "app") == 0) {
    return App(std::strcmp(argv[2], "client") == 0, std::atoi(argv[3]),
               std::atoi(argv[4]), std::atoi(argv[5]), std::atoi(argv[6]) != 0,
               std::atoi(argv[7]));
  }
  if (argc != 2) return 2;
  int promoted_at_once = -1;
  for (int room = 0; room <= 40; ++room) {
    for (int who = 0; who < 3; ++who) {
      const Seen seen =
          RunUntil(argv[1], who, room, false, [&](const Seen& one) {
            return room == 0    ? Says(one, who, "no_fds")
                   : room == 40 ? Promoted(one)
                                : true;
          });
      if (Promoted(seen) && promoted_at_once < 0) promoted_at_once = room;
      if (room == 0 && !Says(seen, who, "no_fds")) {
        Fail("no room: %s",
             (who == 1 ? seen.client : seen.server).text.c_str());
      }
      if (room == 40 && !Promoted(seen)) {
        Fail("room: %s", seen.client.text.c_str());
      }
    }
  }
  std::printf("on a lane from a room of %d on\n", promoted_at_once);
  for (int who = 0; who < 3; ++who) {
    const Seen seen = RunUntil(argv[1], who, -1, true, [&](const Seen& one) {
      return Says(one, who, "no_memory");
    });
    if (!Says(seen, who, "no_memory")) {
      Fail("no memory: %s",
           (who == 1 ? seen.client : seen.server).text.c_str());
    }
  }
  return 0;
}
