// Turns of the conductor, and the calls that any thread makes to it.  A call
// becomes a task for the conductor's thread, or a turn in the calling thread.

#include "lib/rendezvous/step.h"

#include <pthread.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "lib/base/backoff.h"
#include "lib/base/clock.h"
#include "lib/base/critical.h"
#include "lib/base/helper_thread.h"
#include "lib/base/identity.h"
#include "lib/base/internal.h"
#include "lib/base/no_cancel.h"
#include "lib/rendezvous/connection.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/peer_link.h"
#include "lib/rendezvous/rdma.h"
#include "lib/rendezvous/session.h"

namespace rcsock::rendezvous {
namespace {

using boost::system::error_code;

// Whether this thread takes a turn of the conductor's.
constinit thread_local bool tls_in_step = false;

}  // namespace

// The analysis cannot follow a scope whose latch belongs to another object,
// which may be null.  The users of what the step guards assert it.
Step::Step(Core* core, Meets meets) RC_NO_LOCK_CHECK : core_(core) {
  core_->step.lock();
  tls_in_step = true;
  if (meets == Meets::kSomebody) core_->NoteOwner();
}

Step::Step(Core* core, std::try_to_lock_t) RC_NO_LOCK_CHECK
    : core_(core->step.try_lock() ? core : nullptr) {
  if (core_ != nullptr) tls_in_step = true;
}

Step::~Step() RC_NO_LOCK_CHECK {
  if (core_ == nullptr) return;
  tls_in_step = false;
  core_->step.unlock();
}

template <typename Call>
bool Core::PostLocked(Call&& call) {
  if (!accepting_) return false;
  try {
    boost::asio::post(io, [this, call = std::forward<Call>(call)]() mutable {
      Step hold(this);
      call();
    });
  } catch (...) {
    return false;  // no memory
  }
  return true;
}

// Runs `call` in this thread as a turn of the conductor, if no other turn is
// under way.  So nobody has to be woken for it.  Returns false if the conductor
// has to run it: there was no turn, or `call` has returned false.
// There is no deadlock: a thread that waits for the step holds no latch
// (Conductor::ForkPrepare), and this thread does not wait.
template <typename Call>
bool Core::Here(Call&& call, bool meets) {
  const base::Critical critical;
  const base::NoCancel no_cancel;
  const Step turn(this, std::try_to_lock);
  if (!turn) return false;
  // A thread may be another user's for a moment.  If it connects or listens
  // then, the kernel takes the socket for that user's.
  if (meets && base::OwnUid() != OwnUid()) return false;
  const base::InternalScope internal;
  try {
    return call();
  } catch (...) {
    return false;  // no memory: the conductor may have more luck
  }
}

void Core::NoteOwner() {
  owner_.store(base::OwnUid(), std::memory_order_relaxed);
}

void Core::Seek(const std::shared_ptr<Seeker>& seeker, Conductor::When when) {
  std::shared_ptr<Session> old;
  std::shared_ptr<Session> session;
  {
    base::LatchGuard lock(table_latch_);
    if (!accepting_) return;
    session = std::make_shared<Session>(this, seeker);
    std::shared_ptr<Session>& entry = seekers_[seeker.get()];
    old = std::exchange(entry, session);
    if (old != nullptr) {
      old->Cancel();
      PostLocked([old] { old->Fail(base::Reason::kNone, false); });
    }
  }
  if (when == Conductor::When::kNow && old == nullptr && !tls_in_step &&
      Here([this, &session] {
        step.AssertHeld();
        // After the teardown there are no links.
        return !links_.empty() && session->BeginOverLink();
      })) {
    return;
  }
  {
    base::LatchGuard lock(table_latch_);
    if (PostLocked([session] { session->Begin(); }) || !accepting_) return;
  }
  if (ForgetSeeker(seeker.get(), session.get())) {
    seeker->SeekFailed(base::Reason::kNoMemory, false);
  }
}

void Core::Cancel(Seeker* seeker) {
  std::shared_ptr<Session> session;
  base::LatchGuard lock(table_latch_);
  auto it = seekers_.find(seeker);
  if (it == seekers_.end()) return;
  session = std::move(it->second);
  seekers_.erase(it);
  session->Cancel();
  PostLocked([session] { session->Fail(base::Reason::kNone, false); });
}

std::shared_ptr<Session> Core::SessionOf(Seeker* seeker) {
  base::LatchGuard lock(table_latch_);
  const auto it = seekers_.find(seeker);
  return it == seekers_.end() ? nullptr : it->second;
}

void Core::Adopted(Seeker* seeker) {
  const std::shared_ptr<Session> session = SessionOf(seeker);
  if (session == nullptr) return;
  const auto now = [this, &session] {
    step.AssertHeld();
    // After the teardown there are no links and no RDMA.
    if (session->rdma() == nullptr ? links_.empty() : rdma_ == nullptr) {
      return false;
    }
    session->Adopted();
    return true;
  };
  if (tls_in_step ? now() : Here(now)) return;
  base::LatchGuard lock(table_latch_);
  PostLocked([session] { session->Adopted(); });
}

void Core::Look(Seeker* seeker) {
  if (tls_in_step) return;
  const std::shared_ptr<Session> session = SessionOf(seeker);
  if (session == nullptr) return;
  Here([&session] {
    session->Look();
    return true;
  });
}

void Core::LeaveRdma() {
  if (tls_in_step || !had_rdma_.load(std::memory_order_relaxed)) return;
  const auto leave = [this] {
    step.AssertHeld();
    if (rdma_ == nullptr) return true;
    rdma_->StopListening();
    std::vector<std::shared_ptr<Session>> asked;
    for (const auto& [tuple, session] :
         sessions_[static_cast<int>(stream::Role::kAcceptor)]) {
      if (session->rdma() != nullptr) {
        asked.push_back(session->shared_from_this());
      }
    }
    for (const auto& session : asked) {
      session->Fail(base::Reason::kNoThread, false);
    }
    return true;
  };
  // A turn takes next to no time.  But a process must end even if a turn does
  // not.
  constexpr std::uint64_t kMostNs = 1'000'000'000;
  const std::uint64_t until = base::NowNs() + kMostNs;
  for (base::Backoff backoff; !Here(leave, false); backoff.Wait()) {
    if (base::NowNs() > until) return;
  }
}

bool Core::ForgetSeeker(const Seeker* seeker, const Session* session) {
  std::shared_ptr<Session> last;
  base::LatchGuard lock(table_latch_);
  auto it = seekers_.find(seeker);
  if (it == seekers_.end() || it->second.get() != session) return false;
  last = std::move(it->second);
  seekers_.erase(it);
  return true;
}

namespace {

struct Pages {
  Core* core;
  std::unique_ptr<lane::Lane> lane;
};

// Runs in a thread of its own: the driver may wait for all that its GPU does.
void* EndPages(void* argument) {
  ::pthread_setname_np(::pthread_self(), "rcsock-gpu");
  base::tls_internal = true;
  const std::unique_ptr<Pages> pages(static_cast<Pages*>(argument));
  pages->lane->EndPages();
  pages->core->ReturnLane(std::move(pages->lane));
  return nullptr;
}

}  // namespace

// The peer learns of the lane's end, and may give the ring's pages back, once
// no driver here has them.
void Core::ReturnPages(std::unique_ptr<lane::Lane> lane) {
  constexpr std::uint32_t kAgainMs = 1000;
  auto* const pages = new (std::nothrow) Pages{this, nullptr};
  if (pages != nullptr) {
    pages->lane = std::move(lane);
    if (base::StartHelper(&EndPages, pages) == 0) return;
    lane = std::move(pages->lane);
    delete pages;
  }
  // No thread, or no memory, now.  A process that ends drops the task, and the
  // kernel the memory.
  lane::Lane* const waits = lane.release();
  After(kAgainMs,
        [this, waits] { ReturnLane(std::unique_ptr<lane::Lane>(waits)); });
}

void Core::ReturnLane(std::unique_ptr<lane::Lane> lane) {
  if (lane == nullptr) return;
  if (lane->kind() == lane::Kind::kRdma) {
    return ReturnRdmaLane(std::move(lane));
  }
  if (lane->Lost()) return static_cast<void>(lane.release());
  if (lane->HasPages()) return ReturnPages(std::move(lane));
  base::LatchGuard lock(table_latch_);
  PostLocked([this, lane = std::move(lane)]() mutable {
    auto it = lanes.find(lane.get());
    LaneHome home;
    if (it != lanes.end()) {
      home = it->second;
      lanes.erase(it);
    }
    lane.reset();
    if (auto link = home.link.lock()) link->CloseSoon(home.index, home.epoch);
  });
}

void Core::ReturnRdmaLane(std::unique_ptr<lane::Lane> lane) {
  base::LatchGuard lock(table_latch_);
  auto it = rdma_lanes_.find(lane.get());
  if (abandoned_ || it == rdma_lanes_.end()) {
    // The verbs objects are the parent's, or no connection has the id.
    static_cast<void>(lane.release());
    return;
  }
  std::shared_ptr<Connection> connection = std::move(it->second);
  rdma_lanes_.erase(it);
  connection->TakeBack(std::move(lane));
  // On the conductor, since the connection's other state lives there.  After
  // the conductor's end, here.
  PostLocked([this, connection = std::move(connection)]() mutable {
    step.AssertHeld();
    if (rdma_ != nullptr) rdma_->lane_ends()->Add(std::move(connection));
  });
}

bool Core::PostTask(std::function<void()> task) {
  base::LatchGuard lock(table_latch_);
  return PostLocked(std::move(task));
}

// A task that is due no sooner than the alarm needs nobody's turn: the alarm
// looks for it.  So a timer costs no wake-up, and nor does the end of one.
std::uint64_t Core::After(std::uint32_t ms, std::function<void()> task) {
  // Destroyed without the latch.
  const auto shared = std::make_shared<std::function<void()>>(std::move(task));
  const auto due = Clock::now() + std::chrono::milliseconds(ms);
  base::LatchGuard lock(table_latch_);
  const std::uint64_t handle = ++next_timer_;
  if (!accepting_) return handle;
  due_.emplace(due, handle);
  try {
    tasks_.emplace(handle, Task{due, shared});
  } catch (...) {
    due_.erase({due, handle});
    return 0;  // no memory
  }
  if (due >= alarm_at_) return handle;
  const auto before = std::exchange(alarm_at_, due);
  if (PostLocked([this] { SetAlarm(); })) return handle;
  alarm_at_ = before;
  tasks_.erase(handle);
  due_.erase({due, handle});
  return 0;  // no memory
}

// The alarm stays: it may find nothing to do.
void Core::CancelTimer(std::uint64_t handle) {
  std::shared_ptr<std::function<void()>> run;
  base::LatchGuard lock(table_latch_);
  const auto it = tasks_.find(handle);
  if (it == tasks_.end()) return;
  run = std::move(it->second.run);
  due_.erase({it->second.due, handle});
  tasks_.erase(it);
}

void Core::SetAlarm() {
  step.AssertHeld();
  Clock::time_point at;
  {
    base::LatchGuard lock(table_latch_);
    at = alarm_at_;
  }
  if (at == Clock::time_point::max()) return;
  if (!alarm_) alarm_.emplace(io);
  alarm_->expires_at(at);
  alarm_->async_wait([this](const error_code& error) {
    if (error) return;
    Step hold(this);
    OnAlarm();
  });
}

// Runs what is due, and sets the alarm for what comes next.
void Core::OnAlarm() {
  constexpr int kMostTasks = 32;  // other turns go first
  for (int i = 0; i < kMostTasks; ++i) {
    std::shared_ptr<std::function<void()>> run;
    {
      base::LatchGuard lock(table_latch_);
      alarm_at_ = due_.empty() ? Clock::time_point::max() : due_.begin()->first;
      if (alarm_at_ > Clock::now()) break;
      const auto it = tasks_.find(due_.begin()->second);
      due_.erase(due_.begin());
      run = std::move(it->second.run);
      tasks_.erase(it);
    }
    (*run)();
  }
  SetAlarm();
}

void Core::AnnounceBell(int k) {
  base::LatchGuard lock(table_latch_);
  PostLocked([this, k] {
    step.AssertHeld();
    for (auto& link : std::vector(links_)) link->AnnounceBell(k);
  });
}

void Core::SetHandler(std::function<void(const lane::Completion&)> handler) {
  auto fresh =
      std::make_shared<const std::function<void(const lane::Completion&)>>(
          std::move(handler));
  base::LatchGuard lock(table_latch_);
  handler_.swap(fresh);  // the old one is destroyed after the latch is free
}

std::vector<std::shared_ptr<lane::shm::Link>> Core::Links() {
  base::LatchGuard lock(table_latch_);
  return live_links_;
}

}  // namespace rcsock::rendezvous
