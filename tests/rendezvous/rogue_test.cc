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

#include <infiniband/verbs.h>
#include <linux/tcp.h>
#include <sys/prctl.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/lane/rdma/layout.h"
#include "lib/rendezvous/rdma_wire.h"
#include "lib/ring/imm.h"
#include "tests/rendezvous/rdma_util.h"

namespace rcsock::rendezvous {
namespace {

namespace rdma = lane::rdma;

std::string self;
std::string shim;

constexpr std::size_t kMessage = 64;

// What stands at `offset` of every stream here; never zero, so that a byte of
// it is seen wherever it lies.
char At(std::uint64_t offset) { return static_cast<char>(1 + offset % 251); }

void Fill(std::uint64_t offset, char* to, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) to[i] = At(offset + i);
}
bool IsIt(std::uint64_t offset, const char* from, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) {
    if (from[i] != At(offset + i)) return false;
  }
  return true;
}

bool SendAll(int fd, const char* from, std::size_t length) {
  for (std::size_t done = 0; done < length;) {
    const ssize_t n = ::send(fd, from + done, length - done, MSG_NOSIGNAL);
    if (n <= 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}
// How many came before the end.
std::size_t RecvAll(int fd, char* to, std::size_t length) {
  std::size_t done = 0;
  while (done < length) {
    const ssize_t n = ::recv(fd, to + done, length - done, 0);
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

// Bytes that the kernel's TCP has carried, both ways.
std::uint64_t TcpBytes(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  return info.tcpi_bytes_sent + info.tcpi_bytes_received;
}

// --- The programs

int ConnectTo(const char* port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address =
      DeviceAddress(static_cast<std::uint16_t>(std::atoi(port)));
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) !=
      0) {
    return -1;
  }
  return fd;
}

// Round trips until the server ends the connection, each as it should be.
int Chat(const char* port) {
  const int fd = ConnectTo(port);
  if (fd < 0) return 1;
  for (std::uint64_t at = 0;; at += kMessage) {
    char text[kMessage];
    Fill(at, text, sizeof text);
    if (!SendAll(fd, text, sizeof text)) return 2;
    const std::size_t n = RecvAll(fd, text, sizeof text);
    if (n == 0) return 0;
    if (n != sizeof text || !IsIt(at, text, n)) return 3;
  }
}

// More than a ring of 16 KiB takes, and no more than TCP does of a receiver
// that does not read.
constexpr std::size_t kMuch = 80 << 10;

// Round trips until they leave TCP alone; then kMuch at once, which ends when
// somebody has taken it.
int Send(const char* port) {
  const int fd = ConnectTo(port);
  if (fd < 0) return 1;
  std::uint64_t at = 0;
  for (int quiet = 0; quiet < 20;) {
    const std::uint64_t before = TcpBytes(fd);
    char text[kMessage];
    Fill(at, text, sizeof text);
    at += sizeof text;
    if (!SendAll(fd, text, sizeof text) ||
        RecvAll(fd, text, sizeof text) != sizeof text) {
      return 2;
    }
    quiet = TcpBytes(fd) - before < kMessage ? quiet + 1 : 0;
  }
  // Its first byte is no chat's: the receiver stops.
  std::vector<char> much(kMuch, '\0');
  Fill(1, &much[1], kMuch - 1);
  const auto start = Clock::now();
  if (!SendAll(fd, much.data(), much.size())) return 3;
  const auto took =
      std::chrono::duration_cast<milliseconds>(Clock::now() - start);
  std::printf("%d\n", static_cast<int>(took.count()));
  std::fflush(stdout);
  char byte;
  return RecvAll(fd, &byte, 1) == 0 ? 0 : 4;
}

// The other end of it: takes no more from the byte 0 on, until its standard
// input ends; then all that there is.
int Take() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = DeviceAddress(0);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener, 4) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) !=
          0) {
    return 1;
  }
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  const int fd = ::accept(listener, nullptr, nullptr);
  char text[kMessage];
  for (;;) {
    if (RecvAll(fd, text, sizeof text) != sizeof text) return 2;
    if (text[0] == '\0') break;
    if (!SendAll(fd, text, sizeof text)) return 3;
  }
  char byte;
  while (::read(0, &byte, 1) > 0) {
  }
  std::vector<char> rest(kMuch - kMessage);
  if (RecvAll(fd, rest.data(), rest.size()) != rest.size()) return 4;
  return IsIt(1, text + 1, sizeof text - 1) &&
                 IsIt(kMessage, rest.data(), rest.size())
             ? 0
             : 5;
}

