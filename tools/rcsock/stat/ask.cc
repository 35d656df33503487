#include "tools/rcsock/stat/ask.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/foreign_fd.h"
#include "lib/rendezvous/wire.h"
#include "tools/rcsock/printable.h"

namespace rcsock::tools {
namespace {

using posix::SnapshotHead;
using posix::SnapshotStream;

// The most that one process may answer: a million streams.
constexpr std::uint32_t kMostStreams = 1 << 20;
// Bounds of an answer.  A process may make its answer long, of holes, so that
// this process reads and keeps it.
constexpr std::uint64_t kMostEach = 4096;
constexpr std::uint64_t kMostBytes = 256 << 20;
// Descriptors that are open at one time.
constexpr std::size_t kAtOnce = 256;
// The time-outs that all processes together may take.
constexpr int kMostTimes = 10;

// Returns the abstract names of the processes that can be asked.
std::vector<std::string> Names() {
  const std::string prefix = std::string("@") + rendezvous::kStatPrefix;
  std::vector<std::string> names;
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find(prefix);
    if (at != std::string::npos) names.push_back(line.substr(at + 1));
  }
  // Connections to a name are listed, too, under that name.
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

struct Question {
  base::PeerSocket fd;
  ProcessPicture process;
  bool wanted = false;   // this user may ask the process
  bool waiting = false;  // the answer has not come
  std::uint64_t deadline_ns = 0;
};

Question Ask(const std::string& name, pid_t only, pid_t self) {
  Question question;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path) return question;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  question.fd = base::PeerSocket(base::UniqueFd(
      ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!question.fd.ok()) return question;
  const int connected = ::connect(
      question.fd.get(), reinterpret_cast<sockaddr*>(&address), length);
  // EAGAIN: clients wait for the process, and it does not answer.  It is found
  // among the processes under the preload.
  if (connected != 0) return question;
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(question.fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) !=
      0) {
    return question;
  }
  // In a shell under `rcsock run`, this process has a name, too. doctor's probe
  // asks itself.
  if ((::geteuid() != 0 && peer.uid != ::geteuid()) ||
      (only != 0 ? peer.pid != only : peer.pid == self)) {
    return question;
  }
  question.process.pid = peer.pid;
  question.process.uid = peer.uid;
  question.process.source = Source::kSilent;
  question.wanted = true;
  question.waiting = true;
  return question;
}

bool ReadAt(int fd, void* to, std::size_t length, off_t at) {
  return ::pread(fd, to, length, at) == static_cast<ssize_t>(length);
}

// Takes the answer from the descriptor.  Returns why it cannot be trusted, or
// "".  `room` is the number of connections of all processes that memory is left
// for.
std::string Take(int file, ProcessPicture* process, std::uint64_t* room) {
  // A sealed file is plain memory, so no reading can block on it.  It stays as
  // it is.
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_WRITE;
  const int seals = ::fcntl(file, F_GET_SEALS);
  struct stat info {};
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(file, &info) != 0) {
    return "its answer is malformed";
  }
  const auto size = static_cast<std::uint64_t>(info.st_size);
  // The part that every version has.
  constexpr std::size_t kFixed = offsetof(SnapshotHead, monotonic_ns);
  SnapshotHead head{};
  if (size < kFixed || !ReadAt(file, &head, kFixed, 0) ||
      head.magic != posix::kSnapshotMagic) {
    return "its answer is malformed";
  }
  if (head.version != posix::kSnapshotVersion) {
    return "it runs under another version of rcsock";
  }
  const std::uint64_t count = head.count;
  const std::uint64_t each = head.stream_size;
  const std::uint64_t first = head.head_size;
  if (count > kMostStreams || each < sizeof(SnapshotStream) / 2 ||
      each > kMostEach || first < kFixed || count * each > kMostBytes ||
      size != first + count * each ||
      !ReadAt(file, &head, std::min<std::size_t>(first, sizeof head), 0)) {
    return "its answer is malformed";
  }
  if (count > *room) return "there are too many connections to show them all";
  *room -= count;
  std::vector<StreamPicture> streams(count);
  std::vector<char> bytes(each * std::min<std::uint64_t>(count, 1024));
  for (std::uint64_t i = 0; i < count;) {
    const std::uint64_t n = std::min<std::uint64_t>(count - i, 1024);
    if (!ReadAt(file, bytes.data(), n * each,
                static_cast<off_t>(first + i * each))) {
      return "its answer cannot be read";
    }
    for (std::uint64_t k = 0; k < n; ++k, ++i) {
      SnapshotStream& stream = streams[i].is;
      std::memcpy(&stream, bytes.data() + k * each,
                  std::min<std::size_t>(each, sizeof stream));
      stream.device[sizeof stream.device - 1] = '\0';
      const std::string name = Printable(stream.device);
      name.copy(stream.device, name.size());
    }
  }
  process->total = head;
  process->streams = std::move(streams);
  process->source = Source::kAnswer;
  return "";
}

