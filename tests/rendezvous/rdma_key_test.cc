// Ends with and without a cluster key.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/rendezvous/rdma_util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

std::string WriteKey(const char* name, char fill) {
  const std::string path =
      std::string(::testing::TempDir()) + "/rcsock_key_" + name;
  std::ofstream(path) << std::string(40, fill);
  return path;
}

void UseKey(const std::string& path) {
  if (!path.empty()) ::setenv("RCSOCK_KEY_FILE", path.c_str(), 1);
  base::LoadConfig();
}

void MeetWithKeys(const std::string& c_key, const std::string& s_key,
                  bool success) {
  Barrier barrier;
  const TcpPair pair = MakeDevicePair();
  const pid_t server = Spawn([&] {
    UseKey(s_key);
    auto s = AcceptorSeeker(pair.acceptor);
    if (success) {
      ASSERT_TRUE(s->Meet(GetConductor())) << base::ReasonKey(s->failed);
      EXPECT_TRUE(s->authenticated);
      UseLane(s.get());
    } else {
      s->Start(GetConductor());
      s->Wait();
      EXPECT_EQ(s->failed, Reason::kPeerPlain);
    }
    EXPECT_TRUE(barrier.Meet(0));
  });
  const pid_t client = Spawn([&] {
    UseKey(c_key);
    auto c = ConnectorSeeker(pair.connector);
    if (success) {
      ASSERT_TRUE(c->Meet(GetConductor())) << base::ReasonKey(c->failed);
      EXPECT_TRUE(c->authenticated);
      UseLane(c.get());
    } else {
      c->Meet(GetConductor());
      EXPECT_EQ(c->lane, nullptr);
      EXPECT_EQ(c->failed, Reason::kPeerKey);
      EXPECT_TRUE(c->final);
    }
    EXPECT_TRUE(barrier.Meet(1));
  });
  ExpectSuccess(client);
  ExpectSuccess(server);
}

TEST_F(RdmaTest, SameKey) {
  const std::string key = WriteKey("a", 'a');
  MeetWithKeys(key, key, true);
}
TEST_F(RdmaTest, DifferentKeys) {
  MeetWithKeys(WriteKey("a", 'a'), WriteKey("b", 'b'), false);
}
TEST_F(RdmaTest, OnlyTheConnectorHasAKey) {
  MeetWithKeys(WriteKey("a", 'a'), "", false);
}
TEST_F(RdmaTest, OnlyTheAcceptorHasAKey) {
  MeetWithKeys("", WriteKey("a", 'a'), false);
}

TEST_F(RdmaTest, AKeyThatCannotBeReadMeansNoRdma) {
  ::setenv("RCSOCK_KEY_FILE", "/nonexistent", 1);
  base::LoadConfig();
  EXPECT_FALSE(base::GetConfig().rdma);
  ::unsetenv("RCSOCK_KEY_FILE");
}

}  // namespace
}  // namespace rcsock::rendezvous
