#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_RULES_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_RULES_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/rcsock/config/config.h"
#include "tools/rcsock/doctor/findings.h"

namespace rcsock::tools {

// 127.0.0.1, as rules write it.
constexpr std::uint8_t kLoopback[16] = {0, 0, 0,    0,    0,   0, 0, 0,
                                        0, 0, 0xff, 0xff, 127, 0, 0, 1};
// Converts an address to that form.
void MappedAddress(const sockaddr_storage& address, std::uint8_t* bytes);

// Knows the rules of the environment, and which rule decides about a
// connection.
class Reasons {
 public:
  // `policy` is what was applied.  Reports what is wrong with it, and where the
  // rules come from.
  Reasons(const Policy& policy, Findings* findings);

  // Returns the place of the rule that keeps a lane from doctor's own
  // connections to `peer`, or "".  An empty `lane` means every lane, port 0 any
  // port.
  std::string Against(const std::string& lane, const std::uint8_t* peer,
                      std::uint16_t port) const;
  // Returns true if the rules allow a device's port to doctor's own streams, to
  // any peer.
  bool MayUseDevice(const std::string& device, unsigned port) const;
  const std::string& text() const { return text_; }

 private:
  struct One {
    std::string text;
    std::string place;
  };
  std::string text_;
  std::vector<One> all_;
};

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_RULES_H_
