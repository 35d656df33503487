#include "lib/lane/rdma/vectors.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "lib/base/file_text.h"
#include "lib/base/listing.h"
#include "lib/base/unique_fd.h"

namespace rcsock::lane::rdma {
namespace {

constexpr int kLongestPath = 512;

// Reads the beginning of a file, without its last line feed. False: there is
// none.
bool ReadFile(const char* path, char* text, std::size_t size) {
  const std::size_t n = base::ReadStart(path, text, size - 1).size();
  if (n == 0) return false;
  text[n] = '\0';
  if (text[n - 1] == '\n') text[n - 1] = '\0';
  return true;
}

// "mlx5_comp3@pci:0000:3b:00.0" -> 3. -1: this is not the interrupt of a
// completion vector. mlx4's are comp's, too; irdma's, hns' and erdma's are
// ceq's; bnxt_re's are nq's.
int VectorNumber(const char* action) {
  for (const char* word : {"comp", "ceq", "CEQ", "nq"}) {
    const char* at = std::strstr(action, word);
    if (at == nullptr) continue;
    at += std::strlen(word);
    while (*at == '-' || *at == '_') ++at;
    if (*at < '0' || *at > '9') continue;
    return static_cast<int>(
        std::min<unsigned long>(std::strtoul(at, nullptr, 10), INT_MAX));
  }
  return -1;
}

// The completion vector of an interrupt, by what the kernel calls the
// interrupt.
int NumberOf(const char* sysfs, const char* proc, int irq) {
  char path[kLongestPath];
  char action[256];
  std::snprintf(path, sizeof path, "%s/kernel/irq/%d/actions", sysfs, irq);
  if (ReadFile(path, action, sizeof action)) return VectorNumber(action);
  // The directory has a directory with the name of each action.
  std::snprintf(path, sizeof path, "%s/irq/%d", proc, irq);
  const base::UniqueFd directory(base::OpenText(path, O_DIRECTORY));
  int number = -1;
  if (directory.ok()) {
    base::EachEntry(directory.get(), [&number](const char* name) {
      number = std::max(number, VectorNumber(name));
      return true;
    });
  }
  return number;
}

bool CpusOf(const char* proc, int irq, cpu_set_t* cpus) {
  char path[kLongestPath];
  char list[1024];
  for (const char* file : {"effective_affinity_list", "smp_affinity_list"}) {
    std::snprintf(path, sizeof path, "%s/irq/%d/%s", proc, irq, file);
    if (ReadFile(path, list, sizeof list) && ParseCpus(list, cpus)) return true;
  }
  return false;
}

// What is known of one device.
struct Known {
  char name[IBV_SYSFS_NAME_MAX] = {};
  long pid = 0;
  int cpu = -1;
  std::uint32_t random = 0;
  cpu_set_t allowed;
  std::vector<cpu_set_t> cpus;
};

}  // namespace

bool ParseCpus(const char* text, cpu_set_t* cpus) {
  const auto number = [&text](unsigned long* value) {
    if (*text < '0' || *text > '9') return false;
    char* end;
    *value = std::strtoul(text, &end, 10);
    text = end;
    return *value < CPU_SETSIZE;
  };
  CPU_ZERO(cpus);
  for (;;) {
    unsigned long first;
    if (!number(&first)) return false;
    unsigned long last = first;
    if (*text == '-' && (++text, !number(&last))) return false;
    if (last < first) return false;
    for (unsigned long cpu = first; cpu <= last; ++cpu) CPU_SET(cpu, cpus);
    if (*text == '\0') return true;
    if (*text++ != ',') return false;
  }
}

std::vector<cpu_set_t> VectorCpus(const char* sysfs, const char* proc,
                                  const char* device) {
  char path[kLongestPath];
  std::snprintf(path, sizeof path, "%s/class/infiniband/%s/device/msi_irqs",
                sysfs, device);
  const base::UniqueFd directory(base::OpenText(path, O_DIRECTORY));
  if (!directory.ok()) return {};
  std::vector<std::pair<int, int>> irqs;  // the vector's number, and the IRQ's
  base::EachEntry(directory.get(), [&](const char* name) {
    if (*name < '0' || *name > '9') return true;
    const int irq = std::atoi(name);
    const int number = NumberOf(sysfs, proc, irq);
    if (number >= 0) irqs.emplace_back(number, irq);
    return true;
  });
  std::sort(irqs.begin(), irqs.end());
  std::vector<cpu_set_t> all;
  for (const auto& [number, irq] : irqs) {
    cpu_set_t cpus;
    // If a vector is missing, the others would be taken for each other.
    if (!CpusOf(proc, irq, &cpus)) return {};
    all.push_back(cpus);
  }
  return all;
}

std::uint32_t ChooseVector(const std::vector<cpu_set_t>& cpus,
                           std::uint32_t vectors, const cpu_set_t& allowed,
                           int cpu, std::uint32_t random, int bell) {
  const std::uint32_t begin =
      cpu < 0 ? random : static_cast<std::uint32_t>(cpu);
  const std::uint32_t turn = static_cast<std::uint32_t>(bell);
  // The vectors that interrupt the process where it may run, from the CPU's own
  // vector on.
  std::vector<std::uint32_t> near;
  std::size_t first = 0;
  bool own = false;
  for (std::uint32_t i = 0; i < vectors && i < cpus.size(); ++i) {
    cpu_set_t both;
    CPU_AND(&both, &cpus[i], &allowed);
    if (CPU_COUNT(&both) == 0) continue;
    if (!own && cpu >= 0 &&
        CPU_ISSET(static_cast<std::size_t>(cpu), &cpus[i])) {
      own = true;
      first = near.size();
    }
    near.push_back(i);
  }
  if (near.empty()) return (begin + turn) % vectors;
  // If there are fewer vectors than CPUs, a CPU may have none of its own.
  if (!own) first = begin % near.size();
  return near[(first + turn) % near.size()];
}

std::optional<std::uint32_t> VectorOfCpu(const std::vector<cpu_set_t>& cpus,
                                         std::uint32_t vectors, int cpu,
                                         int bell) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return std::nullopt;
  std::vector<std::uint32_t> own;
  for (std::uint32_t i = 0; i < vectors && i < cpus.size(); ++i) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &cpus[i])) own.push_back(i);
  }
  if (own.empty()) return std::nullopt;
  return own[static_cast<std::uint32_t>(bell) % own.size()];
}

