#ifndef RCSOCK_LIB_VERBS_LIBRARY_COPY_H_
#define RCSOCK_LIB_VERBS_LIBRARY_COPY_H_

namespace rcsock::verbs {

// Loads a library that is loaded already once more, with variables of its own:
// the loader knows one by its file, so the copy has another, in memory.  What
// else it needs is shared.  Null where it cannot be (no memfd_create, no /proc,
// a policy against executing what has no file).  Not for one that the program,
// too, may have linked: the copy's calls of itself would go there.  Never
// unloaded.  A forked child's, while nobody else loads.
void* OpenCopy(void* library);

}  // namespace rcsock::verbs

#endif  // RCSOCK_LIB_VERBS_LIBRARY_COPY_H_
