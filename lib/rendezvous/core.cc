// The state of the conductor, and its threads: bell 0, the anchors, sessions
// and links.

#include "lib/rendezvous/core.h"

#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <boost/asio/detail/epoll_reactor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <utility>

#include "lib/base/config.h"
#include "lib/base/identity.h"
#include "lib/base/internal.h"
#include "lib/base/memory_limit.h"
#include "lib/base/scheduling.h"
#include "lib/lane/shm/touched.h"
#include "lib/rendezvous/connection.h"
#include "lib/rendezvous/peer_link.h"
#include "lib/rendezvous/rdma.h"
#include "lib/rendezvous/session.h"

namespace rcsock::rendezvous {
namespace {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

// Completions of bell 0 handled in one batch.  A peer can produce them for
// ever.
constexpr int kCompletionBatch = 64;
constexpr int kBatchesPerTurn = 4;

constexpr int kMaxBinders = 256;

// A forked child has to close the descriptors of Asio's reactor, and Asio tells
// nobody their numbers.  Access checks do not apply to an explicit
// instantiation.
template <auto Member, typename Tag>
struct Reveal {
  friend auto Pointer(Tag) { return Member; }
};
struct EpollTag {
  friend auto Pointer(EpollTag);
};
struct TimerTag {
  friend auto Pointer(TimerTag);
};
struct InterrupterTag {
  friend auto Pointer(InterrupterTag);
};
using Reactor = boost::asio::detail::epoll_reactor;
template struct Reveal<&Reactor::epoll_fd_, EpollTag>;
template struct Reveal<&Reactor::timer_fd_, TimerTag>;
template struct Reveal<&Reactor::interrupter_, InterrupterTag>;

}  // namespace

Core::Core(Conductor* conductor) : conductor_(conductor) {}

// --- Its threads

void Core::Run() {
  Conductor::Enter(this);
  base::tls_internal = true;
  thread_number = static_cast<std::uint32_t>(::syscall(SYS_gettid));
  // Streams wait for its turns while they change to a lane, and each turn is
  // short.
  const bool shares = base::AskForShortSlice();
  bool running = false;
  try {
    if (SetUp()) {
      boost::asio::executor_work_guard<boost::asio::io_context::executor_type>
          work(io.get_executor());
      if (shares) {
        shifts.Begin();
      } else {
        shifts.PromptOnly();
      }
      running = true;
      state.store(kRunning, std::memory_order_release);
      base::FutexWake(&state, 1 << 30, false);
      TakeTurns(Shifts::kPrompt);
    }
  } catch (const boost::system::system_error& error) {
    why = ErrnoReason(error.code().value());
  } catch (const std::bad_alloc&) {
    why = base::Reason::kNoMemory;
  } catch (...) {
    why = base::Reason::kNoThread;
  }
  shifts.End();
  try {
    TearDown();
  } catch (...) {
    // Memory ran out while giving things back.  What is left leaks.
  }
  state.store(running ? kEnded : kFailed, std::memory_order_release);
  base::FutexWake(&state, 1 << 30, false);
}

void Core::TakeTurns(Shifts::Shift own) {
  Conductor::Enter(this);
  base::tls_internal = true;
  try {
    while (shifts.Await(own) && io.run_one() != 0) {
      ServeStreams();
      shifts.Pass(own);
    }
  } catch (...) {
    // No memory, or no descriptor: the conductor ends.
  }
  shifts.Finish();
}

bool Core::SetUp() {
  base::ReadUidMap();
  Step hold(this);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
      limit.rlim_cur / 8 < kMaxBinders) {
    // A small table is for the application's descriptors.
    max_binders = static_cast<int>(limit.rlim_cur / 8);
  } else {
    max_binders = kMaxBinders;
  }
  if (!RandomBytes(uuid.data(), uuid.size()) ||
      !RandomBytes(&epoch_, sizeof epoch_)) {
    return false;
  }
  if (!anchors.Init() || bells->EnsureBell(0) < 0) {
    why = ErrnoReason(errno);
    return false;
  }
  // An epoll set's bell, for a set whose first lane comes when no descriptor is
  // left.
  bells->EnsureBell(lane::shm::kSetBells);
  poller_ = std::make_unique<lane::shm::ShmPoller>(bells, 0);
  bell_ = std::make_unique<stream_descriptor>(io);
  anchor_set_ = std::make_unique<stream_descriptor>(io);
  NoteAsioFds();
  error_code error;
  bell_->assign(bells->bell_fd(0), error);
  if (!error) anchor_set_->assign(anchors.fd(), error);
  if (error) {
    why = ErrnoReason(error.value());
    return false;
  }
  bells->Arm(0);
  WaitBell();
  WaitAnchors();
  inspection_.Open();
  return true;
}

