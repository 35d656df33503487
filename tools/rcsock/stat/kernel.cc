#include "tools/rcsock/stat/kernel.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "lib/base/unique_fd.h"
#include "tools/rcsock/preload_file.h"
#include "tools/rcsock/printable.h"

namespace rcsock::tools {
namespace {

namespace fs = std::filesystem;
using posix::SnapshotStream;

std::string Proc(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

bool Number(const std::string& text, long* value) {
  const char* end = text.data() + text.size();
  return !text.empty() && std::from_chars(text.data(), end, *value).ptr == end;
}

// Whether a file is the preload, by device and inode: most processes have
// common libraries.
using KnownFiles = std::unordered_map<std::string, bool>;

bool HasPreload(pid_t pid, KnownFiles* known) {
  const std::string name = std::string("/") + kPreloadName;
  std::ifstream maps(Proc(pid, "maps"));
  for (std::string line; std::getline(maps, line);) {
    // If a file was replaced since, only its name is known.
    if (line.find(name) != std::string::npos) return true;
    std::istringstream words(line);
    std::string range, rights, offset, device, inode, path;
    words >> range >> rights >> offset >> device >> inode >> std::ws;
    std::getline(words, path);
    if (rights.size() < 3 || rights[2] != 'x' || path[0] != '/') continue;
    const auto [file, unknown] = known->try_emplace(device + " " + inode);
    // The path as the process sees it.
    if (unknown) file->second = IsPreload(Proc(pid, "root") + path);
    if (file->second) return true;
  }
  return false;
}

void Copy(const inet_diag_msg& from, SnapshotStream* to) {
  const auto address = [&](const __be32* bytes, std::uint8_t* out) {
    if (from.idiag_family == AF_INET6) {
      std::memcpy(out, bytes, 16);
    } else {
      out[10] = out[11] = 0xff;
      std::memcpy(out + 12, bytes, 4);
    }
  };
  address(from.id.idiag_src, to->local);
  address(from.id.idiag_dst, to->peer);
  to->local_port = ntohs(from.id.idiag_sport);
  to->peer_port = ntohs(from.id.idiag_dport);
  to->inode = from.idiag_inode;
}

void CopyBytes(const rtattr* attribute, std::size_t length,
               SnapshotStream* to) {
  for (; RTA_OK(attribute, length); attribute = RTA_NEXT(attribute, length)) {
    if (attribute->rta_type != INET_DIAG_INFO) continue;
    tcp_info info{};
    std::memcpy(&info, RTA_DATA(attribute),
                std::min<std::size_t>(RTA_PAYLOAD(attribute), sizeof info));
    // The count of acknowledged bytes would include the SYN.
    to->tcp_tx_bytes = info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
    to->tcp_rx_bytes = info.tcpi_bytes_received;
  }
}

// Connected or half closed: not listening, not TIME_WAIT.
constexpr std::uint32_t kListen = 1u << 10;
constexpr std::uint32_t kConnected = ~(kListen | 1u << 6);

void Dump(int family, std::uint32_t states,
          std::unordered_map<std::uint64_t, SnapshotStream>* sockets) {
  base::UniqueFd fd(
      ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd.ok()) return;
  timeval limit{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } ask{};
  ask.header.nlmsg_len = sizeof ask;
  ask.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  ask.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  ask.request.sdiag_family = static_cast<__u8>(family);
  ask.request.sdiag_protocol = IPPROTO_TCP;
  ask.request.idiag_ext = 1 << (INET_DIAG_INFO - 1);
  ask.request.idiag_states = states;
  if (::send(fd.get(), &ask, sizeof ask, 0) < 0) return;
  std::vector<char> buffer(1 << 18);
  for (;;) {
    const ssize_t n = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (n <= 0) return;
    auto left = static_cast<std::size_t>(n);
    for (auto* header = reinterpret_cast<const nlmsghdr*>(buffer.data());
         NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_DONE ||
          header->nlmsg_type == NLMSG_ERROR) {
        return;
      }
      if (header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) continue;
      const auto* socket =
          static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
      if (socket->idiag_inode == 0) continue;
      SnapshotStream& stream = (*sockets)[socket->idiag_inode];
      Copy(*socket, &stream);
      CopyBytes(reinterpret_cast<const rtattr*>(socket + 1),
                header->nlmsg_len - NLMSG_LENGTH(sizeof(inet_diag_msg)),
                &stream);
    }
  }
}

}  // namespace

std::vector<pid_t> PreloadedProcesses() {
  std::vector<pid_t> found;
  KnownFiles known;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    long pid;
    if (!Number(entry.path().filename().string(), &pid)) continue;
    struct stat info {};
    if (::stat(entry.path().c_str(), &info) != 0) continue;
    if (::geteuid() != 0 && info.st_uid != ::geteuid()) continue;
    if (HasPreload(static_cast<pid_t>(pid), &known)) {
      found.push_back(static_cast<pid_t>(pid));
    }
  }
  return found;
}

namespace {

// Returns true if exec gave the process this name: its file's name, or the name
// of the script that an interpreter runs. A program may call its first thread
// anything.
bool IsNameOfExec(pid_t pid, const std::string& name) {
  // The kernel cuts the name. A server may write more behind its own name, as
  // "redis-server *:6379" and "nginx: worker process" do.
  constexpr std::size_t kMostKept = 15;
  const auto is = [&name](const std::string& path) {
    const std::string file = fs::path(path).filename().string();
    if (name.empty() || file.compare(0, name.size(), name) != 0) return false;
    return name.size() >= kMostKept || file.size() == name.size() ||
           file[name.size()] == ' ' || file[name.size()] == ':';
  };
  if (is(FileOf(pid))) return true;
  constexpr int kMostArguments = 3;
  std::ifstream file(Proc(pid, "cmdline"), std::ios::binary);
  std::string argument;
  for (int i = 0; i < kMostArguments && std::getline(file, argument, '\0');
       ++i) {
    if (is(argument)) return true;
  }
  return false;
}

}  // namespace

