#ifndef RCSOCK_TESTS_RENDEZVOUS_ROGUE_H_
#define RCSOCK_TESTS_RENDEZVOUS_ROGUE_H_

#include <infiniband/verbs.h>
#include <sys/random.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "lib/lane/rdma/layout.h"
#include "lib/rendezvous/rdma_wire.h"
#include "lib/ring/imm.h"
#include "tests/rendezvous/rdma_util.h"
#include "tests/rendezvous/rogue_programs.h"

namespace rcsock::rendezvous {

// Has the RDMA port that goes with a plain server's, and has never had a look
// at its connection.
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
    std::uint8_t text[lane::rdma::kReadySize] = {};
    lane::rdma::EncodeOffer(OurOffer(), text);
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
    const std::byte* ring = memory_->block + lane::rdma::kRingAt;
    const std::byte* end = memory_->block + sizeof memory_->block;
    return static_cast<std::size_t>(end - ring -
                                    std::count(ring, end, std::byte{0})) +
           data_;
  }
  // The client has ended the lane.
  bool Ended() { return raw_.Next(10'000).type == RDMA_CM_EVENT_DISCONNECTED; }

 private:
  struct Memory {
    std::byte block[lane::rdma::kBlockMin];
    std::byte scratch[64][128];
    std::byte received[64][lane::rdma::kSlotBytes];
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
      const std::byte* at = OnIwarp() ? received
                                      : memory_->block + lane::rdma::kSlotsAt +
                                            number % lane::rdma::kMessages *
                                                lane::rdma::kSlotBytes;
      bytes->assign(reinterpret_cast<const char*>(at), imm.length);
    }
    if (imm.kind == ring::Kind::kSetup && bytes != nullptr) {
      EXPECT_TRUE(lane::rdma::DecodeOffer(
          reinterpret_cast<const std::uint8_t*>(bytes->data()), &theirs_));
    }
    return imm;
  }

  static std::uint64_t Place(const void* at) {
    return reinterpret_cast<std::uintptr_t>(at);
  }
  lane::rdma::Offer OurOffer() const {
    lane::rdma::Offer offer{};
    offer.address = Place(memory_->block) + lane::rdma::kSlotsAt;
    offer.credit = Place(memory_->block);
    offer.key = mr_->rkey;
    offer.bytes = lane::rdma::RingBytes(lane::rdma::kBlockMin);
    offer.messages = lane::rdma::kMessages;
    return offer;
  }
  void Receive() {
    const std::uint64_t n = receives_++ % 64;
    ibv_sge sge{Place(memory_->received[n]), lane::rdma::kSlotBytes, mr_->lkey};
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
         theirs_.address +
             said_++ % lane::rdma::kMessages * lane::rdma::kSlotBytes,
         true);
  }
  void Post(const std::byte* from, std::size_t length, std::uint64_t to,
            bool message) {
    ibv_sge sge{Place(from), static_cast<std::uint32_t>(length), mr_->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
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
  lane::rdma::Offer theirs_{};
  stream::Ctl proposal_;
  std::uint64_t receives_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t said_ = 0;
  std::size_t data_ = 0;
  std::uint32_t imm_ = 0;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_TESTS_RENDEZVOUS_ROGUE_H_
