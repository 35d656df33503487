// Round trips and one-way streams over raw verbs: what sockets.cc does, by a
// program made for RDMA.  A message is one write with immediate data (iWARP: a
// write and a small send), one doorbell, inline where the device grants it,
// signalled only now and then.
//
// With --copy each message is copied from a buffer of the program's before it
// is sent, and to one when it has come, as any interface must whose send() may
// forget its buffer and whose recv() names one when the bytes are there: what
// is left to a sockets library that is as good as this program.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "tests/bench/net.h"
#include "tests/bench/options.h"
#include "tests/bench/pattern.h"
#include "tests/bench/sample.h"
#include "tools/rcsock/perf/verbs_link.h"

namespace {

using bench::Pattern;
using rcsock::perf::LinkOptions;
using rcsock::perf::Links;
using rcsock::perf::Message;
using rcsock::perf::What;

[[noreturn]] void Unexpected() {
  std::fprintf(stderr, "an unexpected message\n");
  std::exit(1);
}

// A credit gives back a quarter of the slots at once.
std::size_t Quarter(const Links& links) { return links.slots() / 4; }

// The program's memory, if messages are copied.
class Copies {
 public:
  // A buffer of so many bytes; 0: nothing is copied.
  Copies(std::size_t message, std::size_t buffer)
      : size_(message), buffer_(buffer, std::byte{'x'}) {}

  void Take(const rcsock::perf::Link& link, std::size_t slot) {
    EachPiece([&](std::size_t at, std::size_t n) {
      std::memcpy(buffer_.data(), link.Incoming(slot) + at, n);
    });
  }
  void Give(rcsock::perf::Link* link, std::size_t slot) {
    EachPiece([&](std::size_t at, std::size_t n) {
      std::memcpy(link->Outgoing(slot) + at, buffer_.data(), n);
    });
  }

 private:
  template <typename Piece>
  void EachPiece(Piece piece) {
    if (buffer_.empty()) return;
    for (std::size_t at = 0; at < size_; at += buffer_.size()) {
      piece(at, std::min(buffer_.size(), size_ - at));
    }
  }

  const std::size_t size_;
  std::vector<std::byte> buffer_;
};

class Server {
 public:
  Server(const Pattern& pattern, bool copy, Links* links)
      : pattern_(pattern),
        links_(*links),
        copies_(pattern.size, copy ? Buffer(pattern) : 0),
        received_(links->size()),
        open_(links->size()) {}

  void Run() {
    while (open_ > 0) {
      for (const Message& message : links_.Receive()) {
        const auto i = static_cast<std::size_t>(message.link);
        if (message.what == What::kBye) {
          --open_;
        } else if (message.what != What::kData) {
          Unexpected();
        } else if (pattern_.oneway()) {
          Sink(i);
        } else {
          copies_.Take(links_[i], 0);
          copies_.Give(&links_[i], 0);
          links_[i].SendData(0);
          marks_.Next();
        }
      }
    }
  }

 private:
  static std::size_t Buffer(const Pattern& pattern) {
    if (!pattern.oneway()) return pattern.size;
    return std::min(pattern.size, bench::kSinkBuffer);
  }

  void Sink(std::size_t i) {
    copies_.Take(links_[i],
                 static_cast<std::size_t>(received_[i]) % links_.slots());
    const std::int64_t n = ++received_[i];
    if (n % static_cast<std::int64_t>(Quarter(links_)) == 0) {
      links_[i].Send(What::kCredit);
    }
    if (n == pattern_.WarmUpEach() ||
        n == pattern_.WarmUpEach() + pattern_.MeasuredEach()) {
      links_[i].Send(What::kDone);
      marks_.Next();
    }
  }

