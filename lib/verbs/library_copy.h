#ifndef RCSOCK_LIB_VERBS_LIBRARY_COPY_H_
#define RCSOCK_LIB_VERBS_LIBRARY_COPY_H_

namespace rcsock::verbs {

// Loads a copy of a library that is loaded already, with variables of its own.
// The loader knows a library by its file, so the copy gets another file, in
// memory. The libraries that it needs are shared. Never unloaded.
//
// Returns null if there is no memfd_create or no /proc, or if a policy forbids
// executing memory files. Not for a library that the program may be linked with
// too: calls of the copy's own functions would go to the program's. Call it in
// a forked child, while no other thread loads.
void* OpenCopy(void* library);

}  // namespace rcsock::verbs

#endif  // RCSOCK_LIB_VERBS_LIBRARY_COPY_H_
