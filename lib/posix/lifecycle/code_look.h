#ifndef RCSOCK_LIB_POSIX_LIFECYCLE_CODE_LOOK_H_
#define RCSOCK_LIB_POSIX_LIFECYCLE_CODE_LOOK_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "lib/posix/lifecycle/own_code.h"

namespace rcsock::posix {

// What need not be read again.
struct KnownCode {
  struct Seen {
    std::uint64_t begin, end, device, inode;
    std::string identity;  // the build id, or the stamp
    auto operator<=>(const Seen&) const = default;
  };
  std::set<Seen> mappings;
  std::set<std::string> build_ids;
};

// One look at the code of this process, which may take several turns.  One
// thread at a time may use it.
class CodeLook {
 public:
  enum class At : std::uint8_t {
    kAll,
    kFiles,  // what a library brings; memory without a file may be large
  };
  // `ticket`: from CodeVerdict.
  CodeLook(std::uint64_t ticket, At at) : ticket_(ticket), what_(at) {}

  // Lists the mappings.  Returns false if that is impossible.
  bool Begin(const KnownCode& known);
  // Reads on, `most` bytes at most.  Returns true if all has been read, or if
  // enough is known.
  bool Step(std::uint64_t most);
  // Adds what has been read and does not change.  Drops what is not mapped any
  // more.
  void Remember(KnownCode* known) const;

  std::uint64_t ticket() const { return ticket_; }
  std::uint64_t began_ns() const { return began_ns_; }
  // The code that uses streams, and what it calls; empty: there is none.
  const std::string& culprit() const { return culprit_; }
  // Returns true if some code was listed several times, and could never be
  // read.
  bool missed() const { return missed_; }

 private:
  struct Part {
    OwnCode::Range range;
    bool read = false;
  };
  bool ListMissed();
  bool Alone(const OwnCode::Range& one) const;
  void Blame(const OwnCode::Range& one, const base::SystemCall& call);

  const std::uint64_t ticket_;
  const At what_;
  std::uint64_t began_ns_ = 0;
  OwnCode code_;  // the ranges read its memory
  std::vector<KnownCode::Seen> listed_;
  std::vector<Part> parts_;
  std::vector<base::CodeRange> missing_;  // unreadable, of the last list
  int lists_ = 1;
  std::size_t index_ = 0;
  std::uint64_t at_ = 0;
  bool missed_ = false;
  std::string culprit_;
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_LIFECYCLE_CODE_LOOK_H_
