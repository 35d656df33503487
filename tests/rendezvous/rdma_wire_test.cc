#include "lib/rendezvous/rdma_wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "lib/lane/rdma/layout.h"

namespace rcsock::rendezvous {
namespace {

Tuple MakeTestTuple() {
  Tuple tuple{};
  tuple.c_addr[15] = 1;
  tuple.s_addr[15] = 2;
  tuple.c_port = 40000;
  tuple.s_port = 80;
  return tuple;
}

stream::Nonce MakeNonce(std::uint8_t first) {
  stream::Nonce nonce{};
  for (std::size_t i = 0; i < nonce.size(); ++i) {
    nonce[i] = static_cast<std::uint8_t>(first + i);
  }
  return nonce;
}

ClusterKey MakeKey(char fill) {
  const std::vector<std::uint8_t> bytes(32, static_cast<std::uint8_t>(fill));
  return MakeClusterKey(bytes.data(), bytes.size());
}

lane::rdma::Offer MakeOffer() {
  lane::rdma::Offer offer{};
  offer.address = 0x7f0000010000;
  offer.credit = 0x7f0000010040;
  offer.key = 0x1234;
  offer.bytes = lane::rdma::RingBytes(lane::rdma::kBlockMin);
  offer.messages = lane::rdma::kMessages;
  return offer;
}

const Tuple kTuple = MakeTestTuple();
const Req kReq{40000, 80, 7, MakeNonce(1)};

TEST(RdmaWire, ReqByteByByte) {
  const ReqBytes bytes = EncodeReq(kReq, kTuple, {});
  const std::vector<std::uint8_t> right = {
      'r', 'c', 's', 'r', 11, 1, 48, 0, 0x40, 0x9c, 80, 0,  7,  0,  0,  0,
      1,   2,   3,   4,   5,  6, 7,  8, 9,    10,   11, 12, 13, 14, 15, 16,
      0,   0,   0,   0,   0,  0, 0,  0, 0,    0,    0,  0,  0,  0,  0,  0};
  EXPECT_EQ(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), right);
}

TEST(RdmaWire, RepSaysWhetherItsSenderIsReady) {
  for (const bool adopted : {false, true}) {
    RepBytes bytes = EncodeRep({7, MakeNonce(100), MakeOffer(), adopted},
                               kTuple, kReq.nonce, {});
    EXPECT_EQ(bytes[12], adopted ? 1 : 0);
    Rep rep;
    ASSERT_EQ(
        DecodeRep(bytes.data(), bytes.size(), kTuple, kReq.nonce, {}, &rep),
        Parsed::kOk);
    EXPECT_EQ(rep.adopted, adopted);
    // No other flag is known.
    bytes[12] |= 2;
    EXPECT_EQ(
        DecodeRep(bytes.data(), bytes.size(), kTuple, kReq.nonce, {}, &rep),
        Parsed::kForeign);
  }
}

TEST(RdmaWire, RejByteByByte) {
  const RejBytes bytes =
      EncodeRej({RejCode::kRedirect, 0x1234}, kReq.nonce, {});
  const std::vector<std::uint8_t> right = {
      'r', 'c', 's', 'r', 11, 3, 28, 0, 2, 0, 0x34, 0x12, 0, 0,
      0,   0,   0,   0,   0,  0, 0,  0, 0, 0, 0,    0,    0, 0};
  EXPECT_EQ(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), right);
}

