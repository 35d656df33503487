// Peers on rdma_cm that do what they should not.  Needs a device, as rdma_test.

#include "lib/lane/rdma/layout.h"
#include "lib/rendezvous/rdma_wire.h"
#include "tests/rendezvous/rdma_util.h"

namespace rcsock::rendezvous {
namespace {

using base::Reason;

Tuple TupleOf(const TcpPair& pair) {
  sockaddr_storage local{};
  sockaddr_storage peer{};
  socklen_t length = sizeof local;
  ::getsockname(pair.connector, reinterpret_cast<sockaddr*>(&local), &length);
  length = sizeof peer;
  ::getpeername(pair.connector, reinterpret_cast<sockaddr*>(&peer), &length);
  Address local_address;
  Address peer_address;
  std::uint16_t local_port;
  std::uint16_t peer_port;
  EXPECT_TRUE(Normalise(local, &local_address, &local_port));
  EXPECT_TRUE(Normalise(peer, &peer_address, &peer_port));
  return MakeTuple(stream::Role::kConnector, local_address, local_port,
                   peer_address, peer_port);
}

Req ReqFor(const Tuple& tuple, std::uint8_t nonce) {
  Req req{tuple.c_port, tuple.s_port, 9, {}};
  req.nonce[0] = nonce;
  return req;
}

// What a REQ is answered with; 0: not by one of us.
int RejectionOf(const RawCm::Event& event, const stream::Nonce& nonce) {
  if (event.type != RDMA_CM_EVENT_REJECTED) return -1;
  Rej rej;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(event.data.data());
  if (DecodeRej(bytes, event.data.size(), nonce, {}, &rej) != Parsed::kOk) {
    return 0;
  }
  return static_cast<int>(rej.code);
}

class HostileRdma : public RdmaTest {};

// Runs `attack` against the RDMA port of a waiting acceptor, after which the
// true connector still meets it.
void Attack(const std::function<void(const TcpPair&)>& attack) {
  Barrier attacked;
  Barrier ready;
  const TcpPair pair = MakeDevicePair();
  const pid_t server = Spawn([&] {
    Conductor* conductor = GetConductor();
    auto s = AcceptorSeeker(pair.acceptor);
    s->Start(conductor);
    Drain(conductor);  // the search has begun: it listens
    EXPECT_TRUE(ready.Meet(0));
    s->Wait();
    EXPECT_TRUE(attacked.Meet(0));
    if (s->lane != nullptr) {
      conductor->ReturnLane(s, std::move(s->lane));
    }
    ASSERT_TRUE(s->Meet(conductor)) << base::ReasonKey(s->failed);
    ExchangeNonces(s.get());
    EXPECT_TRUE(attacked.Meet(0));
  });
  const pid_t client = Spawn([&] {
    EXPECT_TRUE(ready.Meet(1));
    attack(pair);
    EXPECT_TRUE(attacked.Meet(1));
    auto c = ConnectorSeeker(pair.connector);
    ASSERT_TRUE(c->Meet(GetConductor())) << base::ReasonKey(c->failed);
    ExchangeNonces(c.get());
    EXPECT_TRUE(attacked.Meet(1));
  });
  ExpectSuccess(client);
  ExpectSuccess(server);
}

TEST_F(HostileRdma, ForgedRequests) {
  Attack([](const TcpPair& pair) {
    const Tuple tuple = TupleOf(pair);
    const std::uint16_t port = ServicePortOf(pair);
    const Req req = ReqFor(tuple, 1);
    const ReqBytes sound = EncodeReq(req, tuple, {});
    const auto send = [&](const void* data, std::size_t length,
                          const stream::Nonce& nonce) {
      RawCm raw;
      return RejectionOf(raw.Connect(port, data, length), nonce);
    };
    const stream::Nonce none{};
    EXPECT_EQ(send(nullptr, 0, none), static_cast<int>(RejCode::kRefused));
    EXPECT_EQ(send("GET / HTTP/1.0\r\n", 16, none),
              static_cast<int>(RejCode::kRefused));
    // Cut off where rxe's padding of zeros does not make it whole.
    EXPECT_EQ(send(sound.data(), 8, none), static_cast<int>(RejCode::kRefused));
    ReqBytes bytes = sound;
    bytes[4] = kRdmaVersion + 1;
    EXPECT_EQ(send(bytes.data(), bytes.size(), none),
              static_cast<int>(RejCode::kOtherVersion));
    bytes = sound;
    bytes[40] = 1;  // a MAC, where no key is set
    EXPECT_EQ(send(bytes.data(), bytes.size(), req.nonce),
              static_cast<int>(RejCode::kKey));
    // Of a connection that there is not.
    Tuple other = tuple;
    other.c_port = static_cast<std::uint16_t>(other.c_port ^ 1);
    const ReqBytes unknown = EncodeReq(ReqFor(other, 2), other, {});
    EXPECT_EQ(send(unknown.data(), unknown.size(), ReqFor(other, 2).nonce),
              static_cast<int>(RejCode::kLater));
  });
}

// An impostor of the right host knows the ports, and gets a connection; but
// never says that it is ready.  A second REQ with the same nonce gets none.
TEST_F(HostileRdma, ImpostorAndReplay) {
  Attack([](const TcpPair& pair) {
    const Tuple tuple = TupleOf(pair);
    const std::uint16_t port = ServicePortOf(pair);
    const Req req = ReqFor(tuple, 3);
    const ReqBytes bytes = EncodeReq(req, tuple, {});
    {
      RawCm raw;
      const RawCm::Event event = raw.Connect(port, bytes.data(), bytes.size());
      EXPECT_EQ(event.type, RDMA_CM_EVENT_ESTABLISHED);
      Rep rep;
      EXPECT_EQ(
          DecodeRep(reinterpret_cast<const std::uint8_t*>(event.data.data()),
                    event.data.size(), tuple, req.nonce, {}, &rep),
          Parsed::kOk);
      EXPECT_EQ(rep.epoch, req.epoch);
    }
    // The acceptor has given up by now, or is about to: held, then refused.
    RawCm again;
    EXPECT_EQ(
        RejectionOf(again.Connect(port, bytes.data(), bytes.size()), req.nonce),
        static_cast<int>(RejCode::kLater));
  });
}

// Who asks has not heard the REP, which got lost: it need not have heard either
// that this end still waits for an answer.
TEST_F(HostileRdma, AskedAgainBeforeTheFirstHasEnded) {
  if (OnIwarp()) GTEST_SKIP() << "a REP is its connection's own TCP's matter";
  Attack([](const TcpPair& pair) {
    const Tuple tuple = TupleOf(pair);
    const std::uint16_t port = ServicePortOf(pair);
    const ReqBytes one = EncodeReq(ReqFor(tuple, 5), tuple, {});
    RawCm first;
    ASSERT_TRUE(first.Ask(port, one.data(), one.size()));
    ASSERT_TRUE(first.Heard());  // the REP, which stays unanswered
    RawCm replay;
    EXPECT_EQ(RejectionOf(replay.Connect(port, one.data(), one.size()),
                          ReqFor(tuple, 5).nonce),
              static_cast<int>(RejCode::kRefused));
    // One that was given up before, and comes late.
    Req before = ReqFor(tuple, 7);
    --before.epoch;
    const ReqBytes late = EncodeReq(before, tuple, {});
    RawCm earlier;
    EXPECT_EQ(RejectionOf(earlier.Connect(port, late.data(), late.size()),
                          before.nonce),
              static_cast<int>(RejCode::kRefused));
    const Req req = ReqFor(tuple, 6);
    const ReqBytes another = EncodeReq(req, tuple, {});
    RawCm second;
    const RawCm::Event event =
        second.Connect(port, another.data(), another.size());
    EXPECT_EQ(event.type, RDMA_CM_EVENT_ESTABLISHED)
        << RejectionOf(event, req.nonce);
  });
}

TEST_F(HostileRdma, ReplayToOneThatWaits) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair();
    const Tuple tuple = TupleOf(pair);
    const Req req = ReqFor(tuple, 4);
    const ReqBytes bytes = EncodeReq(req, tuple, {});
    auto s = AcceptorSeeker(pair.acceptor);
    for (int i = 0; i < 2; ++i) {
      s->Start(conductor);
      Drain(conductor);
      {
        RawCm raw;
        const RawCm::Event event =
            raw.Connect(ServicePortOf(pair), bytes.data(), bytes.size());
        if (i == 0) {
          EXPECT_EQ(event.type, RDMA_CM_EVENT_ESTABLISHED);
        } else {
          EXPECT_EQ(RejectionOf(event, req.nonce),
                    static_cast<int>(RejCode::kRefused));
        }
      }
      EXPECT_FALSE(s->Wait());
    }
  }));
}