  const Pattern pattern_;
  bench::Marks marks_{pattern_};
  Links& links_;
  Copies copies_;
  std::vector<std::int64_t> received_;
  std::size_t open_;
};

class Client {
 public:
  Client(const Pattern& pattern, bool copy, Links* links)
      : pattern_(pattern),
        links_(*links),
        copies_(pattern.size, copy ? pattern.size : 0),
        senders_(links->size(), {links->slots(), 0}) {}

  void Run() {
    if (pattern_.oneway()) {
      Stream(pattern_.WarmUpEach());
      bench::Mark();
      const std::int64_t start = bench::NowNs();
      Stream(pattern_.MeasuredEach());
      const std::int64_t took = bench::NowNs() - start;
      bench::Mark();
      bench::PrintOneWay(
          "verbs", pattern_,
          pattern_.MeasuredEach() * static_cast<std::int64_t>(links_.size()),
          took);
    } else {
      std::size_t next = 0;
      const auto step = [&] {
        copies_.Give(&links_[next], 0);
        links_[next].SendData(0);
        const std::vector<Message>& messages = links_.Receive();
        if (messages.size() != 1 || messages[0].what != What::kData) {
          Unexpected();
        }
        copies_.Take(links_[next], 0);
        next = (next + 1) % links_.size();
      };
      const bench::Cost cost =
          bench::Measure(pattern_.count, step, pattern_.WarmUp(), bench::Mark);
      bench::Mark();
      bench::PrintRoundTrips("verbs", pattern_, cost);
    }
    for (std::size_t i = 0; i < links_.size(); ++i) {
      links_[i].Send(What::kBye);
      links_[i].Flush();
    }
  }

 private:
  struct Sender {
    std::size_t credits;
    std::size_t slot;
  };

  void Stream(std::int64_t each) {
    done_ = 0;
    for (std::int64_t n = 0; n < each; ++n) {
      for (std::size_t i = 0; i < links_.size(); ++i) {
        Sender& sender = senders_[i];
        while (sender.credits == 0) Receive();
        --sender.credits;
        copies_.Give(&links_[i], sender.slot);
        links_[i].SendData(sender.slot);
        if (++sender.slot == links_.slots()) sender.slot = 0;
      }
    }
    while (done_ < links_.size()) Receive();
  }

  void Receive() {
    for (const Message& message : links_.Receive()) {
      if (message.what == What::kCredit) {
        senders_[static_cast<std::size_t>(message.link)].credits +=
            Quarter(links_);
      } else if (message.what == What::kDone) {
        ++done_;
      } else {
        Unexpected();
      }
    }
  }

  const Pattern pattern_;
  Links& links_;
  Copies copies_;
  std::vector<Sender> senders_;
  std::size_t done_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Round trips and streams over raw verbs"};
  Pattern pattern;
  std::string role;
  std::string host;
  std::uint16_t port = 0;
  std::size_t window = 1 << 20;
  app.add_option("--role", role)
      ->check(CLI::IsMember({"server", "client"}))
      ->required();
  app.add_option("--host", host, "the address of the server's RDMA device")
      ->required();
  app.add_option("--port", port)->required();
  app.add_option("--window", window,
                 "bytes under way on each connection (oneway); at least 4, at "
                 "most 256 messages")
      ->capture_default_str();
  bool copy = false;
  app.add_flag("--copy", copy, "copy each message at both ends");
  bench::AddPattern(&app, &pattern);
  CLI11_PARSE(app, argc, argv);
  bench::Limit(pattern);

  LinkOptions options;
  options.size = pattern.size;
  options.slots =
      pattern.oneway() ? LinkOptions::SlotsFor(window, pattern.size) : 1;
  options.connections = static_cast<std::size_t>(pattern.connections);
  options.spin_ns = pattern.spin ? -1 : 0;
  try {
    Links links(options);
    if (role == "server") {
      links.Accept(host, port, [](std::uint16_t) { bench::SayListening(); });
      Server(pattern, copy, &links).Run();
    } else {
      links.Connect(host, port);
      Client(pattern, copy, &links).Run();
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
