#include "lib/posix/lifecycle/search.h"

#include <memory>

#include "lib/posix/lifecycle/last_thread.h"
#include "lib/posix/lifecycle/raw_code.h"
#include "lib/posix/socket/seek_gate.h"

namespace rcsock::posix {
namespace {

class Gate final : public SeekGate {
 public:
  Answer MaySeek(const std::shared_ptr<Sock>& sock,
                 rendezvous::Conductor* conductor) override {
    return raw_code::MaySeek(sock, conductor);
  }
  bool MayAdopt() override { return raw_code::MayAdopt(); }
  void Forget(const Sock* sock) override { raw_code::Forget(sock); }
  void LookAtCalls(rendezvous::Conductor* conductor) override {
    raw_code::LookAtCalls(conductor);
  }
  void Began(rendezvous::Conductor* conductor) override {
    WatchLastThread(conductor);
  }
  void Started(rendezvous::Conductor* conductor, base::Reason why) override {
    raw_code::Started(conductor, why);
  }
};
constinit Gate gate;

}  // namespace

[[gnu::cold]] void AllowSearches() { SeekGate::Set(&gate); }

}  // namespace rcsock::posix
