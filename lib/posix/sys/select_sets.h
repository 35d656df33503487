#ifndef RCSOCK_LIB_POSIX_SYS_SELECT_SETS_H_
#define RCSOCK_LIB_POSIX_SYS_SELECT_SETS_H_

#include <sys/select.h>

#include <bit>

#include "lib/base/guard.h"

namespace rcsock::posix {

// The sets of a select(2), as the program names them.  Each may be null.  They
// are arrays of words, which programs enlarge past FD_SETSIZE.  They are read
// word by word, since most bits are not set.
struct SelectInput {
  int count;
  const fd_set* in;
  const fd_set* out;
  const fd_set* except;

  // Calls each(fd, bit, word of in, of out, of except) for all descriptors in a
  // set.  False: some of the memory is not accessible, and counts as empty.
  template <class Each>
  bool ForEach(Each&& each) const {
    bool there = true;
    for (int first = 0; first < count; first += kBits) {
      const unsigned long i = Word(in, first, &there);
      const unsigned long o = Word(out, first, &there);
      const unsigned long e = Word(except, first, &there);
      for (unsigned long left = i | o | e; left != 0; left &= left - 1) {
        const int at = std::countr_zero(left);
        each(first + at, 1ul << at, i, o, e);
      }
    }
    return there;
  }

 private:
  static constexpr int kBits = 64;

  unsigned long Word(const fd_set* set, int first, bool* there) const {
    if (set == nullptr) return 0;
    unsigned long word;
    const auto* words = reinterpret_cast<const unsigned long*>(set);
    if (!base::TryLoad(words + first / kBits, &word)) {
      *there = false;
      return 0;
    }
    const int rest = count - first;
    return rest < kBits ? word & ((1ul << rest) - 1) : word;
  }
};

}  // namespace rcsock::posix

#endif  // RCSOCK_LIB_POSIX_SYS_SELECT_SETS_H_