bool Core::SharedMemoryIsSpent() {
  // Any limit exceeds this number.  Most processes stay below it, and never ask
  // for their limit, which means reading some files.
  constexpr std::uint64_t kLittle = 4 << 20;
  const std::uint64_t configured = base::GetConfig().max_shared;
  const std::uint64_t total = lane::shm::Touched::Total();
  if (configured != 0) return total >= configured;
  if (total < kLittle) return false;
  if (max_shared_ == 0) max_shared_ = base::MemoryLimit() / 4;
  return total >= max_shared_;
}

void Core::TearDown() {
  Step hold(this);
  std::vector<std::shared_ptr<Session>> sessions;
  // Destroyed without the latch: the functions may hold objects that call
  // CancelTimer.
  Tasks tasks;
  Handler handler;
  {
    base::LatchGuard lock(table_latch_);
    accepting_ = false;
    due_.clear();
    for (auto& [seeker, session] : seekers_) sessions.push_back(session);
    handler = std::move(handler_);
    tasks = std::move(tasks_);
  }
  for (auto& session : sessions) {
    session->Fail(base::Reason::kNoThread, false);
  }
  step.AssertHeld();
  for (auto& link : std::vector(links_)) link->Die(base::Reason::kNoThread);
  sources.Close();
  inspection_.Close();
  if (rdma_ != nullptr) rdma_->Close();
  rdma_.reset();
  alarm_.reset();
  lanes.clear();
  // The descriptors of these two belong to other objects.
  if (bell_ != nullptr && bell_->is_open()) {
    bell_->release();
    bells->Disarm(0);
  }
  if (anchor_set_ != nullptr && anchor_set_->is_open()) anchor_set_->release();
  bell_.reset();
  anchor_set_.reset();
  anchors.Close();
  poller_.reset();
  sessions.clear();
  std::fill(std::begin(asio_fds_), std::end(asio_fds_), -1);
  // Destroys every handler that has not run, with what it holds.
  io_holder.reset();
}

void Core::NoteAsioFds() {
  Reactor& reactor = boost::asio::use_service<Reactor>(io);
  asio_fds_[0] = reactor.*Pointer(EpollTag());
  asio_fds_[1] = reactor.*Pointer(TimerTag());
  asio_fds_[2] = (reactor.*Pointer(InterrupterTag())).read_descriptor();
}

void Core::RequestStop() {
  base::LatchGuard lock(table_latch_);
  if (accepting_) io.stop();
}

void Core::Abandon(bool asleep) {
  step.AssertHeld();
  auto close = [](int fd) {
    if (fd >= 0) base::CloseRaw(fd);
  };
  for (int fd : asio_fds_) close(fd);
  anchors.CloseInherited();
  sources.CloseInherited();
  close(anchors.fd());
  close(inspection_.fd());
  bells->Abandon();
  for (const auto& sessions : sessions_) {
    for (const auto& [tuple, session] : sessions) {
      close(session->listener_fd());
      close(session->channel_fd());
    }
  }
  {
    // Another thread of the parent may have held this latch.
    table_latch_.Reset();
    base::LatchGuard lock(table_latch_);
    abandoned_ = true;
  }
  if (rdma_ != nullptr) rdma_->CloseInherited();
  // links_ is never destroyed, so these numbers are closed once.
  for (const auto& link : links_) {
    link->link()->ForgetSocket();
    close(link->fd());
    if (!asleep) link->link()->Abandon();
  }
}

