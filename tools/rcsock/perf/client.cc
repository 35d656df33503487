#include "tools/rcsock/perf/client.h"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/fields.h"
#include "tools/rcsock/perf/meter.h"
#include "tools/rcsock/perf/signals.h"

namespace rcsock::perf {
namespace {

constexpr double kConnectSeconds = 5;
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kAnswer = 20 * kSecond;
// A failure at one end soon shows at the other.  The server's words are better.
constexpr std::int64_t kReconsider = kSecond / 2;

std::string NewToken() {
  unsigned char bytes[kTokenSize / 2];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
    FailErrno("getrandom");
  }
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

std::map<std::string, std::uint64_t> Counts(const nlohmann::json& object) {
  std::map<std::string, std::uint64_t> counts;
  if (!object.is_object()) return counts;
  for (const auto& [name, n] : object.items()) {
    if (n.is_number_unsigned()) counts[name] = n.get<std::uint64_t>();
  }
  return counts;
}

}  // namespace

struct Client::Test {
  explicit Test(const OnInterval& on_interval) : report(on_interval) {}

  const OnInterval& report;
  Outcome outcome;
  std::unique_ptr<Child> child;
  std::uint16_t port = 0;
  bool child_done = false;  // the child's result has come
  bool child_gone = false;
  bool server_done = false;
  std::string failure;  // in the child's words
};

Client::Client(const std::string& host, std::uint16_t port)
    : signals_(CatchSignals()) {
  const std::string name = fmt::format("{} port {}", host, port);
  Fd fd;
  for (const Address& address : ResolveAll(host, port)) {
    fd = TryConnect(address, kConnectSeconds);
    if (fd) break;
  }
  if (!fd && errno == ECONNREFUSED) {
    Fail("no perf server at {} (start one there: rcsock perf -s)", name);
  }
  if (!fd) FailErrno("cannot reach {}", name);
  wire_ = std::make_unique<Wire>(std::move(fd), name);
  wire_->SendHello();
  const std::int64_t deadline = NowNs() + kAnswer / 4;
  bool open = true;
  while (!wire_->TakeHello()) {
    if (!open) {
      Fail("{} closed the connection: does it speak rcsock perf's protocol?",
           name);
    }
    pollfd fds[] = {{wire_->fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
    ::poll(fds, 2,
           static_cast<int>(std::max<std::int64_t>(deadline - NowNs(), 0) /
                            1'000'000));
    if (fds[1].revents != 0) throw Error("interrupted", kInterrupted);
    if (fds[0].revents != 0) open = wire_->Fill();
    if (NowNs() > deadline) {
      Fail("{} does not answer: does it speak rcsock perf's protocol?", name);
    }
  }
}

void Client::Tell(Test* test, const nlohmann::json& message) {
  try {
    wire_->Send(message);
  } catch (const Error&) {
    // The server has closed.  Perhaps it has said why.
    TakeFromServer(test);
    Fail("the perf server at {} has gone away", wire_->peer());
  }
}

void Client::TakeFromServer(Test* test) {
  const bool open = wire_->Fill();
  while (const auto message = wire_->Take()) {
    const std::string type = TypeOf(*message);
    if (type == "error") {
      Fail("{}: {}", wire_->peer(), TextField(*message, "message", 1000));
    } else if (type == "ready" && test->port == 0) {
      test->port =
          static_cast<std::uint16_t>(NumberField(*message, "port", 1, 65535));
      test->outcome.there = HostFromJson(Field(*message, "host"));
    } else if (type == "result" && test->port != 0) {
      test->outcome.server = SideFromJson(Field(*message, "side"));
      if (message->contains("calls")) {
        test->outcome.server_calls = CallsFromJson((*message)["calls"]);
      }
      test->server_done = true;
    } else {
      BadField("type");
    }
  }
  if (!open) Fail("the perf server at {} has gone away", wire_->peer());
}

void Client::TakeFromChild(Test* test) {
  test->child_gone = !test->child->Fill();
  while (const auto line = test->child->Take()) {
    const std::string type = TypeOf(*line);
    if (type == "interval") {
      Interval interval;
      interval.from = RealField(*line, "from", 0, 1e9);
      interval.to = RealField(*line, "to", 0, 1e9);
      interval.tx_bytes = NumberField(*line, "tx_bytes", 0, UINT64_MAX);
      interval.rx_bytes = NumberField(*line, "rx_bytes", 0, UINT64_MAX);
      interval.messages = NumberField(*line, "messages", 0, UINT64_MAX);
      test->outcome.intervals.push_back(interval);
      if (test->report) test->report(interval);
    } else if (type == "result") {
      test->outcome.client = SideFromJson(Field(*line, "side"));
      test->child_done = true;
    } else if (type == "syscalls") {
      test->outcome.client_calls = CallsFromJson(Field(*line, "calls"));
    } else if (type == "error") {
      test->failure = TextField(*line, "message", 1000);
    }
  }
  if (test->child_gone && !test->child_done && test->failure.empty()) {
    test->failure = test->child->Ended();
  }
}

void Client::Pump(Test* test, std::int64_t deadline, const char* what) {
  pollfd fds[] = {
      {wire_->fd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}, {-1, POLLIN, 0}};
  if (test->child && !test->child_gone) fds[2].fd = test->child->fd();
  const std::int64_t wait = (deadline - NowNs()) / 1'000'000;
  const int n = ::poll(
      fds, 3,
      deadline == 0 ? -1 : static_cast<int>(std::max<std::int64_t>(wait, 0)));
  if (n < 0 && errno != EINTR) FailErrno("poll");
  if (n == 0 && deadline != 0 && NowNs() >= deadline) {
    Fail("{} did not come from {} in time", what, wire_->peer());
  }
  if (fds[1].revents != 0) throw Error("interrupted", kInterrupted);
  if (fds[0].revents != 0) TakeFromServer(test);
  if (fds[2].revents != 0) TakeFromChild(test);
  if (test->failure.empty()) return;
  // Perhaps the server knows better why.
  const std::string failure = test->failure;
  pollfd server = {wire_->fd(), POLLIN, 0};
  if (::poll(&server, 1, kReconsider / 1'000'000) > 0) TakeFromServer(test);
  throw Error(failure);
}

Outcome Client::Run(const Spec& spec, double interval,
                    const OnInterval& report) {
  Test test(report);
  test.outcome.spec = spec;
  const std::string token = NewToken();
  Tell(&test, {{"type", "test"}, {"spec", ToJson(spec)}, {"token", token}});
  while (test.port == 0) Pump(&test, NowNs() + kAnswer, "an answer");

  test.child = std::make_unique<Child>(spec);
  test.child->Tell(
      {{"spec", ToJson(spec)},
       {"server", false},
       {"host", PeerAddress(wire_->fd()).Host()},
       {"port", test.port},
       {"token", token},
       {"interval", interval},
       {"cpu", spec.client_cpu < 0 ? nlohmann::json()
                                   : nlohmann::json(spec.client_cpu)}});
  // The child gives up by itself when nothing moves any more.
  while (!test.child_done) Pump(&test, 0, "");
  Tell(&test, {{"type", "finish"}});
  const std::int64_t deadline = NowNs() + kAnswer;
  while (!test.server_done) Pump(&test, deadline, "a result");
  while (!test.child_gone) Pump(&test, deadline, "an end");
  if (spec.traced && !test.outcome.client_calls) {
    Fail("the system calls were not counted");
  }
  const nlohmann::json stats = test.child->Stats();
  if (stats.is_object()) {
    test.outcome.reasons = Counts(stats.value("reasons", nlohmann::json()));
    test.outcome.ways = Counts(stats.value("gpu_bytes", nlohmann::json()));
    const nlohmann::json lanes = stats.value("lanes", nlohmann::json());
    if (lanes.is_object()) {
      for (const auto& [name, lane] : lanes.items()) {
        std::uint64_t bytes = 0;
        for (const auto& [key, n] : Counts(lane)) {
          if (key != "streams") bytes += n;
        }
        test.outcome.lanes[name] = bytes;
      }
    }
  }
  return std::move(test.outcome);
}

}  // namespace rcsock::perf
