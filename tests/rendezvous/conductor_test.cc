#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "lib/base/scheduling.h"
#include "lib/rendezvous/start_aside.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

// CPU that the process uses in 200 ms of silence.
long IdleNs() {
  const auto used = [] {
    timespec t{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1'000'000'000 + t.tv_nsec;
  };
  const long before = used();
  ::usleep(200'000);
  return used() - before;
}

TEST(Conductor, IdleCostsNothing) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeTcpPair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    c->Start(conductor);
    s->Start(conductor);
    ASSERT_TRUE(c->Wait() && s->Wait());
    EXPECT_LT(IdleNs(), 2'000'000);
  }));
}

struct Scheduling {
  std::uint32_t policy = 0;
  std::int32_t nice = 0;
  std::uint64_t slice = 0;  // 0: the kernel does not tell slices
};

Scheduling Of(pid_t thread) {
  std::uint32_t words[12] = {};  // size, policy, flags, nice, priority, runtime
  EXPECT_EQ(::syscall(SYS_sched_getattr, thread, words, sizeof words, 0), 0);
  Scheduling scheduling{words[1], static_cast<std::int32_t>(words[4]), 0};
  std::memcpy(&scheduling.slice, words + 6, sizeof scheduling.slice);
  return scheduling;
}

pid_t OwnThread() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

// The thread that takes the conductor's next turn.
pid_t Works(Conductor* conductor) {
  pid_t thread = 0;
  conductor->Post([&thread] { thread = OwnThread(); });
  Drain(conductor);
  return thread;
}

// Returns false where the conductor may not change what it is scheduled by.
bool HasShifts() { return ::prctl(PR_GET_SECCOMP) == 0; }

// Whether this thread is the patient one.
bool IsPatient(pid_t thread) { return Of(thread).policy == SCHED_BATCH; }

// Waits until the patient thread has the shift. A machine that is busy may have
// taken the shift from it.
bool PatientWorks(Conductor* conductor) {
  return Eventually([&] {
    if (IsPatient(Works(conductor))) return true;
    ::usleep(20'000);
    return false;
  });
}

// No request of the program waits for the conductor's turns, where the program
// sleeps in between.
TEST(Conductor, GivesWay) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const Scheduling own = Of(OwnThread());
    if (!HasShifts()) {
      EXPECT_EQ(Conductor::Threads(), 1);
      EXPECT_EQ(Of(Works(conductor)).nice, own.nice);
      return;
    }
    EXPECT_EQ(Conductor::Threads(), 2);
    pid_t patient = 0;
    EXPECT_TRUE(Eventually([&] {
      patient = Works(conductor);
      if (IsPatient(patient)) return true;
      ::usleep(20'000);
      return false;
    }));
    EXPECT_EQ(Of(patient).nice, std::min(own.nice + base::kGivesWay, 19));
    if (own.slice != 0) {
      EXPECT_GT(Of(patient).slice, own.slice);
    }
  }));
}

// Where programs leave no CPU to a thread that gives way, another one takes the
// turns, and waits for the end of nobody's slice.
TEST(Conductor, DoesNotGiveWayForEver) {
  if (!HasShifts()) GTEST_SKIP() << "under a filter";
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const Scheduling own = Of(OwnThread());
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    ASSERT_TRUE(PatientWorks(conductor));
    const pid_t patient = Works(conductor);
    ASSERT_EQ(::sched_setaffinity(patient, sizeof one, &one), 0);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    std::atomic<bool> over{false};
    const auto spin = [&over] {
      while (!over.load(std::memory_order_relaxed)) {
      }
    };
    std::thread busy[] = {std::thread(spin), std::thread(spin)};
    pid_t prompt = 0;
    EXPECT_TRUE(Eventually([&] {
      prompt = Works(conductor);
      return !IsPatient(prompt);
    }));
    EXPECT_EQ(Of(prompt).nice, own.nice);
    if (own.slice != 0) {
      EXPECT_EQ(Of(prompt).slice, base::kShortSliceNs);
    }
    over = true;
    for (std::thread& thread : busy) thread.join();
    // Its shift ends some time.
    EXPECT_TRUE(PatientWorks(conductor));
  }));
}