TEST(RdmaWire, RoundTrips) {
  for (const ClusterKey& key : {ClusterKey{}, MakeKey('k')}) {
    const ReqBytes req_bytes = EncodeReq(kReq, kTuple, key);
    // As rxe delivers it.
    std::vector<std::uint8_t> padded(req_bytes.begin(), req_bytes.end());
    padded.resize(56);
    Req req;
    ASSERT_EQ(DecodeReq(padded.data(), padded.size(), &req), Parsed::kOk);
    EXPECT_TRUE(CheckReq(padded.data(), kTuple, key));
    EXPECT_EQ(req.c_port, kReq.c_port);
    EXPECT_EQ(req.s_port, kReq.s_port);
    EXPECT_EQ(req.epoch, kReq.epoch);
    EXPECT_EQ(req.nonce, kReq.nonce);

    const RepBytes rep_bytes =
        EncodeRep({7, MakeNonce(100), MakeOffer()}, kTuple, kReq.nonce, key);
    Rep rep;
    ASSERT_EQ(DecodeRep(rep_bytes.data(), rep_bytes.size(), kTuple, kReq.nonce,
                        key, &rep),
              Parsed::kOk);
    EXPECT_EQ(rep.epoch, 7u);
    EXPECT_EQ(rep.nonce, MakeNonce(100));
    EXPECT_EQ(rep.offer.address, MakeOffer().address);
    EXPECT_EQ(rep.offer.bytes, MakeOffer().bytes);

    for (const Rej& sent :
         {Rej{RejCode::kLater, 0}, Rej{RejCode::kRedirect, 4791},
          Rej{RejCode::kOtherVersion, 0}, Rej{RejCode::kRefused, 0},
          Rej{RejCode::kKey, 0}}) {
      const RejBytes rej_bytes = EncodeRej(sent, kReq.nonce, key);
      Rej rej;
      ASSERT_EQ(
          DecodeRej(rej_bytes.data(), rej_bytes.size(), kReq.nonce, key, &rej),
          Parsed::kOk);
      EXPECT_EQ(rej.code, sent.code);
      EXPECT_EQ(rej.port, sent.port);
    }
  }
}

