#include "lib/posix/lifecycle/handover.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "lib/base/env.h"
#include "lib/base/listing.h"
#include "lib/base/log.h"
#include "lib/base/other_loader.h"
#include "lib/base/path.h"
#include "lib/base/real.h"
#include "lib/base/sleep.h"
#include "lib/base/start_data.h"
#include "lib/base/unique_fd.h"
#include "lib/posix/fd/file.h"
#include "lib/posix/fd/table.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/sharing/holders.h"
#include "lib/posix/socket/each_sock.h"
#include "lib/posix/socket/hidden.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/sock_route.h"
#include "lib/posix/socket/stats.h"
#include "lib/posix/sys/identity.h"
#include "lib/posix/sys/user_arguments.h"

namespace rcsock::posix {
namespace {

constexpr char kName[] = "RCSOCK_INHERIT";
constexpr std::size_t kNameLength = sizeof kName - 1;

bool Names(const char* entry, const char* name, std::size_t length) {
  return std::strncmp(entry, name, length) == 0 && entry[length] == '=';
}

// The name of rcsock's own file, without its folder; null: not known.  Found at
// start, since a child of vfork must not look for it.
RCSOCK_START_DATA const char* own_file = nullptr;

[[gnu::cold]] void FindOwnFile() {
  Dl_info info{};
  if (::dladdr(&own_file, &info) == 0 || info.dli_fname == nullptr) return;
  own_file = base::LastPart(info.dli_fname);
}

// Returns whether an entry of LD_PRELOAD is rcsock: this file, whatever its
// name, or another file with a name like rcsock's.
bool IsUs(const char* entry, std::size_t length) {
  const char* const end = entry + length;
  const char* name = end;
  while (name != entry && name[-1] != '/') --name;
  const auto size = static_cast<std::size_t>(end - name);
  if (::memmem(name, size, "rcsock", 6) != nullptr) return true;
  return own_file != nullptr && std::strlen(own_file) == size &&
         std::memcmp(own_file, name, size) == 0;
}

// Calls each(entry, length) for each entry of a list of LD_PRELOAD.
template <class Each>
void EachPreloaded(const char* list, Each&& each) {
  while (*list != '\0') {
    const std::size_t length = std::strcspn(list, ": ");
    if (length > 0) each(list, length);
    list += list[length] == '\0' ? length : length + 1;
  }
}

constexpr char kPreload[] = "LD_PRELOAD";
constexpr std::size_t kPreloadLength = sizeof kPreload - 1;

// Returns LD_PRELOAD, or null if there is none.  Of several it returns the
// last, which glibc's loader takes, and getenv does not.
const char* PreloadOf(char* const environment[]) {
  const char* list = nullptr;
  for (std::size_t i = 0; environment != nullptr && environment[i] != nullptr;
       ++i) {
    if (Names(environment[i], kPreload, kPreloadLength)) {
      list = environment[i] + kPreloadLength + 1;
    }
  }
  return list;
}

bool PreloadIn(char* const environment[]) {
  bool us = false;
  if (const char* list = PreloadOf(environment)) {
    EachPreloaded(list, [&us](const char* entry, std::size_t length) {
      us = us || IsUs(entry, length);
    });
  }
  return us;
}

bool StartedByOther(const Executed& program) {
  if (program.path == nullptr) return false;
  char loader[1024];
  const bool other =
      program.search
          ? base::StartedByOtherInPath(program.path, loader, sizeof loader)
          : base::StartedByOther(program.folder, program.path, loader,
                                 sizeof loader);
  if (other) {
    RCSOCK_LOG(1, "%s is loaded by %s: without rcsock, over TCP", program.path,
               loader);
  }
  return other;
}

// Returns a sum of the last part of a program's name.  What is passed on is for
// the program of this name alone.  A program without rcsock in between may have
// forked, and then uncounted processes hold the connection.
unsigned NameSum(const char* path) {
  unsigned sum = 2166136261u;
  for (const char* name = base::LastPart(path); *name != '\0'; ++name) {
    sum = (sum ^ static_cast<unsigned char>(*name)) * 16777619u;
  }
  return sum;
}

bool Kept(int fd) {
  const long flags = ::syscall(SYS_fcntl, fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

// Returns the parent's stream of the connection `inode`, usually that of the
// number `number`.  A stream that was never adopted does not know its inode
// number yet, but may be adopted at any moment.  Its inode number is found by
// the parent's descriptor.
Sock* FindInode(std::uint64_t inode, int number) {
  const auto is = [inode](int fd) -> Sock* {
    Sock* sock = OwnersSock(fd);
    if (sock == nullptr) return nullptr;
    if (sock->anchor().inode() == 0) {
      char path[64];
      std::snprintf(path, sizeof path, "/proc/%ld/fd/%d", OwnPid(), fd);
      struct stat status {};
      if (::stat(path, &status) == 0) sock->anchor().SetInode(status.st_ino);
    }
    return sock->anchor().inode() == inode ? sock : nullptr;
  };
  Sock* sock = is(number);
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; sock == nullptr && fd <= top; ++fd) sock = is(fd);
  return sock;
}

}  // namespace

Handover::Handover(bool spawn, const Executed& program,
                   char* const environment[])
    : spawn_(spawn),
      lends_(spawn || InBorrowedMemory()),
      program_(Null(program.name) ? nullptr : program.name),
      listed_(PreloadIn(environment)),
      other_(listed_ && StartedByOther(program)),
      // Nothing says beforehand whether a program is linked with rcsock.
      known_(!other_ && (listed_ || OwnFace() == Face::kLibrary)) {
  const int saved = errno;
  std::memcpy(variable_, kName, kNameLength);
  length_ = kNameLength;
  if (InBorrowedMemory()) {
    FromBorrowed();
  } else {
    FromOurs();
  }
  errno = saved;
}

// Returns whether the new program can follow the connection.  MayBequeath makes
// what it needs, so it comes last.
bool Handover::Follows(Sock* sock) {
  if (!known_ || program_ == nullptr || OwnFace() != Face::kPreload ||
      heirlooms_ == kMost || !sock->across_exec().MayBequeath()) {
    return false;
  }
  if (table_ < 0) {
    table_ = static_cast<int>(::syscall(SYS_fcntl, HoldingsFd(), F_DUPFD, 64));
    if (table_ >= 0) Add("t%ld", table_, 0, 0);
  }
  return table_ >= 0;
}

// Notes that the new program has the connection, and cannot follow it.  Called
// before the stream leaves its lane.  A thread that may promote the stream sees
// this, if this thread does not see what that thread has done
// (Holders::GiveAway).
void Handover::GiveAway(Sock* sock) {
  for (int i = 0; i < given_count_; ++i) {
    if (given_[i].sock == sock) return;
  }
  if (given_count_ < kMost)
    given_[given_count_++] = {sock, sock->calls().Life()};
  sock->holders().GiveAway();
}

void Handover::FromOurs() {
  RevealForExec(spawn_);
  if (!spawn_) BeforeExec(known_);
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    // The new program does not get a hidden stream.
    const File* const file = Entry(fd);
    if (file == nullptr || file->Hidden()) continue;
    Sock* sock = LookupSock(fd);
    if (sock == nullptr || sock->fd() != fd) continue;
    const bool kept =
        KeptByExec(sock) || (spawn_ && sock->in_spawn_actions.load());
    bool follows = false;
    if (kept) {
      follows = Follows(sock);
      if (!follows) sock->across_exec().SpoilForNext(fd);
      if (spawn_) {
        // The count comes first, so that LaneOpen and TryAdopt see it if this
        // thread does not see what they did.
        follows ? sock->across_exec().AddHolder() : GiveAway(sock);
        if (Route(sock).Engaged() &&
            !sock->way_back().ToPlain(base::Reason::kPinnedExec)) {
          base::Log("fd %d: its peer did not answer before exec", fd);
          GiveAway(sock);
          follows = false;
        }
      }
      follows = follows && Bequeath(sock, SocketInode(fd));
    }
    if (sock->read_ahead().Bytes() == 0) continue;
    // The file actions of posix_spawn may give the program a number that is
    // closed here.
    if (!spawn_ && !kept) continue;
    if (!known_) {
      if (spawn_ && kept) CountLost(sock, sock->read_ahead().Bytes(), &stats);
      continue;
    }
    if (spawn_ && !follows) GiveAway(sock);
    Pass(sock->read_ahead().Fd(), true);
  }
}

// The child's changes to its descriptors are in no table, so its connections
// are found by inode number.  The streams are the parent's.  The parent's
// conductor moves them, and this thread only waits for that.
void Handover::FromBorrowed() {
  const int top = fd_high.load(std::memory_order_relaxed);
  const int most = top > 255 ? top : 255;
  for (int fd = 0; fd <= most; ++fd) {
    if (base::IsInternalFd(fd) || !Kept(fd)) continue;
    const std::uint64_t inode = SocketInode(fd);
    if (inode == 0) continue;
    Sock* sock = FindInode(inode, fd);
    if (sock == nullptr) continue;
    sock->copy().Reveal();
    if (Passed(sock->holders().number())) continue;
    // The mark or the count comes first, so that TryAdopt sees it if this
    // thread does not see what TryAdopt did.
    bool follows = Follows(sock);
    if (!follows) sock->across_exec().SpoilForNext(fd);
    follows ? sock->across_exec().AddHolder() : GiveAway(sock);
    for (int i = 0; sock->mode() == Mode::kEngine && i < 200; ++i) {
      if (i % 10 == 0) sock->way_back().AskFromBorrowed();
      base::SleepThrough(i < 50 ? 100'000 : 10'000'000);
    }
    if (sock->mode() == Mode::kEngine) {
      base::Log("fd %d: its peer did not answer before exec", fd);
      GiveAway(sock);
      follows = false;
    }
    if (follows) Bequeath(sock, inode);
    if (sock->read_ahead().Bytes() == 0) continue;
    if (!known_) {
      CountLost(sock, sock->read_ahead().Bytes(), &stats);
      continue;
    }
    Pass(sock->read_ahead().Fd(), false);
  }
}

void Handover::Pass(int memory, bool ours) {
  if (memory < 0 || count_ == kMost) return;
  long passed;
  if (ours) {
    passed = ::syscall(SYS_fcntl, memory, F_DUPFD, 64);
  } else {
    // The descriptor was made after the vfork, so it is in the parent's table
    // alone.
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%ld/fd/%d", OwnPid(), memory);
    passed = ::syscall(SYS_openat, AT_FDCWD, path, O_RDWR, 0);
  }
  if (passed < 0) {
    base::Log("bytes read ahead can't be passed on: errno %d", errno);
    return;
  }
  passed_[count_] = static_cast<int>(passed);
  Add("%ld", passed, 0, 0);
  ++count_;
}

void Handover::Add(const char* format, long a, long b, unsigned c) {
  variable_[length_] = length_ == kNameLength ? '=' : ',';
  ++length_;
  length_ += static_cast<std::size_t>(std::snprintf(
      variable_ + length_, sizeof variable_ - length_, format, a, b, c));
}

// `c`: the entry is for the process that this process becomes.  `s`: the entry
// is for a child of this process.
bool Handover::Bequeath(Sock* sock, std::uint64_t inode) {
  const int number = sock->across_exec().Bequeath(inode);
  if (number < 0) return false;
  Add(spawn_ ? "s%ld:%ld:%x" : "c%ld:%ld:%x", number, ::syscall(SYS_getpid),
      NameSum(program_));
  RCSOCK_LOG(2, "connection %d goes to %s", number, program_);
  heirloom_[heirlooms_++] = number;
  return true;
}

bool Handover::Passed(int number) const {
  for (int i = 0; i < heirlooms_; ++i) {
    if (heirloom_[i] == number) return true;
  }
  return false;
}

Handover::~Handover() {
  const int saved = errno;
  for (int i = 0; i < count_; ++i) ::syscall(SYS_close, passed_[i]);
  if (table_ >= 0) ::syscall(SYS_close, table_);
  if (!spawn_) AfterExec();
  errno = saved;
}

void Handover::TakeBack() {
  for (int i = 0; lends_ && i < heirlooms_; ++i) {
    if (Holding* holding = FindHolding(heirloom_[i])) holding->Leave();
  }
  for (; given_count_ > 0; --given_count_) {
    const auto& [sock, life] = given_[given_count_ - 1];
    sock->holders().TakeBack(life);
  }
}

std::size_t Handover::Room(char* const from[]) {
  std::size_t n = 2;
  for (std::size_t i = 0; from != nullptr && from[i] != nullptr; ++i) ++n;
  return n;
}

std::size_t Handover::Text(char* const from[]) const {
  return other_ ? kPreloadLength + 2 + std::strlen(PreloadOf(from)) : 0;
}

// A program without rcsock gets LD_PRELOAD without rcsock, and never
// `variable_`.  The new entry is the last.
void Handover::Extend(char* const from[], char** to, char* text) const {
  const char* const name = other_ ? kPreload : kName;
  const std::size_t length = other_ ? kPreloadLength : kNameLength;
  std::size_t n = 0;
  for (std::size_t i = 0; from != nullptr && from[i] != nullptr; ++i) {
    if (!Names(from[i], name, length)) to[n++] = from[i];
  }
  if (other_) {
    std::memcpy(text, kPreload, kPreloadLength);
    std::size_t at = kPreloadLength;
    text[at++] = '=';
    EachPreloaded(PreloadOf(from),
                  [text, &at](const char* entry, std::size_t size) {
                    if (IsUs(entry, size)) return;
                    if (at > kPreloadLength + 1) text[at++] = ':';
                    std::memcpy(text + at, entry, size);
                    at += size;
                  });
    text[at] = '\0';
  }
  to[n++] = other_ ? text : const_cast<char*>(variable_);
  to[n] = nullptr;
}

namespace {

// Calls each(number) for every descriptor of the process below `end`.  Returns
// false if the descriptors cannot be listed.
template <class Each>
bool EachDescriptorBelow(int end, Each&& each) {
  const bool all = base::EachDescriptor(0, [&](int fd) {
    if (fd < end) each(fd);
  });
  for (int fd = 0; !all && fd < end && fd < 4096; ++fd) each(fd);
  return all;
}

enum class Found : std::uint8_t { kYes, kNo, kUnknown };

// Binds every number below `end` that names the connection, wherever the old
// program put it.  `make(fd)` returns the stream for the first of these
// numbers, or null.
template <class Make>
Found TakeConnection(std::uint64_t inode, int end, Make&& make) {
  Sock* sock = nullptr;
  bool found = false;
  const bool all = EachDescriptorBelow(end, [&](int fd) {
    if (SocketInode(fd) != inode || !IsTcp(fd)) return;
    if (sock != nullptr) {
      CopyFd(sock->fd(), fd);
    } else if (!std::exchange(found, true) && (sock = make(fd)) != nullptr) {
      const long flags = ::syscall(SYS_fcntl, fd, F_GETFL);
      sock->nonblock.store(flags >= 0 && (flags & O_NONBLOCK) != 0);
      Bind(fd, sock);
    }
  });
  return found ? Found::kYes : all ? Found::kNo : Found::kUnknown;
}

void TakeHolding(int number) {
  Holding* all = FindHolding(number);
  if (all == nullptr) return;
  const std::uint64_t inode = all->inode.load();
  if (inode == 0) return;
  Sock* sock = nullptr;
  const Found found = TakeConnection(inode, kMaxFds, [&](int fd) {
    return sock = Holders::Inherited(number, fd);
  });
  if (sock != nullptr) sock->search().Allow();
  if (found == Found::kNo) all->Leave();
  RCSOCK_LOG(2, "connection %d: %s, %x have it", number,
             found == Found::kYes ? "inherited" : "not inherited",
             all->count.load());
}

void TakeUnread(int memory) {
  const std::uint64_t inode = Unread::Claimed(memory);
  if (inode == 0) return;
  const int top = fd_high.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= top; ++fd) {
    Sock* sock = LookupSock(fd);
    if (sock == nullptr || sock->anchor().inode() != inode) continue;
    sock->read_ahead().Inherit(memory);
    return;
  }
  BeforeLooking();
  Sock* sock = Sock::New(stream::Role::kConnector, false);
  if (sock == nullptr) return;
  if (!sock->read_ahead().Inherit(memory) ||
      TakeConnection(sock->anchor().inode(), kMaxFds,
                     [&](int) { return sock; }) != Found::kYes) {
    sock->Unref();
  }
}

// The usual numbers of a connection that another program has accepted for this
// server.
[[gnu::cold]] void TakeUnknown() {
  if (OwnFace() != Face::kPreload) return;
  // 0, 1 and 2 are inetd's, 3 is systemd's.
  constexpr int kMostNumbers = 4;
  for (int fd = 0; fd < kMostNumbers; ++fd) {
    const std::uint64_t inode = SocketInode(fd);
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (inode == 0 || Lookup(fd) != nullptr || !IsTcp(fd) ||
        real::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) !=
            0) {
      continue;
    }
    TakeConnection(inode, kMostNumbers,
                   [](int first) { return NotedShare::Unknown(first, true); });
  }
}

}  // namespace