// A program with a policy of its own has one thread, which is never deaf.
TEST(Conductor, LeavesOtherPoliciesAlone) {
  ExpectSuccess(Spawn([] {
    const sched_param none{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_BATCH, &none), 0);
    Conductor* conductor = GetConductor();
    EXPECT_EQ(Conductor::Threads(), 1);
    const pid_t thread = Works(conductor);
    const auto sleeps_in = [thread] {
      std::ifstream wchan("/proc/self/task/" + std::to_string(thread) +
                          "/wchan");
      std::string where;
      std::getline(wchan, where);
      return where;
    };
    ::usleep(100'000);
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(Works(conductor), thread);
      EXPECT_EQ(sleeps_in().find("futex"), std::string::npos);
    }
  }));
}

TEST(Conductor, GivesWayNoMore) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    if (HasShifts()) {
      EXPECT_TRUE(PatientWorks(conductor));
    }
    Conductor::AwaitPromptOnly();
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(IsPatient(Works(conductor)));
  }));
}

TEST(Conductor, StopsInEitherShift) {
  ExpectSuccess(Spawn([] {
    for (int i = 0; i < 20; ++i) {
      Conductor* conductor = GetConductor();
      if (i % 4 == 0 && HasShifts()) {
        EXPECT_TRUE(PatientWorks(conductor));
      } else if (i % 4 == 1) {
        Conductor::PromptOnly();
        Works(conductor);
      } else if (i % 4 == 2) {
        Works(conductor);
      }
      Conductor::Stop();
      EXPECT_EQ(Conductor::Threads(), 0);
    }
  }));
}

std::atomic<Conductor*> introduced{nullptr};
std::atomic<int> answers{0};
std::atomic<Reason> answered{Reason::kNone};

Conductor* Aside(Reason* why) {
  return GetAside(why, {[](Conductor* conductor) { introduced = conductor; },
                        [](Conductor* conductor, Reason reason) {
                          EXPECT_EQ(conductor, introduced);
                          answered = reason;
                          ++answers;
                        }});
}

// The thread that asks waits neither for the start nor for the kernel, which
// enlarges the table of descriptors.
TEST(Conductor, StartsAside) {
  ExpectSuccess(Spawn([] {
    const auto sleeps = [] {
      rusage used{};
      ::getrusage(RUSAGE_THREAD, &used);
      return used.ru_nvcsw;
    };
    Reason why = Reason::kNone;
    const long before = sleeps();
    EXPECT_EQ(Aside(&why), nullptr);
    EXPECT_EQ(sleeps(), before);
    EXPECT_EQ(why, Reason::kPending);
    EXPECT_TRUE(Eventually([&] { return answers != 0; }));
    EXPECT_EQ(Aside(&why), GetConductor());
    EXPECT_EQ(introduced, GetConductor());
  }));
}

TEST(Conductor, TellsWhyNoneStartsAside) {
  ExpectSuccess(Spawn([] {
    const int top = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    rlimit limit{static_cast<rlim_t>(top) + 1, 4096};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    Reason why = Reason::kNone;
    EXPECT_EQ(Aside(&why), nullptr);
    EXPECT_TRUE(Eventually([&] { return answers != 0; }));
    EXPECT_EQ(answered, Reason::kNoFds);
    EXPECT_EQ(Aside(&why), nullptr);
    EXPECT_EQ(why, Reason::kNoFds);
    limit.rlim_cur = 4096;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_TRUE(Eventually([&] { return Aside(&why) != nullptr; }));
  }));
}

// A child would keep the descriptors of a start that it has interrupted.
TEST(Conductor, ForkWaitsForAStartAside) {
  ExpectSuccess(Spawn([] {
    Reason why = Reason::kNone;
    EXPECT_EQ(Aside(&why), nullptr);
    Conductor::ForkPrepare();
    EXPECT_NE(introduced, nullptr);
    Conductor::ForkParent();
  }));
}

// The name under which this process tells of itself.
sockaddr_un StatName(socklen_t* length) {
  std::string line;
  std::string inodes;
  for (const auto& [fd, what] : OpenFds()) inodes += what + " ";
  for (std::ifstream names("/proc/net/unix"); std::getline(names, line);) {
    const std::size_t at = line.find("@rcsock/1/stat/");
    if (at == std::string::npos) continue;
    const std::size_t before = line.rfind(' ', at - 2);
    const std::string inode = line.substr(before + 1, at - before - 2);
    if (inodes.find("socket:[" + inode + "]") == std::string::npos) continue;
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    line.copy(name.sun_path + 1, sizeof name.sun_path - 1, at + 1);
    *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                     line.size() - at);
    return name;
  }
  *length = 0;
  return {};
}

