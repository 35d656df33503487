#include "lib/posix/lifecycle/code_look.h"

#include <algorithm>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/raw_numbers.h"

namespace rcsock::posix {
namespace {

// Code that was in this many lists in a row, and cannot be read, is really
// there.
constexpr int kMostLists = 3;

KnownCode::Seen SeenOf(const OwnCode::Range& one) {
  return {one.code.begin, one.code.end, one.device, one.inode,
          one.build_id.empty() ? one.stamp : one.build_id};
}

}  // namespace

bool CodeLook::Begin(const KnownCode& known) {
  began_ns_ = base::NowNs();
  std::vector<OwnCode::Range> all;
  if (!code_.List(&all)) return false;
  for (OwnCode::Range& one : all) {
    if (!one.MayChange()) {
      KnownCode::Seen seen = SeenOf(one);
      const bool read = known.mappings.contains(seen) ||
                        known.build_ids.contains(one.build_id);
      listed_.push_back(std::move(seen));
      if (read) continue;
    } else if (one.inode == 0 && what_ == At::kFiles) {
      continue;
    }
    parts_.push_back({std::move(one)});
  }
  at_ = parts_.empty() ? 0 : parts_.front().range.code.begin;
  return true;
}

bool CodeLook::Step(std::uint64_t most) {
  while (culprit_.empty() && (index_ < parts_.size() || ListMissed())) {
    Part& part = parts_[index_];
    const base::CodeRange& code = part.range.code;
    const std::uint64_t to = std::min(code.end, at_ + most);
    std::vector<base::SystemCall> found;
    OwnMemory memory;
    const bool readable = base::FindSystemCalls(&memory, code, at_, to, &found);
    for (const base::SystemCall& call : found) {
      if (culprit_.empty() && base::MayUseStreams(call)) {
        Blame(part.range, call);
      }
    }
    most -= std::min(most, to - at_);
    at_ = to;
    if (!readable) missing_.push_back(code);
    if (!readable || at_ >= code.end) {
      part.read = readable;
      ++index_;
      if (index_ < parts_.size()) at_ = parts_[index_].range.code.begin;
    }
    if (most == 0) return false;
  }
  return true;
}

// Code that could not be read is gone, or is listed again.  Returns true if
// there is more to read.
bool CodeLook::ListMissed() {
  if (missing_.empty() || missed_) return false;
  std::vector<OwnCode::Range> all;
  if (++lists_ > kMostLists || !code_.List(&all)) {
    missed_ = true;
    return false;
  }
  for (OwnCode::Range& one : all) {
    const auto overlaps = [&](const base::CodeRange& other) {
      return one.code.begin < other.end && one.code.end > other.begin;
    };
    if (std::any_of(missing_.begin(), missing_.end(), overlaps)) {
      parts_.push_back({std::move(one)});
    }
  }
  missing_.clear();
  if (index_ < parts_.size()) at_ = parts_[index_].range.code.begin;
  return index_ < parts_.size();
}

void CodeLook::Remember(KnownCode* known) const {
  const std::set<KnownCode::Seen> listed(listed_.begin(), listed_.end());
  std::erase_if(known->mappings,
                [&](const auto& one) { return !listed.contains(one); });
  for (const Part& part : parts_) {
    if (!part.read || part.range.MayChange()) continue;
    known->mappings.insert(SeenOf(part.range));
    // An image with several segments has one build id for all of them.
    if (!part.range.build_id.empty() && Alone(part.range)) {
      known->build_ids.insert(part.range.build_id);
    }
  }
}

bool CodeLook::Alone(const OwnCode::Range& one) const {
  return std::count_if(parts_.begin(), parts_.end(), [&](const Part& other) {
           return other.range.build_id == one.build_id;
         }) == 1;
}

void CodeLook::Blame(const OwnCode::Range& one, const base::SystemCall& call) {
  culprit_ = one.path.empty() ? "code that it has made" : one.path;
  culprit_ += " makes system calls of its own: ";
  culprit_ += base::NameOfCall(call);
}

}  // namespace rcsock::posix
