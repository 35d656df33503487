// The start of the process, and what the rooms below ask of this one.

#include "lib/base/first_root.h"
#include "lib/posix/hooks/hooks.h"
#include "lib/posix/hooks/stdio.h"
#include "lib/posix/hooks/uring.h"
#include "lib/posix/hooks/uring_held.h"
#include "lib/posix/lifecycle/above.h"
#include "lib/posix/lifecycle/process.h"
#include "lib/posix/socket/lookup.h"

namespace rcsock::posix::hook {
namespace {

class Hooks final : public Above {
 public:
  void ForkLock() override { uring::HeldForkLock(); }
  void ForkUnlock(bool child) override { uring::HeldForkUnlock(child); }
  void ForkChild() override {
    StdioForkChild();
    uring::RingsForkChild();
  }
  void ForkChildLast() override { uring::HeldForkChild(); }
  int HelperThreads() override { return uring::HelperThreads(); }
  void BeforeSandbox() override { uring::EndHolding(); }
};
constinit Hooks hooks;

}  // namespace

[[gnu::cold]] void Start(Face face) {
  base::KnowFirstRoot();
  Above::Set(&hooks);
  SetBeforeStandard(&BeforeStandardNumber);
  InitProcess(face);
}

[[gnu::cold]] void End() { AtExit(); }

}  // namespace rcsock::posix::hook
