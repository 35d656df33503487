// The peer's FIN goes over TCP, its bytes over the lane: between two hosts the
// FIN may come first.  Here it does: this program is the peer, says FIN, waits
// until the reader knows it and sleeps again, and only then puts the bytes
// before it into the ring, a message at a time.  Whoever waits for them must be
// told of each, and of the end.
//
// usage: fin_overtakes SHIM READER [WAY]

#include "tests/posix/fin_overtakes.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "lib/stream/frames.h"
#include "lib/stream/stream.h"
#include "tests/posix/lane_peer.h"
#include "tests/posix/under.h"

namespace {

using namespace rcsock;  // NOLINT: a test of all rooms
using under::Fail;

using overtaken::kPing;
using overtaken::kSeed;
// In a slot, in the byte ring, in several records.
constexpr std::size_t kMessages[] = {20, 3000, 40'000};

std::size_t All() {
  std::size_t all = 0;
  for (const std::size_t each : kMessages) all += each;
  return all;
}

// One line of a file of /proc that has this key.
std::string Field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(key, 0) == 0) return line.substr(key.size());
  }
  Fail("no %s in %s", key.c_str(), path.c_str());
}

// Its main thread sleeps, and goes on sleeping: what has woken it is dealt
// with.  (A sleep of its own accord, as a nap, ends within milliseconds.)
void AwaitAsleep(pid_t pid) {
  const std::string status = "/proc/" + std::to_string(pid) + "/status";
  std::string before;
  for (int same = 0; same < 5;) {
    const std::string now =
        Field(status, "State:") + Field(status, "voluntary_ctxt_switches:");
    same = now == before && now.find('S') != std::string::npos ? same + 1 : 0;
    before = now;
    ::poll(nullptr, 0, 10);  // how long it must be quiet
  }
}

// What has come for the other end of `fd`, and nobody has taken from the
// kernel.
long Untaken(int fd) {
  int unsent = 0;
  CHECK_THAT(::ioctl(fd, SIOCOUTQ, &unsent) == 0);
  if (unsent != 0) return unsent;
  sockaddr_in own{};
  sockaddr_in peer{};
  socklen_t length = sizeof own;
  CHECK_THAT(::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) ==
             0);
  CHECK_THAT(::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) ==
             0);
  std::ifstream file("/proc/net/tcp");
  std::string line;
  while (std::getline(file, line)) {
    unsigned local;
    unsigned remote;
    unsigned long queued;
    if (std::sscanf(line.c_str(), "%*d: %*x:%x %*x:%x %*x %*x:%lx", &local,
                    &remote, &queued) == 3 &&
        local == ntohs(peer.sin_port) && remote == ntohs(own.sin_port)) {
      return static_cast<long>(queued);
    }
  }
  Fail("the reader's connection is gone");
}

class Peer {
 public:
  explicit Peer(int fd)
      : fd_(fd), anchor_(fd), stream_(kRole, &anchor_, stream::Limits{}) {
    stream_.Adopt(0, 0);
  }

  // By the rules.
  void Promote() {
    base::Reason why;
    rendezvous::Conductor* conductor = rendezvous::Conductor::Get(&why);
    CHECK_THAT(conductor != nullptr);
    Trip('p');
    while (!stream_.FastTx() || !stream_.FastRx()) {
      if (seeking_ == nullptr || seeking_->answer.load() == 2) {
        seeking_ = std::make_shared<under::Seeking>(fd_, kRole);
        conductor->Seek(seeking_);
      }
      Trip('p');
    }
  }

  // There and back.
  void Trip(char what) {
    std::uint8_t bytes[kPing] = {static_cast<std::uint8_t>(what)};
    for (const bool out : {true, false}) {
      for (std::size_t done = 0; done < kPing;) {
        iovec iov{bytes + done, kPing - done};
        const ssize_t n = out ? stream_.Write(&iov, 1, iov.iov_len)
                              : stream_.Read(&iov, 1, iov.iov_len, false);
        CHECK_THAT(n > 0 || n == -EAGAIN);
        if (n > 0) done += static_cast<std::size_t>(n);
        LookForLane();
        stream_.Progress();
        stream_.TakeChanges();
        if (n < 0) ::poll(nullptr, 0, 1);
      }
    }
  }

  void SayFin(std::uint64_t bytes_before) {
    stream::Frame frame;
    frame.kind = stream::FrameKind::kFin;
    frame.epoch = seeking_->epoch;
    frame.offset = stream_.tx_off() + bytes_before;
    const stream::FrameBytes coded = stream::Encode(frame);
    CHECK_THAT(::send(fd_, coded.data(), coded.size(), 0) ==
               static_cast<ssize_t>(coded.size()));
    while (Untaken(fd_) != 0) ::sched_yield();
  }

  // Past the stream, which has ended.
  void Post(const std::uint8_t* bytes, std::size_t length) {
    for (std::size_t done = 0; done < length;) {
      const iovec iov{const_cast<std::uint8_t*>(bytes) + done, length - done};
      done += seeking_->lane->Post(&iov, 1, 0, iov.iov_len);
    }
  }

 private:
  static constexpr stream::Role kRole = stream::Role::kConnector;

  // The connecting end proposes, as soon as it has the lane.
  void LookForLane() {
    if (up_ || seeking_ == nullptr ||
        seeking_->answer.load(std::memory_order_acquire) != 1) {
      return;
    }
    up_ = true;
    stream_.LaneUp(seeking_->lane.get(), seeking_->epoch, seeking_->mine,
                   seeking_->peers, true);
  }

  const int fd_;
  bool up_ = false;
  under::SocketAnchor anchor_;
  stream::Stream stream_;
  std::shared_ptr<under::Seeking> seeking_;
};

int Play(const std::string& shim, const std::string& program,
         const std::string& way) {
  int report[2];
  CHECK_THAT(::pipe(report) == 0);
  ::fcntl(report[0], F_SETFD, FD_CLOEXEC);
  const pid_t reader = under::Start(shim, {way, std::to_string(report[1])},
                                    {"RCSOCK_PROMOTE_OPS=1"}, program);
  ::close(report[1]);
  int port;
  CHECK_THAT(::read(report[0], &port, sizeof port) == sizeof port);
  auto* peer = new Peer(under::Connect(port));
  peer->Promote();
  peer->Trip('g');
  AwaitAsleep(reader);
  peer->SayFin(All());
  std::vector<std::uint8_t> bytes(All());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = under::ByteAt(kSeed, i);
  }
  std::size_t at = 0;
  for (const std::size_t length : kMessages) {
    AwaitAsleep(reader);
    peer->Post(bytes.data() + at, length);
    at += length;
  }
  std::uint64_t got = 0;
  if (!under::Readable(report[0], 5000)) Fail("%s: asleep", way.c_str());
  if (::read(report[0], &got, sizeof got) != sizeof got || got != All()) {
    Fail("%s: %llu bytes", way.c_str(), static_cast<unsigned long long>(got));
  }
  std::printf("%s: %llu bytes behind their FIN\n", way.c_str(),
              static_cast<unsigned long long>(got));
  std::fflush(stdout);
  ::kill(reader, SIGKILL);
  CHECK_THAT(::waitpid(reader, nullptr, 0) == reader);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);
  if (argc < 3) return 2;
  for (const char* way : {"recv", "waitall", "poll", "epoll", "epoll_edge"}) {
    if (argc > 3 && std::strcmp(argv[3], way) != 0) continue;
    // Each with a conductor of its own.
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(60);
      ::_exit(Play(argv[1], argv[2], way));
    }
    under::Finish(child, 60, way);
  }
  return 0;
}
