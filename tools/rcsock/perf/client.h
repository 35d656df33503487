#ifndef RCSOCK_TOOLS_RCSOCK_PERF_CLIENT_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tools/rcsock/perf/child.h"
#include "tools/rcsock/perf/outcome.h"
#include "tools/rcsock/perf/wire.h"

namespace rcsock::perf {

// Runs tests with one server, one after the other.  Throws Error, also when a
// signal asks the process to end.  It leaves nothing running then.
class Client {
 public:
  Client(const std::string& host, std::uint16_t port);

  using OnInterval = std::function<void(const Interval&)>;
  // Runs a test and reports every `interval` seconds.  0: never.
  Outcome Run(const Spec& spec, double interval, const OnInterval& report);

 private:
  struct Test;

  void Tell(Test* test, const nlohmann::json& message);
  // Waits until something has come, but not beyond `deadline`.  0: for ever.
  void Pump(Test* test, std::int64_t deadline, const char* what);
  void TakeFromServer(Test* test);
  void TakeFromChild(Test* test);

  Fd signals_;
  std::unique_ptr<Wire> wire_;
};

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_CLIENT_H_