std::string ProgramOf(pid_t pid) {
  std::ifstream file(Proc(pid, "comm"));
  std::string name;
  std::getline(file, name);
  if (!IsNameOfExec(pid, name)) {
    const std::string path = FileOf(pid);
    if (!path.empty()) name = path;
  }
  // A program may have written anything here.
  name = WithoutControls(std::move(name));
  return name.empty() ? "?" : name;
}

char StateOf(pid_t pid) {
  std::ifstream file(Proc(pid, "stat"));
  std::string line;
  std::getline(file, line);
  const std::size_t at = line.rfind(')');
  return at == std::string::npos || at + 2 >= line.size() ? '\0' : line[at + 2];
}

std::uint64_t StartOf(pid_t pid) {
  constexpr int kField = 22;  // of proc(5), counted from the pid
  std::ifstream file(Proc(pid, "stat"));
  std::string line;
  std::getline(file, line);
  const std::size_t at = line.rfind(')');
  if (at == std::string::npos) return 0;
  std::istringstream words(line.substr(at + 1));
  std::string word;
  for (int i = 3; i <= kField; ++i) words >> word;
  long start = 0;
  return Number(word, &start) ? static_cast<std::uint64_t>(start) : 0;
}

uid_t UserOf(pid_t pid) {
  struct stat info {};
  return ::stat(Proc(pid, "").c_str(), &info) == 0 ? info.st_uid : ~uid_t{0};
}

namespace {

// The names of the conductor's threads, of which one works at a time.
bool IsConductors(const std::string& name) {
  return name == "rcsock" || name == "rcsock-patient";
}

}  // namespace

bool HasConductor(pid_t pid) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(Proc(pid, "task"), error)) {
    std::ifstream file(entry.path() / "comm");
    std::string name;
    if (std::getline(file, name) && IsConductors(name)) return true;
  }
  return false;
}

std::string ConductorInKernel(pid_t pid) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(Proc(pid, "task"), error)) {
    std::ifstream comm(entry.path() / "comm");
    std::string name;
    if (!std::getline(comm, name) || !IsConductors(name)) continue;
    std::ifstream stat(entry.path() / "stat");
    std::string line;
    std::getline(stat, line);
    const std::size_t at = line.rfind(')');
    const char state =
        at == std::string::npos || at + 2 >= line.size() ? '?' : line[at + 2];
    std::ifstream wchan(entry.path() / "wchan");
    std::string where;
    std::getline(wchan, where);
    if (where == "0") where.clear();
    if (state == 'D') return where.empty() ? "a call" : where;
    // The thread sleeps. In these calls it waits for work. In other calls it
    // may be held up, for instance in siw's connect.
    const char* const usual[] = {"epoll", "ep_poll", "futex", "um_"};
    const auto waits = [&where](const char* call) {
      return where.find(call) != std::string::npos;
    };
    if (state == 'S' &&
        std::none_of(std::begin(usual), std::end(usual), waits)) {
      return where;
    }
  }
  return "";
}

bool InOurNetwork(pid_t pid) {
  std::error_code error;
  const fs::path theirs = fs::read_symlink(Proc(pid, "ns/net"), error);
  if (error) return true;  // the namespace is unknown
  return theirs == fs::read_symlink("/proc/self/ns/net", error);
}

std::string FileOf(pid_t pid) {
  std::error_code error;
  return fs::read_symlink(Proc(pid, "exe"), error).filename().string();
}

std::string VariableOf(pid_t pid, const std::string& name) {
  std::ifstream file(Proc(pid, "environ"), std::ios::binary);
  for (std::string entry; std::getline(file, entry, '\0');) {
    if (entry.rfind(name + "=", 0) == 0) return entry.substr(name.size() + 1);
  }
  return "";
}

std::unordered_map<std::uint64_t, SnapshotStream> TcpSockets() {
  std::unordered_map<std::uint64_t, SnapshotStream> sockets;
  Dump(AF_INET, kConnected, &sockets);
  Dump(AF_INET6, kConnected, &sockets);
  // An end whose port has a listener was accepted.
  std::unordered_map<std::uint64_t, SnapshotStream> listening;
  Dump(AF_INET, kListen, &listening);
  Dump(AF_INET6, kListen, &listening);
  std::unordered_set<std::uint16_t> ports;
  for (const auto& [inode, one] : listening) ports.insert(one.local_port);
  for (auto& [inode, one] : sockets) {
    one.acceptor = ports.contains(one.local_port) ? 1 : 0;
  }
  return sockets;
}

std::vector<StreamPicture> StreamsOf(
    pid_t pid, const std::unordered_map<std::uint64_t, SnapshotStream>& all) {
  std::vector<StreamPicture> streams;
  std::unordered_set<std::uint64_t> seen;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(Proc(pid, "fd"), error)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone).string();
    long inode;
    long fd;
    if (gone || target.rfind("socket:[", 0) != 0 ||
        !Number(target.substr(8, target.size() - 9), &inode) ||
        !Number(entry.path().filename().string(), &fd)) {
      continue;
    }
    const auto it = all.find(static_cast<std::uint64_t>(inode));
    if (it == all.end() || !seen.insert(it->first).second) continue;
    StreamPicture stream;
    stream.is = it->second;
    stream.is.fd = static_cast<int>(fd);
    streams.push_back(stream);
  }
  std::sort(streams.begin(), streams.end(),
            [](const auto& a, const auto& b) { return a.is.fd < b.is.fd; });
  return streams;
}

}  // namespace rcsock::tools
