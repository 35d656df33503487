// A C program, which does not load libgcc_s. The preload loads it at the start
// of a program that calls socket(), whose root may change before it has a lane.
// In one that finds socket() by its name (BY_NAME) the preload loads it when
// the process looks for a lane. Then a thread that waits on the lane is
// cancelled, so libgcc_s unwinds rcsock's frames.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(condition)                        \
  do {                                          \
    if (!(condition)) {                         \
      fprintf(stderr, "not: %s\n", #condition); \
      exit(1);                                  \
    }                                           \
  } while (0)

#ifdef BY_NAME
#define FIND(name) ((__typeof__(&name))dlsym(RTLD_DEFAULT, #name))
#define socket(...) FIND(socket)(__VA_ARGS__)
#define connect(...) FIND(connect)(__VA_ARGS__)
#define listen(...) FIND(listen)(__VA_ARGS__)
#define accept(...) FIND(accept)(__VA_ARGS__)
#endif

static int ends[2];
static int cleaned;

static int Mapped(const char* name) {
  char line[4096];
  int found = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  CHECK(maps != NULL);
  while (fgets(line, sizeof line, maps) != NULL) {
    found |= strstr(line, name) != NULL;
  }
  fclose(maps);
  return found;
}

static void Connect(void) {
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  struct sockaddr* name = (struct sockaddr*)&address;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(bind(listener, name, size) == 0 && listen(listener, 1) == 0);
  CHECK(getsockname(listener, name, &size) == 0);
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(connect(ends[0], name, size) == 0);
  ends[1] = accept(listener, NULL, NULL);
  CHECK(ends[1] >= 0);
  close(listener);
}

static void Pass(int from) {
  char text[8] = "1234567";
  CHECK(send(ends[from], text, sizeof text, 0) == sizeof text);
  CHECK(recv(ends[1 - from], text, sizeof text, 0) == sizeof text);
}

static uint64_t TcpBytes(void) {
  struct tcp_info info;
  socklen_t size = sizeof info;
  memset(&info, 0, sizeof info);
  CHECK(getsockopt(ends[0], IPPROTO_TCP, TCP_INFO, &info, &size) == 0);
  return info.tcpi_bytes_acked + info.tcpi_bytes_received;
}

// Until TCP carries nothing any more.
static void Warm(void) {
  uint64_t before = 0;
  for (int i = 0, still = 0; still < 20; ++i) {
    CHECK(i < 2000);
    for (int k = 0; k < 20; ++k) Pass(k % 2);
    usleep(500);
    const uint64_t now = TcpBytes();
    still = now == before ? still + 1 : 0;
    before = now;
  }
}

static void Clean(void* argument) {
  (void)argument;
  cleaned = 1;
}

static void* Wait(void* argument) {
  char text[8];
  pthread_cleanup_push(Clean, NULL);
  recv(ends[1], text, sizeof text, 0);
  pthread_cleanup_pop(0);
  return argument;
}

int main(int count, char** words) {
#ifdef BY_NAME
  CHECK(!Mapped("libgcc_s"));
#else
  CHECK(Mapped("libgcc_s"));
#endif
  if (count == 2) {
    // As a daemon does. Without /proc no lane comes.
    CHECK(chroot(words[1]) == 0 && chdir("/") == 0);
    Connect();
    for (int i = 0; i < 400; ++i) {
      Pass(i % 2);
      if (i % 20 == 0) usleep(500);
    }
    puts("ok");
    return 0;
  }
  Connect();
  Warm();
  CHECK(Mapped("libgcc_s"));
  for (int i = 0; i < 3; ++i) {
    pthread_t thread;
    void* result = NULL;
    cleaned = 0;
    CHECK(pthread_create(&thread, NULL, Wait, NULL) == 0);
    usleep(10000);
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && cleaned == 1);
    Pass(0);
    Pass(1);
  }
  puts("ok");
  return 0;
}
