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
  std::string text;  // the address as text
  sockaddr_storage address;
};

// Reports which RCSOCK_... variables are set, and which of them do not exist.
void ExamineVariables(Findings* findings);

// Examines the file of RCSOCK_KEY_FILE, if that is set.
void ExamineKey(Findings* findings);

// Examines the directory of RCSOCK_MEET_DIR, if that is set.
void ExamineMeeting(Findings* findings);

// Examines kernel, limits, permissions and namespaces.  Returns true if there
// is a device whose verbs may be used.
bool ExamineHost(Findings* findings);
// Examines each device and its ports.  Returns the addresses that lead to
// devices.
std::vector<DeviceAddress> ExamineDevices(Findings* findings);
// Connects two QPs of this process on the device through rdma_cm.  Verifies a
// SEND, WRITE, READ and WRITE_WITH_IMM.  Runs in a process of its own, for a
// driver may block in such a call for minutes.
void ExamineVerbs(const DeviceAddress& address, Findings* findings);
// The same lab over memory of GPU `gpu`.
void ExamineGpuVerbs(const DeviceAddress& address, int gpu, Findings* findings);
// The body of that process: prints one line of JSON. `gpu`: -1 for host memory.
int VerbsMain(const std::string& address, int gpu);
// Reports whether an RDMA device leads from here to the peer.
void ExamineRoute(const sockaddr_storage& peer, const std::string& name,
                  Findings* findings);

// Returns the text of an address, without its port.
std::string HostText(const sockaddr_storage& address);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_HOST_H_
