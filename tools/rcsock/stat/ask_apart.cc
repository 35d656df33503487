#include "tools/rcsock/stat/ask_apart.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/listing.h"
#include "lib/base/unique_fd.h"
#include "tools/rcsock/stat/ask.h"
#include "tools/rcsock/stat/kernel.h"

namespace rcsock::tools {
namespace {

enum class What : std::uint8_t { kAnswer, kPreloaded, kAsked, kEnd };

// What goes over the pipe for a process.  The trouble and the streams of an
// answer follow.
struct Record {
  What what = What::kAnswer;
  pid_t pid = 0;
  uid_t uid = 0;
  Source source = Source::kSilent;
  std::uint32_t trouble_size = 0;
  std::uint64_t stream_count = 0;
  posix::SnapshotHead total{};
};

bool WriteAll(int fd, const void* bytes, std::size_t length) {
  const auto* at = static_cast<const char*>(bytes);
  while (length > 0) {
    const ssize_t n = ::write(fd, at, length);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    length -= static_cast<std::size_t>(n);
  }
  return true;
}

bool Tell(int fd, const ProcessPicture& process) {
  Record record;
  record.pid = process.pid;
  record.uid = process.uid;
  record.source = process.source;
  record.trouble_size = static_cast<std::uint32_t>(process.trouble.size());
  record.stream_count = process.streams.size();
  record.total = process.total;
  if (!WriteAll(fd, &record, sizeof record) ||
      !WriteAll(fd, process.trouble.data(), process.trouble.size())) {
    return false;
  }
  for (const StreamPicture& stream : process.streams) {
    if (!WriteAll(fd, &stream.is, sizeof stream.is)) return false;
  }
  return true;
}

// The child.  It keeps no descriptor of the parent's: another process may wait
// for the end of the parent's output.
[[noreturn]] void AskAndTell(const CollectOptions& options, pid_t self,
                             int pipe) {
  constexpr int kPipe = 3;
  if (::dup2(pipe, kPipe) != kPipe) ::_exit(1);
  if (::syscall(SYS_close_range, kPipe + 1, ~0u, 0) != 0) {
    // Before Linux 5.9.
    base::EachDescriptor(kPipe + 1, [](int fd) { ::close(fd); });
  }
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < kPipe; ++fd) ::dup2(null, fd);
  ::signal(SIGPIPE, SIG_IGN);
  AskAll(options, self,
         [](const ProcessPicture& process) { return Tell(kPipe, process); });
  const auto say = [](What what, pid_t pid) {
    Record record;
    record.what = what;
    record.pid = pid;
    WriteAll(kPipe, &record, sizeof record);
  };
  say(What::kAsked, 0);
  // In a shell under `rcsock run` this process is under the preload, too.
  const pid_t own = ::getpid();
  for (const pid_t pid : PreloadedProcesses()) {
    if (pid != own) say(What::kPreloaded, pid);
  }
  say(What::kEnd, 0);
  ::_exit(0);
}

// The parent's end.
class Hearing {
 public:
  Hearing(int fd, int patience_ms) : fd_(fd), patience_ms_(patience_ms) {}
  void SetPatience(int ms) { patience_ms_ = ms; }

  bool gave_up() const { return gave_up_; }

  // Returns false if the child has ended, or if nothing has come for too long.
  bool Read(void* bytes, std::size_t length) {
    auto* at = static_cast<char*>(bytes);
    while (length > 0) {
      const std::uint64_t end =
          base::NowNs() + static_cast<std::uint64_t>(patience_ms_) * 1'000'000;
      pollfd one{fd_, POLLIN, 0};
      while (::poll(&one, 1, patience_ms_) < 0) {
        if (errno != EINTR || base::NowNs() >= end) break;
      }
      if (one.revents == 0) {
        gave_up_ = true;
        return false;
      }
      const ssize_t n = ::read(fd_, at, length);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      at += n;
      length -= static_cast<std::size_t>(n);
    }
    return true;
  }

  bool Read(const Record& record, ProcessPicture* process) {
    process->pid = record.pid;
    process->uid = record.uid;
    process->source = record.source;
    process->total = record.total;
    process->trouble.resize(record.trouble_size);
    process->streams.resize(record.stream_count);
    if (!Read(process->trouble.data(), process->trouble.size())) return false;
    for (StreamPicture& stream : process->streams) {
      if (!Read(&stream.is, sizeof stream.is)) return false;
    }
    return true;
  }

 private:
  const int fd_;
  int patience_ms_;
  bool gave_up_ = false;
};

}  // namespace

Found FindApart(const CollectOptions& options) {
  const pid_t self = ::getpid();
  int ends[2];
  // If there is no answer, each process is shown as silent.
  if (::pipe2(ends, O_CLOEXEC) != 0) return {{}, PreloadedProcesses()};
  base::UniqueFd from(ends[0]);
  base::UniqueFd to(ends[1]);
  // Nothing waits for the child.
  ::signal(SIGCHLD, SIG_IGN);
  const pid_t child = ::fork();
  if (child < 0) return {{}, PreloadedProcesses()};
  if (child == 0) AskAndTell(options, self, to.get());
  to.reset();
  // An answer takes its time-out.  The look at files takes hardly any time.
  constexpr int kLookMs = 3000;
  Hearing hearing(from.get(), options.timeout_ms + kLookMs);
  Found found;
  for (Record record; hearing.Read(&record, sizeof record);) {
    ProcessPicture process;
    switch (record.what) {
      case What::kAnswer:
        if (hearing.Read(record, &process)) {
          found.answers.push_back(std::move(process));
        }
        continue;
      case What::kPreloaded:
        found.preloaded.push_back(record.pid);
        continue;
      case What::kAsked:
        hearing.SetPatience(kLookMs);
        continue;
      case What::kEnd:
        break;
    }
    break;
  }
  if (hearing.gave_up()) ::kill(child, SIGKILL);
  return found;
}

}  // namespace rcsock::tools