// One of them, under the shim.
class Program {
 public:
  Program(const char* what, const std::string& argument) {
    char name[] = "/tmp/rogue_test.XXXXXX";
    const int log = ::mkostemp(name, O_CLOEXEC);
    log_ = name;
    int in[2];
    int out[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(kTestSeconds);
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::dup2(log, 2);
      ::setenv("LD_PRELOAD", shim.c_str(), 1);
      ::setenv("RCSOCK_LANES", "rdma", 1);
      ::setenv("RCSOCK_PROMOTE_OPS", "2", 1);
      ::setenv("RCSOCK_LOG", "2", 1);
      ::execl(self.c_str(), self.c_str(), what, argument.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(log);
    ::close(in[0]);
    ::close(out[1]);
    to_ = in[1];
    from_ = ::fdopen(out[0], "r");
  }
  ~Program() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    EndInput();
    std::fclose(from_);
    ::unlink(log_.c_str());
  }
  int Number() {
    int number = -1;
    EXPECT_EQ(std::fscanf(from_, "%d", &number), 1);
    return number;
  }
  void EndInput() {
    if (to_ >= 0) ::close(std::exchange(to_, -1));
  }
  void ExpectEnd() {
    ExpectSuccess(pid_);
    pid_ = -1;
  }
  std::string Log() const {
    std::stringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }
  bool Said(const std::string& what) const {
    return Log().find(what) != std::string::npos;
  }

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  std::FILE* from_ = nullptr;
  std::string log_;
};

// A server without rcsock: gives back what it gets, if that is what the client
// has sent and nothing else.
class PlainServer {
 public:
  PlainServer() {
    sockaddr_in address = DeviceAddress(0);
    listener_ = Listen(&address);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~PlainServer() {
    Stop();
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::uint16_t port() const { return port_; }
  std::uint64_t echoed() const { return echoed_; }
  bool strange() const { return strange_; }
  // After the next message.
  void Stop() { stop_ = true; }
  rendezvous::Tuple TupleOf() const {
    sockaddr_storage local{};
    sockaddr_storage peer{};
    socklen_t length = sizeof local;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&local), &length);
    length = sizeof peer;
    ::getpeername(fd_, reinterpret_cast<sockaddr*>(&peer), &length);
    Address ours;
    Address theirs;
    std::uint16_t our_port = 0;
    std::uint16_t their_port = 0;
    EXPECT_TRUE(Normalise(local, &ours, &our_port));
    EXPECT_TRUE(Normalise(peer, &theirs, &their_port));
    return MakeTuple(stream::Role::kAcceptor, ours, our_port, theirs,
                     their_port);
  }

 private:
  void Run() {
    fd_ = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd_ < 0) return;
    char text[kMessage];
    while (RecvAll(fd_, text, sizeof text) == sizeof text) {
      if (!IsIt(echoed_, text, sizeof text)) {
        strange_ = true;
        break;
      }
      if (stop_ || !SendAll(fd_, text, sizeof text)) break;
      echoed_ += sizeof text;
    }
    ::close(fd_);
  }

  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<int> fd_{-1};
  std::atomic<std::uint64_t> echoed_{0};
  std::atomic<bool> strange_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// --- The rogue

class Rogue {
 public:
  explicit Rogue(const PlainServer& server) : server_(server), raw_(64) {
    memory_.reset(new (std::align_val_t(4096)) Memory{});
    const std::uint16_t port =
        OnIwarp() ? base::GetConfig().rdma_port : server.port();
    EXPECT_TRUE(raw_.Listen(port)) << errno;
  }
  ~Rogue() {
    if (mr_ == nullptr) return;
    verbs::calls.rdma_disconnect(raw_.id());
    verbs::calls.rdma_destroy_qp(raw_.id());
    verbs::calls.ibv_dereg_mr(mr_);
  }

