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
    for (const char* name :
         {"RCSOCK_RULES", "RCSOCK_LANES", "RCSOCK_SPIN_US", "RCSOCK_PROFILE",
          "RCSOCK_PROMOTE_OPS", "RCSOCK_PROMOTE_BYTES", "RCSOCK_MAX_QPS",
          "RCSOCK_RDMA_PORT", "RCSOCK_ACK_TIMEOUT_MS", "RCSOCK_ACK_RETRIES",
          "RCSOCK_TRAFFIC_CLASS", "RCSOCK_DEVICES"}) {
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
  // "ack retries class devices"
  static std::string Lane(const Config& of, const Peer& peer,
                          std::uint16_t port, bool accepted) {
    const Fabric fabric = FabricFor(of, peer.bytes, port, accepted);
    return std::to_string(fabric.ack_ms) + " " +
           std::to_string(fabric.retries) + " " +
           std::to_string(fabric.traffic_class) + " " + fabric.devices;
  }
  static std::string Lane(const Peer& peer, std::uint16_t port, bool accepted) {
    return Lane(config, peer, port, accepted);
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

TEST_F(Policy, FabricOfEachStream) {
  ASSERT_TRUE(Load(""));
  EXPECT_EQ("134 6 -1 ", Lane({10, 0, 0, 1}, 80, false));
  ASSERT_TRUE(
      Load("port=80-80,ack=1000;dir=in,retries=7,devices=a;"
           "tclass=0;ack=8000,retries=1,tclass=255,devices=b:2+-c*"));
  EXPECT_EQ("1000 1 0 b:2+-c*", Lane({10, 0, 0, 1}, 80, false));
  EXPECT_EQ("8000 7 0 a", Lane({10, 0, 0, 1}, 81, true));
  // A setting of another kind alone makes a rule of lanes, too.
  EXPECT_EQ("sr", Lanes({10, 0, 0, 1}, 80, false));
  // Another program's.
  ASSERT_TRUE(Load("prog=other,ack=5,devices=x"));
  EXPECT_EQ("134 6 -1 ", Lane({10, 0, 0, 1}, 80, false));
}

TEST_F(Policy, DevicesOfAList) {
  struct Case {
    const char* list;
    const char* allowed;  // of a:1 a:2 b:1 ab:1
  };
  for (const auto& [list, allowed] : {
           Case{"", "a1 a2 b1 ab1 "},
           Case{"a", "a1 a2 "},
           Case{"a:2", "a2 "},
           Case{"a*", "a1 a2 ab1 "},
           Case{"-a", "b1 ab1 "},
           Case{"-a:1", "a2 b1 ab1 "},
           Case{"-a*", "b1 "},
           Case{"a*+-ab", "a1 a2 "},
           Case{"-ab+a*", "a1 a2 "},
           Case{"?:1", "a1 b1 "},
           Case{"a:2+b:1", "a2 b1 "},
           Case{"-*", ""},
           Case{"none", ""},
       }) {
    std::string found;
    for (const char* device : {"a", "b", "ab"}) {
      for (const unsigned port : {1u, 2u}) {
        if (port == 2 && *device != 'a') continue;
        if (port == 2 && device[1] != '\0') continue;
        if (MayUseDevice(list, device, port)) {
          found += device + std::to_string(port) + " ";
        }
      }
    }
    EXPECT_EQ(allowed, found) << list;
  }
}

TEST_F(Policy, ListsOfDevicesHaveABound) {
  const std::string longest(63, 'x');
  const std::string one = "devices=" + longest;
  EXPECT_TRUE(Load(one));
  EXPECT_FALSE(Load(one + "x"));
  // Seven lists of 63 bytes fit, and one of 62.  A list that is there already
  // takes no room.
  std::string all;
  for (int i = 0; i < 7; ++i) {
    all += "devices=" + std::to_string(i) + longest.substr(1) + ";";
  }
  EXPECT_TRUE(Load(all + all + "devices=" + longest.substr(1)));
  EXPECT_FALSE(Load(all + one));
}

TEST_F(Policy, FabricOfTheEnvironmentOverrides) {
  ::setenv("RCSOCK_RULES", "ack=1000,retries=2,tclass=3,devices=a", 1);
  LoadConfig();
  const Peer peer(10, 0, 0, 1);
  EXPECT_EQ("1000 2 3 a", Lane(GetConfig(), peer, 80, true));
  ::setenv("RCSOCK_ACK_TIMEOUT_MS", "8000", 1);
  ::setenv("RCSOCK_ACK_RETRIES", "7", 1);
  ::setenv("RCSOCK_TRAFFIC_CLASS", "0", 1);
  ::setenv("RCSOCK_DEVICES", "mlx5_0,mlx5_1:1,-irdma*", 1);
  LoadConfig();
  EXPECT_EQ("8000 7 0 mlx5_0+mlx5_1:1+-irdma*",
            Lane(GetConfig(), peer, 80, true));
  EXPECT_TRUE(TermsFor(GetConfig(), peer.bytes, 80, true).rdma);
}

// What is no number, or out of range, changes nothing.
TEST_F(Policy, FabricNumbersOfTheEnvironment) {
  for (const char* wrong : {"", "x", "-1", "0x10", "8001", "1s", "134 "}) {
    for (const char* name : {"RCSOCK_ACK_TIMEOUT_MS", "RCSOCK_ACK_RETRIES",
                             "RCSOCK_TRAFFIC_CLASS"}) {
      ::setenv(name, wrong, 1);
    }
    LoadConfig();
    EXPECT_EQ("134 6 -1 ", Lane(GetConfig(), {10, 0, 0, 1}, 80, true)) << wrong;
  }
  ::setenv("RCSOCK_ACK_TIMEOUT_MS", "0", 1);
  ::setenv("RCSOCK_ACK_RETRIES", "8", 1);
  ::setenv("RCSOCK_TRAFFIC_CLASS", "256", 1);
  LoadConfig();
  EXPECT_EQ("134 6 -1 ", Lane(GetConfig(), {10, 0, 0, 1}, 80, true));
}

// A device that was to be left alone is not used because of a slip.
TEST_F(Policy, MalformedDevicesInTheEnvironmentMeanNoRdma) {
  const std::string huge(600, 'x');
  for (const std::string& wrong :
       {std::string("mlx5 0"), std::string("mlx5_0,"), std::string(",mlx5_0"),
        std::string("-"), std::string("mlx5_0:0"), std::string("mlx5_0:256"),
        std::string("mlx5_0:"), std::string("mlx5_0:1:2"),
        std::string("mlx5_0+mlx5_1"), std::string("a/b"), std::string("[a]"),
        std::string("a;b"), std::string("a=b"), std::string("\xc3\xa4"),
        huge}) {
    ::setenv("RCSOCK_DEVICES", wrong.c_str(), 1);
    LoadConfig();
    const Terms terms =
        TermsFor(GetConfig(), Peer(10, 0, 0, 1).bytes, 80, true);
    EXPECT_TRUE(terms.shm) << wrong;
    EXPECT_FALSE(terms.rdma) << wrong;
  }
  ::setenv("RCSOCK_DEVICES", "", 1);
  LoadConfig();
  EXPECT_TRUE(TermsFor(GetConfig(), Peer(10, 0, 0, 1).bytes, 80, true).rdma);
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
                          "ack=0",
                          "ack=8001",
                          "ack=1s",
                          "ack=",
                          "retries=0",
                          "retries=8",
                          "tclass=256",
                          "tclass=-1",
                          "devices=",
                          "devices=+a",
                          "devices=a+",
                          "devices=a++b",
                          "devices=a b",
                          "devices=a:0",
                          "devices=-",
                          "prog=other,devices=:1",
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

TEST_F(Policy, LanesOfTheEnvironment) {
  struct Case {
    const char* text;
    bool shm;
    bool rdma;
  };
  for (const Case& one :
       std::initializer_list<Case>{{"", true, true},
                                   {"auto", true, true},
                                   {"shm", true, false},
                                   {"rdma", false, true},
                                   {"shm,rdma", true, true},
                                   {"rdma,shm", true, true},
                                   {"tcp", false, false},
                                   {"shm,", false, false},
                                   {",shm", false, false},
                                   {"shm,,rdma", false, false},
                                   {"shm,tcp", false, false},
                                   {"auto,shm", false, false},
                                   {"shm+rdma", false, false},
                                   {"ib", false, false}}) {
    ::setenv("RCSOCK_LANES", one.text, 1);
    LoadConfig();
    EXPECT_EQ(one.shm, GetConfig().terms.shm) << one.text;
    EXPECT_EQ(one.rdma, GetConfig().terms.rdma) << one.text;
    EXPECT_EQ(one.shm || one.rdma, GetConfig().enabled) << one.text;
  }
}

TEST_F(Policy, Profiles) {
  const bool one = ::sysconf(_SC_NPROCESSORS_ONLN) == 1;
  const auto load = [] {
    LoadConfig();
    return (GetConfig().spin_earned ? "earned " : "") +
           std::to_string(GetConfig().spin_us);
  };
  const std::string most = one ? "0" : "100";
  EXPECT_EQ("earned " + most, load());
  ::setenv("RCSOCK_PROFILE", "latency", 1);
  EXPECT_EQ(most, load());
  ::setenv("RCSOCK_PROFILE", "efficient", 1);
  EXPECT_EQ("0", load());
  ::setenv("RCSOCK_PROFILE", "fast", 1);
  EXPECT_EQ("earned " + most, load());
  // A number wins, where it is one.
  ::setenv("RCSOCK_PROFILE", "balanced", 1);
  ::setenv("RCSOCK_SPIN_US", "7", 1);
  EXPECT_EQ("7", load());
  ::setenv("RCSOCK_SPIN_US", "7us", 1);
  EXPECT_EQ("earned " + most, load());
  ::unsetenv("RCSOCK_SPIN_US");
  ::unsetenv("RCSOCK_PROFILE");
  ::setenv("RCSOCK_RULES", "profile=efficient", 1);
  EXPECT_EQ("0", load());
  ::setenv("RCSOCK_RULES", "spin=9,profile=balanced", 1);
  EXPECT_EQ("9", load());
  ::setenv("RCSOCK_PROFILE", "latency", 1);
  EXPECT_EQ(most, load());
  EXPECT_FALSE(Load("profile=fast"));
  EXPECT_FALSE(Load("profile=latency,dir=in"));
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
