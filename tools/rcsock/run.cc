#include "tools/rcsock/run.h"

#include <pwd.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <system_error>

#include "lib/base/config.h"
#include "lib/base/path.h"
#include "lib/verbs/verbs.h"
#include "tools/rcsock/preload_file.h"
#include "tools/rcsock/printable.h"
#include "tools/rcsock/program.h"
#include "tools/rcsock/require.h"
#include "tools/rcsock/variables.h"

namespace rcsock::tools {
namespace {

namespace fs = std::filesystem;

constexpr int kUsage = 2;
constexpr int kNoLane = 125;  // as env(1) and timeout(1) say of themselves
constexpr int kNotExecutable = 126;
constexpr int kNotFound = 127;

int Fail(int status, const std::string& line) {
  std::cerr << "rcsock: " << line << "\n";
  return status;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Where the library may be, best first: installed beside the tool or in the lib
// beside its bin, then Bazel's runfiles, then Bazel's output tree.
std::vector<fs::path> Places() {
  const fs::path self = OwnFile();
  const fs::path here = self.parent_path();
  std::vector<fs::path> places = {
      here, here.parent_path() / "lib", here.parent_path() / "lib" / "rcsock",
      fs::path(self).concat(".runfiles") / "rcsock" / "preload"};
  const std::string runfiles = Environment("RUNFILES_DIR");
  if (!runfiles.empty()) {
    places.push_back(fs::path(runfiles) / "rcsock" / "preload");
  }
  // bazel-bin/tools/rcsock/rcsock -> bazel-bin/preload
  places.push_back(here.parent_path().parent_path() / "preload");
  return places;
}

}  // namespace

// Returns this program's file. Without /proc, in a chroot, returns it as it
// was started.
std::string OwnFile() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (!error) return self.string();
  const auto* started = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  return started != nullptr ? fs::canonical(started, error).string() : "";
}

std::string FindLibrary() {
  std::error_code error;
  const std::string asked = Environment("RCSOCK_PRELOAD");
  fs::path found;
  if (!asked.empty()) {
    if (!fs::is_regular_file(asked, error)) {
      Fail(1, "RCSOCK_PRELOAD=" + asked + ": there is no such file");
      return "";
    }
    found = asked;
  } else {
    for (const fs::path& place : Places()) {
      if (fs::is_regular_file(place / kPreloadName, error)) {
        found = place / kPreloadName;
        break;
      }
    }
    if (found.empty()) {
      Fail(1, std::string(kPreloadName) +
                  " is neither beside this program nor in ../lib; set "
                  "RCSOCK_PRELOAD to its path");
      return "";
    }
  }
  const std::string path = fs::canonical(found, error).string();
  if (error || path.find_first_of(" :\t\n") != std::string::npos) {
    Fail(1, found.string() +
                ": the loader cannot preload from a path with a space or a "
                "colon in it");
    return "";
  }
  return path;
}

std::string PreloadList(const std::string& library, const std::string& list) {
  std::string first;
  std::string rest;
  bool there = false;  // `rcsock run rcsock run ...`
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find_first_of(" :", at), list.size());
    const std::string entry = list.substr(at, end - at);
    at = end + 1;
    const bool same = entry == library;
    if (entry.empty() || (same && there) ||
        (!same &&
         (fs::path(entry).filename() == kPreloadName || IsPreload(entry)))) {
      continue;
    }
    there = there || same;
    // AddressSanitizer's runtime ends a program in which it is not the first.
    const bool asan =
        fs::path(entry).filename().string().rfind("libasan.so", 0) == 0;
    std::string& part = asan && rest.empty() ? first : rest;
    part += (part.empty() ? "" : ":") + entry;
  }
  std::string all = first;
  for (const std::string& part : {there ? "" : library, rest}) {
    if (!part.empty()) all += (all.empty() ? "" : ":") + part;
  }
  return all;
}

Policy ApplyConfig(const std::optional<std::string>& file) {
  Policy policy = ReadPolicy(file);
  if (!policy.error.empty()) {
    ::unsetenv("RCSOCK_RULES");
    ::setenv("RCSOCK_LANES", "tcp", 1);
  } else if (!policy.rules.empty()) {
    ::setenv("RCSOCK_RULES", policy.rules.c_str(), 1);
  } else if (file) {
    ::unsetenv("RCSOCK_RULES");
  }
  // The environment sets it first, as it does all that a rule sets.
  if (policy.error.empty() && !policy.meet_dir.empty()) {
    ::setenv("RCSOCK_MEET_DIR", policy.meet_dir.c_str(), 0);
  }
  return policy;
}

