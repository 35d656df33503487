#include "tools/rcsock/doctor/gpus.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "lib/gpu/cuda.h"
#include "tools/rcsock/doctor/spawn.h"
#include "tools/rcsock/printable.h"

namespace rcsock::tools {
namespace {

namespace fs = std::filesystem;
namespace cuda = gpu::cuda;

std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The directory of a device below the bridges that lead to it; empty if there
// is none.
fs::path PlaceOf(const fs::path& link) {
  std::error_code error;
  fs::path place = fs::canonical(link, error);
  return error ? fs::path() : place;
}

// How many directories the two places have in common.
std::ptrdiff_t Common(const fs::path& one, const fs::path& other) {
  const auto apart =
      std::mismatch(one.begin(), one.end(), other.begin(), other.end());
  return std::distance(one.begin(), apart.first);
}

// The words for the RDMA device that is nearest to a GPU; "" if there is none.
std::string Nearest(const fs::path& sysfs, const std::string& bus) {
  const fs::path gpu = PlaceOf(sysfs / "bus/pci/devices" / bus);
  if (gpu.empty()) return "";
  // The root of a PCI tree: one directory below it is a port of the CPU.
  std::ptrdiff_t root = 0;
  for (const fs::path& part : gpu) {
    if (part.string().rfind("pci", 0) == 0) break;
    ++root;
  }
  std::string name;
  std::ptrdiff_t most = -1;
  bool same_node = false;
  const std::string node = FirstLine(gpu / "numa_node");
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator(sysfs / "class/infiniband", error)) {
    const fs::path place = PlaceOf(entry.path() / "device");
    if (place.empty()) continue;
    const std::ptrdiff_t common = Common(gpu, place);
    const bool here = FirstLine(place / "numa_node") == node;
    if (common < most || (common == most && (same_node || !here))) continue;
    name = entry.path().filename().string();
    most = common;
    same_node = here;
  }
  if (name.empty()) return "";
  const char* const how = most > root + 1 ? "below one PCI bridge"
                          : same_node     ? "on its NUMA node"
                                          : "on another NUMA node";
  return fmt::format("; the nearest RDMA device is {}, {}", Printable(name),
                     how);
}

// Returns true if the bus has a GPU of NVIDIA's.
bool HasGpu(const fs::path& sysfs) {
  std::error_code error;
  for (const auto& entry :
       fs::directory_iterator(sysfs / "bus/pci/devices", error)) {
    if (FirstLine(entry.path() / "vendor") == "0x10de" &&
        FirstLine(entry.path() / "class").rfind("0x03", 0) == 0) {
      return true;
    }
  }
  return false;
}

template <class F>
F* Find(void* library, const char* name) {
  return reinterpret_cast<F*>(::dlsym(library, name));
}

nlohmann::json Describe(void* library, int ordinal) {
  cuda::Device device = 0;
  char name[128] = "";
  char bus[32] = "";
  std::size_t bytes = 0;
  int dmabuf = 0;
  int ordering = 0;
  const auto get =
      Find<cuda::Result(cuda::Device*, int)>(library, "cuDeviceGet");
  const auto text =
      Find<cuda::Result(char*, int, cuda::Device)>(library, "cuDeviceGetName");
  const auto place = Find<cuda::Result(char*, int, cuda::Device)>(
      library, "cuDeviceGetPCIBusId");
  const auto total = Find<cuda::Result(std::size_t*, cuda::Device)>(
      library, "cuDeviceTotalMem_v2");
  const auto attribute = Find<cuda::Result(int*, int, cuda::Device)>(
      library, "cuDeviceGetAttribute");
  if (get == nullptr || text == nullptr || place == nullptr ||
      total == nullptr || attribute == nullptr ||
      get(&device, ordinal) != cuda::kSuccess) {
    return nullptr;
  }
  text(name, sizeof name, device);
  place(bus, sizeof bus, device);
  total(&bytes, device);
  attribute(&dmabuf, cuda::kDmaBufSupported, device);
  attribute(&ordering, cuda::kWritesOrdering, device);
  return {{"name", name},
          {"bus", bus},
          {"bytes", bytes},
          {"dmabuf", dmabuf != 0},
          {"orders", ordering > 0}};
}

nlohmann::json AskDriver() {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return {{"driver", false}};
  const auto init = Find<cuda::Result(unsigned)>(library, "cuInit");
  const auto count = Find<cuda::Result(int*)>(library, "cuDeviceGetCount");
  const auto version = Find<cuda::Result(int*)>(library, "cuDriverGetVersion");
  int gpus = 0;
  int number = 0;
  cuda::Result result = cuda::kNotSupported;
  if (init != nullptr && count != nullptr) {
    result = init(0);
    if (result == cuda::kSuccess) result = count(&gpus);
  }
  if (version != nullptr) version(&number);
  nlohmann::json all = {{"driver", true},
                        {"result", result},
                        {"version", number},
                        {"gpus", nlohmann::json::array()}};
  for (int i = 0; i < gpus && result == cuda::kSuccess; ++i) {
    const nlohmann::json one = Describe(library, i);
    if (one.is_object()) all["gpus"].push_back(one);
  }
  return all;
}

std::string LowerCase(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

void ReportOne(const fs::path& sysfs, const std::string& about,
               const nlohmann::json& gpu, Findings* findings) {
  const std::string bus = LowerCase(gpu.value("bus", ""));
  const std::string words = fmt::format(
      "{} at {}, {:.0f} GiB{}", Printable(gpu.value("name", "")),
      Printable(bus),
      static_cast<double>(gpu.value("bytes", std::uint64_t{0})) / (1 << 30),
      Nearest(sysfs, bus));
  const bool peer = fs::exists(sysfs / "module/nvidia_peermem");
  if (!gpu.value("dmabuf", false) && !peer) {
    findings->Warn(about, words + "; no dma-buf: an RDMA lane copies its bytes",
                   "the driver's open kernel modules, Linux 5.12 and later; or "
                   "modprobe nvidia-peermem");
    return;
  }
  if (!gpu.value("orders", false)) {
    findings->Note(about, words +
                              "; it does not order the writes of other "
                              "devices, so rcs_expose refuses its memory");
    return;
  }
  findings->Good(about,
                 words + (gpu.value("dmabuf", false) ? "; dma-buf"
                                                     : "; by nvidia-peermem"));
}

}  // namespace

int GpusMain() {
  std::cout << AskDriver().dump() << std::endl;
  return 0;
}

int ExamineGpus(const fs::path& sysfs, Findings* findings) {
  constexpr int kPatienceMs = 20'000;
  Child child({"rcsock", "doctor-probe", "gpus", "", "0"}, nullptr);
  const auto told =
      nlohmann::json::parse(child.Line(kPatienceMs), nullptr, false);
  if (!told.is_object()) {
    findings->Bad("GPUs", "the driver does not answer",
                  "dmesg | tail; nvidia-smi");
    return 0;
  }
  if (!told.value("driver", false)) {
    if (HasGpu(sysfs)) {
      findings->Note("GPUs", "there is one, but no libcuda.so.1",
                     "apt install libcuda1 (of the driver's version)");
    }
    return 0;
  }
  if (const int result = told.value("result", 0); result != cuda::kSuccess) {
    findings->Note(
        "GPUs", fmt::format("libcuda.so.1 finds none (CUDA error {})", result),
        HasGpu(sysfs) ? "nvidia-smi; dmesg | tail" : "");
    return 0;
  }
  const int version = told.value("version", 0);
  int number = 0;
  for (const auto& gpu : told.value("gpus", nlohmann::json::array())) {
    if (!gpu.is_object()) continue;
    ReportOne(sysfs, fmt::format("GPU {}", number++), gpu, findings);
  }
  findings->Note("GPUs", fmt::format("the driver has CUDA {}.{}",
                                     version / 1000, version % 1000 / 10));
  return number;
}

}  // namespace rcsock::tools