[[gnu::cold]] void TakeInherited() {
  FindOwnFile();
  const char* at = base::Env(kName);
  const char* own = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  const bool preload = OwnFace() == Face::kPreload;
  for (int taken = 0; at != nullptr && *at != '\0' && taken < 160; ++taken) {
    const char kind = *at >= '0' && *at <= '9' ? 'u' : *at++;
    char* rest = nullptr;
    const long number = std::strtol(at, &rest, 10);
    if (rest == at || number < 0 || number > (1 << 24)) break;
    long process = 0;
    unsigned long sum = 0;
    if (*rest == ':') process = std::strtol(rest + 1, &rest, 10);
    if (*rest == ':') sum = std::strtoul(rest + 1, &rest, 16);
    at = *rest == ',' ? rest + 1 : "";
    if (kind == 'u') {
      TakeUnread(static_cast<int>(number));
    } else if (kind == 't') {
      // The table may be another user's, after setuid for instance.  Then the
      // connections stay on TCP.
      if (preload) TakeHoldings(static_cast<int>(number));
    } else if (own != nullptr && sum == NameSum(own) && preload &&
               process == (kind == 'c' ? OwnPid() : ::syscall(SYS_getppid))) {
      TakeHolding(static_cast<int>(number));
    }
  }
  ::unsetenv(kName);
  TakeUnknown();
}

}  // namespace rcsock::posix
