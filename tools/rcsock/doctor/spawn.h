#ifndef RCSOCK_TOOLS_RCSOCK_DOCTOR_SPAWN_H_
#define RCSOCK_TOOLS_RCSOCK_DOCTOR_SPAWN_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "lib/base/unique_fd.h"

namespace rcsock::tools {

// How a child is put under rcsock.
struct Under {
  std::string library;
  std::string lanes;  // RCSOCK_LANES; "": the user's own
};

// Runs this program again with these arguments.  The child does not outlive
// this process.
class Child {
 public:
  // If `under` is null, the child runs without rcsock.
  Child(const std::vector<std::string>& arguments, const Under* under);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Returns the first line that the child writes.  Returns "" if the child ends
  // or takes too long.
  std::string Line(int limit_ms);

 private:
  pid_t pid_ = -1;
  base::UniqueFd out_;
};

}  // namespace rcsock::tools

#endif  // RCSOCK_TOOLS_RCSOCK_DOCTOR_SPAWN_H_
