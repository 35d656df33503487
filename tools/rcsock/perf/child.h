#ifndef RCSOCK_TOOLS_RCSOCK_PERF_CHILD_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_CHILD_H_

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tools/rcsock/perf/net.h"
#include "tools/rcsock/perf/spec.h"

namespace rcsock::perf {

// A process that measures: this program again, under the preload if the
// transport wants it.  It reads lines of JSON from its stdin, and writes lines
// to its stdout.  It does not outlive this process.
class Child {
 public:
  explicit Child(const Spec& spec);
  // Kills the process if it still runs.
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int fd() const { return out_.get(); }  // readable: Fill()
  void Tell(const nlohmann::json& line);
  // Reads what has come, without waiting.  Returns false once the process is
  // gone.
  bool Fill();
  std::optional<nlohmann::json> Take();
  // After its end: returns how it ended, in words.
  std::string Ended();
  // Returns what the preload has counted, once the process has ended.  Null:
  // nothing.
  nlohmann::json Stats();

 private:
  void Wait();

  pid_t pid_ = -1;
  int status_ = 0;
  Fd in_;
  Fd out_;
  Fd stats_;
  std::string buffer_;
};

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_CHILD_H_
