#ifndef RCSOCK_LIB_BASE_FIRST_ROOT_H_
#define RCSOCK_LIB_BASE_FIRST_ROOT_H_

namespace rcsock::base {

// Returns true unless the process has changed its root since it started.  A
// library that rcsock loads late must not come from another root, whose files
// may be anybody's.  Whatever asks first, the first answer is of the root then:
// the start of the process calls KnowFirstRoot.
bool InFirstRoot();
void KnowFirstRoot();

}  // namespace rcsock::base

#endif  // RCSOCK_LIB_BASE_FIRST_ROOT_H_
