// usage: chat serve
//        chat connect PORT COUNT
//        chat fake silent|garbage|file|count|holes|version|linger|stubborn
//
// Connections for the tests of `rcsock stat`.  `serve` prints its port and
// echoes.  `connect` makes COUNT connections; each line of stdin is a number of
// round trips of 100 bytes over each of them, answered by "done".  `fake` takes
// a name as a process under rcsock has, prints it, and answers with nonsense.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "lib/lane/shm/layout.h"
#include "lib/posix/socket/snapshot.h"
#include "tests/base/lingering.h"
#include "tests/base/stubborn_file.h"

namespace {

constexpr std::size_t kBytes = 100;

rcsock::StubbornFile* stubborn = nullptr;

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

bool All(int fd, char* bytes, bool send) {
  std::size_t done = 0;
  while (done < kBytes) {
    const ssize_t n =
        send ? ::send(fd, bytes + done, kBytes - done, MSG_NOSIGNAL)
             : ::recv(fd, bytes + done, kBytes - done, 0);
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

void Echo(int fd) {
  char bytes[kBytes];
  while (All(fd, bytes, false) && All(fd, bytes, true)) {
  }
  ::close(fd);
}

int Serve() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof address;
  auto* name = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener, name, length) != 0 || ::listen(listener, 64) != 0 ||
      ::getsockname(listener, name, &length) != 0) {
    Die("listen");
  }
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  for (;;) {
    const int fd = ::accept(listener, nullptr, nullptr);
    if (fd < 0) Die("accept");
    std::thread(Echo, fd).detach();
  }
}

int Connect(int port, int count) {
  std::vector<int> all;
  const sockaddr_in address = Loopback(port);
  for (int i = 0; i < count; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address),
                  sizeof address) != 0) {
      Die("connect");
    }
    all.push_back(fd);
  }
  char line[64];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    for (int n = std::atoi(line); n > 0; --n) {
      for (const int fd : all) {
        char bytes[kBytes] = {};
        if (!All(fd, bytes, true) || !All(fd, bytes, false)) Die("round trip");
      }
    }
    std::puts("done");
    std::fflush(stdout);
  }
  return 0;
}

// What the reader gets a descriptor of.
int Answer(const std::string& mode) {
  if (mode == "linger") {  // its last close takes long
    static auto& sockets = *new std::vector<rcsock::Lingering>;
    return sockets.emplace_back(12).Take();
  }
  if (mode == "stubborn") return stubborn->get();  // no signal ends its close
  if (mode == "file") return ::open("/dev/zero", O_RDONLY);
  const int fd = ::memfd_create("fake", MFD_ALLOW_SEALING);
  rcsock::posix::SnapshotHead head{};
  head.magic = rcsock::posix::kSnapshotMagic;
  head.version = mode == "version" ? 99 : rcsock::posix::kSnapshotVersion;
  head.head_size = sizeof head;
  head.stream_size = sizeof(rcsock::posix::SnapshotStream);
  head.count = mode == "count" ? 1u << 31 : 0;
  if (mode == "holes") {  // few of them are memory, all would be read
    head.stream_size = 65536;
    head.count = 1u << 17;
    if (::ftruncate(fd, sizeof head + off_t{65536} * head.count) != 0) {
      Die("ftruncate");
    }
  }
  if (::write(fd, &head, sizeof head) != sizeof head) Die("write");
  ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  return fd;
}

int Fake(const std::string& mode) {
  if (mode == "stubborn") {
    stubborn = new rcsock::StubbornFile;
    if (!stubborn->ok()) {
      std::puts("none");
      return 0;
    }
  }
  const int listener = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "rcsock/1/stat/fake" + std::to_string(::getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address),
             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                    name.size())) != 0 ||
      ::listen(listener, 8) != 0) {
    Die("listen");
  }
  std::puts(name.c_str());
  std::fflush(stdout);
  if (mode == "silent") ::pause();
  for (;;) {
    const int fd = ::accept(listener, nullptr, nullptr);
    if (fd < 0) Die("accept");
    // Magic, version, type 13, length 8: as lib/rendezvous/wire.h has it.
    unsigned char header[8] = {
        'r', 'c', 's', 'k', rcsock::lane::shm::kMemoryVersion, 13, 8, 0};
    if (mode == "garbage") header[0] = 'x';
    iovec iov{header, sizeof header};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    // One that is taken, and one that stays in the reader's queue.
    for (int times = mode == "linger" ? 2 : 1; times > 0; --times) {
      const int answer = Answer(mode);
      std::memcpy(CMSG_DATA(rights), &answer, sizeof answer);
      ::sendmsg(fd, &message, MSG_NOSIGNAL);
      if (mode != "stubborn") ::close(answer);
    }
    ::close(fd);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "serve") return Serve();
  if (mode == "connect" && argc == 4) {
    return Connect(std::atoi(argv[2]), std::atoi(argv[3]));
  }
  if (mode == "fake" && argc == 3) return Fake(argv[2]);
  std::fputs("usage: see the head of chat.cc\n", stderr);
  return 2;
}
