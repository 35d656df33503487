// Round trips: by a thread for each connection, or by one epoll loop for very
// many.

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <deque>
#include <random>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/meter.h"

namespace rcsock::perf {
namespace {

constexpr int kEvents = 256;

void Ask(Meter* meter, const Spec& spec, int fd, Tally* tally) {
  std::vector<char> message(spec.size, 'x');
  std::int64_t last = NowNs();
  while (!meter->stopped()) {
    SendAll(fd, message.data(), message.size());
    Tally::Add(&tally->tx, spec.size);
    if (!ReceiveAll(fd, message.data(), message.size())) {
      Fail("the server has closed a connection");
    }
    const std::int64_t now = NowNs();
    tally->latency.Record(static_cast<std::uint64_t>(now - last));
    last = now;
    Tally::Add(&tally->rx, spec.size);
    Tally::Add(&tally->messages, 1);
  }
}

void Answer(const Spec& spec, int fd, Tally* tally) {
  std::vector<char> message(spec.size);
  while (ReceiveAll(fd, message.data(), message.size())) {
    Tally::Add(&tally->rx, spec.size);
    SendAll(fd, message.data(), message.size());
    Tally::Add(&tally->tx, spec.size);
    Tally::Add(&tally->messages, 1);
  }
}

// One loop over all connections, which waits in none of them.
class Loop {
 public:
  Loop(const Spec& spec, const std::vector<Fd>& fds, Tally* tally)
      : spec_(spec),
        tally_(tally),
        set_(::epoll_create1(EPOLL_CLOEXEC)),
        states_(fds.size()),
        buffer_(std::max<std::size_t>(spec.size, kSettleSize), 'x') {
    if (!set_) FailErrno("epoll_create1");
    for (std::size_t i = 0; i < fds.size(); ++i) {
      states_[i].fd = fds[i].get();
      Control(EPOLL_CTL_ADD, i, EPOLLIN);
    }
  }

 protected:
  struct State {
    int fd = -1;
    std::size_t got = 0;   // bytes of the incoming message
    std::size_t left = 0;  // bytes left of the outgoing message
    std::int64_t asked = 0;
    bool settled = false;
    bool watched = false;  // for room to send
  };

  void Control(int what, std::size_t i, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = i;
    if (::epoll_ctl(set_.get(), what, states_[i].fd, &event) != 0) {
      FailErrno("epoll_ctl");
    }
  }

  template <typename Each>
  void Wait(Each each) {
    std::array<epoll_event, kEvents> events;
    Serve(events, ::epoll_wait(set_.get(), events.data(), kEvents, 1000), each);
  }

  // Waits for that long at most.  libc has this call from glibc 2.35 on, and
  // kernels before 5.11 lack it: then the wait has whole milliseconds.
  template <typename Each>
  void WaitNs(std::int64_t ns, Each each) {
    constexpr std::int64_t kSecond = 1'000'000'000;
    std::array<epoll_event, kEvents> events;
    const timespec limit{ns / kSecond, ns % kSecond};
    long n = ::syscall(SYS_epoll_pwait2, set_.get(), events.data(), kEvents,
                       &limit, nullptr, 0);
    if (n < 0 && errno == ENOSYS) {
      n = ::epoll_wait(set_.get(), events.data(), kEvents,
                       static_cast<int>(ns / 1'000'000));
    }
    Serve(events, static_cast<int>(n), each);
  }

  template <typename Each>
  void Serve(const std::array<epoll_event, kEvents>& events, int n, Each each) {
    if (n < 0 && errno != EINTR) FailErrno("epoll_wait");
    for (int e = 0; e < n; ++e) {
      const epoll_event& event = events[static_cast<std::size_t>(e)];
      const auto i = static_cast<std::size_t>(event.data.u64);
      if ((event.events & EPOLLOUT) != 0) Push(i);
      if ((event.events & ~std::uint32_t{EPOLLOUT}) != 0) each(i);
    }
  }

  void Post(std::size_t i, std::size_t size) {
    states_[i].left += size;
    Push(i);
  }

  // All messages have one content, so nothing needs to be kept.
  void Push(std::size_t i) {
    State& state = states_[i];
    while (state.left > 0) {
      const ssize_t n =
          ::send(state.fd, buffer_.data(), std::min(state.left, buffer_.size()),
                 MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno != EAGAIN) FailErrno("send");
      if (n < 0) break;
      state.left -= static_cast<std::size_t>(n);
      if (state.settled) Tally::Add(&tally_->tx, static_cast<std::uint64_t>(n));
    }
    const bool watch = state.left > 0;
    if (watch == state.watched) return;
    state.watched = watch;
    Control(EPOLL_CTL_MOD, i, EPOLLIN | (watch ? EPOLLOUT : 0u));
  }

  enum class Got { kPart, kAll, kEnd };
  // Reads the rest of the message of `size` bytes, into `to`.
  Got Pull(std::size_t i, std::size_t size, char* to) {
    State& state = states_[i];
    const ssize_t n =
        ::recv(state.fd, to + state.got, size - state.got, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return Got::kPart;
    if (n < 0) FailErrno("receive");
    if (n == 0) return Got::kEnd;
    state.got += static_cast<std::size_t>(n);
    if (state.settled) Tally::Add(&tally_->rx, static_cast<std::uint64_t>(n));
    if (state.got < size) return Got::kPart;
    state.got = 0;
    return Got::kAll;
  }

  const Spec spec_;
  Tally* const tally_;
  Fd set_;
  std::vector<State> states_;
  std::vector<char> buffer_;
};

class AskLoop : public Loop {
 public:
  using Loop::Loop;