// Somebody asks what it does, and there is no descriptor left to answer by.
TEST(Conductor, OutOfDescriptorsItDoesNotSpin) {
  ExpectSuccess(Spawn([] {
    ASSERT_NE(GetConductor(), nullptr);
    socklen_t length = 0;
    const sockaddr_un name = StatName(&length);
    ASSERT_NE(length, 0u);
    const int asker = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    rlimit none = limit;
    none.rlim_cur = 0;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    ASSERT_EQ(
        ::connect(asker, reinterpret_cast<const sockaddr*>(&name), length), 0)
        << std::strerror(errno);
    EXPECT_LT(IdleNs(), 20'000'000);
    // It has not forgotten who waits.
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    char answer[64];
    EXPECT_GT(::recv(asker, answer, sizeof answer, 0), 0);
  }));
}

TEST(Conductor, BlocksEverySignal) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    for (const bool prompt : {false, true}) {
      if (prompt) Conductor::PromptOnly();
      Works(conductor);  // what PromptOnly asks for comes after a turn
      sigset_t mask;
      std::string name;
      bool inside = false;
      conductor->Post([&] {
        ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        char text[16];
        ::pthread_getname_np(::pthread_self(), text, sizeof text);
        name = text;
        inside = conductor->OnThread();
      });
      Drain(conductor);
      if (prompt) {
        EXPECT_EQ(name, "rcsock");
      } else {
        EXPECT_TRUE(name.starts_with("rcsock")) << name;
      }
      EXPECT_TRUE(inside);
      EXPECT_FALSE(conductor->OnThread());
      for (int signal = 1; signal < 32; ++signal) {
        if (signal == SIGKILL || signal == SIGSTOP) continue;
        EXPECT_EQ(::sigismember(&mask, signal), 1) << signal;
      }
    }
    sigset_t own;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &own);
    EXPECT_EQ(::sigismember(&own, SIGTERM), 0);
  }));
}

TEST(Conductor, Timers) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    std::atomic<int> fired{0};
    std::atomic<bool> wrong{false};
    const auto before = Clock::now();
    const std::uint64_t never = conductor->After(5, [&] { wrong.store(true); });
    conductor->CancelTimer(never);
    conductor->After(30, [&] {
      if (Clock::now() - before < milliseconds(30)) wrong.store(true);
      fired.fetch_add(1);
    });
    conductor->After(0, [&] { fired.fetch_add(1); });
    EXPECT_TRUE(Eventually([&] { return fired.load() == 2; }));
    EXPECT_FALSE(wrong.load());
  }));
}

int Threads() {
  int threads = 0;
  DIR* dir = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_name[0] != '.') ++threads;
  }
  ::closedir(dir);
  return threads;
}

TEST(Conductor, StopsAndStartsAgain) {
  ExpectSuccess(Spawn([] {
    Conductor* first = GetConductor();
    const auto baseline = OpenFds().size();
    const auto pairs = MakeTcpPairs(2);
    auto c = ConnectorSeeker(pairs[0].connector);
    auto s = AcceptorSeeker(pairs[0].acceptor);
    c->Start(first);
    s->Start(first);
    ASSERT_TRUE(c->Wait() && s->Wait());
    auto waiting = ConnectorSeeker(pairs[1].connector);
    waiting->Start(first);
    Drain(first);
    Conductor::Stop();
    EXPECT_EQ(Conductor::IfRunning(), nullptr);
    EXPECT_FALSE(waiting->Wait());
    EXPECT_EQ(waiting->failed, Reason::kNoThread);
    EXPECT_NE(c->lost, Reason::kNone);
    EXPECT_NE(c->lane->State(), Reason::kNone);
    // (pthread_join returns a moment before the kernel forgets the thread.)
    EXPECT_TRUE(Eventually([] { return Threads() == 1; }));
    // The old pointer does nothing, and hurts nothing.
    EXPECT_FALSE(first->Post([] { ADD_FAILURE(); }));
    first->After(0, [] { ADD_FAILURE(); });
    first->ReturnLane(c, std::move(c->lane));
    first->ReturnLane(s, std::move(s->lane));
    first->Seek(waiting);
    first->Cancel(waiting.get());
    Conductor* second = GetConductor();
    EXPECT_NE(first, second);
    auto c2 = ConnectorSeeker(pairs[0].connector);
    auto s2 = AcceptorSeeker(pairs[0].acceptor);
    c2->Start(second);
    s2->Start(second);
    EXPECT_TRUE(c2->Wait());
    EXPECT_TRUE(s2->Wait());
    c.reset();
    s.reset();
    Conductor::Stop();
    Conductor::Stop();
    c2.reset();
    s2.reset();
    EXPECT_LE(OpenFds().size(), baseline + 4);
  }));
}

