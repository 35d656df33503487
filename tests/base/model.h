#ifndef RCSOCK_TESTS_BASE_MODEL_H_
#define RCSOCK_TESTS_BASE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>
#include <vector>

namespace rcsock {

// Models of who sleeps and who wakes, searched exhaustively: each way in which
// the steps of the threads can interleave.  Each rule was, or could have been,
// a wake-up that is lost: a test for each takes one rule away and must find a
// state in which nobody moves and somebody still waits.
//
// A step is one atomic access, or what is done under a latch.  The order of
// memory is not modelled: where it matters, the code has fences that make it
// what is assumed here, and argues for them.

template <class State>
struct Hash {
  std::size_t operator()(const State& state) const {
    std::uint64_t hash = 14695981039346656037u;
    for (const std::uint8_t one : state) hash = (hash ^ one) * 1099511628211u;
    return static_cast<std::size_t>(hash);
  }
};

// The states that may follow one: those that differ from it.
template <class State>
class Next {
 public:
  Next(const State& from, std::vector<State>* to) : from_(from), to_(to) {}
  void Add(const State& state) {
    if (state != from_) to_->push_back(state);
  }

 private:
  const State& from_;
  std::vector<State>* const to_;
};

template <class Model>
struct Search {
  // How many states; 0 if in one of them nothing can move and not all is done.
  static int Run(const Model& model) {
    using State = typename Model::State;
    std::unordered_set<State, Hash<State>> seen;
    std::deque<State> todo;
    seen.insert(model.First());
    todo.push_back(model.First());
    std::vector<State> next;
    while (!todo.empty()) {
      const State state = todo.front();
      todo.pop_front();
      next.clear();
      Next<State> to(state, &next);
      model.Steps(state, &to);
      if (next.empty() && !model.Done(state)) return 0;
      for (const State& one : next) {
        if (seen.insert(one).second) todo.push_back(one);
      }
    }
    return static_cast<int>(seen.size());
  }
};

template <class Model>
bool Hangs(const Model& model) {
  return Search<Model>::Run(model) == 0;
}

}  // namespace rcsock

#endif  // RCSOCK_TESTS_BASE_MODEL_H_
