#include "tools/rcsock/stat/programs.h"

#include <iterator>

#include "tools/rcsock/stat/kernel.h"

namespace rcsock::tools {
namespace {

// Adds the counters.  What only a living process has is left out.
void AddCounters(const posix::SnapshotHead& from, posix::SnapshotHead* to) {
  to->streams += from.streams;
  to->promoted += from.promoted;
  to->demotions += from.demotions;
  to->failovers += from.failovers;
  for (std::size_t i = 0; i < std::size(to->lanes); ++i) {
    to->lanes[i].tx_bytes += from.lanes[i].tx_bytes;
    to->lanes[i].rx_bytes += from.lanes[i].rx_bytes;
  }
  for (std::size_t i = 0; i < std::size(to->reasons); ++i) {
    to->reasons[i] += from.reasons[i];
  }
  to->evicted_budget += from.evicted_budget;
  to->evicted_memory += from.evicted_memory;
  to->evicted_idle += from.evicted_idle;
  to->lost_bytes += from.lost_bytes;
  to->in_place_bytes += from.in_place_bytes;
  to->gpu_slot_bytes += from.gpu_slot_bytes;
  to->gpu_ring_bytes += from.gpu_ring_bytes;
  to->gpu_device_bytes += from.gpu_device_bytes;
  to->gpu_passed_bytes += from.gpu_passed_bytes;
  to->spun_ns += from.spun_ns;
  to->spun_well_ns += from.spun_well_ns;
}

std::uint64_t BytesOf(const posix::SnapshotHead& head) {
  std::uint64_t sum = 0;
  for (const posix::SnapshotCounts& lane : head.lanes) {
    sum += lane.tx_bytes + lane.rx_bytes;
  }
  return sum;
}

// Returns true if a process has counted less than it had: another program runs
// in it, by exec. The bytes of one lane may fall, since all bytes of a stream
// count for its last lane. The sum does not fall.
bool BeganAgain(const posix::SnapshotHead& before,
                const posix::SnapshotHead& now) {
  return now.streams < before.streams || BytesOf(now) < BytesOf(before);
}

}  // namespace

std::string Programs::NameFor(const std::string& program) {
  if (ended_.contains(program)) return program;
  const std::string name = ended_.size() < kMost ? program : kRest;
  ended_.try_emplace(name);
  return name;
}

// Moves what ended processes have counted to their programs. A process that has
// not answered, and lives, stays.
void Programs::ForgetEnded() {
  for (auto it = processes_.begin(); it != processes_.end();) {
    const auto& [key, process] = *it;
    if (process.seen || StartOf(key.first) == key.second) {
      ++it;
      continue;
    }
    AddCounters(process.last, &ended_[process.program]);
    it = processes_.erase(it);
  }
}

ProgramPictures Programs::Add(const Picture& look) {
  for (auto& [key, process] : processes_) process.seen = false;
  ProgramPictures programs;
  for (const ProcessPicture& one : look.processes) {
    // Nothing is known here of a process in another network namespace.
    if (one.source == Source::kElsewhere) continue;
    const std::string name = NameFor(one.program);
    ProgramPicture& program = programs[name];
    ++(one.source == Source::kSilent ? program.silent : program.answering);
    program.sum.streams.insert(program.sum.streams.end(), one.streams.begin(),
                               one.streams.end());
    if (one.source != Source::kAnswer) continue;
    program.sum.total.pinned_bytes += one.total.pinned_bytes;
    Process& process = processes_[{one.pid, StartOf(one.pid)}];
    if (process.program != name || BeganAgain(process.last, one.total)) {
      AddCounters(process.last,
                  &ended_[process.program.empty() ? name : process.program]);
    }
    process = {name, one.total, true};
  }
  ForgetEnded();
  for (const auto& [name, counted] : ended_) {
    ProcessPicture& sum = programs[name].sum;
    sum.program = name;
    AddCounters(counted, &sum.total);
  }
  for (const auto& [key, process] : processes_) {
    AddCounters(process.last, &programs[process.program].sum.total);
  }
  return programs;
}

}  // namespace rcsock::tools
