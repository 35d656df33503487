#ifndef RCSOCK_LIB_API_RSOCKET_CHANNELS_H_
#define RCSOCK_LIB_API_RSOCKET_CHANNELS_H_

#include <memory>

#include "lib/api/rsocket/channel.h"

namespace rcsock::rsocket {

// The rsockets of this process that are more than a stream, by descriptor; and
// the thread that takes records for the memory of those that have mapped some,
// since their program may do no more than look at that memory.
class Channels {
 public:
  // Whether `fd` may have a channel: one load.
  static bool Has(int fd);
  static std::shared_ptr<Channel> Find(int fd);
  // Whether there is a place for a channel of that number.
  static bool CanHold(int fd);
  static std::shared_ptr<Channel> Make(int fd);
  // Whether the connection's other end is in this process too, and says hello
  // with the cookie at that address.
  static bool IsOtherEnd(int fd, std::uint64_t cookie_at);
  static void Forget(int fd);

  // That thread runs: 0 or errno.
  static int Start();
  // Something has come up for it to do.  (If it can't be started, what is owed
  // goes with the application's next call.)
  static void Pump();
  // The application has taken data of it.
  static void Taken(const std::shared_ptr<Channel>& channel);
};

}  // namespace rcsock::rsocket

#endif  // RCSOCK_LIB_API_RSOCKET_CHANNELS_H_
