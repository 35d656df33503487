// Sockets and a fork before any constructor has run, the preload's included;
// and again in a constructor, and in main.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace {

void Say(const char* when, const char* what, int n) {
  char line[100];
  const int length =
      std::snprintf(line, sizeof line, "%s: %s %d\n", when, what, n);
  (void)!::write(1, line, static_cast<size_t>(length));
}

bool Echo(int fd, int count, bool first) {
  for (int i = 0; i < count; ++i) {
    char text[16];
    std::memset(text, i & 0xff, sizeof text);
    if (first && ::send(fd, text, sizeof text, 0) != sizeof text) return false;
    char back[16];
    if (::recv(fd, back, sizeof back, MSG_WAITALL) != sizeof back) return false;
    if (!first && ::send(fd, back, sizeof back, 0) != sizeof back) return false;
    if (std::memcmp(text, back, sizeof text) != 0) return false;
  }
  return true;
}

void Talk(const char* when) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* at = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener, at, length) != 0 || ::listen(listener, 5) != 0 ||
      ::getsockname(listener, at, &length) != 0) {
    Say(when, "FAILED listen", 0);
    return;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    const bool ok = ::connect(fd, at, length) == 0 && Echo(fd, 3000, true);
    ::close(fd);
    ::_exit(ok ? 0 : 1);
  }
  const int fd = ::accept(listener, nullptr, nullptr);
  Say(when, "echo", Echo(fd, 3000, false));
  char byte;
  Say(when, "end", static_cast<int>(::recv(fd, &byte, 1, 0)));
  ::close(fd);
  ::close(listener);
  int status = 0;
  ::waitpid(child, &status, 0);
  Say(when, "child", status);
}

void First(int, char**, char**) { Talk("before constructors"); }
__attribute__((section(".preinit_array"),
               used)) void (*const first)(int, char**, char**) = &First;
__attribute__((constructor)) void Second() { Talk("constructor"); }

}  // namespace

int main() { Talk("main"); }