  // The client's REQ is answered as an accepting end answers that is ready (or
  // not yet), with all that it needs to send here.
  bool Accept(bool adopted) {
    const RawCm::Event event = raw_.Next(20'000);
    EXPECT_EQ(event.type, RDMA_CM_EVENT_CONNECT_REQUEST);
    if (event.type != RDMA_CM_EVENT_CONNECT_REQUEST) return false;
    EXPECT_EQ(
        DecodeReq(reinterpret_cast<const std::uint8_t*>(event.data.data()),
                  event.data.size(), &req_),
        Parsed::kOk);
    raw_.MakeQp();
    rdma_cm_id* id = raw_.id();
    mr_ = (verbs::calls.ibv_reg_mr)(
        id->pd, memory_.get(), sizeof(Memory),
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    EXPECT_NE(mr_, nullptr);
    if (mr_ == nullptr) return false;
    for (int i = 0; i < 48; ++i) Receive();
    EXPECT_EQ(::getrandom(nonce_.data(), nonce_.size(), 0), 16);
    const RepBytes rep = EncodeRep({req_.epoch, nonce_, OurOffer(), adopted},
                                   server_.TupleOf(), req_.nonce, {});
    raw_.Accept(rep.data(), rep.size());
    if (!raw_.Expect(RDMA_CM_EVENT_ESTABLISHED)) return false;
    // The client will look again.
    raw_.StopListening();
    return true;
  }
  // What comes next from the client, and its bytes, if it lies in a slot.
  ring::Imm Next(std::string* bytes = nullptr) {
    const auto limit = Clock::now() + milliseconds(10'000);
    ibv_wc wc{};
    while (ibv_poll_cq(raw_.id()->recv_cq, 1, &wc) == 0) {
      if (Clock::now() > limit) return {};
      ::usleep(0);
    }
    if (wc.status != IBV_WC_SUCCESS) return {};
    return Look(wc, bytes);
  }
  bool TakeReady() {
    std::string bytes;
    return Next(&bytes).kind == ring::Kind::kSetup;
  }
  void SayReady() {
    std::uint8_t text[rdma::kOfferSize];
    rdma::EncodeOffer(OurOffer(), text);
    Say(ring::Kind::kSetup, text, sizeof text);
  }
  // The client's PROPOSE; it comes once the client has sent 16 raw bytes more.
  bool TakeProposal() {
    std::string bytes;
    if (Next(&bytes).kind != ring::Kind::kCtl) return false;
    return stream::Decode(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                          bytes.size(), &proposal_) &&
           proposal_.kind == stream::CtlKind::kPropose;
  }
  // An ACCEPT that claims to know the last `tail` bytes of the connection.
  void SayAccept(std::uint8_t tail, const std::uint8_t* guess) {
    stream::Ctl ctl;
    ctl.kind = stream::CtlKind::kAccept;
    ctl.epoch = proposal_.epoch;
    ctl.tail = tail;
    ctl.mac = stream::TailMac(req_.nonce, nonce_, proposal_.epoch,
                              proposal_.offset, guess, tail);
    SayControl(ctl);
  }
  void SaySwitch() {
    stream::Ctl ctl;
    ctl.kind = stream::CtlKind::kSwitch;
    ctl.epoch = proposal_.epoch;
    ctl.offset = 0;
    SayControl(ctl);
  }
  // As if all that could be under way had been taken.
  void SayCredit(std::uint64_t messages) {
    std::memcpy(memory_->scratch[0], &messages, sizeof messages);
    Post(memory_->scratch[0], sizeof messages, theirs_.credit, false);
  }
  const stream::Ctl& proposal() const { return proposal_; }

  // Everything of the application's that has come here.
  std::size_t Stolen() {
    // (A receive that was flushed has no bytes.)
    for (ibv_wc wc; ibv_poll_cq(raw_.id()->recv_cq, 1, &wc) == 1;) {
      if (wc.status == IBV_WC_SUCCESS) Look(wc, nullptr);
    }
    const std::byte* ring = memory_->block + rdma::kRingAt;
    const std::byte* end = memory_->block + sizeof memory_->block;
    return static_cast<std::size_t>(end - ring -
                                    std::count(ring, end, std::byte{0})) +
           data_;
  }
  // The client has ended the lane.
  bool Ended() { return raw_.Next(10'000).type == RDMA_CM_EVENT_DISCONNECTED; }

 private:
  struct Memory {
    std::byte block[rdma::kBlockMin];
    std::byte scratch[64][128];
    std::byte received[64][rdma::kSlotBytes];
  };
  struct Free {
    void operator()(Memory* memory) const {
      ::operator delete(memory, std::align_val_t(4096));
    }
  };

  ring::Imm Look(const ibv_wc& wc, std::string* bytes) {
    std::uint32_t wire = wc.imm_data;
    const std::byte* received = memory_->received[wc.wr_id];
    if (OnIwarp()) std::memcpy(&wire, received + wc.byte_len - 4, 4);
    const ring::Imm imm = ring::Decode(ntohl(wire));
    if (imm.kind == ring::Kind::kCredit) return imm;
    const std::uint64_t number = taken_++;
    // Between blocks no data may come, wherever it is put.
    if (imm.kind == ring::Kind::kData) ++data_;
    if ((imm.flags & ring::kFlagInline) != 0 && bytes != nullptr) {
      const std::byte* at =
          OnIwarp() ? received
                    : memory_->block + rdma::kSlotsAt +
                          number % rdma::kMessages * rdma::kSlotBytes;
      bytes->assign(reinterpret_cast<const char*>(at), imm.length);
    }
    if (imm.kind == ring::Kind::kSetup && bytes != nullptr) {
      EXPECT_TRUE(rdma::DecodeOffer(
          reinterpret_cast<const std::uint8_t*>(bytes->data()), &theirs_));
    }
    return imm;
  }

  static std::uint64_t Place(const void* at) {
    return reinterpret_cast<std::uintptr_t>(at);
  }
  rdma::Offer OurOffer() const {
    rdma::Offer offer{};
    offer.address = Place(memory_->block) + rdma::kSlotsAt;
    offer.credit = Place(memory_->block);
    offer.key = mr_->rkey;
    offer.bytes = rdma::RingBytes(rdma::kBlockMin);
    offer.messages = rdma::kMessages;
    return offer;
  }
  void Receive() {
    const std::uint64_t n = receives_++ % 64;
    ibv_sge sge{Place(memory_->received[n]), rdma::kSlotBytes, mr_->lkey};
    ibv_recv_wr wr{};
    wr.wr_id = n;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_recv(raw_.id()->qp, &wr, &bad), 0);
  }
  void SayControl(const stream::Ctl& ctl) {
    const stream::CtlBytes bytes = stream::Encode(ctl);
    Say(ring::Kind::kCtl, bytes.data(), bytes.size());
  }
  // A control message, in the next slot.
  void Say(ring::Kind kind, const std::uint8_t* bytes, std::size_t length) {
    std::byte* from = memory_->scratch[1 + said_ % 63];
    std::memcpy(from, bytes, length);
    imm_ = htonl(ring::Encode(
        {kind, ring::kFlagInline, static_cast<std::uint32_t>(length)}));
    if (OnIwarp()) {
      std::memcpy(from + length, &imm_, 4);
      length += 4;
    }
    Post(from, length,
         theirs_.address + said_++ % rdma::kMessages * rdma::kSlotBytes, true);
  }
  void Post(const std::byte* from, std::size_t length, std::uint64_t to,
            bool message) {
    ibv_sge sge{Place(from), static_cast<std::uint32_t>(length), mr_->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = to;
    wr.wr.rdma.rkey = theirs_.key;
    wr.imm_data = imm_;
    wr.opcode = !message    ? IBV_WR_RDMA_WRITE
                : OnIwarp() ? IBV_WR_SEND
                            : IBV_WR_RDMA_WRITE_WITH_IMM;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(raw_.id()->qp, &wr, &bad), 0);
    ibv_wc wc[16];
    while (ibv_poll_cq(raw_.id()->send_cq, 16, wc) > 0) {
    }
  }

  const PlainServer& server_;
  RawCm raw_;
  std::unique_ptr<Memory, Free> memory_;
  ibv_mr* mr_ = nullptr;
  Req req_;
  stream::Nonce nonce_{};
  rdma::Offer theirs_{};
  stream::Ctl proposal_;
  std::uint64_t receives_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t said_ = 0;
  std::size_t data_ = 0;
  std::uint32_t imm_ = 0;
};

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