TEST_F(HostileRdma, ManyRequestsForNobody) {
  ExpectSuccess(Spawn([] {
    Conductor* conductor = GetConductor();
    const TcpPair pair = MakeDevicePair();
    auto s = AcceptorSeeker(pair.acceptor);
    auto c = ConnectorSeeker(pair.connector);
    s->Start(conductor);
    Drain(conductor);
    Tuple tuple = TupleOf(pair);
    int later = 0;
    for (int i = 0; i < 40; ++i) {
      ++tuple.c_port;
      const Req req = ReqFor(tuple, static_cast<std::uint8_t>(i));
      const ReqBytes bytes = EncodeReq(req, tuple, {});
      RawCm raw;
      const RawCm::Event event =
          raw.Connect(ServicePortOf(pair), bytes.data(), bytes.size());
      const int code = RejectionOf(event, req.nonce);
      EXPECT_EQ(code, static_cast<int>(RejCode::kLater))
          << i << ": event " << event.type << ", status " << event.status
          << ", " << event.data.size() << " bytes";
      if (code == static_cast<int>(RejCode::kLater)) ++later;
      if (i == 4) {
        c->Start(conductor);
        EXPECT_TRUE(c->Wait()) << base::ReasonKey(c->failed);
        EXPECT_TRUE(s->Wait()) << base::ReasonKey(s->failed);
      }
    }
    EXPECT_EQ(later, 40);
  }));
}

