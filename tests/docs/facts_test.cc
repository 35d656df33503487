// Lists and numbers of the documentation that are the code's: who changes one
// of them is told of the page.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "lib/base/config.h"
#include "lib/base/reason.h"
#include "lib/lane/rdma/layout.h"
#include "lib/lane/rdma/offer.h"
#include "lib/rendezvous/rdma_wire.h"
#include "lib/rendezvous/wire.h"
#include "lib/stream/frames.h"

namespace rcsock {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// A page, and where it is.
class Page {
 public:
  explicit Page(const char* path) : path_(path), text_(Read(path)) {}
  void Says(const std::string& what) const {
    EXPECT_NE(text_.find(what), std::string::npos)
        << path_ << " does not say: " << what;
  }
  // The number of `unit` behind `before`.
  void Says(const std::string& before, std::uint64_t number,
            const std::string& behind) const {
    Says(before + std::to_string(number) + behind);
  }

 private:
  const std::string path_;
  const std::string text_;
};

// "72 63 73 6b"
std::string Hex(std::uint32_t little_endian) {
  std::string text;
  for (int i = 0; i < 4; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof byte, "%s%02x", i == 0 ? "" : " ",
                  little_endian >> 8 * i & 0xff);
    text += byte;
  }
  return text;
}

TEST(Facts, EachReasonIsInTheTable) {
  const Page page("docs/tools.md");
#define X(id, key, text)                         \
  if (base::Reason::id != base::Reason::kNone) { \
    page.Says("\n| `" key "` | " text " |\n");   \
  }
  RCSOCK_REASONS(X)
#undef X
}

TEST(Facts, EachVariableIsInTheManual) {
  const std::string code = Read("lib/base/config.cc");
  const Page page("docs/man/rcsock-run.1");
  const std::regex variable("\"(RCSOCK_[A-Z_]+)\"");
  std::set<std::string> all;
  for (std::sregex_iterator at(code.begin(), code.end(), variable), end;
       at != end; ++at) {
    all.insert((*at)[1]);
  }
  EXPECT_EQ(all, std::set<std::string>(std::begin(base::kVariables),
                                       std::end(base::kVariables)));
  for (const std::string& one : all) page.Says(one);
}

TEST(Facts, Defaults) {
  const base::Config config;
  const Page page("docs/man/rcsock-run.1");
  page.Says("in microseconds (", config.spin_us, ";");
  page.Says("RDMA lanes at one time (", config.max_qps, ")");
  page.Says("ports below 1024 (", config.rdma_port, ")");
  page.Says("A key of " + std::to_string(base::kLeastKey) + " to ",
            sizeof config.key, " bytes");
  page.Says("after ", config.promote_ops, " calls or 64 KiB");
  EXPECT_EQ(64u << 10, config.promote_bytes);
}

TEST(Facts, RendezvousOnOneHost) {
  const Page page("docs/rendezvous.md");
  page.Says("magic(4) `" + Hex(rendezvous::kMagic) + "`");
  page.Says("version(1) ", rendezvous::kVersion, " (of");
}

TEST(Facts, PrivateData) {
  const Page page("docs/protocol.md");
  page.Says("magic `" + Hex(rendezvous::kRdmaMagic) + "`");
  page.Says("version: ", rendezvous::kRdmaVersion, " |");
  page.Says("length: " + std::to_string(rendezvous::kReqSize) + ", " +
            std::to_string(rendezvous::kRepSize) + ", " +
            std::to_string(rendezvous::kRejSize));
  page.Says("**Offer** (", lane::rdma::kOfferSize, " bytes;");
}

TEST(Facts, FramesAndControlMessages) {
  const Page page("docs/protocol.md");
  page.Says("**Frames** (TCP, ", stream::kFrameSize, " bytes)");
  page.Says("**Control messages** (lane, ", stream::kCtlSize, " bytes)");
  page.Says("", static_cast<int>(stream::FrameKind::kReset), " RESET |");
  page.Says("", static_cast<int>(stream::CtlKind::kEnd), " END |");
}

TEST(Facts, RdmaBlocks) {
  using namespace lane::rdma;  // NOLINT: of one test
  const Page page("docs/protocol.md");
  page.Says("| " + std::to_string(kSlotsAt) + " | " +
            std::to_string(kRingAt - kSlotsAt) + " | " +
            std::to_string(kMessages) + " slots of " +
            std::to_string(kSlotBytes) + " bytes");
  page.Says("| ", kRingAt, " | the rest | the byte ring");
  page.Says("a block less ", kRingAt, "");
  page.Says("on iWARP of short data ", kSendData, "");
  page.Says("powers of two from ", kBlockMin >> 10, " KiB to 8 MiB");
  EXPECT_EQ(std::size_t{8} << 20, kBlockMax);
}

}  // namespace
}  // namespace rcsock
