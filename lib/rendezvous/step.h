#ifndef RCSOCK_LIB_RENDEZVOUS_STEP_H_
#define RCSOCK_LIB_RENDEZVOUS_STEP_H_

#include <mutex>

namespace rcsock::rendezvous {

class Core;

// One turn of the conductor.  The conductor's thread takes it, or a thread that
// finds the conductor free (Core::Here).
class Step {
 public:
  // A turn that meets somebody asks whose the thread is (Core::OwnUid).
  enum class Meets : bool { kNobody, kSomebody };
  Step(Core* core, Meets meets);
  explicit Step(Core* core) : Step(core, Meets::kSomebody) {}
  Step(Core* core, std::try_to_lock_t);  // false: a turn is under way
  ~Step();
  explicit operator bool() const { return core_ != nullptr; }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

 private:
  Core* core_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_STEP_H_