TEST(Conductor, ForkedChildStartsClean) {
  ExpectSuccess(Spawn([] {
    const auto pairs = MakeTcpPairs(3);
    const auto before = OpenFds();
    Conductor* conductor = GetConductor();
    auto c = ConnectorSeeker(pairs[0].connector);
    auto s = AcceptorSeeker(pairs[0].acceptor);
    c->Start(conductor);
    s->Start(conductor);
    ASSERT_TRUE(c->Wait() && s->Wait());
    auto waiting = ConnectorSeeker(pairs[1].connector);  // a binder
    waiting->Start(conductor);
    Drain(conductor);
    Conductor::ForkPrepare();
    const pid_t pid = ::fork();
    if (pid == 0) {
      Conductor::ForkChild();
      ::alarm(kTestSeconds);
      EXPECT_EQ(Conductor::IfRunning(), nullptr);
      for (const auto& [fd, what] : OpenFds()) {
        // A link's bells stay; they are eventfds that nobody waits for.
        if (what == "anon_inode:[eventfd]") continue;
        EXPECT_TRUE(before.contains(fd)) << fd << " " << what;
      }
      Conductor* own = GetConductor();
      EXPECT_NE(own, conductor);
      auto child_seeker = AcceptorSeeker(pairs[2].acceptor);
      EXPECT_TRUE(child_seeker->Meet(own))
          << base::ReasonKey(child_seeker->failed);
      if (child_seeker->lane) ExchangeNonces(child_seeker.get());
      // The parent ends first.
      char byte;
      ::close(pairs[2].connector);
      EXPECT_EQ(::recv(child_seeker->fd(), &byte, 1, 0), 0);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    Conductor::ForkParent();
    // The parent's lanes go on, and it meets its child.
    SendAll(c->lane.get(), "after", 5);
    EXPECT_EQ(ReceiveAll(s->lane.get(), 5), "after");
    auto parent_seeker = ConnectorSeeker(pairs[2].connector);
    EXPECT_TRUE(parent_seeker->Meet(conductor))
        << base::ReasonKey(parent_seeker->failed);
    if (parent_seeker->lane) ExchangeNonces(parent_seeker.get());
    ::shutdown(pairs[2].connector, SHUT_WR);
    ExpectSuccess(pid);
  }));
}

TEST(Conductor, ForkUnderLoad) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeTcpPair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    for (int i = 0; i < 100; ++i) {
      c->Start(conductor);
      s->Start(conductor);
      Conductor::ForkPrepare();
      const pid_t pid = ::fork();
      if (pid == 0) {
        Conductor::ForkChild();
        ::alarm(kTestSeconds);
        bool posted = false;
        Conductor* own = GetConductor();
        own->Post([&posted] { posted = true; });
        Drain(own);
        ::_exit(posted ? 0 : 1);
      }
      Conductor::ForkParent();
      ExpectSuccess(pid);
      ASSERT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
      ASSERT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
    }
  }));
}

TEST(Conductor, BellZeroReachesTheHandler) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    std::atomic<int> rx{0};
    int cookie = 0;
    conductor->SetCompletionHandler([&](const lane::Completion& completion) {
      if (completion.cookie == &cookie &&
          (completion.flags & lane::kCompletionRx)) {
        rx.fetch_add(1);
      }
    });
    const TcpPair pair = MakeTcpPair();
    auto c = ConnectorSeeker(pair.connector);
    auto s = AcceptorSeeker(pair.acceptor);
    c->Start(conductor);
    s->Start(conductor);
    ASSERT_TRUE(c->Wait() && s->Wait());
    s->link()->SetCookie(s->index(), &cookie);
    s->lane->SetNotify(lane::kNotifyRxPoller | lane::kNotifyRxBits, 0);
    // Each message comes when the conductor sleeps, or is about to: none may be
    // lost.
    for (int i = 0; i < 2000; ++i) {
      const int before = rx.load();
      SendAll(c->lane.get(), "x", 1);
      ASSERT_TRUE(Eventually([&] { return rx.load() > before; })) << i;
      EXPECT_EQ(ReceiveAll(s->lane.get(), 1), "x");
    }
  }));
}

