#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_PROGRAM_CODE_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_PROGRAM_CODE_H_

#include <string>

#include "tools/rcsock/doctor/findings.h"

namespace rcsock::tools {

// Whether a program, or a library that it is linked with, makes system calls
// by machine code of its own on connections: they then stay on TCP.  False: it
// is no program.
bool ExamineProgram(const std::string& command, Findings* findings);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_PROGRAM_CODE_H_
