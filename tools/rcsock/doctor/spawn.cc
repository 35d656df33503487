// Starts the processes of probe.cc and pingpong.cc.

#include "tools/rcsock/doctor/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "tools/rcsock/doctor/probe.h"
#include "tools/rcsock/run.h"

namespace rcsock::tools {
namespace {

// Longer than a probe takes at most.
constexpr int kLimitMs = 40'000;

// Called in the process that becomes a probe.  The second message promotes,
// unless a rule says when: the environment has precedence over rules.
void SetEnvironment(const Under& under) {
  const char* before = std::getenv("LD_PRELOAD");
  const std::string preload =
      PreloadList(under.library, before != nullptr ? before : "");
  ::setenv("LD_PRELOAD", preload.c_str(), 1);
  if (!under.lanes.empty()) {
    ::setenv("RCSOCK_LANES", under.lanes.c_str(), 1);
  }
  const char* rules = std::getenv("RCSOCK_RULES");
  if (rules == nullptr || std::strstr(rules, "promote=") == nullptr ||
      std::getenv("RCSOCK_PROMOTE_OPS") != nullptr) {
    ::setenv("RCSOCK_PROMOTE_OPS", "1", 1);
  }
  // A probe tries devices without hardware, too: a list that names them says
  // so.
  if (rules == nullptr || std::strstr(rules, "devices=") == nullptr) {
    ::setenv("RCSOCK_DEVICES", "*", 0);
  }
  ::unsetenv("RCSOCK_STATS");
}

[[noreturn]] void Become(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& one : arguments) {
    argv.push_back(const_cast<char*>(one.c_str()));
  }
  argv.push_back(nullptr);
  ::execv("/proc/self/exe", argv.data());
  ::execv(OwnFile().c_str(), argv.data());
  ::_exit(127);
}

}  // namespace

Child::Child(const std::vector<std::string>& arguments, const Under* under) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  out_.reset(ends[0]);
  const base::UniqueFd theirs(ends[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::dup2(theirs.get(), STDOUT_FILENO);
  if (under != nullptr) SetEnvironment(*under);
  Become(arguments);
}

Child::~Child() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string Child::Line(int limit_ms) {
  std::string line;
  const std::uint64_t deadline =
      base::NowNs() + static_cast<std::uint64_t>(limit_ms) * 1'000'000;
  while (line.find('\n') == std::string::npos) {
    const std::uint64_t now = base::NowNs();
    pollfd fd{out_.get(), POLLIN, 0};
    if (now >= deadline ||
        ::poll(&fd, 1, static_cast<int>((deadline - now) / 1'000'000) + 1) ==
            0) {
      return "";
    }
    char buffer[4096];
    const ssize_t n = ::read(out_.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return "";
    line.append(buffer, static_cast<std::size_t>(n));
  }
  return line.substr(0, line.find('\n'));
}

namespace {

ProbeResult Connect(const Under& under, const std::string& host,
                    std::uint16_t port) {
  ProbeResult result;
  Child client(
      {"rcsock", "doctor-probe", "connect", host, std::to_string(port)},
      &under);
  const auto json = nlohmann::json::parse(client.Line(kLimitMs), nullptr,
                                          /*exceptions=*/false);
  if (!json.is_object()) {
    result.error = "the process that tries it has died";
    return result;
  }
  result.error = json.value("error", "");
  result.refused = json.value("refused", false);
  result.lane = json.value("lane", "");
  result.device = json.value("device", "");
  result.reason = json.value("reason", "");
  result.reason_text = json.value("reason_text", "");
  result.peer_lane = json.value("peer_lane", "");
  result.peer_reason = json.value("peer_reason", "");
  result.promoted_ms = json.value("promoted_ms", 0.0);
  result.median_us = json.value("median_us", 0.0);
  result.round_trips = json.value("round_trips", std::uint64_t{0});
  return result;
}

}  // namespace

ProbeResult Probe(const std::string& host, std::uint16_t port,
                  const std::string& lanes) {
  ProbeResult result;
  const std::string library = FindLibrary();
  if (library.empty()) {
    result.error = "the library to preload is missing";
    result.missing = true;
    return result;
  }
  return Connect({library, lanes}, host, port);
}

ProbeResult ProbeHere(const std::string& lanes) {
  ProbeResult result;
  const std::string library = FindLibrary();
  if (library.empty()) {
    result.error = "the library to preload is missing";
    result.missing = true;
    return result;
  }
  const Under under{library, lanes};
  Child server({"rcsock", "doctor-probe", "listen", "127.0.0.1", "0"}, &under);
  const std::string line = server.Line(kLimitMs);
  std::uint16_t port = 0;
  std::from_chars(line.data(), line.data() + line.size(), port);
  if (port == 0) {
    result.error = "no port to listen on at 127.0.0.1";
    return result;
  }
  return Connect(under, "127.0.0.1", port);
}

int Listen(std::uint16_t port) {
  const std::string library = FindLibrary();
  if (library.empty()) return 1;
  SetEnvironment({library, ""});
  Become({"rcsock", "doctor-probe", "listen", "", std::to_string(port)});
}

}  // namespace rcsock::tools
