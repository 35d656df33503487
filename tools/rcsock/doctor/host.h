#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_HOST_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_HOST_H_

#include <sys/socket.h>

#include <string>
#include <vector>

#include "tools/rcsock/doctor/findings.h"

namespace rcsock::tools {

// An address of this host that leads to an RDMA device.
struct DeviceAddress {
  std::string device;
  unsigned port = 0;
  std::string text;  // of the address
  sockaddr_storage address;
};

// What is set of RCSOCK_..., and what of it is no variable.
void ExamineVariables(Findings* findings);

// The file of RCSOCK_KEY_FILE, if that is set.
void ExamineKey(Findings* findings);

// Kernel, limits, permissions, namespaces.  True if there is a device whose
// verbs may be used.
bool ExamineHost(Findings* findings);
// Each device and each of its ports; the addresses that lead to devices.
std::vector<DeviceAddress> ExamineDevices(Findings* findings);
// Two QPs of this process on the device, connected through rdma_cm: SEND,
// WRITE, READ and WRITE_WITH_IMM, each verified.  In a process of its own, for
// a driver may block in such a call for minutes.
void ExamineVerbs(const DeviceAddress& address, Findings* findings);
// That process: prints one line of JSON.
int VerbsMain(const std::string& address);
// Whether an RDMA device leads from here to the peer.
void ExamineRoute(const sockaddr_storage& peer, const std::string& name,
                  Findings* findings);

// The text of an address, without its port.
std::string HostText(const sockaddr_storage& address);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_HOST_H_
