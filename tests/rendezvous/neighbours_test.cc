// Processes that have met need no name for what they have next.

#include <signal.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {
namespace {

TEST(Neighbours, NeedNoName) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const auto pairs = MakeTcpPairs(9);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (i > 0) Squat(pairs[i].connector);
      auto c = ConnectorSeeker(pairs[i].connector);
      auto s = AcceptorSeeker(pairs[i].acceptor);
      const bool connector_first = i % 2 == 0;
      (connector_first ? c : s)->Start(conductor);
      if (i % 3 == 0) Drain(conductor);
      (connector_first ? s : c)->Start(conductor);
      ASSERT_TRUE(c->Wait() && s->Wait())
          << i << " " << base::ReasonKey(c->failed);
      SayThereAndBack(c.get(), s.get());
    }
  }));
}

TEST(Neighbours, NeedNoNameBetweenProcesses) {
  const auto pairs = MakeTcpPairs(9);
  for (std::size_t i = 1; i < pairs.size(); ++i) Squat(pairs[i].connector);
  const auto body = [&pairs](bool connects) {
    Conductor* conductor = GetConductor();
    std::vector<std::shared_ptr<TestSeeker>> all;
    for (const TcpPair& pair : pairs) {
      all.push_back(connects ? ConnectorSeeker(pair.connector)
                             : AcceptorSeeker(pair.acceptor));
      ASSERT_TRUE(all.back()->Meet(conductor))
          << all.size() << " " << base::ReasonKey(all.back()->failed);
    }
  };
  Barrier barrier;
  const pid_t one = Spawn([&] {
    body(true);
    barrier.Meet(0);
  });
  const pid_t other = Spawn([&] {
    body(false);
    barrier.Meet(1);
  });
  ExpectSuccess(one);
  ExpectSuccess(other);
}

TEST(Neighbours, OffersAreTakenBack) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const auto pairs = MakeTcpPairs(2);
    const auto meet = [conductor](const TcpPair& pair) {
      auto c = ConnectorSeeker(pair.connector);
      auto s = AcceptorSeeker(pair.acceptor);
      c->Start(conductor);
      s->Start(conductor);
      EXPECT_TRUE(c->Wait() && s->Wait()) << base::ReasonKey(c->failed);
      const int index = c->index();
      conductor->ReturnLane(c, std::move(c->lane));
      conductor->ReturnLane(s, std::move(s->lane));
      Drain(conductor);
      return index;
    };
    meet(pairs[0]);
    // More than the other side keeps, and than a segment has numbers.
    for (int i = 0; i < 600; ++i) {
      auto seeker = ConnectorSeeker(pairs[1].connector);
      seeker->Start(conductor);
      if (i % 2 == 0) Drain(conductor);
      conductor->Cancel(seeker.get());
      if (i % 4 < 2) Drain(conductor);
    }
    // (Before that is done the other end may still take the last one.)
    Drain(conductor);
    EXPECT_LT(meet(pairs[1]), 64);
    EXPECT_EQ(conductor->Links().size(), 2u);
  }));
}

TEST(Neighbours, AnotherProcessHasIt) {
  const auto pairs = MakeTcpPairs(2);
  Barrier first;
  Barrier second;
  const pid_t wrong = Spawn([&] {
    auto s = AcceptorSeeker(pairs[0].acceptor);
    EXPECT_TRUE(s->Meet(GetConductor()));
    EXPECT_TRUE(first.Meet(0));
    EXPECT_TRUE(first.Meet(0));
  });
  const pid_t right = Spawn([&] {
    EXPECT_TRUE(second.Meet(0));
    auto s = AcceptorSeeker(pairs[1].acceptor);
    EXPECT_TRUE(s->Meet(GetConductor()));
    EXPECT_TRUE(second.Meet(0));
  });
  const pid_t connector = Spawn([&] {
    auto c = ConnectorSeeker(pairs[0].connector);
    EXPECT_TRUE(c->Meet(GetConductor()));
    EXPECT_TRUE(first.Meet(1));
    EXPECT_TRUE(second.Meet(1));
    auto d = ConnectorSeeker(pairs[1].connector);
    EXPECT_TRUE(d->Meet(GetConductor())) << base::ReasonKey(d->failed);
    EXPECT_TRUE(second.Meet(1));
    EXPECT_TRUE(first.Meet(1));
  });
  ExpectSuccess(connector);
  ExpectSuccess(right);
  ExpectSuccess(wrong);
}

bool Stopped(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const std::size_t end = text.rfind(')');
  return end != std::string::npos && text.substr(end, 3) == ") T";
}

// A process that has stopped is offered so many lanes and no more; the others
// wait at their names.  When it goes on, all of them meet.
TEST(Neighbours, OneThatHasStoppedIsNotFlooded) {
  // (Which of the two decides, and so makes the offers, is as good as a coin.)
  for (int round = 0; round < 4; ++round) {
    const auto pairs = MakeTcpPairs(101);
    Barrier barrier;
    const pid_t stopped = Spawn([&] {
      auto first = AcceptorSeeker(pairs[0].acceptor);
      EXPECT_TRUE(first->Meet(GetConductor()));
      EXPECT_TRUE(barrier.Meet(0));
      EXPECT_TRUE(barrier.Meet(0));  // stopped here
      std::vector<std::shared_ptr<TestSeeker>> all;
      for (std::size_t i = 1; i < pairs.size(); ++i) {
        all.push_back(AcceptorSeeker(pairs[i].acceptor));
        all.back()->Start(GetConductor());
      }
      for (const auto& seeker : all) {
        EXPECT_TRUE(seeker->Wait() || seeker->Meet(GetConductor()))
            << base::ReasonKey(seeker->failed);
      }
      EXPECT_TRUE(barrier.Meet(0));
    });
    const pid_t other = Spawn([&] {
      Conductor* conductor = GetConductor();
      auto first = ConnectorSeeker(pairs[0].connector);
      EXPECT_TRUE(first->Meet(conductor));
      EXPECT_TRUE(barrier.Meet(1));
      ::kill(stopped, SIGSTOP);
      EXPECT_TRUE(Eventually([&] { return Stopped(stopped); }));
      std::vector<std::shared_ptr<TestSeeker>> all;
      for (std::size_t i = 1; i < pairs.size(); ++i) {
        all.push_back(ConnectorSeeker(pairs[i].connector));
        all.back()->Start(conductor);
      }
      Drain(conductor);
      // One segment has 64 numbers: a hundred offers would have made another.
      EXPECT_EQ(first->link()->segments(), 1);
      ::kill(stopped, SIGCONT);
      EXPECT_TRUE(barrier.Meet(1));
      for (const auto& seeker : all) {
        EXPECT_TRUE(seeker->Wait() || seeker->Meet(conductor))
            << base::ReasonKey(seeker->failed);
      }
      EXPECT_TRUE(barrier.Meet(1));
    });
    ExpectSuccess(other);
    ExpectSuccess(stopped);
    for (const TcpPair& pair : pairs) {
      ::close(pair.connector);
      ::close(pair.acceptor);
    }
  }
}

}  // namespace
}  // namespace rcsock::rendezvous
