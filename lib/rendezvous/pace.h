#ifndef RCSOCK_LIB_RENDEZVOUS_PACE_H_
#define RCSOCK_LIB_RENDEZVOUS_PACE_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

namespace rcsock::rendezvous {

// Says how many searches are under way at once, and lets the others wait in the
// order of coming.  A stream is not slower for waiting: its bytes go over TCP.
//
// From its adoption until it has its lane, a stream is heard of by the
// conductor alone.  So each step of another search that the conductor makes
// meanwhile delays that stream.  A few searches at once keep that time short,
// however many streams look for a lane.
//
// A search has a place for `kHold` at most.  A peer that does not answer keeps
// the others waiting for no longer.
//
// Threads: only within a turn of the conductor.
template <class Search>
class Pace {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kPlaces = 4;
  static constexpr std::chrono::milliseconds kHold{2};

  // Whether a search that comes now may begin.
  bool Free(Clock::time_point now) {
    while (!places_.empty() && places_.front().until <= now) {
      places_.pop_front();
    }
    return places_.size() < kPlaces;
  }
  bool empty() const { return line_.empty(); }
  // Requires a place.  Returns when the first place is free at the latest.
  Clock::time_point NextFree() const { return places_.front().until; }

  // The search has a place from now on, even if none was free: its peer has
  // given it one.
  void Enter(const Search* search, Clock::time_point now) {
    if (!Has(search)) places_.push_back({search, now + kHold});
  }
  // Returns whether the search had a place.
  bool Leave(const Search* search) {
    return std::erase_if(places_, [search](const Place& place) {
             return place.search == search;
           }) > 0;
  }

  void Wait(std::weak_ptr<Search> search) {
    line_.push_back(std::move(search));
  }
  // Returns the first that still waits, off the line, or null.
  std::shared_ptr<Search> Next() {
    while (!line_.empty()) {
      std::shared_ptr<Search> next = line_.front().lock();
      line_.pop_front();
      if (next != nullptr && next->in_line()) return next;
    }
    return nullptr;
  }
  void clear() {
    line_.clear();
    places_.clear();
  }

 private:
  struct Place {
    const Search* search;  // never followed
    Clock::time_point until;
  };
  bool Has(const Search* search) const {
    return std::any_of(
        places_.begin(), places_.end(),
        [search](const Place& place) { return place.search == search; });
  }

  std::deque<Place> places_;
  std::deque<std::weak_ptr<Search>> line_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_PACE_H_
