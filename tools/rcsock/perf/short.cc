// Short connections: each is made, carries one round trip and ends.  The server
// ends it, as servers do, and keeps TCP's TIME_WAIT.  So the client does not
// run out of ports.

#include <poll.h>

#include <cerrno>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/meter.h"

namespace rcsock::perf {
namespace {

constexpr double kPatience = 5;  // seconds

void Exchange(const Address& address, const std::vector<char>& question,
              std::vector<char>* answer, Tally* tally) {
  const std::int64_t start = NowNs();
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) FailErrno("socket");
  if (::connect(fd.get(), address.get(), address.length) != 0) {
    FailErrno("connect");
  }
  tally->connect.Record(static_cast<std::uint64_t>(NowNs() - start));
  SetNoDelay(fd.get());
  SendAll(fd.get(), question.data(), question.size());
  char end;
  if (!ReceiveAll(fd.get(), answer->data(), answer->size()) ||
      ReceiveAll(fd.get(), &end, 1)) {
    Fail("the server has not answered a connection");
  }
  fd.Close();
  tally->latency.Record(static_cast<std::uint64_t>(NowNs() - start));
  Tally::Add(&tally->tx, question.size());
  Tally::Add(&tally->rx, answer->size());
  Tally::Add(&tally->messages, 1);
}

// Closes strangers without an answer.
void Serve(const Job& job, int fd, std::vector<char>* question, Tally* tally) {
  try {
    if (!ReceiveAll(fd, question->data(), question->size()) ||
        job.token.compare(0, kTokenSize, question->data(), kTokenSize) != 0) {
      return;
    }
    SendAll(fd, question->data() + kTokenSize, job.spec.size);
  } catch (const Error&) {
    return;
  }
  Tally::Add(&tally->rx, question->size());
  Tally::Add(&tally->tx, job.spec.size);
  Tally::Add(&tally->messages, 1);
}

}  // namespace

void ShortClient(Meter* meter, const Job& job) {
  const Address address = Resolve(job.host, job.port);
  for (std::uint64_t i = 0; i < job.spec.connections; ++i) {
    meter->StartThread([=, &job](Tally* tally) {
      std::vector<char> question(job.token.begin(), job.token.end());
      question.resize(kTokenSize + job.spec.size, 'x');
      std::vector<char> answer(job.spec.size);
      meter->Begin();
      while (!meter->stopped()) Exchange(address, question, &answer, tally);
    });
  }
}

void ShortServer(Meter* meter, const Job& job, int listener) {
  for (std::uint64_t i = 0; i < job.spec.connections; ++i) {
    meter->StartThread([=, &job](Tally* tally) {
      std::vector<char> question(kTokenSize + job.spec.size);
      for (;;) {
        const Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
        // When the client has finished, the listener is shut down.
        if (!fd && errno == EINVAL) return;
        if (!fd && (errno == EMFILE || errno == ENFILE)) FailErrno("accept");
        if (!fd) continue;
        meter->Begin();
        SetTimeout(fd.get(), kPatience);
        Serve(job, fd.get(), &question, tally);
      }
    });
  }
}

}  // namespace rcsock::perf