// --- Bell 0 and the anchors

void Core::WaitBell() {
  bell_->async_wait(stream_descriptor::wait_read,
                    [this](const error_code& error) {
                      if (error) return;
                      Step hold(this);
                      OnBell();
                    });
}

void Core::OnBell() {
  // Only bell 0 is read: the conductor alone sleeps on it.
  lane::shm::EmptyFd(bells->bell_fd(0));
  // A peer that does not know the eventfd of bell k yet has kicked bell 0 for
  // it.  The bit came first.  For bell 0 itself this turn looks anyway: a peer
  // that sets that bit again and again must not make turn after turn.
  step.AssertHeld();
  for (const auto& link : links_) {
    RingBells(link->link()->TakeRung() & ~lane::BellBit(0));
  }
  // Arm, then look.  The new generation makes a thread kick again whose mark
  // the drain misses.  To mark is a full fence (LinkState::Mark), so this end
  // needs no heavy one.  The bell is armed twice for a moment rather than not
  // at all.
  bells->Arm(0, true);
  bells->Disarm(0);
  if (DrainBell()) return WaitBell();
  // More than a turn's worth: other turns go first.
  boost::asio::post(io, [this] {
    Step hold(this);
    OnBell();
  });
}

void Core::RingBells(lane::BellMask which) {
  for (; which != 0; which &= which - 1) {
    const int k = std::countr_zero(which);
    if (bells->bell_fd(k) >= 0 && bells->Armed(k)) bells->Kick(k);
  }
}

bool Core::DrainBell() {
  step.AssertHeld();
  Handler handler;
  {
    base::LatchGuard lock(table_latch_);
    handler = handler_;
  }
  lane::Completion completions[kCompletionBatch];
  for (int batch = 0; batch < kBatchesPerTurn; ++batch) {
    const int shm = poller_->Poll(completions, kCompletionBatch);
    const int n =
        shm + board->Poll(0, completions + shm, kCompletionBatch - shm);
    if (n == 0) return true;
    for (int i = 0; i < n; ++i) {
      if (i >= shm && Rdma::IsCookie(completions[i].cookie)) {
        if (rdma_ != nullptr) rdma_->OnCompletion(completions[i]);
      } else if (handler != nullptr && *handler) {
        (*handler)(completions[i]);
      }
    }
  }
  return false;
}

// From its adoption until it has its lane, a stream gets news by the conductors
// alone.  So work for others must not keep the stream waiting.
void Core::ServeStreams() {
  if (!anchors.Any()) return;
  Step hold(this, Step::Meets::kNobody);
  DrainBell();
  if (DispatchAnchors()) WaitAnchors();
}

bool Core::DispatchAnchors() {
  if (!anchors.Dispatch()) return false;
  anchor_set_->release();  // ends the wait
  anchors.Rebuild();
  error_code failed;
  anchor_set_->assign(anchors.fd(), failed);
  if (failed) throw boost::system::system_error(failed);
  return true;
}

void Core::WaitAnchors() {
  anchor_set_->async_wait(stream_descriptor::wait_read,
                          [this](const error_code& error) {
                            if (error) return;
                            Step hold(this);
                            DispatchAnchors();
                            WaitAnchors();
                          });
}

// --- Sessions and links

Session* Core::FindSession(const Tuple& tuple, stream::Role role) {
  step.AssertHeld();
  auto& sessions = sessions_[static_cast<int>(role)];
  auto it = sessions.find(tuple);
  return it == sessions.end() ? nullptr : it->second;
}

bool Core::AddSession(Session* session) {
  step.AssertHeld();
  return sessions_[static_cast<int>(session->role())]
      .emplace(session->tuple(), session)
      .second;
}

void Core::RemoveSession(Session* session) {
  step.AssertHeld();
  sessions_[static_cast<int>(session->role())].erase(session->tuple());
}

