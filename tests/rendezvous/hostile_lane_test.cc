// usage: hostile_lane_test SHIM
//
// A peer made of raw verbs gets a real lane to an unmodified echo server under
// the shim SHIM, and then writes there what no honest end would.  The server's
// stream goes on over TCP, and nothing of it leaks.  Needs a device.

#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/random.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>
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

// --- The server

int Serve() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = DeviceAddress(0);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener, 64) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) !=
          0) {
    return 1;
  }
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  for (;;) {
    const int fd = ::accept(listener, nullptr, nullptr);
    if (fd < 0) return 1;
    std::thread([fd] {
      char buffer[4096];
      for (;;) {
        const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
        if (n <= 0 || ::send(fd, buffer, static_cast<std::size_t>(n),
                             MSG_NOSIGNAL) != n) {
          break;
        }
      }
      ::close(fd);
    }).detach();
  }
}

struct Server {
  pid_t pid = -1;
  std::uint16_t port = 0;

  // `key_file`: of the cluster; null: none.
  explicit Server(const char* key_file = nullptr) {
    int out[2];
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(out[1], 1);
      ::setenv("LD_PRELOAD", shim.c_str(), 1);
      ::setenv("RCSOCK_LANES", "rdma", 1);
      ::setenv("RCSOCK_PROMOTE_OPS", "2", 1);
      if (key_file != nullptr) ::setenv("RCSOCK_KEY_FILE", key_file, 1);
      ::execl(self.c_str(), self.c_str(), "server", nullptr);
      ::_exit(127);
    }
    ::close(out[1]);
    if (std::FILE* from = ::fdopen(out[0], "r")) {
      int number = 0;
      EXPECT_EQ(std::fscanf(from, "%d", &number), 1);
      port = static_cast<std::uint16_t>(number);
      std::fclose(from);
    }
  }
  ~Server() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  bool Alive() const { return ::waitpid(pid, nullptr, WNOHANG) == 0; }
  std::string Proc(const char* what) const {
    return "/proc/" + std::to_string(pid) + "/" + what;
  }
  int Fds() const {
    int count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(Proc("fd"))) {
      ++count;
    }
    return count;
  }
  // What they are, a line each.
  std::string Files() const {
    std::string files;
    for (const auto& entry : std::filesystem::directory_iterator(Proc("fd"))) {
      std::error_code gone;
      files +=
          std::filesystem::read_symlink(entry.path(), gone).string() + "\n";
    }
    return files;
  }
  long Kib(const std::string& key) const {
    std::ifstream status(Proc("status"));
    std::string line;
    while (std::getline(status, line)) {
      if (line.rfind(key, 0) == 0) return std::atol(line.c_str() + key.size());
    }
    return 0;
  }
};

// --- The peer

