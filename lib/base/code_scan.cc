#include "lib/base/code_scan.h"

#include <emmintrin.h>
#include <sys/syscall.h>

#include <algorithm>
#include <memory>

#include "lib/base/code_flow.h"

namespace rcsock::base {
namespace {

// `syscall` is 0f 05.
constexpr std::uint8_t kFirst = 0x0f;
constexpr std::uint8_t kSecond = 0x05;
// The bytes read at a time: they stay in the CPU's nearest caches.
constexpr std::size_t kPiece = 32 << 10;
// A longer function is not followed from its beginning.
constexpr std::uint64_t kLongest = 1 << 20;
// If no function is known, this many bytes before and behind are decoded, from
// this many places.
constexpr std::size_t kAround = 96;
constexpr std::size_t kVoters = 32;
// This many entries of a table of unwinders are read at once.
constexpr std::uint32_t kNear = 64;
// No call has a larger number.
constexpr std::int64_t kMostNumber = 4095;

// Calls each(i) for every i in [0, size - 1) where the two bytes stand.
template <class Each>
void EachPair(const std::uint8_t* bytes, std::size_t size, Each&& each) {
  const __m128i first = _mm_set1_epi8(kFirst);
  const __m128i second = _mm_set1_epi8(kSecond);
  const auto pairs = [&](const std::uint8_t* at) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 1));
    return _mm_and_si128(_mm_cmpeq_epi8(a, first), _mm_cmpeq_epi8(b, second));
  };
  std::size_t i = 0;
  for (; i + 65 <= size; i += 64) {
    const __m128i found[] = {pairs(bytes + i), pairs(bytes + i + 16),
                             pairs(bytes + i + 32), pairs(bytes + i + 48)};
    const __m128i any = _mm_or_si128(_mm_or_si128(found[0], found[1]),
                                     _mm_or_si128(found[2], found[3]));
    if (_mm_movemask_epi8(any) == 0) continue;
    for (std::size_t k = 0; k < 4; ++k) {
      auto mask = static_cast<unsigned>(_mm_movemask_epi8(found[k]));
      for (; mask != 0; mask &= mask - 1) {
        each(i + 16 * k + static_cast<std::size_t>(__builtin_ctz(mask)));
      }
    }
  }
  for (; i + 2 <= size; ++i) {
    if (bytes[i] == kFirst && bytes[i + 1] == kSecond) each(i);
  }
}

constexpr int kRax = 0;
constexpr int kRsi = 6;

bool IsNumber(std::int64_t value) { return value >= 0 && value <= kMostNumber; }

bool HasRequest(std::int64_t number) {
  return number == SYS_ioctl || number == SYS_fcntl;
}

// One pass over one range.
class Finder {
 public:
  Finder(CodeBytes* bytes, const CodeRange& range,
         std::vector<SystemCall>* found)
      : bytes_(bytes), range_(range), found_(found) {}

  bool Run(std::uint64_t from, std::uint64_t to) {
    const auto piece = std::make_unique_for_overwrite<std::uint8_t[]>(kPiece);
    for (std::uint64_t at = from; at < to;) {
      // The two bytes may lie on both sides of a border between pieces.
      const std::size_t size = Room(at, kPiece);
      if (!bytes_->Read(at, piece.get(), size)) return false;
      EachPair(piece.get(), size, [&](std::size_t i) {
        if (at + i < to) Judge(at + i);
      });
      if (at + size == range_.end) break;
      at += size - 1;
    }
    return readable_;
  }

 private:
  std::size_t Room(std::uint64_t at, std::size_t most) const {
    return static_cast<std::size_t>(
        std::min<std::uint64_t>(most, range_.end - at));
  }

  // Reads the bytes around a place.
  bool Again(std::uint64_t at, std::size_t size) {
    const bool read = bytes_->Read(at, code_.data(), size);
    readable_ = readable_ && read;
    return read;
  }

  void Judge(std::uint64_t at) {
    FrameTable::Function function;
    if (!range_.functions.Find(at, &function) ||
        function.begin < range_.begin || function.end > range_.end ||
        function.end - function.begin > kLongest || at + 2 > function.end) {
      ByVote(at);
      return;
    }
    const auto size = static_cast<std::size_t>(function.end - function.begin);
    code_.resize(size);
    if (!Again(function.begin, size)) return;
    const auto target = static_cast<std::size_t>(at - function.begin);
    switch (flow_.Follow(code_.data(), size, 0, target)) {
      case CodeFlow::Found::kYes:
        Note(at);
        break;
      case CodeFlow::Found::kUnknown:
        ByVote(at);
        break;
      case CodeFlow::Found::kNo:
        break;
    }
  }

