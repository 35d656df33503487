#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_DOCTOR_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_DOCTOR_H_

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace rcsock::tools {

struct DoctorOptions {
  std::string peer;  // HOST[:PORT]; empty: this host alone
  bool listen = false;
  std::uint16_t port = 0;  // 0: the usual one
  bool json = false;
  std::string program;  // the only thing to examine, if it is set
};

// Adds the subcommand and its options.
CLI::App* AddDoctor(CLI::App* app, DoctorOptions* options);
// Returns the exit status.
int Doctor(const DoctorOptions& options);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_DOCTOR_H_
