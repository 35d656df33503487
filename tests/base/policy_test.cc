#include "lib/base/policy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "lib/base/config.h"

namespace rcsock::base {
namespace {

constexpr char kTen[] = "00000000000000000000ffff0a000000";  // 10.0.0.0

// An IPv4 address in IPv6 form.
struct Peer {
  std::uint8_t bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  Peer(int a, int b, int c, int d) {
    bytes[12] = static_cast<std::uint8_t>(a);
    bytes[13] = static_cast<std::uint8_t>(b);
    bytes[14] = static_cast<std::uint8_t>(c);
    bytes[15] = static_cast<std::uint8_t>(d);
  }
};

class Policy : public testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"RCSOCK_RULES", "RCSOCK_LANES", "RCSOCK_SPIN_US",
                             "RCSOCK_PROMOTE_OPS", "RCSOCK_PROMOTE_BYTES",
                             "RCSOCK_MAX_QPS", "RCSOCK_RDMA_PORT"}) {
      ::unsetenv(name);
    }
    LoadConfig();
  }
  static bool Load(const std::string& rules, const char* program = "prog",
                   const char* comm = "script") {
    config = Config{};
    config.terms = {true, true, 8, 65536};
    return ParseRules(rules.c_str(), program, comm, &config.rules);
  }
  static std::string Lanes(const Peer& peer, std::uint16_t port,
                           bool accepted) {
    const Terms terms = TermsFor(config, peer.bytes, port, accepted);
    return std::string(terms.shm ? "s" : "") + (terms.rdma ? "r" : "") +
           (terms.promote_ops == 1 ? "!" : "");
  }
  static inline Config config;
};

TEST_F(Policy, WithoutRulesTheDefaultHolds) {
  ASSERT_TRUE(Load(""));
  EXPECT_EQ("sr", Lanes({10, 0, 0, 1}, 80, false));
}

TEST_F(Policy, EachSettingIsOfTheFirstRuleThatNamesIt) {
  ASSERT_TRUE(
      Load("port=80-80,promote=eager;port=1-100,lanes=shm;"
           "lanes=tcp,promote=adaptive"));
  EXPECT_EQ("s!", Lanes({10, 0, 0, 1}, 80, false));
  EXPECT_EQ("s", Lanes({10, 0, 0, 1}, 81, false));
  EXPECT_EQ("", Lanes({10, 0, 0, 1}, 101, false));
}

TEST_F(Policy, Prefixes) {
  const std::string ten = std::string("addr=") + kTen;
  ASSERT_TRUE(Load(ten + "/104,lanes=tcp"));
  EXPECT_EQ("", Lanes({10, 255, 0, 1}, 80, false));
  EXPECT_EQ("sr", Lanes({11, 0, 0, 1}, 80, false));
  // Bits within a byte.
  ASSERT_TRUE(Load(ten + "/103,lanes=tcp"));
  EXPECT_EQ("", Lanes({11, 0, 0, 1}, 80, false));
  EXPECT_EQ("sr", Lanes({12, 0, 0, 1}, 80, false));
  // Whole addresses, and none of it.
  ASSERT_TRUE(Load(ten + "/128,lanes=tcp"));
  EXPECT_EQ("", Lanes({10, 0, 0, 0}, 80, false));
  EXPECT_EQ("sr", Lanes({10, 0, 0, 1}, 80, false));
  ASSERT_TRUE(Load(ten + "/0,lanes=tcp"));
  EXPECT_EQ("", Lanes({192, 168, 0, 1}, 80, false));
}

TEST_F(Policy, Directions) {
  ASSERT_TRUE(Load("dir=in,lanes=tcp"));
  EXPECT_EQ("", Lanes({10, 0, 0, 1}, 80, true));
  EXPECT_EQ("sr", Lanes({10, 0, 0, 1}, 80, false));
  ASSERT_TRUE(Load("dir=out,lanes=rdma"));
  EXPECT_EQ("sr", Lanes({10, 0, 0, 1}, 80, true));
  EXPECT_EQ("r", Lanes({10, 0, 0, 1}, 80, false));
}

TEST_F(Policy, NeverIsNoLane) {
  ASSERT_TRUE(Load("promote=never;lanes=shm"));
  EXPECT_EQ("", Lanes({10, 0, 0, 1}, 80, true));
}

TEST_F(Policy, Programs) {
  ASSERT_TRUE(Load("prog=other,lanes=tcp;prog=pr?g,lanes=shm"));
  EXPECT_EQ("s", Lanes({10, 0, 0, 1}, 80, true));
  ASSERT_TRUE(Load("prog=scr*,lanes=shm"));
  EXPECT_EQ("s", Lanes({10, 0, 0, 1}, 80, true));
  ASSERT_TRUE(Load("prog=other,spin=7;prog=prog,spin=8,qps=3;spin=9"));
  EXPECT_TRUE(config.rules.sets_spin);
  EXPECT_EQ(8u, config.rules.spin_us);
  EXPECT_EQ(3u, config.rules.max_qps);
  EXPECT_FALSE(config.rules.sets_pinned);
  ASSERT_TRUE(Load("prog=other,ring=16384;prog=prog,ring=65536;ring=1048576"));
  EXPECT_TRUE(config.rules.sets_ring);
  EXPECT_EQ(65536u, config.rules.max_ring);
}