  // Code that is decoded from a wrong place falls into step after a few
  // instructions. So most of the starting places must agree.
  void ByVote(std::uint64_t at) {
    const std::uint64_t from =
        std::max(range_.begin, at < kAround ? 0 : at - kAround);
    const std::size_t size =
        Room(from, static_cast<std::size_t>(at - from) + kAround);
    code_.resize(size);
    if (!Again(from, size)) return;
    const auto target = static_cast<std::size_t>(at - from);
    int hits = 0;
    int misses = 0;
    std::size_t best = 0;
    for (std::size_t begin = 0; begin <= target && begin < kVoters; ++begin) {
      const CodeFlow::Found found =
          flow_.Follow(code_.data(), size, begin, target);
      if (found == CodeFlow::Found::kYes && ++hits == 1) best = begin;
      if (found == CodeFlow::Found::kNo) ++misses;
    }
    if (hits <= misses) return;
    flow_.Follow(code_.data(), size, best, target);
    values_.clear();
    // For an instruction outside of known functions, all that is seen must look
    // like a call.
    const bool looks =
        flow_.Values(kRax, &values_)
            ? std::all_of(values_.begin(), values_.end(), IsNumber)
            : !range_.loose && range_.functions.MayBeCode(at) &&
                  flow_.ReturnsOrTests();
    if (looks) Note(at);
  }

  // Requires that flow_ is at that instruction.
  void Note(std::uint64_t at) {
    values_.clear();
    if (!flow_.Values(kRax, &values_)) {
      found_->push_back({at, SystemCall::kAny, SystemCall::kAny});
      return;
    }
    for (const std::int64_t number : values_) {
      if (!IsNumber(number)) {
        found_->push_back({at, SystemCall::kAny, SystemCall::kAny});
        continue;
      }
      requests_.clear();
      if (!HasRequest(number) || !flow_.Values(kRsi, &requests_)) {
        requests_.assign(1, SystemCall::kAny);
      }
      for (const std::int64_t request : requests_) {
        found_->push_back({at, static_cast<int>(number), request});
      }
    }
  }

  CodeBytes* const bytes_;
  const CodeRange& range_;
  std::vector<SystemCall>* const found_;
  bool readable_ = true;
  std::vector<std::uint8_t> code_;
  CodeFlow flow_;
  std::vector<std::int64_t> values_;
  std::vector<std::int64_t> requests_;
};

}  // namespace

FrameTable::FrameTable(CodeBytes* bytes, std::uint64_t at)
    : bytes_(bytes), at_(at) {
  struct {
    std::uint8_t version, frames, count, table;
    std::int32_t frames_at;
    std::uint32_t entries;
  } head;
  // The one form that linkers make.
  if (bytes->Read(at, &head, sizeof head) && head.version == 1 &&
      head.frames == 0x1b && head.count == 0x03 && head.table == 0x3b) {
    count_ = std::min(head.entries, std::uint32_t{1} << 26);
  }
  if (count_ == 0) return;
  std::uint64_t frame = 0;
  constexpr std::uint64_t kSlack = 64 << 10;
  const std::uint64_t first = EntryAt(0, &frame);
  code_begin_ = first > kSlack ? first - kSlack : 0;
  code_end_ = EntryAt(count_ - 1, &frame) + kSlack;
}

bool FrameTable::MayBeCode(std::uint64_t address) const {
  return address >= code_begin_ && address < code_end_;
}

std::uint64_t FrameTable::EntryAt(std::uint32_t index,
                                  std::uint64_t* frame) const {
  std::int32_t entry[2];
  if (!bytes_->Read(at_ + 12 + std::uint64_t{index} * 8, entry, sizeof entry)) {
    return 0;
  }
  *frame = at_ + static_cast<std::uint64_t>(std::int64_t{entry[1]});
  return at_ + static_cast<std::uint64_t>(std::int64_t{entry[0]});
}

bool FrameTable::Find(std::uint64_t address, Function* to) const {
  // Entry `low` begins at or before the address, `high` behind it.
  std::uint32_t low = 0;
  std::uint32_t high = count_;
  std::uint64_t frame = 0;
  while (high - low > kNear) {
    const std::uint32_t middle = low + (high - low) / 2;
    (EntryAt(middle, &frame) <= address ? low : high) = middle;
  }
  std::int32_t near[kNear][2];
  if (low == high || !bytes_->Read(at_ + 12 + std::uint64_t{low} * 8, near,
                                   (high - low) * sizeof near[0])) {
    return false;
  }
  const auto at = [&](std::int32_t distance) {
    return at_ + static_cast<std::uint64_t>(std::int64_t{distance});
  };
  std::uint32_t found = 0;
  while (found < high - low && at(near[found][0]) <= address) ++found;
  if (found == 0) return false;
  to->begin = at(near[found - 1][0]);
  frame = at(near[found - 1][1]);
  struct {
    std::uint32_t length, description;
    std::int32_t begin;
    std::uint32_t size;
  } head;
  if (to->begin == 0 || !bytes_->Read(frame, &head, sizeof head)) return false;
  const std::uint64_t begin =
      frame + 8 + static_cast<std::uint64_t>(std::int64_t{head.begin});
  to->end = begin == to->begin ? begin + head.size : 0;
  return address >= to->begin && address < to->end;
}

bool FindSystemCalls(CodeBytes* bytes, const CodeRange& range,
                     std::uint64_t from, std::uint64_t to,
                     std::vector<SystemCall>* found) {
  return Finder(bytes, range, found)
      .Run(std::max(from, range.begin), std::min(to, range.end));
}

}  // namespace rcsock::base