std::shared_ptr<PeerLink> Core::FindLink(const Uuid& peer, uid_t uid,
                                         bool decider) {
  step.AssertHeld();
  for (const auto& link : links_) {
    if (link->decider() == decider && !link->dead() && link->uuid() == peer &&
        link->uid() == uid) {
      return link;
    }
  }
  return nullptr;
}

std::shared_ptr<PeerLink> Core::FindOffer(const Tuple& tuple,
                                          stream::Role role) {
  step.AssertHeld();
  for (const auto& link : links_) {
    if (link->HasOffer(tuple, role)) return link;
  }
  return nullptr;
}

void Core::EndVainLinks() {
  step.AssertHeld();
  constexpr auto kInVain = std::chrono::seconds(10);
  // A link has about six descriptors, so these links take a fifth of all
  // numbers.
  constexpr rlim_t kPart = 32;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto now = std::chrono::steady_clock::now();
  rlim_t waiting = 0;
  const auto links = links_;
  for (auto it = links.rbegin(); it != links.rend(); ++it) {
    if ((*it)->delivered()) continue;
    if (++waiting > limit.rlim_cur / kPart || (*it)->begun() + kInVain < now) {
      (*it)->Die(base::Reason::kTooMany);
    }
  }
}

void Core::AddLink(std::shared_ptr<PeerLink> link) {
  step.AssertHeld();
  EndVainLinks();
  // The conductor wakes the readers of such a link, for each message.
  if (!link->SharesBells()) shifts.PromptOnly();
  poller_->AddLink(link->link());
  {
    base::LatchGuard lock(table_latch_);
    live_links_.push_back(link->link());
  }
  links_.push_back(std::move(link));
}

void Core::RemoveLink(PeerLink* link) {
  step.AssertHeld();
  // Link::Kill has marked each open lane for its bell: let all bells look.
  if (poller_ != nullptr) {
    DrainBell();
    poller_->RemoveLink(link->link().get());
  }
  for (int k = 0; k < lane::kBells; ++k) {
    if (bells->bell_fd(k) >= 0) bells->Kick(k);
  }
  {
    base::LatchGuard lock(table_latch_);
    std::erase(live_links_, link->link());
  }
  std::erase_if(links_,
                [link](const auto& known) { return known.get() == link; });
}

void Core::LookAtSelf() {
  step.AssertHeld();
  // A link's answer to a packet is taken in another turn, and not from within
  // this one: the stack may be a small one.
  if (at_self_) return;
  struct Under {
    explicit Under(bool* way) : way_(way) { *way_ = true; }
    ~Under() { *way_ = false; }
    bool* const way_;
  } under(&at_self_);
  for (const bool decider : {false, true, false}) {
    if (const auto link = FindLink(uuid, OwnUid(), decider)) link->Look();
  }
}

Rdma* Core::GetRdma(base::Reason* why_not) {
  step.AssertHeld();
  if (rdma_ == nullptr) {
    had_rdma_.store(true, std::memory_order_relaxed);
    // It has turns for the data of lanes, too.
    shifts.PromptOnly();
    rdma_ = Rdma::Make(this, why_not);
  }
  return rdma_.get();
}

void Core::AddRdmaLane(const lane::Lane* lane,
                       std::shared_ptr<Connection> connection) {
  base::LatchGuard lock(table_latch_);
  rdma_lanes_[lane] = std::move(connection);
}

std::uint32_t Core::NextEpoch() {
  step.AssertHeld();
  if (++epoch_ == 0) ++epoch_;
  return epoch_;
}

bool Core::RandomBytes(void* to, std::size_t length) {
  return ::getrandom(to, length, 0) == static_cast<ssize_t>(length);
}

void Core::NextInQueue() {
  if (queue.empty()) return;
  // Later: the caller is in the middle of something.
  boost::asio::post(io, [this] {
    Step hold(this);
    queue.Advance([this] { return MayBind(); },
                  [](Session* next) { next->FromQueue(); });
  });
}

}  // namespace rcsock::rendezvous
