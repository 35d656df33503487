// The base line: the patterns of the other transports over raw verbs, without
// sockets and without rcsock.  One thread serves all connections.

#include <unistd.h>

#include <algorithm>
#include <deque>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/meter.h"
#include "tools/rcsock/perf/verbs_link.h"

namespace rcsock::perf {
namespace {

constexpr std::size_t kWindow = 1 << 20;
// As in rcsock: a short spin before a sleep, but none where only one thread can
// run.
constexpr std::int64_t kSpinNs = 100'000;

[[noreturn]] void Unexpected() { Fail("an unexpected message"); }

std::size_t Quarter(const Links& links) { return links.slots() / 4; }

std::size_t IndexOf(const Message& message) {
  return static_cast<std::size_t>(message.link);
}

void SayGo(Links* links) {
  for (std::size_t i = 0; i < links->size(); ++i)
    (*links)[i].Send(What::kStart);
}

// Says goodbye on each link, and waits until the peer has everything.
void SayBye(Links* links, const std::function<void(const Message&)>& other) {
  for (std::size_t i = 0; i < links->size(); ++i) {
    (*links)[i].Send(What::kBye);
    (*links)[i].Flush();
  }
  std::size_t ended = 0;
  while (ended < links->size()) {
    for (const Message& message : links->Receive()) {
      if (message.what == What::kEnd) {
        ++ended;
      } else {
        other(message);
      }
    }
  }
}

void Serve(const Spec& spec, Links* links, Meter* meter, Tally* tally) {
  const bool stream = spec.mode == Mode::kStream;
  std::vector<std::uint64_t> received(links->size());
  std::size_t open = links->size();
  while (open > 0) {
    for (const Message& message : links->Receive()) {
      const std::size_t i = IndexOf(message);
      meter->Begin();
      if (message.what == What::kBye) {
        (*links)[i].Send(What::kEnd);
        (*links)[i].Flush();
        --open;
        continue;
      }
      if (message.what != What::kData) Unexpected();
      Tally::Add(&tally->rx, spec.size);
      if (!stream) {
        (*links)[i].SendData(0);
        Tally::Add(&tally->tx, spec.size);
        Tally::Add(&tally->messages, 1);
      } else if (++received[i] % Quarter(*links) == 0) {
        (*links)[i].Send(What::kCredit);
      }
    }
  }
  tally->rx_end = NowNs();
}

struct Sender {
  std::size_t credits;
  std::size_t slot;
  std::uint64_t left;  // messages
};

std::vector<Sender> Senders(const Spec& spec, const Links& links) {
  const std::uint64_t each =
      spec.bytes == 0 ? UINT64_MAX
                      : (spec.BytesEach() + spec.size - 1) / spec.size;
  return std::vector<Sender>(links.size(), {links.slots(), 0, each});
}

void SendNext(const Spec& spec, Link* link, Sender* sender, std::size_t slots,
              Tally* tally) {
  --sender->credits;
  --sender->left;
  link->SendData(sender->slot);
  if (++sender->slot == slots) sender->slot = 0;
  Tally::Add(&tally->tx, spec.size);
  Tally::Add(&tally->messages, 1);
}

// `wait`: waits until the other end says go.
void Stream(const Spec& spec, bool wait, Links* links, Meter* meter,
            Tally* tally) {
  for (std::size_t missing = wait ? links->size() : 0; missing > 0;) {
    for (const Message& message : links->Receive()) {
      if (message.what != What::kStart) Unexpected();
      --missing;
    }
  }
  std::vector<Sender> senders = Senders(spec, *links);
  const auto credit = [&](const Message& message) {
    if (message.what != What::kCredit) Unexpected();
    senders[IndexOf(message)].credits += Quarter(*links);
  };
  meter->Begin();
  bool more = true;
  while (more && !meter->stopped()) {
    more = false;
    for (std::size_t i = 0; i < links->size(); ++i) {
      Sender& sender = senders[i];
      if (sender.left == 0) continue;
      more = true;
      while (sender.credits == 0) {
        for (const Message& message : links->Receive()) credit(message);
      }
      SendNext(spec, &(*links)[i], &sender, links->slots(), tally);
    }
  }
  tally->tx_end = NowNs();
  SayBye(links, credit);
}

// Both ends send and receive, on each connection.
void Exchange(const Spec& spec, bool wait, Links* links, Meter* meter,
              Tally* tally) {
  std::vector<Sender> senders = Senders(spec, *links);
  std::vector<std::uint64_t> received(links->size());
  std::vector<bool> said_bye(links->size());
  std::vector<bool> may_send(links->size(), !wait);
  // Counts down until the peer has said goodbye on each link, and has answered
  // this end's goodbye.
  std::size_t left = 2 * links->size();
  const auto take = [&](const Message& message) {
    const std::size_t i = IndexOf(message);
    Link& link = (*links)[i];
    switch (message.what) {
      case What::kData:
        Tally::Add(&tally->rx, spec.size);
        if (++received[i] % Quarter(*links) == 0) link.Send(What::kCredit);
        return;
      case What::kCredit:
        senders[i].credits += Quarter(*links);
        return;
      case What::kStart:
        may_send[i] = true;
        return;
      case What::kBye:
        tally->rx_end = NowNs();
        link.Send(What::kEnd);
        link.Flush();
        --left;
        return;
      case What::kEnd:
        --left;
        return;
      default:
        Unexpected();
    }
  };
  meter->Begin();
  while (left > 0) {
    bool sent = false;
    for (std::size_t i = 0; i < links->size(); ++i) {
      Sender& sender = senders[i];
      if (said_bye[i] || !may_send[i]) continue;
      if (sender.left == 0 || meter->stopped()) {
        said_bye[i] = true;
        tally->tx_end = NowNs();
        (*links)[i].Send(What::kBye);
        (*links)[i].Flush();
      } else if (sender.credits != 0) {
        SendNext(spec, &(*links)[i], &sender, links->slots(), tally);
        sent = true;
      }
    }
    // An end that has nothing to send waits for what comes.
    for (const Message& message : sent ? links->Look() : links->Receive()) {
      take(message);
    }
  }
}

void Ask(const Spec& spec, Links* links, Meter* meter, Tally* tally) {
  std::deque<std::size_t> idle;
  for (std::size_t i = 0; i < links->size(); ++i) idle.push_back(i);
  std::vector<std::int64_t> asked(links->size());
  meter->Begin();
  const auto next = [&](std::int64_t now) {
    const std::size_t i = idle.front();
    idle.pop_front();
    asked[i] = now;
    (*links)[i].SendData(0);
    Tally::Add(&tally->tx, spec.size);
  };
  std::uint64_t under_way = 0;
  for (; under_way < spec.active; ++under_way) next(NowNs());
  while (under_way > 0) {
    for (const Message& message : links->Receive()) {
      if (message.what != What::kData) Unexpected();
      const std::size_t i = IndexOf(message);
      const std::int64_t now = NowNs();
      tally->latency.Record(static_cast<std::uint64_t>(now - asked[i]));
      Tally::Add(&tally->rx, spec.size);
      Tally::Add(&tally->messages, 1);
      idle.push_back(i);
      if (meter->stopped()) {
        --under_way;
      } else {
        next(now);
      }
    }
  }
  SayBye(links, [](const Message&) { Unexpected(); });
}

}  // namespace

Side RunVerbs(const Job& job) {
  const Spec& spec = job.spec;
  if (spec.mode == Mode::kShort) return RunVerbsShort(job);
  LinkOptions options;
  options.size = spec.size;
  options.connections = spec.connections;
  options.both =
      spec.mode == Mode::kStream && spec.direction == Direction::kBoth;
  options.slots = spec.mode == Mode::kStream
                      ? LinkOptions::SlotsFor(kWindow, spec.size)
                      : 1;
  options.spin_ns = ::sysconf(_SC_NPROCESSORS_ONLN) == 1 ? 0 : kSpinNs;
  Links links(options);
  if (job.server) {
    links.Accept(job.host, 0, [](std::uint16_t port) {
      Emit({{"type", "listening"}, {"port", port}});
    });
  } else {
    links.Connect(job.host, job.port);
  }
  Meter meter(job);
  meter.StartThread([&](Tally* tally) {
    if (options.both) {
      if (!job.server) SayGo(&links);
      Exchange(spec, job.server, &links, &meter, tally);
    } else if (job.server != (spec.mode == Mode::kStream &&
                              spec.direction == Direction::kReverse)) {
      if (!job.server) SayGo(&links);
      Serve(spec, &links, &meter, tally);
    } else if (spec.mode == Mode::kStream) {
      Stream(spec, job.server, &links, &meter, tally);
    } else {
      Ask(spec, &links, &meter, tally);
    }
  });
  return meter.Drive([] {});
}

}  // namespace rcsock::perf