class Peer {
 public:
  explicit Peer(const Server& server) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = DeviceAddress(server.port);
    EXPECT_EQ(
        ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address),
        0);
    const timeval limit{10, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    service_ = OnIwarp() ? base::GetConfig().rdma_port : server.port;
    memory_.reset(new (std::align_val_t(4096)) Memory{});
  }
  ~Peer() {
    Drop();
    ::close(fd_);
  }

  // What the application's connection is for.
  bool Echo() {
    char sent[64];
    char back[64];
    for (std::size_t i = 0; i < sizeof sent; ++i) {
      sent[i] = static_cast<char>(total_ + i);
    }
    if (::send(fd_, sent, sizeof sent, MSG_NOSIGNAL) != sizeof sent) {
      return false;
    }
    total_ += sizeof sent;
    for (std::size_t got = 0; got < sizeof back;) {
      const ssize_t n = ::recv(fd_, back + got, sizeof back - got, 0);
      if (n <= 0) return false;
      got += static_cast<std::size_t>(n);
    }
    return std::memcmp(sent, back, sizeof sent) == 0;
  }

  // Up to the point where the server has the lane: REQ, REP, both READYs.
  // `ready`: what we say there of our ring.
  // `key`: of the cluster; `mac`: what READY proves it with, for the fresh
  // values of the two ends.
  using MacOf = rdma::ReadyMac (*)(const Tuple&, const Req&, const Rep&,
                                   const ClusterKey&);
  bool Open(const std::function<void(rdma::Offer*)>& ready = nullptr,
            const ClusterKey& key = {}, MacOf mac = nullptr) {
    const Tuple tuple = OurTuple();
    const auto limit = Clock::now() + milliseconds(20'000);
    Req req;
    for (;;) {
      if (Clock::now() > limit) return false;
      for (int k = 0; k < 4; ++k) EXPECT_TRUE(Echo());
      Drop();
      raw_ = std::make_unique<RawCm>(64);
      req = Req{tuple.c_port, tuple.s_port, 9, {}};
      EXPECT_EQ(::getrandom(req.nonce.data(), req.nonce.size(), 0), 16);
      const ReqBytes bytes = EncodeReq(req, tuple, key);
      const RawCm::Event event =
          raw_->Connect(service_, bytes.data(), bytes.size());
      if (event.type != RDMA_CM_EVENT_ESTABLISHED) continue;
      EXPECT_EQ(
          DecodeRep(reinterpret_cast<const std::uint8_t*>(event.data.data()),
                    event.data.size(), tuple, req.nonce, key, &rep_),
          Parsed::kOk);
      break;
    }
    if (!Register()) return false;
    rdma::Offer offer = OurOffer();
    if (ready) ready(&offer);
    std::uint8_t text[rdma::kReadySize] = {};
    rdma::EncodeOffer(offer, text);
    if (mac != nullptr) {
      const rdma::ReadyMac proof = mac(tuple, req, rep_, key);
      std::memcpy(text + rdma::kOfferSize, proof.data(), proof.size());
    }
    Message({ring::Kind::kSetup, ring::kFlagInline, sizeof text}, text,
            sizeof text);
    if (ready) return true;
    return NextImm().kind == ring::Kind::kSetup;
  }

  // The same, and on from there, with something broken at any place, or
  // nothing.  How far it came.
  enum Stage { kNoAnswer, kAnswered, kSpoke, kReadied, kStages };
  Stage OpenBroken(std::mt19937_64* random) {
    const auto below = [random](std::uint64_t n) { return (*random)() % n; };
    const auto spoil = [&](std::uint8_t* bytes, std::size_t size) {
      for (std::uint64_t k = below(3); k > 0; --k) {
        bytes[below(size)] ^= static_cast<std::uint8_t>(1u << below(8));
      }
    };
    const Tuple tuple = OurTuple();
    for (int tries = 0;; ++tries) {
      if (tries == 20) return kNoAnswer;
      for (int k = 0; k < 4; ++k) EXPECT_TRUE(Echo());
      Drop();
      raw_ = std::make_unique<RawCm>(64);
      constexpr std::uint32_t kEpochs[] = {0, 1, 9, 1u << 31, ~0u};
      Req req{tuple.c_port, tuple.s_port, kEpochs[below(5)], {}};
      for (auto& byte : req.nonce) byte = static_cast<std::uint8_t>(below(256));
      ReqBytes bytes = EncodeReq(req, tuple, {});
      std::size_t size = bytes.size();
      if (below(4) == 0) spoil(bytes.data(), size);
      if (below(16) == 0) size = below(size);
      const RawCm::Event event = raw_->Connect(service_, bytes.data(), size);
      if (event.type != RDMA_CM_EVENT_ESTABLISHED) continue;
      if (DecodeRep(reinterpret_cast<const std::uint8_t*>(event.data.data()),
                    event.data.size(), tuple, req.nonce, {},
                    &rep_) == Parsed::kOk) {
        break;
      }
    }
    if (!Register() || below(10) == 0) return kAnswered;
    const auto noise = [&] {
      std::uint8_t bytes[256];
      for (auto& byte : bytes) byte = static_cast<std::uint8_t>(below(256));
      const std::size_t length = below(2) == 0 ? below(60) : below(250);
      const ring::Imm imm{
          static_cast<ring::Kind>(below(8)),
          static_cast<std::uint8_t>(below(8)),
          static_cast<std::uint32_t>(below(3) == 0 ? below(1 << 20) : length)};
      switch (below(4)) {
        case 0:
          return Write(ring::Encode(imm),
                       rep_.offer.address + below(2 * rdma::kBlockMin), bytes,
                       length);
        case 1:
          return CreditWord(below(2) == 0 ? (*random)() : below(100));
        default:
          return Message(imm, bytes, length);
      }
    };
    if (below(4) == 0) {
      for (std::uint64_t k = 1 + below(4); k > 0; --k) noise();
      if (below(2) == 0) return kSpoke;
    }
    rdma::Offer offer = OurOffer();
    if (below(4) == 0) {
      offer.bytes >>= below(32);
      offer.messages = static_cast<decltype(offer.messages)>(below(1000));
    }
    std::uint8_t text[rdma::kReadySize] = {};
    rdma::EncodeOffer(offer, text);
    if (below(4) == 0) spoil(text, sizeof text);
    const std::size_t length = below(8) == 0 ? below(sizeof text) : sizeof text;
    for (std::uint64_t k = below(8) == 0 ? 2 : 1; k > 0; --k) {
      Message({ring::Kind::kSetup, ring::kFlagInline,
               static_cast<std::uint32_t>(length)},
              text, length);
    }
    for (std::uint64_t k = below(6); k > 0; --k) noise();
    return kReadied;
  }

  // A message in the next slot, or (not inline) in the ring.
  void Message(ring::Imm imm, const void* bytes, std::size_t length) {
    std::uint64_t to = rep_.offer.address;
    if ((imm.flags & ring::kFlagInline) != 0) {
      to += sent_ % rdma::kMessages * rdma::kSlotBytes;
    } else {
      to += rdma::kMessages * rdma::kSlotBytes + ring_at_;
      ring_at_ += length;
    }
    ++sent_;
    Write(ring::Encode(imm), to, bytes, length);
  }
  // Anywhere, with any immediate.
  void Write(std::uint32_t imm, std::uint64_t to, const void* bytes,
             std::size_t length) {
    std::byte* from = memory_->scratch[posts_++ % 64];
    std::memcpy(from, bytes, length);
    const std::uint32_t wire = htonl(imm);
    std::memcpy(from + kScratch - 4, &wire, 4);
    // On iWARP the bytes of a message that lies in its slot go with a SEND.
    const bool in_send =
        OnIwarp() && (ring::Decode(imm).flags & ring::kFlagInline) != 0;
    if (in_send) std::memcpy(from + length, &wire, 4);
    ibv_sge sges[2] = {
        {Address(from), static_cast<std::uint32_t>(length), mr_->lkey},
        {Address(from + kScratch - 4), 4, mr_->lkey}};
    if (in_send) {
      sges[1] = {Address(from), static_cast<std::uint32_t>(length + 4),
                 mr_->lkey};
    }
    ibv_send_wr wrs[2] = {};
    wrs[0].sg_list = &sges[0];
    wrs[0].num_sge = length != 0 ? 1 : 0;
    wrs[0].wr.rdma.remote_addr = to;
    wrs[0].wr.rdma.rkey = rep_.offer.key;
    // As a peer's: the server may have armed for what is solicited alone.
    wrs[0].send_flags = wrs[1].send_flags =
        IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
    if (OnIwarp()) {
      wrs[0].opcode = IBV_WR_RDMA_WRITE;
      wrs[0].next = &wrs[1];
      wrs[1].opcode = IBV_WR_SEND;
      wrs[1].sg_list = &sges[1];
      wrs[1].num_sge = 1;
    } else {
      wrs[0].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      wrs[0].imm_data = wire;
    }
    ibv_send_wr* bad = nullptr;
    ibv_post_send(raw_->id()->qp,
                  OnIwarp() && (length == 0 || in_send) ? &wrs[1] : &wrs[0],
                  &bad);
    ibv_wc wc[16];
    while (ibv_poll_cq(raw_->id()->send_cq, 16, wc) > 0) {
    }
  }
  // Silently, as credit comes.
  void CreditWord(std::uint64_t word) {
    Write(ring::Encode({ring::Kind::kCredit, 0, 0}), rep_.offer.credit, &word,
          sizeof word);
  }
  // The server's next immediate.  Meanwhile its application has something to
  // do: a call that never leaves the kernel leaves no gap to adopt in.
  ring::Imm NextImm() {
    const auto limit = Clock::now() + milliseconds(10'000);
    ibv_wc wc{};
    while (ibv_poll_cq(raw_->id()->recv_cq, 1, &wc) == 0) {
      if (Clock::now() > limit || !Echo()) return {};
    }
    if (wc.status != IBV_WC_SUCCESS) return {};
    std::uint32_t wire = wc.imm_data;
    if (OnIwarp()) {
      std::memcpy(&wire, memory_->received[wc.wr_id] + wc.byte_len - 4, 4);
    }
    return ring::Decode(ntohl(wire));
  }
  // The server has ended the lane.
  bool Ended() {
    for (const auto limit = Clock::now() + milliseconds(10'000);
         Clock::now() < limit;) {
      const int type = raw_->Next(1).type;
      if (type >= 0) return type == RDMA_CM_EVENT_DISCONNECTED;
      if (!Echo()) return false;
    }
    return false;
  }
  const Rep& rep() const { return rep_; }
  std::uint64_t total() const { return total_; }

 private:
  static constexpr std::size_t kScratch = 4096;
  struct Memory {
    std::byte block[rdma::kBlockMin];
    std::byte scratch[64][kScratch];
    std::byte received[64][rdma::kSlotBytes];
  };
  struct Free {
    void operator()(Memory* memory) const {
      ::operator delete(memory, std::align_val_t(4096));
    }
  };

  static std::uint64_t Address(const void* at) {
    return reinterpret_cast<std::uintptr_t>(at);
  }
  bool Register() {
    mr_ = (verbs::calls.ibv_reg_mr)(
        raw_->id()->pd, memory_.get(), sizeof(Memory),
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (mr_ == nullptr) return false;
    for (int i = 0; i < 48; ++i) Receive();
    return true;
  }
  rdma::Offer OurOffer() const {
    rdma::Offer offer{};
    offer.address = Address(memory_->block) + rdma::kSlotsAt;
    offer.credit = Address(memory_->block);
    offer.key = mr_->rkey;
    offer.bytes = rdma::RingBytes(rdma::kBlockMin);
    offer.messages = rdma::kMessages;
    return offer;
  }
  void Receive() {
    const std::uint64_t n = receives_++ % 64;
    ibv_sge sge{Address(memory_->received[n]), rdma::kSlotBytes, mr_->lkey};
    ibv_recv_wr wr{};
    wr.wr_id = n;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_recv(raw_->id()->qp, &wr, &bad), 0);
  }
  Tuple OurTuple() const {
    sockaddr_storage local{};
    sockaddr_storage peer{};
    socklen_t length = sizeof local;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&local), &length);
    length = sizeof peer;
    ::getpeername(fd_, reinterpret_cast<sockaddr*>(&peer), &length);
    rendezvous::Address ours;
    rendezvous::Address theirs;
    std::uint16_t our_port = 0;
    std::uint16_t their_port = 0;
    EXPECT_TRUE(Normalise(local, &ours, &our_port));
    EXPECT_TRUE(Normalise(peer, &theirs, &their_port));
    return MakeTuple(stream::Role::kConnector, ours, our_port, theirs,
                     their_port);
  }
  void Drop() {
    if (raw_ == nullptr) return;
    if (mr_ != nullptr) {
      verbs::calls.rdma_disconnect(raw_->id());
      verbs::calls.rdma_destroy_qp(raw_->id());
      verbs::calls.ibv_dereg_mr(mr_);
    }
    mr_ = nullptr;
    raw_.reset();
  }

  int fd_ = -1;
  std::uint16_t service_ = 0;
  std::unique_ptr<RawCm> raw_;
  Rep rep_{};
  ibv_mr* mr_ = nullptr;
  std::unique_ptr<Memory, Free> memory_;
  std::uint64_t posts_ = 0;
  std::uint64_t receives_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t ring_at_ = 0;
  std::uint64_t total_ = 0;
};

