#include "lib/base/identity.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "lib/base/file_text.h"

namespace rcsock::base {
namespace {

constinit std::atomic<bool> all_mapped{false};
constinit std::atomic<uid_t> overflow{65534};

// Reads the beginning of a file of /proc. Returns false if there is none.
template <std::size_t size>
bool ReadText(const char* path, char (&text)[size]) {
  const std::size_t n = ReadStart(path, text, size - 1).size();
  text[n] = '\0';
  return n > 0;
}

}  // namespace

void ReadUidMap() {
  char text[128];
  unsigned long first = 1;
  unsigned long there = 1;
  unsigned long count = 0;
  // A single line that maps each user to its own number.
  constexpr unsigned long kAll = 0xffffffff;
  all_mapped = ReadText("/proc/thread-self/uid_map", text) &&
               std::sscanf(text, "%lu %lu %lu", &first, &there, &count) == 3 &&
               first == 0 && count == kAll;
  // Every user has a number, so overflowuid names one user.
  if (all_mapped) return;
  if (ReadText("/proc/sys/kernel/overflowuid", text)) {
    overflow = static_cast<uid_t>(std::strtoul(text, nullptr, 10));
  }
}

uid_t Known(uid_t uid) { return uid == overflow && !all_mapped ? kNoUid : uid; }

uid_t OwnUid() {
  uid_t real = kNoUid;
  uid_t effective = kNoUid;
  uid_t saved = kNoUid;
  ::syscall(SYS_getresuid, &real, &effective, &saved);
  return real == effective && effective == saved ? Known(effective) : kNoUid;
}

}  // namespace rcsock::base
