#ifndef RCSOCK_TESTS_DIFFERENTIAL_WORLD_H_
#define RCSOCK_TESTS_DIFFERENTIAL_WORLD_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "tests/differential/protocol.h"

namespace differential {

// What happened at a step: what the call gave, and what both ends could see
// once it was quiet again.
struct Moment {
  std::string call;
  std::string seen[2];
};

// Two agents, over plain TCP or under the preload.
class World {
 public:
  // Empty `shim`: plain TCP.  `usual`: by the usual rules, else a connection
  // looks for its lane at its first message.
  World(std::string agent, std::string shim, bool usual);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Runs a case.  Without `expected`: waits after each step until nothing
  // changes any more.  With it: until both ends see what they saw there, for
  // `patience_ms` at most, and ends at the first difference, of which *why
  // tells.  False: an agent
  // has died, or something that must always work did not; *why says what.
  bool Run(const Case& one, const std::vector<Moment>* expected,
           int patience_ms, std::vector<Moment>* moments, std::string* why);
  // New agents for the next case.
  void Stop();

  // The edges that the end of the next step has been told of.
  static std::string Told(const Case& one, const std::vector<Moment>& before);

 private:
  struct Agent {
    pid_t pid = -1;
    int control = -1;
  };

  bool Start();
  bool Send(int end, const Request& request);
  bool Receive(int end, Reply* reply);
  bool Call(int end, const Request& request, Reply* reply);
  bool Begin(const Case& one, std::string* why);
  bool Connect(int connection, std::string* why);
  bool Warm(int connection, Warmth warmth, std::string* why);
  bool Teach(std::string* why);
  bool End(std::string* why);
  bool Quiet(const Op* op);
  bool Step(const Op& op, Moment* moment, std::string* why);
  bool Open(const Op& op, Moment* moment, std::string* why);
  // What the step has sent TCP may keep for a while.
  bool Waits(const Op& op, int connection) const;
  bool LookBoth();
  bool Settle(const Moment* expected, int patience_ms, bool waits,
              Moment* moment);
  std::string Seen(int end) const;
  bool Dead(int end, std::string* why);

  std::string agent_;
  std::string shim_;
  const bool usual_;
  bool taught_ = false;
  Agent agents_[2];
  int port_ = 0;
  Reply looks_[2];
  // Bytes that are on their way or unread, and the sends they came by.
  long unread_[kConnections][2];
  int sends_[kConnections][2];
  bool corked_[kConnections][2];
  // The last byte was an urgent one; and lanes have died in this case.
  bool urgent_last_[kConnections][2];
  bool failed_ = false;
  // Connections that have been made, and those of them that are accepted.
  int made_ = 0;
  int accepted_ = 0;
};

// Whether the call may give what it did under the preload, if TCP gave
// `expected`.  A stream that moves makes an edge for each EPOLLET registration
// for which it is ready: one too many is no difference, one too few is.
bool Allowed(const Op& op, const std::string& expected, const std::string& got,
             const std::string& told);
// A wait ended by nothing but such registrations.
bool OnlyEdges(const std::string& got);

}  // namespace differential

#endif  // RCSOCK_TESTS_DIFFERENTIAL_WORLD_H_
