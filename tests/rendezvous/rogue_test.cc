// usage: rogue_test SHIM
//
// Unmodified programs under the shim SHIM whose peer on the other host is not
// what they take it for, or does nothing.  Needs a device.
//
// The first half: a program connects to a plain server, and a rogue has the
// RDMA port that goes with the server's.  It takes the connection, says all
// that an accepting end says, and never had a look at the TCP connection.  Not
// one byte of the program's may reach it, and the program must not notice.
//
// The second: a receiver that takes nothing.

#include "tests/rendezvous/rogue.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>

#include "tests/rendezvous/rogue_programs.h"

namespace rcsock::rendezvous {
namespace {

class Rogues : public RdmaTest {};

// `reason`: what the client says of the lane that it has given up.
void Impostor(const std::function<void(Rogue*)>& act,
              const std::string& reason) {
  PlainServer server;
  Rogue rogue(server);
  Program client("chat", std::to_string(server.port()));
  act(&rogue);
  if (::testing::Test::HasFatalFailure()) return;
  EXPECT_TRUE(rogue.Ended());
  // Over TCP, and nothing else than what the client has sent.
  const std::uint64_t then = server.echoed();
  EXPECT_TRUE(Eventually([&] {
    return server.echoed() >= then + 20 * kMessage;
  })) << server.echoed() - then;
  server.Stop();
  client.ExpectEnd();
  EXPECT_FALSE(server.strange()) << "what is no byte of the client's";
  EXPECT_EQ(rogue.Stolen(), 0u);
  EXPECT_TRUE(client.Said(reason)) << client.Log();
  EXPECT_FALSE(client.Said("promoted to")) << client.Log();
}

// It has the connection, and both nonces: all but what was said on TCP.
TEST_F(Rogues, AcceptsWithoutProof) {
  Impostor(
      [](Rogue* rogue) {
        ASSERT_TRUE(rogue->Accept(true));
        ASSERT_TRUE(rogue->TakeReady());
        rogue->SayReady();
        ASSERT_TRUE(rogue->TakeProposal());
        rogue->SayAccept(0, nullptr);
      },
      "left its lane: protocol_error");
}

TEST_F(Rogues, GuessesTooLittle) {
  Impostor(
      [](Rogue* rogue) {
        ASSERT_TRUE(rogue->Accept(true));
        ASSERT_TRUE(rogue->TakeReady());
        rogue->SayReady();
        ASSERT_TRUE(rogue->TakeProposal());
        // Right, as it happens, but anybody might guess so much.
        std::uint8_t guess[15];
        const std::uint64_t from = rogue->proposal().offset - sizeof guess;
        Fill(from, reinterpret_cast<char*>(guess), sizeof guess);
        rogue->SayAccept(sizeof guess, guess);
      },
      "left its lane: protocol_error");
}

TEST_F(Rogues, GuessesWrong) {
  Impostor(
      [](Rogue* rogue) {
        ASSERT_TRUE(rogue->Accept(true));
        ASSERT_TRUE(rogue->TakeReady());
        rogue->SayReady();
        ASSERT_TRUE(rogue->TakeProposal());
        const std::uint8_t guess[16] = {};
        rogue->SayAccept(sizeof guess, guess);
      },
      "left its lane: protocol_error");
}

// Credit for what has not been sent yet does not bring it out.
TEST_F(Rogues, GivesCreditInPlaceOfProof) {
  Impostor(
      [](Rogue* rogue) {
        ASSERT_TRUE(rogue->Accept(true));
        ASSERT_TRUE(rogue->TakeReady());
        rogue->SayReady();
        ASSERT_TRUE(rogue->TakeProposal());
        rogue->SayCredit(2);
        rogue->SaySwitch();
      },
      "left its lane: protocol_error");
}

// What an honest end says next, without having said ACCEPT.
TEST_F(Rogues, SwitchesWithoutAccepting) {
  Impostor(
      [](Rogue* rogue) {
        ASSERT_TRUE(rogue->Accept(true));
        ASSERT_TRUE(rogue->TakeReady());
        rogue->SayReady();
        ASSERT_TRUE(rogue->TakeProposal());
        rogue->SaySwitch();
      },
      "left its lane: protocol_error");
}

// READY, and then nothing: the client's timer ends it.
TEST_F(Rogues, FallsSilentWhenProposedTo) {
  Impostor(
      [](Rogue* rogue) {
        ASSERT_TRUE(rogue->Accept(true));
        ASSERT_TRUE(rogue->TakeReady());
        rogue->SayReady();
        ASSERT_TRUE(rogue->TakeProposal());
      },
      "left its lane: timeout");
}

// REP says that its stream is adopted, and that is all it says.  On a device
// that may lose what comes early the client waits for READY: no lane then.
TEST_F(Rogues, FallsSilentAfterItsReply) {
  Impostor(
      [](Rogue* rogue) {
        ASSERT_TRUE(rogue->Accept(true));
        ASSERT_TRUE(rogue->TakeReady());
      },
      OnIwarp() ? "no lane: timeout" : "left its lane: timeout");
}

TEST_F(Rogues, NeverSaysReady) {
  Impostor(
      [](Rogue* rogue) {
        ASSERT_TRUE(rogue->Accept(false));
        ASSERT_TRUE(rogue->TakeReady());
      },
      "no lane: timeout");
}

// --- A receiver on another host that takes nothing

// It counts as stopped after 400 ms, not after the 100 that are enough where
// both ends have the same CPUs; and it does count as stopped: the sender's
// bytes go on over TCP, which has room for them, while it still takes nothing.
TEST_F(Rogues, ReceiverThatStops) {
  Program receiver("take", "");
  Program sender("send", std::to_string(receiver.Number()));
  const int took = sender.Number();
  // (The timer runs from the look that found no room, a little before.)
  EXPECT_GE(took, 350) << sender.Log();
  EXPECT_TRUE(sender.Said("promoted to rdma")) << sender.Log();
  EXPECT_TRUE(sender.Said("left its lane: starved")) << sender.Log();
  receiver.EndInput();
  receiver.ExpectEnd();
  sender.ExpectEnd();
}

}  // namespace
}  // namespace rcsock::rendezvous

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  using namespace rcsock::rendezvous;
  if (argc == 3) {
    if (std::strcmp(argv[1], "chat") == 0) return Chat(argv[2]);
    if (std::strcmp(argv[1], "send") == 0) return Send(argv[2]);
    if (std::strcmp(argv[1], "take") == 0) return Take();
  }
  if (argc != 2) {
    std::fprintf(stderr, "usage: rogue_test SHIM\n");
    return 2;
  }
  self = std::filesystem::read_symlink("/proc/self/exe");
  shim = std::filesystem::absolute(argv[1]);
  return RUN_ALL_TESTS();
}