TEST_F(Policy, Malformed) {
  for (const char* bad : {"x=1",
                          "lanes",
                          "lanes=",
                          "lanes=ib",
                          "dir=both",
                          "port=80",
                          "port=2-1",
                          "port=1-65536",
                          "port=-1-2",
                          "port=a-b",
                          "addr=10.0.0.0/8",
                          "addr=00/8",
                          "promote=",
                          "promote=fast",
                          "spin=",
                          "spin=4294967296",
                          "qps=x",
                          "ring=16383",
                          "dir=in,ring=65536",
                          "dir=in,spin=1",
                          "port=1-2,qps=1",
                          "lanes=tcp;x"}) {
    EXPECT_FALSE(Load(bad)) << bad;
    EXPECT_EQ(0, config.rules.count) << bad;
  }
  EXPECT_FALSE(Load(std::string("addr=") + kTen + "/129,lanes=tcp"));
  EXPECT_FALSE(Load(std::string("addr=") + kTen + ",lanes=tcp"));
  std::string many;
  for (int i = 0; i < kMaxRules; ++i) many += "lanes=tcp;";
  EXPECT_TRUE(Load(many));
  EXPECT_FALSE(Load(many + "lanes=tcp"));
}

TEST_F(Policy, TheEnvironmentOverrides) {
  ::setenv("RCSOCK_RULES", "lanes=tcp,promote=eager,spin=7,qps=9", 1);
  LoadConfig();
  const Peer peer(10, 0, 0, 1);
  Terms terms = TermsFor(GetConfig(), peer.bytes, 80, true);
  EXPECT_FALSE(terms.shm || terms.rdma);
  EXPECT_EQ(1u, terms.promote_ops);
  EXPECT_EQ(7u, GetConfig().spin_us);
  EXPECT_EQ(9u, GetConfig().max_qps);
  ::setenv("RCSOCK_LANES", "shm", 1);
  ::setenv("RCSOCK_PROMOTE_OPS", "5", 1);
  ::setenv("RCSOCK_SPIN_US", "3", 1);
  ::setenv("RCSOCK_MAX_QPS", "4", 1);
  LoadConfig();
  terms = TermsFor(GetConfig(), peer.bytes, 80, true);
  EXPECT_TRUE(terms.shm);
  EXPECT_FALSE(terms.rdma);
  EXPECT_EQ(5u, terms.promote_ops);
  EXPECT_EQ(3u, GetConfig().spin_us);
  EXPECT_EQ(4u, GetConfig().max_qps);
}

// What is no number, or too large for what it is for, changes nothing.
TEST_F(Policy, NumbersOfTheEnvironment) {
  for (const char* wrong : {"x", "-1", " -1", "+1", " 1", "1 ", "0x10", "1e3",
                            "4294967296", "99999999999999999999"}) {
    for (const char* name : {"RCSOCK_SPIN_US", "RCSOCK_MAX_QPS",
                             "RCSOCK_PROMOTE_OPS", "RCSOCK_RDMA_PORT"}) {
      ::setenv(name, wrong, 1);
    }
    LoadConfig();
    // (With one CPU nothing spins.)
    EXPECT_EQ(::sysconf(_SC_NPROCESSORS_ONLN) == 1 ? 0u : 100u,
              GetConfig().spin_us)
        << wrong;
    EXPECT_EQ(512u, GetConfig().max_qps) << wrong;
    EXPECT_EQ(8u, GetConfig().promote_ops) << wrong;
    EXPECT_EQ(18591, GetConfig().rdma_port) << wrong;
  }
  ::setenv("RCSOCK_SPIN_US", "4294967295", 1);
  ::setenv("RCSOCK_PROMOTE_BYTES", "64K", 1);
  ::setenv("RCSOCK_RDMA_PORT", "65535", 1);
  LoadConfig();
  EXPECT_EQ(4294967295u, GetConfig().spin_us);
  EXPECT_EQ(65536u, GetConfig().promote_bytes);
  EXPECT_EQ(65535, GetConfig().rdma_port);
}

TEST_F(Policy, MalformedRulesInTheEnvironmentMeanTcp) {
  ::setenv("RCSOCK_RULES", "nonsense", 1);
  LoadConfig();
  const Terms terms = TermsFor(GetConfig(), Peer(10, 0, 0, 1).bytes, 80, true);
  EXPECT_FALSE(terms.shm || terms.rdma);
}

}  // namespace
}  // namespace rcsock::base
