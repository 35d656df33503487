#include "lib/posix/lifecycle/above.h"

#include <atomic>

namespace rcsock::posix {
namespace {

class Nothing final : public Above {};
constinit Nothing nothing;
constinit std::atomic<Above*> installed{&nothing};

}  // namespace

void Above::ForkLock() {}
void Above::ForkUnlock(bool) {}
void Above::ForkChild() {}
void Above::ForkChildLast() {}
int Above::HelperThreads() { return 0; }
void Above::BeforeSandbox() {}

Above& Above::Get() { return *installed.load(std::memory_order_acquire); }
[[gnu::cold]] void Above::Set(Above* above) {
  installed.store(above, std::memory_order_release);
}

}  // namespace rcsock::posix
