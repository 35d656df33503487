#include "tests/differential/world.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/posix/common.h"

namespace differential {
namespace {

using posix_test::NowMs;

// Small enough for every buffer there is, so that no outcome depends on one.
constexpr long kMostUnread = 60'000;
constexpr int kMostSends = 24;
// What a cork keeps goes after 200 ms.
constexpr int kCorkMs = 300;
// Longer than anything an agent waits for by itself.
constexpr int kPatienceMs = 25'000;

void Brief(long us) {
  timespec brief{0, us * 1000};
  ::nanosleep(&brief, nullptr);
}

std::string Format(const char* format, ...)
    __attribute__((format(printf, 1, 2)));
std::string Format(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

bool Sends(Kind kind) {
  return kind == Kind::kSend || kind == Kind::kSendfile ||
         kind == Kind::kPrint || kind == Kind::kUrgent || kind == Kind::kFork ||
         kind == Kind::kMore || kind == Kind::kSendSeveral ||
         kind == Kind::kSpliceTo;
}

bool Receives(Kind kind) {
  return kind == Kind::kRecv || kind == Kind::kSplice ||
         kind == Kind::kRecvSeveral || kind == Kind::kTimed ||
         kind == Kind::kInq;
}

int MessagesOf(const Op& op) {
  return op.kind == Kind::kSendSeveral ? Messages(op.b) : 1;
}

}  // namespace

World::World(std::string agent, std::string shim, bool usual)
    : agent_(std::move(agent)), shim_(std::move(shim)), usual_(usual) {}

World::~World() { Stop(); }

bool World::Start() {
  if (agents_[0].pid > 0) return true;
  for (Agent& agent : agents_) {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
      return false;
    }
    agent.pid = ::fork();
    if (agent.pid < 0) return false;
    if (agent.pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::dup2(pair[1], kControl) < 0) ::_exit(126);
      if (!shim_.empty()) {
        const char* first = std::getenv("SANITIZER_PRELOAD");
        std::string all =
            (first != nullptr ? std::string(first) + ":" : "") + shim_;
        for (const char* name : {"SANITIZER_BEHIND", "DIFFERENTIAL_BEHIND"}) {
          const char* last = std::getenv(name);
          if (last != nullptr) all += std::string(":") + last;
        }
        ::setenv("LD_PRELOAD", all.c_str(), 1);
        if (!usual_) ::setenv("RCSOCK_PROMOTE_OPS", "1", 0);
      }
      ::execl(agent_.c_str(), agent_.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(pair[1]);
    agent.control = pair[0];
  }
  Request request{};
  request.ask = Ask::kListen;
  Reply reply;
  if (!Call(1, request, &reply)) return false;
  port_ = static_cast<int>(reply.value);
  return true;
}

void World::Stop() {
  taught_ = false;
  for (Agent& agent : agents_) {
    if (agent.pid <= 0) continue;
    ::close(agent.control);
    const std::uint64_t end = NowMs() + 3000;
    int status;
    while (::waitpid(agent.pid, &status, WNOHANG) == 0) {
      if (NowMs() > end) {
        ::kill(agent.pid, SIGKILL);
        ::waitpid(agent.pid, &status, 0);
        break;
      }
      Brief(500);
    }
    agent = Agent{};
  }
}

bool World::Send(int end, const Request& request) {
  return ::send(agents_[end].control, &request, sizeof request, MSG_NOSIGNAL) ==
         sizeof request;
}

bool World::Receive(int end, Reply* reply) {
  pollfd one{agents_[end].control, POLLIN, 0};
  if (::poll(&one, 1, kPatienceMs) != 1) return false;
  return ::recv(agents_[end].control, reply, sizeof *reply, 0) == sizeof *reply;
}

bool World::Call(int end, const Request& request, Reply* reply) {
  return Send(end, request) && Receive(end, reply);
}

bool World::Dead(int end, std::string* why) {
  int status = 0;
  Brief(20'000);
  const pid_t pid = ::waitpid(agents_[end].pid, &status, WNOHANG);
  if (pid == 0) {
    *why = Format("end %d does not answer", end);
    if (std::getenv("DIFFERENTIAL_STAY") != nullptr) {
      std::fprintf(stderr, "pids %d %d\n", agents_[0].pid, agents_[1].pid);
      ::pause();
    }
    ::kill(agents_[end].pid, SIGKILL);
  } else {
    *why = Format("end %d died: status %x", end, static_cast<unsigned>(status));
    agents_[end].pid = -1;
    ::close(agents_[end].control);
  }
  return false;
}

bool World::Begin(const Case& one, std::string* why) {
  if (!Start()) {
    *why = "the agents do not start";
    return false;
  }
  std::memset(unread_, 0, sizeof unread_);
  std::memset(sends_, 0, sizeof sends_);
  std::memset(corked_, 0, sizeof corked_);
  std::memset(urgent_last_, 0, sizeof urgent_last_);
  failed_ = false;
  made_ = accepted_ = kAtFirst;
  if (usual_ && !Teach(why)) return false;
  for (int i = 0; i < kAtFirst; ++i) {
    if (!Connect(i, why)) return false;
    const bool warm =
        one.warmth == Warmth::kSome || one.warmth == Warmth::kLane;
    if (warm && !Warm(i, one.warmth, why)) return false;
  }
  return true;
}

bool World::Connect(int connection, std::string* why) {
  Request request{};
  request.number = static_cast<std::uint8_t>(connection);
  request.port = port_;
  request.ask = Ask::kBegin;
  Reply reply;
  for (int end = 0; end < 2; ++end) {
    if (!Call(end, request, &reply)) return Dead(end, why);
  }
  return true;
}

bool World::Warm(int connection, Warmth warmth, std::string* why) {
  Request request{};
  request.number = static_cast<std::uint8_t>(connection);
  request.ask = Ask::kWarm;
  request.port = static_cast<int>(shim_.empty() ? Warmth::kSome : warmth);
  Reply replies[2];
  for (int end = 0; end < 2; ++end) Send(end, request);
  for (int end = 0; end < 2; ++end) {
    if (!Receive(end, &replies[end])) return Dead(end, why);
  }
  for (const Reply& reply : replies) {
    if (std::strcmp(reply.text, "warm") != 0) {
      *why = Format("warming up: %s", reply.text);
      return false;
    }
  }
  return true;
}

// Connections that were worth a lane: cases are not, and what comes to be
// expected of the service follows the last few.
bool World::Teach(std::string* why) {
  for (int round = taught_ ? 2 : 4; round > 0; --round) {
    for (int i = 0; i < kAtFirst; ++i) {
      if (!Connect(i, why)) return false;
      if (!Warm(i, Warmth::kLane, why)) return false;
      Request request{};
      request.ask = Ask::kStep;
      request.op.kind = Kind::kBulk;
      request.op.slot = static_cast<std::uint8_t>(i);
      request.op.a = 3;  // the longest
      Request partner = request;
      partner.ask = Ask::kPartner;
      Send(0, request);
      Send(1, partner);
      Reply reply;
      for (int end = 0; end < 2; ++end) {
        if (!Receive(end, &reply)) return Dead(end, why);
      }
    }
    if (!End(why)) return false;
  }
  taught_ = true;
  return true;
}

bool World::End(std::string* why) {
  Request request{};
  request.ask = Ask::kEnd;
  Reply replies[2];
  for (int end = 0; end < 2; ++end) Send(end, request);
  for (int end = 0; end < 2; ++end) {
    if (!Receive(end, &replies[end])) return Dead(end, why);
    if (std::strcmp(replies[end].text, "ended") != 0) {
      *why = replies[end].text;
      return false;
    }
  }
  return true;
}

bool World::LookBoth() {
  Request request{};
  request.ask = Ask::kLook;
  for (int end = 0; end < 2; ++end) {
    if (!Send(end, request)) return false;
  }
  for (int end = 0; end < 2; ++end) {
    if (!Receive(end, &looks_[end])) return false;
  }
  return true;
}

std::string World::Seen(int end) const {
  std::string text;
  const Reply& look = looks_[end];
  for (int i = 0; i < kSlots; ++i) {
    const SlotLook& slot = look.slots[i];
    if (slot.connection < 0) continue;
    text +=
        Format(" %d: poll %x, %d readable, state %d;", i,
               static_cast<unsigned>(slot.revents), slot.readable, slot.state);
  }
  if (look.urgent) text += " SIGURG";
  if (look.backlog) text += " backlog";
  for (int i = 0; i < kThreads; ++i) {
    const Reply::Thread& thread = look.threads[i];
    if (thread.state == 1) text += Format(" the thread %d waits", i);
    if (thread.state == 2) {
      text += Format(" the thread %d had %s", i, thread.ended);
    }
  }
  return text;
}

bool World::Settle(const Moment* expected, int patience_ms, bool waits,
                   Moment* moment) {
  const std::uint64_t end = NowMs() + static_cast<std::uint64_t>(patience_ms);
  const std::uint64_t first = NowMs() + (waits ? kCorkMs : 0);
  int same = 0;
  for (;;) {
    if (!LookBoth()) return false;
    bool good = true;
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; expected != nullptr && k < kThreads; ++k) {
        const Reply::Thread& thread = looks_[i].threads[k];
        if (thread.state != 2 || !OnlyEdges(thread.ended) ||
            expected->seen[i].find(Format("the thread %d waits", k)) ==
                std::string::npos) {
          continue;
        }
        Request request{};
        request.ask = Ask::kAgain;
        request.number = static_cast<std::uint8_t>(k);
        Reply reply;
        if (!Call(i, request, &reply)) return false;
      }
      std::string seen = Seen(i);
      if (expected != nullptr) {
        good = good && seen == expected->seen[i];
      } else if (seen != moment->seen[i] || looks_[i].busy) {
        same = 0;
      }
      moment->seen[i] = std::move(seen);
    }
    if (expected != nullptr ? good || NowMs() > end
                            : ++same > 4 && NowMs() >= first) {
      return true;
    }
    Brief(expected != nullptr ? 100 : 200);
  }
}

// Both ends of the step's connection are open, empty and idle.
bool World::Quiet(const Op* op) {
  const SlotLook& slot = looks_[op->end].slots[op->slot];
  if (slot.connection < 0) return false;
  bool there = false;
  for (int end = 0; end < 2; ++end) {
    for (const Reply::Thread& thread : looks_[end].threads) {
      if (thread.state == 1) return false;
    }
    for (const SlotLook& look : looks_[end].slots) {
      if (look.connection != slot.connection) continue;
      if (look.revents != POLLOUT || look.readable != 0) return false;
      there = there || end != op->end;
    }
  }
  return there;
}

bool World::Waits(const Op& op, int connection) const {
  return connection >= 0 && Sends(op.kind) &&
         (op.kind == Kind::kMore || corked_[connection][op.end]);
}

bool World::Open(const Op& op, Moment* moment, std::string* why) {
  const bool accepts = op.kind == Kind::kAccept;
  bool room = false;
  for (const SlotLook& slot : looks_[accepts].slots) {
    room = room || slot.connection < 0;
  }
  if (!room || (accepts ? accepted_ == made_ : made_ == kConnections)) {
    moment->call = "skip";
    return true;
  }
  Request request{};
  request.ask = Ask::kStep;
  request.op = op;
  request.number = static_cast<std::uint8_t>(accepts ? accepted_++ : made_++);
  request.port = port_;
  Reply reply{};
  if (!Call(accepts, request, &reply)) return Dead(accepts, why);
  moment->call = reply.text;
  return true;
}

bool World::Step(const Op& op, Moment* moment, std::string* why) {
  if (op.kind == Kind::kConnect || op.kind == Kind::kAccept) {
    return Open(op, moment, why);
  }
  const SlotLook slot = looks_[op.end].slots[op.slot];
  const int connection = slot.connection;
  Request request{};
  request.ask = Ask::kStep;
  request.op = op;
  request.port = port_;
  request.failed = failed_;
  Reply reply{};
  if (op.kind == Kind::kChat || op.kind == Kind::kBulk) {
    if (!Quiet(&op) || corked_[connection][0] || corked_[connection][1]) {
      moment->call = "skip";
      return true;
    }
    Request partner = request;
    partner.ask = Ask::kPartner;
    partner.op.slot = static_cast<std::uint8_t>(connection);
    Reply other;
    Send(op.end, request);
    Send(1 - op.end, partner);
    if (!Receive(op.end, &reply)) return Dead(op.end, why);
    if (!Receive(1 - op.end, &other)) return Dead(1 - op.end, why);
    moment->call = std::string(reply.text) + ", " + other.text;
    return true;
  }
  if (connection >= 0 && Sends(op.kind) &&
      (unread_[connection][op.end] + static_cast<long>(Length(op.a)) >
           kMostUnread ||
       sends_[connection][op.end] + MessagesOf(op) > kMostSends)) {
    moment->call = "skip";
    return true;
  }
  if (op.kind == Kind::kUrgent && op.a % 3 == 0 && connection >= 0 && failed_ &&
      urgent_last_[connection][op.end]) {
    moment->call = "skip";
    return true;
  }
  if (!Call(op.end, request, &reply)) return Dead(op.end, why);
  moment->call = reply.text;
  if (op.kind == Kind::kFail) failed_ = true;
  if (connection < 0) return true;
  if (op.kind == Kind::kCork) corked_[connection][op.end] = op.b % 2 == 0;
  if (Sends(op.kind)) {
    if (reply.value > 0) {
      urgent_last_[connection][op.end] = op.kind == Kind::kUrgent;
      unread_[connection][op.end] += reply.value;
      sends_[connection][op.end] += MessagesOf(op);
    } else {
      unread_[connection][1 - op.end] += reply.value;  // read by a child
    }
  } else if (Receives(op.kind)) {
    long& left = unread_[connection][1 - op.end];
    left -= reply.value;
    if (left <= 0) sends_[connection][1 - op.end] = 0;
  }
  return true;
}

bool World::Run(const Case& one, const std::vector<Moment>* expected,
                int patience_ms, std::vector<Moment>* moments,
                std::string* why) {
  moments->clear();
  why->clear();
  if (!Begin(one, why)) return false;
  Op none;
  for (std::size_t i = 0; i <= one.ops.size(); ++i) {
    // The first moment is before all steps.
    const Op* op = i > 0 ? &one.ops[i - 1] : nullptr;
    const bool waits =
        op != nullptr && Waits(*op, looks_[op->end].slots[op->slot].connection);
    Moment moment;
    if (op != nullptr && !Step(*op, &moment, why)) return false;
    const Moment* wanted = expected != nullptr ? &(*expected)[i] : nullptr;
    const bool right =
        wanted == nullptr || Allowed(op != nullptr ? *op : none, wanted->call,
                                     moment.call, Told(one, *moments));
    if (!Settle(wanted, right ? patience_ms : 0, waits, &moment)) {
      return Dead(0, why);
    }
    moments->push_back(moment);
    if (wanted != nullptr && (!right || moment.seen[0] != wanted->seen[0] ||
                              moment.seen[1] != wanted->seen[1])) {
      *why = "not as over TCP";
      return true;
    }
  }
  return End(why);
}

}  // namespace differential
