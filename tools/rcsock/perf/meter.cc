#include "tools/rcsock/perf/meter.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <exception>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/mark.h"

namespace rcsock::perf {
namespace {

constexpr std::int64_t kStallNs = 20'000'000'000;

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_usec) * 1e-6;
}

double Seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

std::int64_t Ns(double seconds) {
  return static_cast<std::int64_t>(seconds * 1e9);
}

std::uint64_t Switches(const rusage& usage) {
  return static_cast<std::uint64_t>(usage.ru_nvcsw + usage.ru_nivcsw);
}

[[noreturn]] void Quit(const std::string& line) {
  Emit({{"type", "error"}, {"message", line}});
  ::_exit(1);
}

}  // namespace

void Emit(const nlohmann::json& json) {
  const std::string line =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
      "\n";
  std::size_t at = 0;
  while (at < line.size()) {
    const ssize_t n =
        ::write(STDOUT_FILENO, line.data() + at, line.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) ::_exit(1);  // nobody listens
    at += static_cast<std::size_t>(n);
  }
}

Meter::Meter(const Job& job)
    : job_(job), done_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!done_) FailErrno("eventfd");
}

void Meter::StartThread(std::function<void(Tally*)> body) {
  tallies_.push_back(std::make_unique<Tally>());
  Tally* tally = tallies_.back().get();
  running_.fetch_add(1);
  threads_.emplace_back([this, tally, body = std::move(body)] {
    try {
      body(tally);
    } catch (const std::exception& error) {
      Quit(error.what());
    }
    if (running_.fetch_sub(1) == 1) {
      const std::uint64_t one = 1;
      if (::write(done_.get(), &one, sizeof one) < 0) Quit("eventfd");
    }
  });
}

void Meter::Begin() {
  if (begun_.load(std::memory_order_relaxed) || begun_.exchange(true)) return;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  user_ = Seconds(usage.ru_utime);
  system_ = Seconds(usage.ru_stime);
  switches_ = Switches(usage);
  Mark();
  begin_.store(NowNs(), std::memory_order_release);
}

Meter::Sum Meter::Total() const {
  Sum sum;
  for (const auto& tally : tallies_) {
    sum.tx += tally->tx.load(std::memory_order_relaxed);
    sum.rx += tally->rx.load(std::memory_order_relaxed);
    sum.messages += tally->messages.load(std::memory_order_relaxed);
  }
  return sum;
}

void Meter::Report(std::int64_t now) {
  const Sum sum = Total();
  const std::int64_t begin = begin_.load(std::memory_order_acquire);
  Emit({{"type", "interval"},
        {"from", Seconds(reported_at_ - begin)},
        {"to", Seconds(now - begin)},
        {"tx_bytes", sum.tx - reported_.tx},
        {"rx_bytes", sum.rx - reported_.rx},
        {"messages", sum.messages - reported_.messages}});
  reported_ = sum;
  reported_at_ = now;
}

void Meter::ReadStdin(const std::function<void()>& on_finish) {
  char bytes[256];
  const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (n < 0 && errno == EINTR) return;
  if (n <= 0) ::_exit(1);  // the process that started this one is gone
  on_finish();             // "finish" is the only message
}

Side Meter::Drive(const std::function<void()>& on_finish) {
  LastMove last{NowNs(), 0};
  while (running_.load() > 0) {
    const std::int64_t now = NowNs();
    const std::int64_t next = Step(now);
    CheckMoves(now, &last);
    pollfd fds[] = {{done_.get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    const double wait = static_cast<double>(next - NowNs()) * 1e-6;
    ::poll(fds, 2, static_cast<int>(std::ceil(std::max(wait, 0.0))));
    if (fds[1].revents != 0) ReadStdin(on_finish);
  }
  Mark();
  const std::int64_t end = NowNs();
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  for (std::thread& thread : threads_) thread.join();
  return SideAt(end, usage);
}

std::int64_t Meter::Step(std::int64_t now) {
  const std::int64_t interval = Ns(job_.interval);
  const std::int64_t begin = begin_.load(std::memory_order_acquire);
  // Nothing announces the beginning, so this looks for it.
  if (begin == 0) return now + 20'000'000;
  std::int64_t next = now + 1'000'000'000;
  if (reported_at_ == 0) reported_at_ = begin;
  const bool timed = job_.spec.bytes == 0;
  if (timed && !stopped()) {
    const std::int64_t end = begin + Ns(job_.spec.seconds);
    if (now >= end) stop_.store(true);
    next = std::min(next, std::max(end, now));
  }
  if (!job_.server && interval > 0) {
    if (now >= reported_at_ + interval) Report(now);
    next = std::min(next, reported_at_ + interval);
  }
  return next;
}

void Meter::CheckMoves(std::int64_t now, LastMove* last) const {
  const Sum sum = Total();
  if (sum.tx + sum.rx != last->bytes) {
    *last = {now, sum.tx + sum.rx};
  } else if (now - last->at > kStallNs + Ns(job_.spec.settle)) {
    Quit("nothing has moved for 20 seconds");
  }
}

Side Meter::SideAt(std::int64_t end, const rusage& usage) {
  const std::int64_t interval = Ns(job_.interval);
  const std::int64_t begin = begin_.load(std::memory_order_acquire);
  if (reported_at_ == 0) reported_at_ = begin;
  // Reports what is left after the last interval, if it is worth a line.
  if (!job_.server && interval > 0 && begin != 0 &&
      end - reported_at_ > interval / 10) {
    Report(end);
  }
  Side side;
  const Sum sum = Total();
  side.tx_bytes = sum.tx;
  side.rx_bytes = sum.rx;
  side.messages = sum.messages;
  if (begin == 0) return side;
  side.seconds = Seconds(end - begin);
  side.user = std::max(0.0, Seconds(usage.ru_utime) - user_);
  side.system = std::max(0.0, Seconds(usage.ru_stime) - system_);
  side.switches = Switches(usage) - switches_;
  for (const auto& tally : tallies_) {
    side.tx_seconds = std::max(side.tx_seconds, Seconds(tally->tx_end - begin));
    side.rx_seconds = std::max(side.rx_seconds, Seconds(tally->rx_end - begin));
    side.latency.Add(tally->latency);
    side.connect.Add(tally->connect);
  }
  return side;
}

}  // namespace rcsock::perf
