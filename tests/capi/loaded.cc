// usage: loaded LIBRCSOCK
//
// A program that loads the library at run time, also where the preload is there
// already: one of them must leave the connections to the other.

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <rcsock/rcsock.h>

#include <cstdio>
#include <cstring>
#include <ctime>

#define LOAD(name)                                                             \
  const auto name =                                                            \
      reinterpret_cast<decltype(&rcs_##name)>(::dlsym(library, "rcs_" #name)); \
  if (name == nullptr) return Fail("no " #name)

namespace {

int Fail(const char* what) {
  std::fprintf(stderr, "FAILED: %s\n", what);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return Fail("usage: loaded LIBRCSOCK");
  void* library = ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Fail(::dlerror());
  LOAD(socket);
  LOAD(bind);
  LOAD(listen);
  LOAD(connect);
  LOAD(accept);
  LOAD(getsockname);
  LOAD(send);
  LOAD(recv);
  LOAD(close);
  LOAD(get_lane);
  LOAD(get_reason);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, name, size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, name, &size) != 0) {
    return Fail("listen");
  }
  const int one = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(one, name, size) != 0) return Fail("connect");
  const int other = accept(listener, nullptr, nullptr);
  const time_t end = ::time(nullptr) + 20;
  unsigned char sent = 0;
  for (int after = 0; after < 1000; after += get_lane(one) == RCS_SHM) {
    unsigned char got = 0;
    ++sent;
    if (send(one, &sent, 1, 0) != 1 || recv(other, &got, 1, 0) != 1 ||
        got != sent || send(other, &sent, 1, 0) != 1 ||
        recv(one, &got, 1, 0) != 1 || got != sent) {
      return Fail("the bytes");
    }
    if (::time(nullptr) > end) return Fail(get_reason(one));
  }
  close(one);
  close(other);
  close(listener);
  ::dlclose(library);
  std::puts("on a lane");
  return 0;
}
