#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_RULES_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_RULES_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tools/rcsock/config/config.h"
#include "tools/rcsock/doctor/findings.h"

namespace rcsock::tools {

// 127.0.0.1, as rules have it.
constexpr std::uint8_t kLoopback[16] = {0, 0, 0,    0,    0,   0, 0, 0,
                                        0, 0, 0xff, 0xff, 127, 0, 0, 1};
// An address in that form.
void MappedAddress(const sockaddr_storage& address, std::uint8_t* bytes);

// The rules of the environment, and which of them decides about a connection.
class Reasons {
 public:
  // `policy`: what was applied.  Tells what is wrong with it, and where rules
  // come from.
  Reasons(const Policy& policy, Findings* findings);

  // The place of the rule that keeps that lane ("": every lane) from doctor's
  // own connections to there; "" if none does.  Port 0: any.
  std::string Against(const std::string& lane, const std::uint8_t* peer,
                      std::uint16_t port) const;
  // Whether they allow a device's port to streams of doctor's own, whoever the
  // peer is.
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
