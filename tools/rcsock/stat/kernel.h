#ifndef RCSOCK_TOOLS_RCSOCK_STAT_KERNEL_H_
#define RCSOCK_TOOLS_RCSOCK_STAT_KERNEL_H_

#include <string>
#include <unordered_map>
#include <vector>

#include "tools/rcsock/stat/picture.h"

// What the kernel knows of processes that do not answer, and of their
// connections.
namespace rcsock::tools {

// Returns the processes with the preload in their memory that this user may
// look at.
std::vector<pid_t> PreloadedProcesses();
std::string ProgramOf(pid_t pid);  // as ps(1) shows it
std::string FileOf(pid_t pid);     // the name of its file
// Returns the state letter of /proc/PID/stat ('T': stopped), or 0.
char StateOf(pid_t pid);
// Returns when the process began, in clock ticks since boot, or 0: it has
// ended.
std::uint64_t StartOf(pid_t pid);
uid_t UserOf(pid_t pid);
// Returns true if the process has the thread that answers, by the thread's
// name.
bool HasConductor(pid_t pid);
// Returns the kernel function in which that thread waits for something other
// than work.  A driver may keep the thread while a connection is made or ends.
// Returns "" if the thread does not wait in this way, or if that is unknown.
std::string ConductorInKernel(pid_t pid);
bool InOurNetwork(pid_t pid);
// Returns a variable of the environment with which the process was started, or
// "".
std::string VariableOf(pid_t pid, const std::string& name);

// Returns the connected TCP sockets of this network namespace by inode, with
// the bytes that TCP has carried.
std::unordered_map<std::uint64_t, posix::SnapshotStream> TcpSockets();
// Returns the sockets of one process.
std::vector<StreamPicture> StreamsOf(
    pid_t pid,
    const std::unordered_map<std::uint64_t, posix::SnapshotStream>& all);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_STAT_KERNEL_H_
