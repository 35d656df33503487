#include "tools/rcsock/perf/server.h"

#include <poll.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "tools/rcsock/perf/child.h"
#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/fields.h"
#include "tools/rcsock/perf/meter.h"
#include "tools/rcsock/perf/print.h"
#include "tools/rcsock/perf/signals.h"
#include "tools/rcsock/perf/wire.h"

namespace rcsock::perf {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kHello = 5 * kSecond;
// A client that wants nothing must not keep others waiting.
constexpr std::int64_t kIdle = 60 * kSecond;
constexpr std::int64_t kFinish = 30 * kSecond;

// One client.  Throws Error if the server should drop it.
class Session {
 public:
  Session(Fd fd, const ServerOptions& options)
      : options_(options),
        wire_(std::move(fd), "the client"),
        name_(PeerAddress(wire_.fd()).Host()),
        deadline_(NowNs() + kHello) {
    wire_.SendHello();
  }

  int wire_fd() const { return wire_.fd(); }
  int child_fd() const { return child_ ? child_->fd() : -1; }
  // 0: there is none.
  std::int64_t deadline() const { return deadline_; }
  const std::string& name() const { return name_; }

  // Returns false once the client has closed.
  bool OnWire() {
    const bool open = wire_.Fill();
    if (!known_) known_ = wire_.TakeHello();
    if (!known_) return open;
    if (!child_) deadline_ = NowNs() + kIdle;
    while (const auto message = wire_.Take()) OnMessage(*message);
    return open;
  }

  void OnChild() {
    const bool alive = child_->Fill();
    while (const auto line = child_->Take()) OnLine(*line);
    if (child_ && !alive) {
      if (!result_) throw Error(child_->Ended());
      if (spec_.traced && !calls_) throw Error("no system calls were counted");
      Finish();
    }
  }

  void SendError(const std::string& line) { wire_.SendError(line); }

 private:
  void OnMessage(const nlohmann::json& message) {
    const std::string type = TypeOf(message);
    if (type == "test" && !child_) {
      spec_ = SpecFromJson(Field(message, "spec"));
      const std::string token = TextField(message, "token", kTokenSize);
      if (token.size() != kTokenSize) BadField("token");
      result_.reset();
      calls_.reset();
      child_ = std::make_unique<Child>(spec_);
      const int cpu = spec_.server_cpu >= 0 ? spec_.server_cpu : options_.cpu;
      child_->Tell({{"spec", ToJson(spec_)},
                    {"server", true},
                    {"host", LocalAddress(wire_.fd()).Host()},
                    {"port", 0},
                    {"token", token},
                    {"interval", 0},
                    {"cpu", cpu < 0 ? nlohmann::json() : nlohmann::json(cpu)}});
      deadline_ = 0;
    } else if (type == "finish" && child_) {
      child_->Tell({{"finish", true}});
      deadline_ = NowNs() + kFinish;
    } else if (type == "finish" && result_) {
      // The worker had ended by itself.
    } else {
      BadField("type");
    }
  }

  void OnLine(const nlohmann::json& line) {
    const std::string type = TypeOf(line);
    if (type == "listening") {
      wire_.Send({{"type", "ready"},
                  {"port", NumberField(line, "port", 1, 65535)},
                  {"host", ToJson(ThisHost())}});
    } else if (type == "error") {
      throw Error(TextField(line, "message", 1000));
    } else if (type == "result") {
      result_ = SideFromJson(Field(line, "side"));
    } else if (type == "syscalls") {
      calls_ = CallsFromJson(Field(line, "calls"));
    }
  }

  void Finish() {
    nlohmann::json message = {{"type", "result"}, {"side", ToJson(*result_)}};
    if (calls_) message["calls"] = *calls_;
    // The client takes the result once it has finished, too.
    wire_.Send(message);
    PrintServed(name_, spec_, *result_, options_.json);
    child_.reset();
    deadline_ = NowNs() + kIdle;
  }

  const ServerOptions& options_;
  Wire wire_;
  const std::string name_;
  std::int64_t deadline_;
  bool known_ = false;
  Spec spec_;
  std::unique_ptr<Child> child_;
  std::optional<Side> result_;
  std::optional<Calls> calls_;
};

void TurnAway(Fd fd) {
  try {
    Wire wire(std::move(fd), "a client");
    wire.SendHello();
    wire.SendError("it is busy with another client");
    // A close with unread bytes would take the answer back.
    ::shutdown(wire.fd(), SHUT_WR);
    wire.Fill();
  } catch (const Error&) {
  }
}

}  // namespace

int Serve(const ServerOptions& options) {
  const Fd signals = CatchSignals();
  const Fd listener = Listen(options.bind, options.port);
  SetNonBlocking(listener.get());
  PrintListening(options.port, options.json);
  std::unique_ptr<Session> session;
  bool served = false;
  int status = 0;  // status of the last client
  while (!(options.once && served && !session)) {
    pollfd fds[] = {{signals.get(), POLLIN, 0},
                    {listener.get(), POLLIN, 0},
                    {session ? session->wire_fd() : -1, POLLIN, 0},
                    {session ? session->child_fd() : -1, POLLIN, 0}};
    ::poll(fds, 4, session && session->deadline() != 0 ? 1000 : -1);
    if (fds[0].revents != 0) return 0;
    try {
      if (fds[3].revents != 0) session->OnChild();
      if (fds[2].revents != 0 && !session->OnWire()) {
        if (session->child_fd() >= 0) throw Error("the client has gone away");
        session.reset();
      }
      if (session && session->deadline() != 0 &&
          NowNs() > session->deadline()) {
        throw Error("the client took too long");
      }
    } catch (const Error& error) {
      session->SendError(error.what());
      PrintFailed(session->name(), error.what(), options.json);
      session.reset();
      status = kFailed;
    }
    if (fds[1].revents == 0) continue;
    Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) continue;
    if (session) {
      TurnAway(std::move(fd));
      continue;
    }
    try {
      session = std::make_unique<Session>(std::move(fd), options);
      served = true;
      status = 0;
    } catch (const Error& error) {
      PrintFailed("a client", error.what(), options.json);
    }
  }
  return status;
}

}  // namespace rcsock::perf