// With a key, no bit of a message, of the tuple, or of the nonce can differ.
TEST(RdmaWire, EveryBitIsAuthenticated) {
  const ClusterKey key = MakeKey('k');
  const ReqBytes req_bytes = EncodeReq(kReq, kTuple, key);
  for (std::size_t bit = 0; bit < 8 * kReqSize; ++bit) {
    ReqBytes bytes = req_bytes;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    Req req;
    EXPECT_FALSE(DecodeReq(bytes.data(), bytes.size(), &req) == Parsed::kOk &&
                 CheckReq(bytes.data(), kTuple, key))
        << bit;
  }
  const RepBytes rep_bytes =
      EncodeRep({7, MakeNonce(100), MakeOffer()}, kTuple, kReq.nonce, key);
  Rep rep;
  for (std::size_t bit = 0; bit < 8 * kRepSize; ++bit) {
    RepBytes bytes = rep_bytes;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    EXPECT_NE(
        DecodeRep(bytes.data(), bytes.size(), kTuple, kReq.nonce, key, &rep),
        Parsed::kOk)
        << bit;
  }
  for (std::size_t bit = 0; bit < 8 * sizeof(Tuple); ++bit) {
    Tuple tuple;
    std::uint8_t raw[sizeof tuple];
    std::memcpy(raw, &kTuple, sizeof raw);
    raw[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    std::memcpy(&tuple, raw, sizeof raw);
    EXPECT_FALSE(CheckReq(req_bytes.data(), tuple, key)) << bit;
    EXPECT_EQ(DecodeRep(rep_bytes.data(), rep_bytes.size(), tuple, kReq.nonce,
                        key, &rep),
              Parsed::kKey)
        << bit;
  }
  EXPECT_EQ(DecodeRep(rep_bytes.data(), rep_bytes.size(), kTuple, MakeNonce(2),
                      key, &rep),
            Parsed::kKey);
  Rej rej;
  const RejBytes rej_bytes =
      EncodeRej({RejCode::kRedirect, 4791}, kReq.nonce, key);
  EXPECT_EQ(
      DecodeRej(rej_bytes.data(), rej_bytes.size(), MakeNonce(2), key, &rej),
      Parsed::kKey);
}

TEST(RdmaWire, KeysMustAgree) {
  for (const ClusterKey& mine : {ClusterKey{}, MakeKey('a'), MakeKey('b')}) {
    for (const ClusterKey& theirs :
         {ClusterKey{}, MakeKey('a'), MakeKey('b')}) {
      const bool same = mine.set == theirs.set && mine.bytes == theirs.bytes;
      const ReqBytes bytes = EncodeReq(kReq, kTuple, theirs);
      EXPECT_EQ(CheckReq(bytes.data(), kTuple, mine), same);
    }
  }
  EXPECT_FALSE(MakeClusterKey(nullptr, 0).set);
}

// It holds for one end of one handshake of one connection.
TEST(RdmaWire, MacOfReady) {
  const ClusterKey key = MakeKey('k');
  stream::Nonce one;
  stream::Nonce two;
  one.fill(1);
  two.fill(2);
  const auto mac =
      MacOfReady(stream::Role::kConnector, 7, kTuple, one, two, key);
  EXPECT_EQ(mac,
            MacOfReady(stream::Role::kConnector, 7, kTuple, one, two, key));
  Tuple other = kTuple;
  other.c_port = static_cast<std::uint16_t>(other.c_port ^ 1);
  for (const auto& wrong :
       {MacOfReady(stream::Role::kAcceptor, 7, kTuple, one, two, key),
        MacOfReady(stream::Role::kConnector, 8, kTuple, one, two, key),
        MacOfReady(stream::Role::kConnector, 7, other, one, two, key),
        MacOfReady(stream::Role::kConnector, 7, kTuple, one, one, key),
        MacOfReady(stream::Role::kConnector, 7, kTuple, two, two, key),
        MacOfReady(stream::Role::kConnector, 7, kTuple, one, two, MakeKey('l')),
        MacOfReady(stream::Role::kConnector, 7, kTuple, one, two, {})}) {
    EXPECT_NE(mac, wrong);
  }
  EXPECT_EQ(MacOfReady(stream::Role::kConnector, 7, kTuple, one, two, {}),
            lane::rdma::ReadyMac{});
}

TEST(RdmaWire, VersionsAndTruncation) {
  ReqBytes bytes = EncodeReq(kReq, kTuple, {});
  Req req;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(DecodeReq(bytes.data(), length, &req), Parsed::kForeign);
  }
  EXPECT_EQ(DecodeReq(nullptr, 0, &req), Parsed::kForeign);
  bytes[4] = kRdmaVersion + 1;
  EXPECT_EQ(DecodeReq(bytes.data(), bytes.size(), &req), Parsed::kOtherVersion);
  // A later version's message may be shorter.
  EXPECT_EQ(DecodeReq(bytes.data(), 8, &req), Parsed::kOtherVersion);
}

// Whatever comes: an answer, and nothing read beyond the end (sanitizers).
TEST(RdmaWire, Noise) {
  std::mt19937 random(1);
  const ClusterKey key = MakeKey('k');
  for (int i = 0; i < 200'000; ++i) {
    const std::size_t length = random() % 200;
    std::vector<std::uint8_t> bytes(length);
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
    if (length > 8 && i % 2 == 0) {
      const RepBytes sound =
          EncodeRep({7, MakeNonce(100), MakeOffer()}, kTuple, kReq.nonce, {});
      std::memcpy(bytes.data(), sound.data(), std::min<std::size_t>(8, length));
      bytes[5] = static_cast<std::uint8_t>(1 + i / 2 % 3);
      bytes[6] = i / 2 % 3 == 0 ? 48 : i / 2 % 3 == 1 ? 80 : 28;
    }
    Req req;
    Rep rep;
    Rej rej;
    const ClusterKey& any = i % 4 < 2 ? key : ClusterKey{};
    DecodeReq(bytes.data(), length, &req);
    EXPECT_NE(DecodeRep(bytes.data(), length, kTuple, kReq.nonce, any, &rep),
              Parsed::kOk);
    if (DecodeRej(bytes.data(), length, kReq.nonce, any, &rej) == Parsed::kOk) {
      EXPECT_TRUE(rej.code == RejCode::kOtherVersion ||
                  rej.code == RejCode::kKey);
    }
  }
}

}  // namespace
}  // namespace rcsock::rendezvous