// --- A rogue at the RDMA port of a plain server

// What the connector makes of what `rogue` does with its REQ.
void MeetRogue(const std::function<void(RawCm*, const RawCm::Event&)>& rogue,
               Reason expected, int limit_ms) {
  Barrier barrier;
  const TcpPair pair = MakeDevicePair();
  const pid_t server = Spawn([&] {
    RawCm raw;
    ASSERT_TRUE(raw.Listen(ServicePortOf(pair))) << errno;
    EXPECT_TRUE(barrier.Meet(0));
    const RawCm::Event event = raw.Next();
    EXPECT_EQ(event.type, RDMA_CM_EVENT_CONNECT_REQUEST);
    rogue(&raw, event);
    EXPECT_TRUE(barrier.Meet(0));
  });
  const pid_t client = Spawn([&] {
    EXPECT_TRUE(barrier.Meet(1));
    Conductor* conductor = GetConductor();
    auto c = ConnectorSeeker(pair.connector);
    const auto start = Clock::now();
    EXPECT_FALSE(c->Seek(conductor));
    EXPECT_EQ(c->failed, expected)
        << base::ReasonKey(c->failed) << ", not " << base::ReasonKey(expected);
    EXPECT_LT(Clock::now() - start, milliseconds(limit_ms));
    // The conductor does not hang on what is left of it.
    Drain(conductor);
    EXPECT_LT(Clock::now() - start, milliseconds(limit_ms + 500));
    EXPECT_TRUE(barrier.Meet(1));
  });
  ExpectSuccess(client);
  ExpectSuccess(server);
}

TEST_F(HostileRdma, RogueAcceptsWithNoise) {
  MeetRogue([](RawCm* raw, const RawCm::Event&) { raw->Accept("welcome", 7); },
            Reason::kPeerPlain, 3000);
}

TEST_F(HostileRdma, RogueAcceptsWithAnotherEpoch) {
  MeetRogue(
      [](RawCm* raw, const RawCm::Event& event) {
        Req req;
        EXPECT_EQ(
            DecodeReq(reinterpret_cast<const std::uint8_t*>(event.data.data()),
                      event.data.size(), &req),
            Parsed::kOk);
        lane::rdma::Offer offer{};
        offer.address = 1 << 20;
        offer.credit = 1 << 21;
        offer.bytes = lane::rdma::RingBytes(lane::rdma::kBlockMin);
        offer.messages = lane::rdma::kMessages;
        const RepBytes rep =
            EncodeRep({req.epoch + 1, {}, offer}, {}, req.nonce, {});
        raw->Accept(rep.data(), rep.size());
      },
      Reason::kProtocol, 3000);
}

TEST_F(HostileRdma, RogueNeverAnswers) {
  MeetRogue([](RawCm*, const RawCm::Event&) {}, Reason::kRdmaTimeout, 4500);
}

TEST_F(HostileRdma, RogueRejectsWithNoise) {
  MeetRogue([](RawCm* raw, const RawCm::Event&) { raw->Reject("no", 2); },
            Reason::kRdmaRejected, 4500);
}

TEST_F(HostileRdma, RogueRedirectsForEver) {
  MeetRogue(
      [](RawCm* raw, const RawCm::Event& event) {
        RawCm::Event next = event;
        for (int i = 0; i < 2; ++i) {
          Req req;
          DecodeReq(reinterpret_cast<const std::uint8_t*>(next.data.data()),
                    next.data.size(), &req);
          const RejBytes rej =
              EncodeRej({RejCode::kRedirect, raw->Port()}, req.nonce, {});
          raw->Reject(rej.data(), rej.size());
          raw->Drop();
          if (i == 0) {
            next = raw->Next();
            EXPECT_EQ(next.type, RDMA_CM_EVENT_CONNECT_REQUEST);
          }
        }
      },
      Reason::kPeerRefused, 3000);
}

}  // namespace
}  // namespace rcsock::rendezvous