// --- What it does

struct Attack {
  const char* name;
  // Whether the server can't but notice.
  bool ends;
  void (*run)(Peer*);
};

constexpr ring::Imm kCtl40{ring::Kind::kCtl, ring::kFlagInline, 40};
std::uint8_t garbage[2048];

stream::CtlBytes Propose(const Peer& peer, std::uint64_t offset) {
  stream::Ctl ctl;
  ctl.kind = stream::CtlKind::kPropose;
  ctl.tail = 16;
  ctl.epoch = peer.rep().epoch;
  ctl.offset = offset;
  return stream::Encode(ctl);
}

const Attack kAttacks[] = {
    {"nothing", false, [](Peer*) {}},
    {"kind 0", true, [](Peer* p) { p->Message({}, "", 0); }},
    {"kind 7", true,
     [](Peer* p) {
       p->Message({static_cast<ring::Kind>(7), 0, 8}, garbage, 8);
     }},
    {"every bit", true,
     [](Peer* p) { p->Write(0xffffffff, p->rep().offer.address, "", 0); }},
    {"empty data", true,
     [](Peer* p) {
       p->Message({ring::Kind::kData, 0, 0}, "", 0);
     }},
    {"data longer than the ring", true,
     [](Peer* p) {
       p->Message({ring::Kind::kData, 0, ring::kMaxLength}, garbage, 64);
     }},
    {"data that nobody has proposed", true,
     [](Peer* p) {
       p->Message({ring::Kind::kData, 0, 1000}, garbage, 1000);
     }},
    {"a rewind past unread data", true,
     [](Peer* p) {
       p->Message({ring::Kind::kData, 0, 1000}, garbage, 1000);
       p->Message({ring::Kind::kData, ring::kFlagRewind, 1000}, garbage, 1000);
     }},
    {"a ring that nobody has offered", true,
     [](Peer* p) {
       p->Message({ring::Kind::kData, ring::kFlagRing, 1000}, garbage, 1000);
     }},
    {"more than the credit", true,
     [](Peer* p) {
       for (int i = 0; i < 48; ++i) {
         p->Message({ring::Kind::kData, 0, 8}, garbage, 8);
       }
     }},
    {"control noise", true, [](Peer* p) { p->Message(kCtl40, garbage, 40); }},
    {"a control message longer than its slot", true,
     [](Peer* p) {
       p->Message({ring::Kind::kCtl, ring::kFlagInline, 64}, garbage, 64);
     }},
    {"a control message in the ring", true,
     [](Peer* p) {
       p->Message({ring::Kind::kCtl, 0, 40}, garbage, 40);
     }},
    {"a proposal of another time", true,
     [](Peer* p) {
       const auto bytes = Propose(*p, std::uint64_t{1} << 62);
       p->Message(kCtl40, bytes.data(), bytes.size());
     }},
    {"a proposal of the past", true,
     [](Peer* p) {
       const auto bytes = Propose(*p, 1);
       p->Message(kCtl40, bytes.data(), bytes.size());
     }},
    {"two proposals", true,
     [](Peer* p) {
       const auto bytes = Propose(*p, p->total());
       p->Message(kCtl40, bytes.data(), bytes.size());
       p->Message(kCtl40, bytes.data(), bytes.size());
     }},
    {"a second READY", true,
     [](Peer* p) {
       p->Message({ring::Kind::kSetup, ring::kFlagInline, rdma::kReadySize},
                  garbage, rdma::kReadySize);
     }},
    {"wake-ups for nothing", true,
     [](Peer* p) {
       for (int i = 0; i < 32; ++i) p->CreditWord(0);
     }},
    {"credit for what was never sent", false,
     [](Peer* p) { p->CreditWord(std::uint64_t{1} << 40); }},
    // (iWARP: its SEND carries none.)
    {"a credit that goes along, for what was never sent", true,
     [](Peer* p) {
       p->Message(ring::WithCredit({ring::Kind::kData, 0, 8}, 200), garbage, 8);
     }},
    {"an offered ring of nothing", false,
     [](Peer* p) {
       p->Write(ring::Encode({ring::Kind::kCredit, ring::kFlagRing, 0}),
                p->rep().offer.credit + rdma::kRingOfferAt, garbage,
                rdma::kRingOfferSize);
     }},
    {"a write outside of the block", true,
     [](Peer* p) {
       p->Write(ring::Encode({ring::Kind::kData, 0, 64}),
                p->rep().offer.address + rdma::kBlockMin, garbage, 64);
     }},
};

