#ifndef RCSOCK_TOOLS_RCSOCK_STAT_KERNEL_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_KERNEL_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "tools/rcsock/stat/picture.h"

// What the kernel knows of processes and their connections, for those that do
// not tell it themselves.
namespace rcsock::tools {

// The processes with the preload in their memory that this user may look at.
std::vector<pid_t> PreloadedProcesses();
std::string ProgramOf(pid_t pid);  // as ps(1) has it
std::string FileOf(pid_t pid);     // the name of its file
// The state letter of /proc/PID/stat ('T': stopped), 0 if there is none.
char StateOf(pid_t pid);
uid_t UserOf(pid_t pid);
// It has the thread that answers, by its name.
bool HasConductor(pid_t pid);
// The kernel's function where that thread waits, and not for work: a driver may
// keep it while a connection is made or ends; "": it does not, or nobody tells.
std::string ConductorInKernel(pid_t pid);
bool InOurNetwork(pid_t pid);
// A variable of the environment that it was started with, or "".
std::string VariableOf(pid_t pid, const std::string& name);

// The connected TCP sockets of this network namespace, by inode, with the bytes
// that TCP has carried.
std::unordered_map<std::uint64_t, posix::SnapshotStream> TcpSockets();
// Those of one process.
std::vector<StreamPicture> StreamsOf(
    pid_t pid,
    const std::unordered_map<std::uint64_t, posix::SnapshotStream>& all);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_KERNEL_H_