TEST(Conductor, BellsMadeLater) {
  for (bool announced : {true, false}) {
    ExpectSuccess(Spawn([announced] {
      Conductor* conductor = GetConductor();
      const TcpPair pair = MakeTcpPair();
      auto c = ConnectorSeeker(pair.connector);
      auto s = AcceptorSeeker(pair.acceptor);
      c->Start(conductor);
      s->Start(conductor);
      ASSERT_TRUE(c->Wait() && s->Wait());
      const int fd = conductor->bells()->EnsureBell(3);
      ASSERT_GE(fd, 0);
      if (announced) {
        conductor->AnnounceBell(3);
        Drain(conductor);
      }
      s->lane->SetNotify(lane::kNotifyRxPoller | lane::kNotifyRxBits, 3);
      conductor->bells()->Arm(3);
      SendAll(c->lane.get(), "x", 1);
      // Without the announcement the kick comes by bell 0.
      pollfd rung{fd, POLLIN, 0};
      EXPECT_EQ(::poll(&rung, 1, 10'000), 1);
    }));
  }
}

class CountingWatcher : public AnchorWatcher {
 public:
  explicit CountingWatcher(int fd) : fd_(fd) {}
  void OnAnchor(std::uint32_t events) override {
    seen.fetch_or(events);
    char bytes[64];
    while (drain && ::recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
    calls.fetch_add(1);
  }
  std::atomic<std::uint32_t> seen{0};
  std::atomic<int> calls{0};
  bool drain = true;

 private:
  const int fd_;
};

TEST(Anchors, EventsComeUntilUnwatched) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const auto pairs = MakeTcpPairs(100);
    std::vector<std::shared_ptr<CountingWatcher>> watchers;
    for (const TcpPair& pair : pairs) {
      watchers.push_back(std::make_shared<CountingWatcher>(pair.acceptor));
      ASSERT_TRUE(conductor->Watch(pair.acceptor, watchers.back(), EPOLLIN));
    }
    for (const TcpPair& pair : pairs) ::send(pair.connector, "x", 1, 0);
    for (auto& watcher : watchers) {
      EXPECT_TRUE(Eventually([&] { return watcher->seen.load() & EPOLLIN; }));
    }
    // 0: nothing but the ends.
    conductor->Rewatch(pairs[0].acceptor, 0);
    Drain(conductor);
    const int before = watchers[0]->calls.load();
    ::send(pairs[0].connector, "x", 1, 0);
    ::send(pairs[1].connector, "x", 1, 0);
    EXPECT_TRUE(Eventually([&] { return watchers[1]->calls.load() >= 2; }));
    EXPECT_EQ(watchers[0]->calls.load(), before);
    conductor->Rewatch(pairs[0].acceptor, EPOLLIN);
    EXPECT_TRUE(Eventually([&] { return watchers[0]->calls.load() > before; }));
    conductor->Unwatch(pairs[0].acceptor);
    EXPECT_EQ(watchers[0].use_count(), 1);
    EXPECT_FALSE(conductor->Watch(-1, watchers[0], EPOLLIN));
  }));
}

TEST(Anchors, UnremovableRegistrationDoesNotSpin) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const auto pairs = MakeTcpPairs(2);
    auto gone = std::make_shared<CountingWatcher>(pairs[0].acceptor);
    auto stays = std::make_shared<CountingWatcher>(pairs[1].acceptor);
    ASSERT_TRUE(conductor->Watch(pairs[0].acceptor, gone, EPOLLIN));
    ASSERT_TRUE(conductor->Watch(pairs[1].acceptor, stays, EPOLLIN));
    // Closed too early, with a duplicate that keeps the registration alive.
    const int duplicate = ::dup(pairs[0].acceptor);
    ::close(pairs[0].acceptor);
    conductor->Unwatch(pairs[0].acceptor);
    ::send(pairs[0].connector, "x", 1, 0);
    ::send(pairs[1].connector, "x", 1, 0);
    EXPECT_TRUE(Eventually([&] { return stays->calls.load() > 0; }));
    EXPECT_LT(IdleNs(), 20'000'000);
    const int before = stays->calls.load();
    ::send(pairs[1].connector, "x", 1, 0);
    EXPECT_TRUE(Eventually([&] { return stays->calls.load() > before; }));
    EXPECT_EQ(gone->calls.load(), 0);
    ::close(duplicate);
  }));
}

}  // namespace
}  // namespace rcsock::rendezvous
