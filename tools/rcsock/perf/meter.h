#ifndef RCSOCK_TOOLS_RCSOCK_PERF_METER_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_METER_H_

#include <sys/resource.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tools/rcsock/perf/net.h"
#include "tools/rcsock/perf/side.h"
#include "tools/rcsock/perf/spec.h"

namespace rcsock::perf {

// The first line that a measuring process gets.
struct Job {
  Spec spec;
  bool server = false;
  std::string host;        // to bind or to connect to
  std::uint16_t port = 0;  // client
  std::string token;       // the first bytes of each data connection
  double interval = 1;     // client, seconds
  int cpu = -1;            // the CPU to be bound to; -1: any
};

constexpr std::size_t kTokenSize = 16;

// Writes one line for the process that has started this one.
void Emit(const nlohmann::json& line);

// What one thread counts.  Only that thread writes.  Others read the counters
// meanwhile, and the rest after its end.
struct alignas(64) Tally {
  std::atomic<std::uint64_t> tx{0};
  std::atomic<std::uint64_t> rx{0};
  std::atomic<std::uint64_t> messages{0};
  std::int64_t tx_end = 0;
  std::int64_t rx_end = 0;
  Histogram latency;
  Histogram connect;

  static void Add(std::atomic<std::uint64_t>* counter, std::uint64_t n) {
    counter->store(counter->load(std::memory_order_relaxed) + n,
                   std::memory_order_relaxed);
  }
};

// The threads that measure, and the time they have.
class Meter {
 public:
  explicit Meter(const Job& job);

  void StartThread(std::function<void(Tally*)> body);

  // Begins the measured time with the first call.  Any thread may call this.
  void Begin();
  bool stopped() const { return stop_.load(std::memory_order_relaxed); }

  // Waits for all threads, and reports intervals.  Calls `on_finish` when the
  // other end has finished.  Ends the process if a thread fails, if nothing
  // moves, or if the process that has started this one is gone.
  Side Drive(const std::function<void()>& on_finish);

 private:
  struct Sum {
    std::uint64_t tx = 0;
    std::uint64_t rx = 0;
    std::uint64_t messages = 0;
  };

  // When bytes have last moved, and how many had by then.
  struct LastMove {
    std::int64_t at;
    std::uint64_t bytes;
  };

  Sum Total() const;
  // Ends the measured time, and reports an interval, when they are over.
  // Returns when to call this again, at the latest.
  std::int64_t Step(std::int64_t now);
  // Ends the process if nothing has moved for too long.
  void CheckMoves(std::int64_t now, LastMove* last) const;
  // Requires that all threads have ended.  Returns what this end has measured.
  Side SideAt(std::int64_t end, const rusage& usage);
  void Report(std::int64_t now);
  void ReadStdin(const std::function<void()>& on_finish);

  const Job job_;
  Fd done_;
  std::atomic<bool> begun_{false};
  std::atomic<std::int64_t> begin_{0};
  std::atomic<bool> stop_{false};
  std::atomic<std::size_t> running_{0};
  double user_ = 0;  // CPU used before the measured time
  double system_ = 0;
  std::uint64_t switches_ = 0;
  Sum reported_;
  std::int64_t reported_at_ = 0;
  std::vector<std::unique_ptr<Tally>> tallies_;
  std::vector<std::thread> threads_;
};

// What the kinds of measurement have in common.

// As many connections as the job wants, each known by its token.
std::vector<Fd> AcceptAll(int listener, const Job& job);
std::vector<Fd> ConnectAll(const Job& job, Histogram* took);

// Sends small messages to and fro until the connections have found their lanes,
// or the time is up. On a lane the bytes no longer move over the kernel's TCP.
// The last message says that the measurement begins.
constexpr std::size_t kSettleSize = 8;
constexpr char kGo = 'g';
void Settle(const Job& job, const std::vector<Fd>& connections);
// The server's part, on one connection.  Returns false if the connection has
// ended.
bool SettleEcho(int fd);

std::uint64_t TcpBytes(const std::vector<Fd>& connections);

void StreamThreads(Meter* meter, const Job& job, const std::vector<Fd>& fds);
void MessageThreads(Meter* meter, const Job& job, const std::vector<Fd>& fds);
void MessageLoop(Meter* meter, const Job& job, const std::vector<Fd>& fds);
void ShortClient(Meter* meter, const Job& job);
void ShortServer(Meter* meter, const Job& job, int listener);
// Run the whole job over verbs.
Side RunVerbs(const Job& job);
Side RunVerbsShort(const Job& job);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_METER_H_
