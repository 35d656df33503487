#ifndef RCSOCK_LIB_API_RSOCKET_CHANNELS_H_
#define RCSOCK_LIB_API_RSOCKET_CHANNELS_H_

#include <memory>

#include "lib/api/rsocket/channel.h"

namespace rcsock::rsocket {

// The rsockets of this process that are more than a stream, by descriptor. Also
// owns a thread, the pump, which takes records for mapped memory: the program
// may do no more than look at that memory. Any thread may call it.
class Channels {
 public:
  // Returns true if `fd` may have a channel: one load.
  static bool Has(int fd);
  static std::shared_ptr<Channel> Find(int fd);
  // Returns true if there is a place for a channel of that number.
  static bool CanHold(int fd);
  static std::shared_ptr<Channel> Make(int fd);
  // Returns true if the connection's other end is in this process too, and says
  // hello with the cookie at that address.
  static bool IsOtherEnd(int fd, std::uint64_t cookie_at);
  static void Forget(int fd);

  // Starts the pump, unless it runs. Returns 0 or an errno.
  static int Start();
  // Tells the pump that it has work. If the pump can't be started, what is owed
  // goes with the application's next call.
  static void Pump();
  // The application has taken data from the channel.
  static void Taken(const std::shared_ptr<Channel>& channel);
};

}  // namespace rcsock::rsocket

#endif  // RCSOCK_LIB_API_RSOCKET_CHANNELS_H_