std::uint32_t VectorOf(const ibv_context* context, int bell, int cpu) {
  constexpr int kDevices = 8;
  static constinit Known* known[kDevices] = {};
  const auto vectors =
      static_cast<std::uint32_t>(std::max(context->num_comp_vectors, 1));
  if (vectors == 1) return 0;
  const long pid = ::syscall(SYS_getpid);
  // The last resort: processes of several containers often have equal numbers.
  std::uint32_t random = static_cast<std::uint32_t>(pid);
  ::syscall(SYS_getrandom, &random, sizeof random, 1 /* GRND_NONBLOCK */);
  const char* const name = context->device->name;
  Known** place = nullptr;
  for (Known*& one : known) {
    if (one != nullptr && std::strcmp(one->name, name) != 0) continue;
    place = &one;
    break;
  }
  if (place == nullptr) return (random + static_cast<unsigned>(bell)) % vectors;
  try {
    if (*place == nullptr) {
      auto made = std::make_unique<Known>();
      std::memcpy(made->name, name, ::strnlen(name, sizeof made->name - 1));
      made->cpus = VectorCpus("/sys", "/proc", name);
      *place = made.release();
    }
    Known& device = **place;
    // A child of fork begins at another vector than its parent.
    if (std::exchange(device.pid, pid) != pid) {
      device.cpu = ::sched_getcpu();
      device.random = random;
      if (::sched_getaffinity(0, sizeof device.allowed, &device.allowed) != 0) {
        std::memset(&device.allowed, 0xff, sizeof device.allowed);
      }
    }
    if (const auto own = VectorOfCpu(device.cpus, vectors, cpu, bell)) {
      return *own;
    }
    return ChooseVector(device.cpus, vectors, device.allowed, device.cpu,
                        device.random, bell);
  } catch (const std::bad_alloc&) {
    return (random + static_cast<unsigned>(bell)) % vectors;
  }
}

}  // namespace rcsock::lane::rdma
