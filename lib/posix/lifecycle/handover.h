#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_HANDOVER_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_HANDOVER_H_

#include <fcntl.h>

#include <cstddef>
#include <cstdint>

namespace rcsock::posix {

class Sock;

// What is to be executed.
struct Executed {
  // The name by which the next program will know itself.  Null: it cannot
  // follow what it inherits.
  const char* name;
  // The file, as openat takes it.  Null: not known.
  const char* path;
  int folder = AT_FDCWD;
  bool search = false;  // in PATH
};

// What a program about to be executed must find of the streams that it
// inherits.  The program inherits the kernel's TCP connections, with all that
// is to come.  An environment variable names the rest: the bytes that were read
// ahead, how far each connection has come, and its other holders.  The last two
// let the program promote a stream.
//
// A Handover is alive while exec, posix_spawn, system or popen runs, in the
// thread that calls them.  Its end means that exec has failed, or that there is
// a child now; `spawn` says which.  It owns the descriptors that it passes.  If
// the caller is a child of vfork, it uses neither heap nor tables.
class Handover {
 public:
  Handover(bool spawn, const Executed& program, char* const environment[]);
  ~Handover();
  // Takes back all holders that the constructor counted: no program was
  // executed.
  void TakeBack();
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  // Returns whether the new program needs another environment, which Extend
  // writes.
  bool Extends() const { return count_ + heirlooms_ > 0 || other_; }
  // Writes the new environment to `to`.  Requires room for Room(from) pointers
  // there, and for Text(from) bytes at `text`.
  static std::size_t Room(char* const from[]);
  std::size_t Text(char* const from[]) const;
  void Extend(char* const from[], char** to, char* text) const;

 private:
  static constexpr int kMost = 64;
  void FromOurs();
  void FromBorrowed();
  void Pass(int memory, bool ours);
  bool Bequeath(Sock* sock, std::uint64_t inode);
  bool Passed(int number) const;
  bool Follows(Sock* sock);
  void GiveAway(Sock* sock);
  void Add(const char* format, long a, long b, unsigned c);

  const bool spawn_;
  const bool lends_;  // the new program will hold them beside another process
  const char* const program_;
  int table_ = -1;     // for the new program
  const bool listed_;  // the new program's LD_PRELOAD has rcsock
  const bool other_;   // listed_, but its loader cannot load rcsock
  const bool known_;   // the new program will run under the preload, if it can
  int count_ = 0;
  std::size_t length_ = 0;
  int passed_[kMost];
  int heirlooms_ = 0;
  int heirloom_[kMost];
  // Streams that the new program holds and cannot follow.  Streams beyond kMost
  // stay given away, even if TakeBack is called.
  int given_count_ = 0;
  struct {
    Sock* sock;
    std::uint32_t life;
  } given_[kMost];
  char variable_[64 + kMost * 48];
};

// Takes over, at start, what another program has left for this one.
void TakeInherited();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_HANDOVER_H_
