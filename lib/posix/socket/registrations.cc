#include "lib/posix/socket/registrations.h"

#include <atomic>

#include "lib/base/latch.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {
namespace {

class None final : public Registrations {};
constinit None none;
constinit std::atomic<Registrations*> installed{&none};

}  // namespace

bool Registrations::ToUser(Sock*) { return true; }
void Registrations::ToKernel(Sock*) {}
void Registrations::Refresh(Sock*, bool) {}
void Registrations::MakeEdges(Sock*, Edge) {}
void Registrations::Kick(Sock*) {}
void Registrations::PeerKnown(Sock*) {}
void Registrations::Drop(Sock*, int, int) {}
bool Registrations::Named(Sock*, int) { return false; }
bool Registrations::Kept(Sock*) { return false; }
int Registrations::Bell(Sock*, int otherwise) { return otherwise; }
bool Registrations::NotifyLatched(Sock*) { return false; }
bool Registrations::MayHide(Sock*, bool) { return true; }
void Registrations::HideSets(Sock*) {}

bool Registrations::InUser(const Sock* sock) {
  const Critical critical;
  const base::LatchGuard hold(interest_latch);
  return sock->interests_user;
}

[[gnu::hot]] Registrations& Registrations::Get() {
  return *installed.load(std::memory_order_acquire);
}
[[gnu::cold]] void Registrations::Set(Registrations* registrations) {
  installed.store(registrations, std::memory_order_release);
}

}  // namespace rcsock::posix
