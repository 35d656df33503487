#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_LAB_MEMORY_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_LAB_MEMORY_H_

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "lib/verbs/verbs.h"

namespace rcsock::tools {

// What a queue pair of the doctor's lab sends from and receives into: host
// memory, or a GPU's. Put and Take return "", or what has failed.
//
// Threads: the thread that has made it.
class LabMemory {
 public:
  static constexpr std::size_t kBytes = 4096;
  using Bytes = std::array<unsigned char, kBytes>;

  // `gpu`: the GPU's number, or -1 for the host. Null: *bad says why.
  static std::unique_ptr<LabMemory> Make(int gpu, std::string* bad);
  virtual ~LabMemory() = default;
  virtual void* at() = 0;
  // Null: *error says why.
  virtual verbs::Mr Register(ibv_pd* pd, int access, verbs::Error* error) = 0;
  virtual std::string Put(const Bytes& bytes) = 0;
  virtual std::string Take(Bytes* bytes) = 0;
};

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_LAB_MEMORY_H_
