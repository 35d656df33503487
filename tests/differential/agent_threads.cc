// Calls in threads of their own.
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "tests/differential/agent.h"

namespace differential {

Pending* threads[kThreads] = {};

namespace {

void* RunPending(void* argument) {
  auto* self = static_cast<Pending*>(argument);
  self->tid.store(static_cast<int>(::syscall(SYS_gettid)));
  self->result = self->call();
  self->done.store(true);
  return nullptr;
}

// Returns once the thread sleeps in its call, or has come back.
void StartPending(int i, Pending* one) {
  threads[i] = one;
  if (::pthread_create(&one->thread, nullptr, RunPending, one) != 0) {
    Die("thread");
  }
  int quiet = 0;
  while (!one->done.load() && quiet < 3) {
    Brief();
    const int tid = one->tid.load();
    quiet = tid != 0 && Asleep(tid) ? quiet + 1 : 0;
  }
}

// Two that wait for the same thing, of whom one takes it, are a race over TCP
// as well.
bool Races(const Pending& one, const Pending& other) {
  const bool waits = one.connection < 0 || other.connection < 0;
  if (one.takes || other.takes) {
    return waits || one.connection == other.connection;
  }
  return waits && one.connection == other.connection;
}

}  // namespace

bool Asleep(int tid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[512];
  const ssize_t n = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  if (n <= 0) return false;
  text[n] = 0;
  const char* after = std::strrchr(text, ')');
  return after != nullptr && after[1] == ' ' && after[2] == 'S';
}

bool IsPending(int i) {
  return threads[i] != nullptr && !threads[i]->done.load();
}

bool IsPending() {
  for (int i = 0; i < kThreads; ++i) {
    if (IsPending(i)) return true;
  }
  return false;
}

void JoinPending(int i) {
  if (threads[i] == nullptr) return;
  ::pthread_join(threads[i]->thread, nullptr);
  delete threads[i];
  threads[i] = nullptr;
}

std::string StartPending(int connection, bool takes,
                         std::function<std::string()> call) {
  auto* one = new Pending();
  one->connection = connection;
  one->takes = takes;
  one->call = std::move(call);
  int free = -1;
  for (int i = kThreads - 1; i >= 0; --i) {
    if (!IsPending(i)) {
      free = i;
    } else if (Races(*one, *threads[i])) {
      delete one;
      return "skip";
    }
  }
  if (free < 0) {
    delete one;
    return "skip";
  }
  JoinPending(free);
  StartPending(free, one);
  return "started";
}

void PendingAgain(int i) {
  if (threads[i] == nullptr || IsPending(i)) return;
  auto* one = new Pending();
  one->connection = threads[i]->connection;
  one->takes = threads[i]->takes;
  one->call = threads[i]->call;
  JoinPending(i);
  StartPending(i, one);
}

}  // namespace differential
