#include "lib/posix/socket/seek_gate.h"

#include <atomic>
#include <memory>

namespace rcsock::posix {
namespace {

class Shut final : public SeekGate {};
constinit Shut shut;
constinit std::atomic<SeekGate*> installed{&shut};

}  // namespace

SeekGate::Answer SeekGate::MaySeek(const std::shared_ptr<Sock>&,
                                   rendezvous::Conductor*) {
  return Answer::kNotNow;
}
bool SeekGate::MayAdopt() { return false; }
void SeekGate::Forget(const Sock*) {}
void SeekGate::LookAtCalls(rendezvous::Conductor*) {}
void SeekGate::Began(rendezvous::Conductor*) {}
void SeekGate::Started(rendezvous::Conductor*, base::Reason) {}

bool SeekGate::IsSet() { return &Get() != &shut; }
SeekGate& SeekGate::Get() { return *installed.load(std::memory_order_acquire); }
[[gnu::cold]] void SeekGate::Set(SeekGate* gate) {
  installed.store(gate, std::memory_order_release);
}

}  // namespace rcsock::posix
