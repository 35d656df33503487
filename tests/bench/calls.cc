// Round trips of 8 bytes between the two ends of a connection that one thread
// holds, after it has left TCP.  For count_instructions: a breakpoint before
// the round trips, one behind each 16 of them, and one at the end.  A wait
// looks at the kernel each fourth and each sixteenth time.
//
// usage: calls MODE SIXTEENS [CONNECTIONS]
//
//   blocking  recv waits
//   epoll     by EPOLLIN; edges: EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
//             once: EPOLLIN | EPOLLONESHOT, armed again behind each message
//             anew: EPOLLIN, deleted and added behind each message.  Of more
//             connections than one, a set at each end has all, and a round
//             trip is a message each way on all of them
//   poll      for input, of so many connections, the others of which are
//             silent; select: the same
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

int ends[2];
int sets[2] = {-1, -1};
std::uint32_t asked = EPOLLIN;
// What happens to a registration behind each message.
enum class Again { kNo, kModified, kAnew };
Again again = Again::kNo;
std::vector<int> all[2];  // of every connection
std::vector<epoll_event> found;
bool polls;
bool selects;
std::vector<pollfd> polled[2];  // the last one is that of `ends`

void Await(int to) {
  if (sets[to] >= 0) {
    epoll_event event;
    if (epoll_wait(sets[to], &event, 1, -1) != 1) Fail("epoll_wait");
  } else if (polls) {
    if (poll(polled[to].data(), polled[to].size(), -1) != 1) Fail("poll");
  } else if (selects) {
    fd_set in;
    FD_ZERO(&in);
    for (const pollfd& one : polled[to]) FD_SET(one.fd, &in);
    if (select(FD_SETSIZE, &in, nullptr, nullptr, nullptr) != 1) Fail("select");
  }
}

// A call of epoll_ctl for the connection of `ends`.
void Register(int end, int op) {
  epoll_event event{};
  event.events = asked;
  event.data.fd = ends[end];
  if (epoll_ctl(sets[end], op, ends[end], &event) != 0) Fail("epoll_ctl");
}
// Not in line: a round trip without it is counted, too.
[[gnu::noinline]] void RegisterAgain(int end) {
  if (sets[end] < 0) return;  // not yet
  if (again == Again::kModified) {
    Register(end, EPOLL_CTL_MOD);
  } else if (again == Again::kAnew) {
    Register(end, EPOLL_CTL_DEL);
    Register(end, EPOLL_CTL_ADD);
  }
}

void Pass(int from) {
  const int to = 1 - from;
  char text[8] = "1234567";
  if (send(ends[from], text, sizeof text, 0) != sizeof text) Fail("send");
  Await(to);
  if (recv(ends[to], text, sizeof text, 0) != sizeof text) Fail("recv");
  if (again != Again::kNo) [[unlikely]]
    RegisterAgain(to);
}

// Pass on every connection.  A wait reports all that it can.
void PassAll(int from) {
  const int to = 1 - from;
  char text[8] = "1234567";
  for (const int end : all[from]) {
    if (send(end, text, sizeof text, 0) != sizeof text) Fail("send");
  }
  for (std::size_t left = all[to].size(); left > 0;) {
    const int n =
        epoll_wait(sets[to], found.data(), static_cast<int>(found.size()), -1);
    if (n <= 0) Fail("epoll_wait");
    for (int i = 0; i < n; ++i) {
      ends[to] = found[i].data.fd;
      if (recv(ends[to], text, sizeof text, 0) != sizeof text) Fail("recv");
      RegisterAgain(to);
    }
    left -= static_cast<std::size_t>(n);
  }
}

void Connect() {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, name, size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, name, &size) != 0 ||
      connect(ends[0], name, size) != 0) {
    Fail("connect");
  }
  ends[1] = accept(listener, nullptr, nullptr);
  if (ends[1] < 0) Fail("accept");
  close(listener);
  for (int i = 0; i < 2; ++i) {
    polled[i].push_back({ends[i], POLLIN, 0});
    all[i].push_back(ends[i]);
  }
}

std::uint64_t TcpBytes() {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(ends[0], IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
    Fail("TCP_INFO");
  }
  return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

// Until TCP carries nothing any more.
void Warm() {
  std::uint64_t before = 0;
  for (int i = 0, still = 0; still < 20; ++i) {
    if (i == 1000) Fail("no lane");
    for (int k = 0; k < 20; ++k) Pass(k % 2);
    usleep(500);
    const std::uint64_t now = TcpBytes();
    still = now == before ? still + 1 : 0;
    before = now;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc >= 2 ? argv[1] : "";
  const long count = argc >= 3 ? std::atol(argv[2]) : 0;
  const long connections = argc >= 4 ? std::atol(argv[3]) : 1;
  polls = mode == "poll";
  selects = mode == "select";
  if (mode == "edges") asked = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  if (mode == "once") {
    asked = EPOLLIN | EPOLLONESHOT;
    again = Again::kModified;
  }
  const bool anew = mode == "anew";
  if (anew) again = Again::kAnew;
  const bool set = mode == "epoll" || anew || asked != EPOLLIN;
  const bool many = connections > 1 && (mode == "epoll" || anew);
  if (count <= 0 || connections <= 0 ||
      (!set && !polls && !selects && mode != "blocking")) {
    std::fprintf(stderr,
                 "usage: calls blocking|epoll|edges|once|anew|poll|select "
                 "SIXTEENS [CONNECTIONS]\n");
    return 2;
  }
  for (long i = 0; i < connections; ++i) {
    Connect();
    for (int end = 0; end < 2 && set && !many; ++end) {
      sets[end] = epoll_create1(0);
      Register(end, EPOLL_CTL_ADD);
    }
    Warm();
  }
  if (many) {
    found.resize(all[0].size());
    // The streams come to the sets from their lanes.
    for (int end = 0; end < 2; ++end) {
      sets[end] = epoll_create1(0);
      for (const int one : all[end]) {
        ends[end] = one;
        Register(end, EPOLL_CTL_ADD);
      }
    }
    for (int k = 0; k < 20; ++k) PassAll(k % 2);
  }
  __asm__ volatile("int3");
  for (long i = 0; i < count; ++i) {
    for (int k = 0; k < 16; ++k) {
      if (many) {
        PassAll(0);
        PassAll(1);
      } else {
        Pass(0);
        Pass(1);
      }
    }
    __asm__ volatile("int3");
  }
  __asm__ volatile("int3");
  return 0;
}