class HostileLane : public RdmaTest {};

TEST_F(HostileLane, TheStreamGoesOnAndNothingLeaks) {
  for (std::size_t i = 0; i < sizeof garbage; ++i) {
    garbage[i] = static_cast<std::uint8_t>(i * 37 + 11);
  }
  const Server server;
  ASSERT_NE(server.port, 0);
  const auto round = [&] {
    for (const Attack& attack : kAttacks) {
      SCOPED_TRACE(attack.name);
      Peer peer(server);
      ASSERT_TRUE(peer.Open());
      attack.run(&peer);
      if (attack.ends) {
        EXPECT_TRUE(peer.Ended());
      }
      for (int i = 0; i < 4; ++i) EXPECT_TRUE(peer.Echo());
      ASSERT_TRUE(server.Alive());
    }
    // What READY says of a ring is checked too.
    for (int k = 0; k < 3; ++k) {
      SCOPED_TRACE("READY");
      Peer peer(server);
      ASSERT_TRUE(peer.Open([k](rdma::Offer* offer) {
        if (k == 0) offer->bytes = 0xffffffff;
        if (k == 1) offer->address = ~std::uint64_t{63};
        if (k == 2) offer->messages = 0;
      }));
      EXPECT_TRUE(peer.Ended());
      EXPECT_TRUE(peer.Echo());
      ASSERT_TRUE(server.Alive());
    }
  };
  const char* const kinds[] = {"cm_id", "qp", "mr", "cq", "pd"};
  const auto count = [&] {
    std::vector<long> counts;
    for (const char* kind : kinds) counts.push_back(Resources(kind));
    counts.push_back(server.Fds());
    counts.push_back(server.Kib("Threads:"));
    return counts;
  };
  round();
  // The connections' own ends take a moment.
  const auto settled = [&] {
    std::vector<long> counts = count();
    const auto limit = Clock::now() + milliseconds(20'000);
    for (auto since = Clock::now(); Clock::now() < limit;) {
      std::vector<long> now = count();
      if (now != counts) {
        counts = std::move(now);
        since = Clock::now();
      } else if (Clock::now() - since > milliseconds(500)) {
        break;
      }
    }
    return counts;
  };
  const std::vector<long> before = settled();
  EXPECT_GT(before[0], 0) << "what is counted is not there";
  EXPECT_GT(before[5], 0);
  const long memory = server.Kib("VmRSS:");
  const long pinned = server.Kib("VmPin:");
  round();
  if (HasFatalFailure()) return;
  std::vector<long> after = settled();
  // A connection that has ended a moment ago may still be waited for.
  for (auto limit = Clock::now() + milliseconds(20'000);
       after != before && Clock::now() < limit;) {
    after = settled();
  }
  EXPECT_EQ(after, before) << "cm_id, qp, mr, cq, pd, descriptors, threads";
  EXPECT_LT(server.Kib("VmRSS:"), memory + 4096);
  EXPECT_LE(server.Kib("VmPin:"), pinned);
}

rdma::ReadyMac RightMac(const Tuple& tuple, const Req& req, const Rep& rep,
                        const ClusterKey& key) {
  return MacOfReady(stream::Role::kConnector, req.epoch, tuple, req.nonce,
                    rep.nonce, key);
}

// Who has recorded a handshake and plays it again to a process that has never
// seen it has the REQ's MAC, and a READY's for what the acceptor said then.
TEST_F(HostileLane, ARecordedHandshakeProvesNothing) {
  const std::string name =
      ::testing::TempDir() + "key" + std::to_string(::getpid());
  const std::string secret(48, 'k');
  std::ofstream(name) << secret;
  const ClusterKey key = MakeClusterKey(
      reinterpret_cast<const std::uint8_t*>(secret.data()), secret.size());
  {
    const Server server(name.c_str());
    ASSERT_NE(server.port, 0);
    {
      Peer peer(server);
      EXPECT_TRUE(peer.Open(nullptr, key, &RightMac));
    }
    const auto waits = [](rdma::Offer*) {};
    const Peer::MacOf macs[] = {nullptr,
                                [](const Tuple& tuple, const Req& req,
                                   const Rep& rep, const ClusterKey& of) {
                                  Rep then = rep;
                                  then.nonce[3] ^= 1;
                                  return RightMac(tuple, req, then, of);
                                },
                                // Its own, sent back.
                                [](const Tuple& tuple, const Req& req,
                                   const Rep& rep, const ClusterKey& of) {
                                  return MacOfReady(stream::Role::kAcceptor,
                                                    req.epoch, tuple, req.nonce,
                                                    rep.nonce, of);
                                }};
    for (const Peer::MacOf mac : macs) {
      Peer peer(server);
      ASSERT_TRUE(peer.Open(waits, key, mac));
      EXPECT_TRUE(peer.Ended());
      EXPECT_TRUE(peer.Echo());
      EXPECT_TRUE(server.Alive());
    }
  }
  ::unlink(name.c_str());
}

// A peer that knows the whole meeting breaks any message of it.
TEST_F(HostileLane, TheMeetingBrokenAnywhere) {
  const Server server;
  ASSERT_NE(server.port, 0);
  // What the first lanes make, and what two threads make that sleep on lanes at
  // once, stays.  A thread may still sleep on the lane before.
  {
    Peer peer(server);
    EXPECT_TRUE(peer.Open());
    EXPECT_TRUE(peer.Echo());
    Peer other(server);
    EXPECT_TRUE(other.Open());
    EXPECT_TRUE(other.Echo());
    std::this_thread::sleep_for(milliseconds(500));
  }
  const int before = server.Fds();
  int came[Peer::kStages] = {};
  constexpr int kRounds = 120;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    std::mt19937_64 random(static_cast<std::uint64_t>(round) + 1);
    {
      Peer peer(server);
      ++came[peer.OpenBroken(&random)];
      // (It may have said that it takes the lane, so this is not for sure.)
      if (random() % 2 == 0) peer.Echo();
    }
    ASSERT_TRUE(server.Alive());
    if (round % 20 == 19) {
      Peer peer(server);
      ASSERT_TRUE(peer.Open());
      EXPECT_TRUE(peer.Echo());
    }
  }
  std::printf("no answer %d, answered %d, spoke %d, readied %d\n",
              came[Peer::kNoAnswer], came[Peer::kAnswered], came[Peer::kSpoke],
              came[Peer::kReadied]);
  EXPECT_GT(came[Peer::kReadied], kRounds / 4);
  EXPECT_GT(came[Peer::kSpoke], 0);
  int after = server.Fds();
  for (auto limit = Clock::now() + milliseconds(20'000);
       after > before && Clock::now() < limit; after = server.Fds()) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LE(after, before) << server.Files();
}

}  // namespace
}  // namespace rcsock::rendezvous

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc == 2 && std::strcmp(argv[1], "server") == 0) {
    return rcsock::rendezvous::Serve();
  }
  if (argc != 2) {
    std::fprintf(stderr, "usage: hostile_lane_test SHIM\n");
    return 2;
  }
  rcsock::rendezvous::self = std::filesystem::read_symlink("/proc/self/exe");
  rcsock::rendezvous::shim = std::filesystem::absolute(argv[1]);
  return RUN_ALL_TESTS();
}