void OnReadable(Question* question, std::uint64_t* room) {
  rendezvous::Packet packet;
  rendezvous::Header header;
  switch (rendezvous::Receive(question->fd.get(), &packet)) {
    case rendezvous::Received::kNothing:
      return;
    case rendezvous::Received::kPacket:
      // Any version will do: the contents of the descriptor have their own.
      if (!packet.ReadHeader(&header) ||
          header.type != rendezvous::StatMsg::kType) {
        question->process.trouble = "its answer is malformed";
      } else if (packet.fd_count != 1) {
        question->process.trouble = "it has no memory or descriptors to answer";
      } else {
        question->process.trouble =
            Take(packet.fds[0].get(), &question->process, room);
      }
      break;
    default:
      question->process.trouble = "it ended the conversation";
      break;
  }
  question->waiting = false;
}

// Takes the answers that come before the first process is given up.
void AwaitAnswer(std::vector<Question>* questions, std::uint64_t* room) {
  std::vector<pollfd> polls;
  std::uint64_t deadline = ~std::uint64_t{0};
  for (const Question& question : *questions) {
    polls.push_back({question.fd.get(), POLLIN, 0});
    deadline = std::min(deadline, question.deadline_ns);
  }
  const std::uint64_t now = base::NowNs();
  const int left_ms =
      deadline <= now ? 0 : static_cast<int>((deadline - now) / 1'000'000) + 1;
  if (::poll(polls.data(), polls.size(), left_ms) < 0) {
    for (Question& question : *questions) {
      if (errno != EINTR) question.waiting = false;
    }
    return;
  }
  const std::uint64_t then = base::NowNs();
  for (std::size_t i = 0; i < polls.size(); ++i) {
    Question& question = (*questions)[i];
    if (polls[i].revents != 0) {
      OnReadable(&question, room);
    } else if (then >= question.deadline_ns) {
      question.waiting = false;
    }
  }
}

}  // namespace

void AskAll(const CollectOptions& options, pid_t self,
            const std::function<bool(ProcessPicture)>& found) {
  const std::vector<std::string> names = Names();
  std::vector<Question> open;
  std::uint64_t room = kMostStreams;
  // A hostile process may have made many names that answer nothing.
  const std::uint64_t end =
      base::NowNs() +
      static_cast<std::uint64_t>(options.timeout_ms) * kMostTimes * 1'000'000;
  // Each process has its own time.  Silent ones make the others wait, but take
  // none of their time.
  for (std::size_t next = 0; next < names.size() || !open.empty();) {
    if (base::NowNs() > end) return;
    while (open.size() < kAtOnce && next < names.size()) {
      Question question = Ask(names[next++], options.pid, self);
      if (!question.wanted) continue;
      question.deadline_ns =
          base::NowNs() +
          static_cast<std::uint64_t>(options.timeout_ms) * 1'000'000;
      open.push_back(std::move(question));
    }
    if (open.empty()) continue;
    AwaitAnswer(&open, &room);
    for (Question& question : open) {
      if (!question.waiting && !found(std::move(question.process))) return;
    }
    std::erase_if(open,
                  [](const Question& question) { return !question.waiting; });
  }
}

}  // namespace rcsock::tools
