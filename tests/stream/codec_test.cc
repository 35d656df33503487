// Frames and control messages, byte by byte.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "lib/stream/stream.h"

namespace rcsock::stream {
namespace {

TEST(FramesTest, BytesAreThoseOfTheDocument) {
  FrameBytes bytes = Encode(
      Frame{FrameKind::kFin, kFrameClosed, 0x01020304, 0x1122334455667788});
  const FrameBytes expected = {4,    1,    0x46, 0x52, 4,    3,    2,    1,
                               0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11};
  EXPECT_EQ(bytes, expected);
  Frame frame;
  ASSERT_TRUE(Decode(bytes, &frame));
  EXPECT_EQ(frame.kind, FrameKind::kFin);
  EXPECT_EQ(frame.epoch, 0x01020304u);
  EXPECT_EQ(frame.offset, 0x1122334455667788u);
}

TEST(FramesTest, NonsenseIsNotDecoded) {
  FrameBytes good = Encode(Frame{FrameKind::kGot, 0, 1, 0});
  Frame frame;
  for (int kind : {0, 11, 255}) {
    FrameBytes bytes = good;
    bytes[0] = static_cast<std::uint8_t>(kind);
    EXPECT_FALSE(Decode(bytes, &frame)) << kind;
  }
  FrameBytes flags = good;
  flags[1] = kFrameClosed;  // only FIN has it
  EXPECT_FALSE(Decode(flags, &frame));
  FrameBytes magic = good;
  magic[3] ^= 1;
  EXPECT_FALSE(Decode(magic, &frame));
}

TEST(FramesTest, CtlRoundTripAndChecks) {
  Ctl ctl;
  ctl.kind = CtlKind::kPropose;
  ctl.flags = kCtlFlip;
  ctl.tail = 64;
  ctl.epoch = 9;
  ctl.offset = 1ull << 40;
  ctl.mac.fill(0x5a);
  CtlBytes bytes = Encode(ctl);
  static_assert(kCtlSize <= lane::Lane::kCtlMax);
  Ctl out;
  ASSERT_TRUE(Decode(bytes.data(), bytes.size(), &out));
  EXPECT_EQ(out.tail, 64);
  EXPECT_EQ(out.offset, 1ull << 40);
  EXPECT_EQ(out.mac, ctl.mac);
  EXPECT_FALSE(Decode(bytes.data(), bytes.size() - 1, &out));
  bytes[16] = 65;
  EXPECT_FALSE(Decode(bytes.data(), bytes.size(), &out));
}

TEST(FramesTest, MacDependsOnEverything) {
  Nonce c{}, s{};
  c[0] = 1;
  const std::uint8_t tail[3] = {1, 2, 3};
  Mac mac = TailMac(c, s, 1, 10, tail, 3);
  EXPECT_TRUE(Equal(mac, TailMac(c, s, 1, 10, tail, 3)));
  EXPECT_FALSE(Equal(mac, TailMac(s, c, 1, 10, tail, 3)));
  EXPECT_FALSE(Equal(mac, TailMac(c, s, 2, 10, tail, 3)));
  EXPECT_FALSE(Equal(mac, TailMac(c, s, 1, 11, tail, 3)));
  EXPECT_FALSE(Equal(mac, TailMac(c, s, 1, 10, tail, 2)));
}

TEST(TailTest, KeepsTheLast64) {
  Tail tail;
  std::string all;
  for (int n : {3, 0, 60, 1, 64, 5, 200, 63}) {
    std::string piece;
    for (int i = 0; i < n; ++i) piece += static_cast<char>(all.size() + i);
    all += piece;
    tail.Push(piece.data(), piece.size());
    std::size_t keep = std::min<std::size_t>(64, all.size());
    ASSERT_EQ(tail.size(), keep);
    EXPECT_EQ(
        std::memcmp(tail.Last(keep), all.data() + all.size() - keep, keep), 0);
  }
}

}  // namespace
}  // namespace rcsock::stream
