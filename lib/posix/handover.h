#ifndef RCSOCK_LIB_POSIX_HANDOVER_H_
#define RCSOCK_LIB_POSIX_HANDOVER_H_

#include <cstddef>
#include <cstdint>

namespace rcsock::posix {

class Sock;

// What a program about to be executed must find of the streams it inherits:
// the kernel's TCP connections with all that is to come, and, by what an
// environment variable names, the bytes that were read ahead of them, and what
// is needed to promote them there: how far they have come, and who else holds
// them.
//
// One of these is alive while exec, posix_spawn, system or popen runs.  Its end
// means that exec has failed, or that there is a child now; `spawn` says which.
// It uses neither heap nor tables where the caller is a child of vfork.
class Handover {
 public:
  // `program` may be null: then it follows nothing.
  Handover(bool spawn, const char* program, char* const environment[]);
  ~Handover();
  // Nobody has been executed: who would hold connections with us does not.
  void TakeBack();
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  // Null: the environment needs nothing.
  const char* variable() const {
    return count_ + heirlooms_ > 0 ? variable_ : nullptr;
  }
  // `to` has room for Room(from) pointers.
  static std::size_t Room(char* const from[]);
  void Extend(char* const from[], char** to) const;

 private:
  static constexpr int kMost = 64;
  void FromOurs();
  void FromBorrowed();
  void Pass(int memory, bool ours);
  bool Bequeath(Sock* sock, std::uint64_t inode);
  bool Passed(int number) const;
  bool Follows(Sock* sock);
  void Add(const char* format, long a, long b, unsigned c);

  const bool spawn_;
  const bool lends_;  // the new program will hold them beside somebody else
  const char* const program_;
  int table_ = -1;    // for the new program
  const bool known_;  // the new program will run under the preload, if it can
  int count_ = 0;
  std::size_t length_ = 0;
  int passed_[kMost];
  int heirlooms_ = 0;
  int heirloom_[kMost];
  char variable_[64 + kMost * 48];
};

// At start: what another program has left for this one.
void TakeInherited();

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_HANDOVER_H_
