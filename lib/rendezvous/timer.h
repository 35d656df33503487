#ifndef RCSOCK_LIB_RENDEZVOUS_TIMER_H_
#define RCSOCK_LIB_RENDEZVOUS_TIMER_H_

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "lib/rendezvous/step.h"

namespace rcsock::rendezvous {

// The timer of an object that lives within turns of the conductor.
//
// When the time has come, the handler waits for a turn.  Until then, the thread
// that has the turn may set the timer anew or stop it, and Asio's cancel no
// longer finds the handler.  So the handler compares the number within its
// turn, and never runs `due` of an older setting.
class Timer {
 public:
  explicit Timer(Core* core);

  // A shared_ptr keeps the owner until then, or until the timer is stopped or
  // set anew.  A weak_ptr does not.
  template <typename Holder, typename Owner>
  void Start(std::chrono::steady_clock::duration limit, Holder holder,
             void (Owner::*due)()) {
    timer_.expires_after(limit);
    timer_.async_wait(
        [this, core = core_, holder = std::move(holder), due,
         number = ++number_](const boost::system::error_code& error) {
          if (error) return;
          Step step(core);
          // Without its owner this timer is gone, too.
          const std::shared_ptr<Owner> owner = Lock(holder);
          if (owner == nullptr || number != number_) return;
          (owner.get()->*due)();
        });
  }
  void Stop() {
    ++number_;
    timer_.cancel();
  }

 private:
  template <typename Owner>
  static std::shared_ptr<Owner> Lock(const std::shared_ptr<Owner>& holder) {
    return holder;
  }
  template <typename Owner>
  static std::shared_ptr<Owner> Lock(const std::weak_ptr<Owner>& holder) {
    return holder.lock();
  }

  Core* const core_;
  boost::asio::steady_timer timer_;
  std::uint32_t number_ = 0;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_TIMER_H_
