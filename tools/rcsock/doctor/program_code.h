#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_PROGRAM_CODE_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_PROGRAM_CODE_H_

#include <string>

#include "tools/rcsock/doctor/findings.h"

namespace rcsock::tools {

// Reports whether a program, or a library that it is linked with, makes system
// calls on connections by machine code of its own.  Such connections stay on
// TCP.  Returns false if `command` is no program.
bool ExamineProgram(const std::string& command, Findings* findings);

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_PROGRAM_CODE_H_
