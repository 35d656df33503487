// What a send and a recv of a connection that stays on TCP cost more than the
// same two system calls made directly: both on one connection, in turn in
// batches of a fraction of a millisecond, so that the machine's moods, which
// change run by run by far more than this, are the same for both.  The other
// end is rcsock's neither by call nor by name.  Run it plain and under rcsock:
// the difference of the two figures is what rcsock costs.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"

namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A listener and what it accepts, past every library.
int RawListener(sockaddr_in* address) {
  const long fd = ::syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof *address;
  if (fd < 0 || ::syscall(SYS_bind, fd, address, length) != 0 ||
      ::syscall(SYS_listen, fd, 1) != 0 ||
      ::syscall(SYS_getsockname, fd, address, &length) != 0) {
    bench::Die("listen");
  }
  return static_cast<int>(fd);
}

class Pair {
 public:
  Pair() {
    sockaddr_in address{};
    const int listener = RawListener(&address);
    near_ = bench::Connect("127.0.0.1", ntohs(address.sin_port));
    far_ =
        static_cast<int>(::syscall(SYS_accept4, listener, nullptr, nullptr, 0));
    if (far_ < 0) bench::Die("accept");
    ::syscall(SYS_close, listener);
    const int on = 1;
    ::syscall(SYS_setsockopt, far_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }

  void ByLibrary() {
    Check(::send(near_, data_, kSize, MSG_NOSIGNAL));
    Answer();
    Check(::recv(near_, data_, kSize, 0));
  }
  void Directly() {
    Check(::syscall(SYS_sendto, near_, data_, kSize, MSG_NOSIGNAL, 0, 0));
    Answer();
    Check(::syscall(SYS_recvfrom, near_, data_, kSize, 0, 0, 0));
  }

 private:
  static constexpr std::size_t kSize = 8;
  static void Check(long n) {
    if (n != static_cast<long>(kSize)) bench::Die("a message");
  }
  void Answer() {
    Check(::syscall(SYS_recvfrom, far_, data_, kSize, 0, 0, 0));
    Check(::syscall(SYS_sendto, far_, data_, kSize, MSG_NOSIGNAL, 0, 0));
  }

  int near_ = -1;
  int far_ = -1;
  char data_[kSize] = {};
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"What a call of a connection on TCP costs above the kernel's"};
  int batches = 2000;
  int warm = 40'000;
  app.add_option("--batches", batches)
      ->check(CLI::Range(10, 1'000'000))
      ->capture_default_str();
  app.add_option("--warm", warm, "round trips before: rcsock gives up looking")
      ->check(CLI::Range(0, 10'000'000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  bench::Pin(0);
  // libc's calls cost more where there is a second thread, as rcsock's is.
  std::thread([] {
    for (;;) ::pause();
  }).detach();
  Pair pair;
  for (int i = 0; i < warm; ++i) pair.ByLibrary();
  constexpr int kBatch = 40;
  const auto time = [](auto step) {
    const std::int64_t start = bench::NowNs();
    for (int i = 0; i < kBatch; ++i) step();
    return static_cast<double>(bench::NowNs() - start) / kBatch;
  };
  std::vector<double> library, direct, more;
  for (int b = 0; b < batches; ++b) {
    // First one, then the other, then the other way round.
    const auto a = [&] { pair.ByLibrary(); };
    const auto d = [&] { pair.Directly(); };
    const double a1 = time(a), d1 = time(d), d2 = time(d), a2 = time(a);
    library.push_back((a1 + a2) / 2);
    direct.push_back((d1 + d2) / 2);
    more.push_back(library.back() - direct.back());
  }
  std::printf(
      "{\"bench\":\"plain_cost\",\"batches\":%d,\"library_ns\":%.1f,"
      "\"direct_ns\":%.1f,\"ns\":%.1f}\n",
      batches, Median(library), Median(direct), Median(more));
  return 0;
}
