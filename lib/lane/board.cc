#include "lib/lane/board.h"

namespace rcsock::lane {

void Board::Unlink(Mark* mark) {
  List& list = lists_[mark->bell_];
  RC_DCHECK((mark->prev_ == nullptr) == (list.head == mark));  // I-LIST-1
  RC_DCHECK((mark->next_ == nullptr) == (list.tail == mark));
  (mark->prev_ != nullptr ? mark->prev_->next_ : list.head) = mark->next_;
  (mark->next_ != nullptr ? mark->next_->prev_ : list.tail) = mark->prev_;
  count_[mark->bell_].value.fetch_sub(1, std::memory_order_seq_cst);
  mark->bell_ = -1;
}

void Board::SetCookie(Mark* mark, void* cookie) {
  latch_.lock();
  if (mark->bell_ >= 0) Unlink(mark);
  mark->flags_ = 0;
  mark->cookie_ = cookie;
  latch_.unlock();
}

void Board::Post(int bell, Mark* mark, std::uint32_t flags) {
  latch_.lock();
  if (mark->cookie_ == nullptr) {
    latch_.unlock();
    return;
  }
  mark->flags_ |= flags;
  if (mark->bell_ != bell) {
    if (mark->bell_ >= 0) Unlink(mark);
    List& list = lists_[bell];
    mark->bell_ = bell;
    mark->next_ = nullptr;
    mark->prev_ = list.tail;
    (list.tail != nullptr ? list.tail->next_ : list.head) = mark;
    list.tail = mark;
    count_[bell].value.fetch_add(1, std::memory_order_seq_cst);
  }
  latch_.unlock();
  // A sleeper arms its bell with a full fence, then looks at the count. Here
  // the count has changed before the look at the armed word. One of the two
  // sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (ringer_->Armed(bell)) ringer_->Kick(bell);
}

int Board::PollSome(int bell, Completion* out, int capacity) {
  int n = 0;
  latch_.lock();
  while (n < capacity && lists_[bell].head != nullptr) {
    Mark* mark = lists_[bell].head;
    out[n++] = {mark->cookie_, mark->flags_};
    mark->flags_ = 0;
    Unlink(mark);
  }
  latch_.unlock();
  return n;
}

}  // namespace rcsock::lane
