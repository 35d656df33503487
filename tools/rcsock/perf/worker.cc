#include "tools/rcsock/perf/worker.h"

#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/perf/fields.h"
#include "tools/rcsock/perf/meter.h"

namespace rcsock::perf {
namespace {

Job ReadJob() {
  std::string text;
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n') text += byte;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) {
    Fail("perf-worker is a part of `rcsock perf`: use that");
  }
  Job job;
  job.spec = SpecFromJson(Field(json, "spec"));
  job.server = BoolField(json, "server");
  job.host = TextField(json, "host", 256);
  job.port = static_cast<std::uint16_t>(NumberField(json, "port", 0, 65535));
  job.token = TextField(json, "token", kTokenSize);
  if (job.token.size() != kTokenSize) BadField("token");
  if (!Field(json, "cpu").is_null()) {
    job.cpu = static_cast<int>(NumberField(json, "cpu", 0, kMaxCpu));
  }
  job.interval = RealField(json, "interval", 0, kMaxSeconds);
  return job;
}

// Called before there are threads, which inherit the CPU.
void Bind(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) {
    Fail("this host has no CPU {} for it", cpu);
  }
}

Side RunServer(const Job& job) {
  Fd listener = Listen(job.host, 0);
  Emit({{"type", "listening"}, {"port", LocalAddress(listener.get()).port()}});
  Meter meter(job);
  if (job.spec.mode == Mode::kShort) {
    ShortServer(&meter, job, listener.get());
    return meter.Drive([&] { ::shutdown(listener.get(), SHUT_RDWR); });
  }
  const std::vector<Fd> connections = AcceptAll(listener.get(), job);
  listener.Close();
  if (job.spec.mode == Mode::kStream) {
    StreamThreads(&meter, job, connections);
  } else if (job.spec.Threads()) {
    MessageThreads(&meter, job, connections);
  } else {
    MessageLoop(&meter, job, connections);
  }
  return meter.Drive([] {});
}

Side RunClient(const Job& job) {
  Meter meter(job);
  if (job.spec.mode == Mode::kShort) {
    ShortClient(&meter, job);
    return meter.Drive([] {});
  }
  Histogram took;
  const std::vector<Fd> connections = ConnectAll(job, &took);
  Settle(job, connections);
  const std::uint64_t before = TcpBytes(connections);
  if (job.spec.mode == Mode::kStream) {
    StreamThreads(&meter, job, connections);
  } else if (job.spec.Threads()) {
    MessageThreads(&meter, job, connections);
  } else {
    MessageLoop(&meter, job, connections);
  }
  Side side = meter.Drive([] {});
  side.connect = took;
  side.tcp_bytes = TcpBytes(connections) - before;
  return side;
}

}  // namespace

int RunWorker() {
  ::signal(SIGPIPE, SIG_IGN);
  // For ps and `rcsock stat`: exec has set the name to "exe".
  ::prctl(PR_SET_NAME, "rcsock-perf");
  try {
    const Job job = ReadJob();
    Bind(job.cpu);
    const Side side = job.spec.transport == Transport::kVerbs ? RunVerbs(job)
                      : job.server                            ? RunServer(job)
                                                              : RunClient(job);
    Emit({{"type", "result"}, {"side", ToJson(side)}});
    return 0;
  } catch (const std::exception& error) {
    Emit({{"type", "error"}, {"message", error.what()}});
    return 1;
  }
}

}  // namespace rcsock::perf