namespace {

// Sets *uids to the uids of `users`: names or numbers, separated by commas.
// Returns what is wrong with them.
std::string Uids(const std::string& users, std::string* uids) {
  std::stringstream words(users);
  int count = 0;
  for (std::string word; std::getline(words, word, ',');) {
    std::string uid = word;
    if (word.empty() ||
        word.find_first_not_of("0123456789") != std::string::npos) {
      const passwd* user = ::getpwnam(word.c_str());
      if (user == nullptr) return "there is no user \"" + word + "\"";
      uid = std::to_string(user->pw_uid);
    } else {
      errno = 0;
      if (std::strtoul(word.c_str(), nullptr, 10) >= ~std::uint32_t{0} ||
          errno != 0) {
        return word + " is no uid";
      }
    }
    *uids += (count++ == 0 ? "" : ",") + uid;
  }
  if (count > base::Config::kMostPeers) {
    return "more than " + std::to_string(base::Config::kMostPeers) + " users";
  }
  return "";
}

// Sets `variable` to the file that `option` gives, or else the environment.
// Returns what is wrong with it.
std::string SetPath(const char* variable, const std::string& option,
                    const std::optional<std::string>& given) {
  // `--stats -- CMD` lacks the name.
  if (given && (given->empty() || *given == "--")) {
    return option + ": the name of a file is missing";
  }
  const std::string asked = given ? *given : Environment(variable);
  if (asked.empty()) return "";
  // The command may change its directory before it needs the path.
  const std::string path = fs::absolute(asked).string();
  if (given && path.size() > base::kLongestPath) {
    return option + ": the path is too long: " + path;
  }
  ::setenv(variable, path.c_str(), 1);
  return "";
}

// Sets the variables that the options give. Returns what is wrong with them.
std::string SetVariables(const RunOptions& options) {
  if (options.config && (options.config->empty() || *options.config == "--")) {
    return "--config: the name of a file is missing";
  }
  if (const std::string bad =
          SetPath("RCSOCK_STATS", "--stats", options.stats) +
          SetPath("RCSOCK_LOG_FILE", "--log-file", options.log_file) +
          SetPath("RCSOCK_MEET_DIR", "--meet-dir", options.meet_dir);
      !bad.empty()) {
    return bad;
  }
  if (options.lanes) ::setenv("RCSOCK_LANES", options.lanes->c_str(), 1);
  if (options.profile) ::setenv("RCSOCK_PROFILE", options.profile->c_str(), 1);
  if (options.log) {
    ::setenv("RCSOCK_LOG", std::to_string(*options.log).c_str(), 1);
  } else if (options.log_file) {
    ::setenv("RCSOCK_LOG", "1", 0);  // else the log file would stay empty
  }
  if (options.peers) {
    std::string uids;
    if (const std::string bad = Uids(*options.peers, &uids); !bad.empty()) {
      return "--peers: " + bad;
    }
    ::setenv("RCSOCK_PEERS", uids.c_str(), 1);
  }
  return "";
}

// Takes the rules of the configuration. Warns if there will be no lane. Returns
// false if the configuration is wrong.
bool SetRules(const RunOptions& options) {
  bool good = true;
  if (options.no_config) {
    ::unsetenv("RCSOCK_RULES");
  } else if (const Policy policy = ApplyConfig(options.config);
             !policy.error.empty()) {
    good = false;
    // The command runs, whatever is wrong with its configuration.
    std::cerr << "rcsock: " << policy.error
              << (options.require_lanes ? "\n" : ": running over plain TCP\n");
  }
  // A user who allows RDMA alone would otherwise learn only from counters that
  // no stream has left TCP.
  if (!options.require_lanes && Environment("RCSOCK_LANES") == "rdma" &&
      !verbs::AnyDevice()) {
    std::cerr << "rcsock: warning: there is no RDMA device, and no other lane "
                 "is allowed (RCSOCK_LANES=rdma): it runs over plain TCP; "
                 "rcsock doctor says more\n";
  }
  return good;
}

// Names the variables that rcsock does not know. Otherwise a user would notice
// a slip only by its missing effect. Within another `rcsock run`, the outer one
// has named them.
void WarnOfVariables() {
  if (Environment("LD_PRELOAD").find(kPreloadName) != std::string::npos) return;
  for (const std::string& name : ReadVariables().unknown) {
    std::cerr << "rcsock: warning: " << Printable(name)
              << " is set, which means nothing to rcsock (rcsock-run(1) has "
                 "the variables)\n";
  }
}

// Returns why the program at `path` will run over plain TCP, or "". Sets *takes
// to false if its loader could not load the preload, so that it must not get
// the preload.
std::string WhyPlain(const std::string& path, bool* takes) {
  *takes = true;
  if (path.empty()) return "";
  const std::string loader = OtherLoader(path);
  if (!loader.empty()) {
    *takes = false;
    return path + " is loaded by " + loader +
           ", which cannot load the preload: it runs without it, over "
           "plain TCP";
  }
  const std::string why = WhyNotPreloadable(path);
  if (why.empty()) return "";
  return path + " " + why + ", and it runs over plain TCP";
}

// Turns this process into the command. Returns only if that has failed.
int Become(const std::vector<std::string>& command, bool found) {
  std::vector<char*> argv;
  for (const std::string& word : command) {
    argv.push_back(const_cast<char*>(word.c_str()));
  }
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  const int error = errno;
  if (error == ENOENT && found) {
    return Fail(kNotFound, command.front() + ": its interpreter is not there");
  }
  return Fail(error == ENOENT ? kNotFound : kNotExecutable,
              command.front() + ": " + std::strerror(error));
}

}  // namespace

int Run(const RunOptions& options, const Trial& why_no_shm) {
  const std::string library = FindLibrary();
  if (library.empty()) return options.require_lanes ? kNoLane : 1;
  WarnOfVariables();
  if (const std::string bad = SetVariables(options); !bad.empty()) {
    return Fail(kUsage, bad);
  }
  const bool good_rules = SetRules(options);
  const std::string path = FindProgram(options.command.front());
  bool takes;
  std::string plain = WhyPlain(path, &takes);
  if (options.require_lanes) {
    if (!good_rules) return kNoLane;
    // A command that is not there ends as it does without the option.
    if (plain.empty() && !path.empty()) plain = WhyNoLane(path, why_no_shm);
    if (!plain.empty()) return Fail(kNoLane, "no lanes: " + plain);
  } else if (!plain.empty()) {
    std::cerr << "rcsock: warning: " << plain << "\n";
  }
  const std::string preload =
      PreloadList(takes ? library : "", Environment("LD_PRELOAD"));
  ::setenv("LD_PRELOAD", preload.c_str(), 1);
  return Become(options.command, !path.empty());
}

}  // namespace rcsock::tools