  void Run(Meter* meter) {
    std::vector<char> answer(spec_.size);
    for (std::size_t i = 0; i < states_.size(); ++i) {
      states_[i].settled = true;
      idle_.push_back(i);
    }
    std::size_t under_way = 0;
    for (; under_way < spec_.active; ++under_way) AskNext(NowNs());
    while (under_way > 0) {
      Wait([&](std::size_t i) {
        const Got got = Pull(i, spec_.size, answer.data());
        if (got == Got::kEnd) Fail("the server has closed a connection");
        if (got == Got::kPart) return;
        const std::int64_t now = NowNs();
        tally_->latency.Record(
            static_cast<std::uint64_t>(now - states_[i].asked));
        Tally::Add(&tally_->messages, 1);
        idle_.push_back(i);
        if (meter->stopped()) {
          --under_way;
        } else {
          AskNext(now);
        }
      });
    }
  }

 private:
  // Asks on the connection that has been idle longest.
  void AskNext(std::int64_t now) {
    const std::size_t i = idle_.front();
    idle_.pop_front();
    states_[i].asked = now;
    Post(i, spec_.size);
  }

  std::deque<std::size_t> idle_;
};

// Asks at random times, at a rate, over random connections.  A latency counts
// from when its question was due.  So an end that stands still is charged for
// all questions that were due meanwhile.
class PoissonLoop : public Loop {
 public:
  using Loop::Loop;

  void Run(Meter* meter) {
    for (State& state : states_) state.settled = true;
    sent_.resize(states_.size());
    answer_.resize(spec_.size);
    next_ = NowNs();
    while (!meter->stopped()) {
      const std::int64_t now = NowNs();
      // Answers are taken even if more is due than can be sent.
      for (int i = 0; i < kBurst && next_ <= now; ++i, next_ += Gap()) {
        due_.push_back(next_);
      }
      AskDue();
      Take(std::clamp<std::int64_t>(next_ - NowNs(), 0, kLongestWait));
    }
    while (under_way_ > 0) Take(kLongestWait);
    for (const std::int64_t due : due_) Record(due);
  }

 private:
  static constexpr int kBurst = 64;
  static constexpr std::size_t kMostOnOne = 64;  // questions without an answer
  static constexpr std::int64_t kLongestWait = 1'000'000'000;

  std::int64_t Gap() {
    return static_cast<std::int64_t>(-std::log(1 - part_(random_)) * 1e9 /
                                     spec_.rate);
  }

  void Record(std::int64_t due) {
    tally_->latency.Record(static_cast<std::uint64_t>(NowNs() - due));
  }

  // Sends what is due, while any connection takes more.
  void AskDue() {
    while (!due_.empty() && under_way_ < kMostOnOne * states_.size()) {
      std::size_t i = random_() % states_.size();
      while (sent_[i].size() == kMostOnOne) i = (i + 1) % states_.size();
      sent_[i].push_back(due_.front());
      due_.pop_front();
      ++under_way_;
      Post(i, spec_.size);
    }
  }

  void Take(std::int64_t wait_ns) {
    WaitNs(wait_ns, [&](std::size_t i) {
      Got got = Got::kAll;
      while ((got = Pull(i, spec_.size, answer_.data())) == Got::kAll) {
        if (sent_[i].empty()) Fail("an answer to no question");
        Record(sent_[i].front());
        sent_[i].pop_front();
        --under_way_;
        Tally::Add(&tally_->messages, 1);
      }
      if (got == Got::kEnd) Fail("the server has closed a connection");
    });
  }

  std::vector<std::deque<std::int64_t>> sent_;  // when due, by connection
  std::deque<std::int64_t> due_;                // and not yet sent
  std::vector<char> answer_;
  std::size_t under_way_ = 0;
  std::int64_t next_ = 0;
  std::mt19937_64 random_{7};  // each transport gets the same times
  std::uniform_real_distribution<double> part_{0, 1};
};

class AnswerLoop : public Loop {
 public:
  using Loop::Loop;

  void Run(Meter* meter) {
    std::size_t open = states_.size();
    std::vector<char> question(buffer_.size());
    while (open > 0) {
      Wait([&](std::size_t i) {
        State& state = states_[i];
        if (state.fd < 0) return;
        const std::size_t size = state.settled ? spec_.size : kSettleSize;
        const Got got = Pull(i, size, question.data());
        if (got == Got::kPart) return;
        if (got == Got::kEnd) {
          Control(EPOLL_CTL_DEL, i, 0);
          state.fd = -1;
          --open;
          return;
        }
        Post(i, size);
        if (state.settled) {
          Tally::Add(&tally_->messages, 1);
        } else if (question[0] == kGo) {
          state.settled = true;
          meter->Begin();
        }
      });
    }
  }
};

}  // namespace

void MessageThreads(Meter* meter, const Job& job, const std::vector<Fd>& fds) {
  for (const Fd& each : fds) {
    const int fd = each.get();
    meter->StartThread([=, &job](Tally* tally) {
      if (job.server) {
        if (!SettleEcho(fd)) Fail("the client has closed a connection");
        meter->Begin();
        Answer(job.spec, fd, tally);
      } else {
        meter->Begin();
        Ask(meter, job.spec, fd, tally);
        ::shutdown(fd, SHUT_WR);
      }
    });
  }
}

void MessageLoop(Meter* meter, const Job& job, const std::vector<Fd>& fds) {
  meter->StartThread([meter, &job, &fds](Tally* tally) {
    if (job.server) {
      AnswerLoop(job.spec, fds, tally).Run(meter);
      return;
    }
    meter->Begin();
    if (job.spec.rate > 0) {
      PoissonLoop(job.spec, fds, tally).Run(meter);
    } else {
      AskLoop(job.spec, fds, tally).Run(meter);
    }
    for (const Fd& fd : fds) ::shutdown(fd.get(), SHUT_WR);
  });
}

}  // namespace rcsock::perf
