#ifndef RCSOCK_LIB_POSIX_SHARING_NOTES_H_
#define RCSOCK_LIB_POSIX_SHARING_NOTES_H_

#include <cstdint>

namespace rcsock::posix {

// What rcsock's processes tell each other of a connection that is passed by
// SCM_RIGHTS.  The notes stand on the open file itself.  So every process that
// gets the connection has the notes, and no other process can read or write
// them.
//
// A note is a lock of the open file description (F_OFD_SETLK) on one byte, far
// above any byte that a program would lock.  The byte's place is the value.
// The kernel keeps the lock until the last descriptor of the file is closed.
// F_GETLK finds it from each process that has the file.  A filter or a kernel
// may refuse locks on sockets.  Then every write fails, and the connection
// stays on TCP.
class Notes {
 public:
  // If a call needs a turn, it waits for the turn until `until_ns`; 0: for
  // kPatienceNs.
  explicit Notes(int fd, std::uint64_t until_ns = 0)
      : fd_(fd), until_ns_(until_ns) {}
  static constexpr std::uint64_t kPatienceNs = 20'000'000;

  // Which end of the connection this is: 0 has connected, 1 has accepted.
  bool SetRole(int role) const;
  int Role() const;  // -1: no note

  // How far the stream is ahead of what TCP has carried, in each direction.
  struct Drift {
    std::int64_t tx = 0;
    std::int64_t rx = 0;
  };
  bool SetDrift(const Drift& drift) const;
  Drift GetDrift() const;

  // Notes that a process has done to the connection what no lane can follow.
  bool Spoil() const;

  // Adds a share: one process, with those that it has forked, holds the
  // connection.  0: no share could be noted.
  std::uint64_t AddShare() const;
  void DropShare(std::uint64_t share) const;
  // Whether this share is the only share, and no message is under way.  With
  // `unspoilt`, the connection must not be spoilt either.
  bool Alone(std::uint64_t share, bool unspoilt) const;
  // A share that this process has added, maybe as another program; 0: none.
  std::uint64_t OwnShare() const;

  // A message with the connection is under way to the AF_UNIX socket with this
  // inode number.  `tag` tells this descriptor from the others in messages to
  // that socket.
  bool AddFlight(std::uint64_t to, std::uint32_t tag) const;
  void DropFlight(std::uint64_t to, std::uint32_t tag) const;
  // Called when a message has been taken from the socket `to`.  The flight that
  // was noted for the message becomes a share.  With `peek` the flight stays,
  // and the share is added.  Returns 0 if no flight is noted for the socket:
  // then the sender of the connection is not known.
  std::uint64_t Arrive(std::uint64_t to, bool peek) const;

  // A number that tells messages from each other.
  static std::uint32_t Tag();
  // The tag of the descriptor `index` behind that of `tag`.
  static std::uint32_t TagAfter(std::uint32_t tag, std::uint32_t index);

 private:
  bool Find(std::uint64_t from, std::uint64_t length, std::uint64_t* at,
            std::uint64_t* extent) const;
  bool Put(std::uint64_t at) const;
  void Remove(std::uint64_t at, std::uint64_t length) const;
  bool Move(std::uint64_t region, std::int64_t value) const;
  std::int64_t Value(std::uint64_t region) const;
  std::uint64_t PutShare() const;
  std::uint64_t Until() const;

  const int fd_;
  const std::uint64_t until_ns_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SHARING_NOTES_H_
