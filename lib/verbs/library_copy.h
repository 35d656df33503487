#ifndef RCSOCK_LIB_VERBS_LIBRARY_COPY_H_
#define RCSOCK_LIB_VERBS_LIBRARY_COPY_H_

namespace rcsock::verbs {

// Loads a copy of a library that is loaded already, with variables of its own.
// The loader knows a library by its file, so the copy gets another file, in
// memory. The libraries that it needs are shared. Returns null where this
// cannot be: no memfd_create, no /proc, a policy against executing memory
// files. Not for a library that the program may have linked too: the copy's
// calls of its own functions would go to the program's. Never unloaded. For a
// forked child, while no other thread loads.
void* OpenCopy(void* library);

}  // namespace rcsock::verbs

#endif  // RCSOCK_LIB_VERBS_LIBRARY_COPY_H_
