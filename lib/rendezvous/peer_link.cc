#include "lib/rendezvous/peer_link.h"

#include <algorithm>
#include <bit>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "lib/base/config.h"
#include "lib/base/helper_thread.h"
#include "lib/base/internal.h"
#include "lib/base/log.h"
#include "lib/rendezvous/core.h"
#include "lib/rendezvous/session.h"
#include "lib/rendezvous/witness.h"

namespace rcsock::rendezvous {
namespace {

using boost::system::error_code;
using lane::BellBit;
using lane::BellMask;
using lane::kBells;
using lane::shm::kMaxSegments;
using lane::shm::kSegmentStreams;

constexpr std::chrono::seconds kAckLimit{2};
// Side 0 offers no more while so many are unanswered: a peer that does not come
// to answer must not be flooded.
constexpr int kMostUnanswered = 32;
// An adopted stream without a lane waits until the conductors have worked on
// all others that are as far.  So few are under way at once, and the others go
// on over TCP.  Of many that wait, each kPerOpening let one more begin.
constexpr std::size_t kMostOpenings = 2;
constexpr std::size_t kPerOpening = 32;
// A stream whose peer leaves no gap for the adoption keeps the others waiting
// for no longer than this.
constexpr std::chrono::milliseconds kOpeningTime{2};
// A number that has been free for so long will hardly be used again at once.
// Its memory is given back.
constexpr std::chrono::seconds kTrimAfter{2};
// The most numbers that one thread trims.
constexpr std::size_t kMostTrimmed = 256;

struct Trim {
  Core* core;
  std::weak_ptr<PeerLink> link;
  std::shared_ptr<lane::shm::Link> memory;
  std::vector<int> numbers;
};

// Runs in a thread of its own.  The peer maps this memory, too, and can hold up
// the kernel where it frees the memory.  If the peer does, it keeps only its
// own numbers out of use.
void* TrimAll(void* argument) {
  ::pthread_setname_np(::pthread_self(), "rcsock-trim");
  base::tls_internal = true;
  const std::unique_ptr<Trim> trim(static_cast<Trim*>(argument));
  for (const int number : trim->numbers) trim->memory->Trim(number);
  trim->core->PostTask([link = trim->link, numbers = trim->numbers] {
    if (const auto alive = link.lock()) alive->Trimmed(numbers);
  });
  return nullptr;
}

}  // namespace

PeerLink::PeerLink(Core* core, const Uuid& uuid,
                   std::shared_ptr<Channel> channel,
                   std::shared_ptr<lane::shm::Link> link)
    : core_(core),
      uuid_(uuid),
      channel_(std::move(channel)),
      link_(std::move(link)),
      trim_timer_(core),
      open_timer_(core),
      // A process of another container gives a token, and a witness.
      process_(channel_->far() ? -1 : channel_->fd(), channel_->peer_thread()),
      timer_(core) {
  // Who has the handle of an allocation has the allocation.
  if (OwnUid() && base::GetConfig().gpu_pass) link_->PassMemory();
}

std::shared_ptr<PeerLink> PeerLink::Make(Core* core, const Uuid& uuid,
                                         std::shared_ptr<Channel> channel,
                                         base::Reason* why) {
  errno = 0;
  std::shared_ptr<lane::shm::Link> memory = lane::shm::Link::Create();
  if (memory == nullptr) {
    *why = ErrnoReason(errno == 0 ? ENOMEM : errno);
    return nullptr;
  }
  auto link =
      std::make_shared<PeerLink>(core, uuid, std::move(channel), memory);
  link->channel_->SetOwner(link);
  link->channel_->Lend(memory);
  auto message = NewMessage<LinkMsg>();
  int fds[kMaxFds] = {memory->page_fd(), core->bells->SharePage()};
  BellMask mask = 0;
  const int count = 2 + link->NewBells(fds + 2, &mask);
  message.bells = mask;
  message.wants_tokens = !link->process_.visible();
  link->channel_->Send(message, fds, count);
  link->WaitForAck();
  return link;
}

std::shared_ptr<PeerLink> PeerLink::Accept(Core* core, const Uuid& uuid,
                                           std::shared_ptr<Channel> channel,
                                           Packet& packet, base::Reason* why) {
  LinkMsg message;
  *why = base::Reason::kProtocol;
  if (!packet.Read(&message)) return nullptr;
  const BellMask mask = message.bells;
  if (packet.fd_count != 2 + std::popcount(mask)) return nullptr;
  std::shared_ptr<lane::shm::Link> memory =
      lane::shm::Link::Map(packet.TakeFd(0));
  if (memory == nullptr ||
      !memory->SetPeerBellPage(packet.TakeFd(1), core->bells->most_ring())) {
    *why = base::Reason::kNoMemory;
    return nullptr;
  }
  auto link =
      std::make_shared<PeerLink>(core, uuid, std::move(channel), memory);
  link->channel_->SetOwner(link);
  link->channel_->Lend(memory);
  link->TakeBells(mask, packet, 2);
  link->up_ = true;
  auto ack = NewMessage<LinkAck>();
  int fds[kMaxFds] = {core->bells->SharePage()};
  BellMask ours = 0;
  const int count = 1 + link->NewBells(fds + 1, &ours);
  ack.bells = ours;
  ack.wants_tokens = !link->process_.visible();
  link->gives_tokens_ = message.wants_tokens != 0;
  link->channel_->Send(ack, fds, count);
  return link;
}

void PeerLink::WaitForAck() {
  timer_.Start(kAckLimit, shared_from_this(), &PeerLink::OnNoAck);
}

void PeerLink::OnNoAck() {
  if (!up_) Die(base::Reason::kTimeout);
}

int PeerLink::NewBells(int* fds, BellMask* mask) {
  int count = 0;
  *mask = 0;
  if (!SharesBells()) return 0;
  for (int k = 0; k < kBells; ++k) {
    const int fd = core_->bells->bell_fd(k);
    if (fd < 0 || (announced_ & BellBit(k))) continue;
    fds[count++] = fd;
    *mask |= BellBit(k);
  }
  announced_ |= *mask;
  return count;
}

bool PeerLink::TakeBells(BellMask mask, Packet& packet, int first) {
  // A bell is given once: a second eventfd would cast doubt on the first.
  if (known_ & mask) return false;
  known_ |= mask;
  int i = first;
  for (int k = 0; k < kBells; ++k) {
    if (!(mask & BellBit(k))) continue;
    base::UniqueFd fd = packet.TakeFd(i++);
    if (SharesBells()) link_->SetPeerBell(k, std::move(fd));
  }
  return true;
}

void PeerLink::AnnounceBell(int k) {
  if (dead_ || !SharesBells() || k < 0 || k >= kBells ||
      (announced_ & BellBit(k))) {
    return;
  }
  const int fd = core_->bells->bell_fd(k);
  if (fd < 0) return;
  announced_ |= BellBit(k);
  auto message = NewMessage<BellMsg>();
  message.bell = static_cast<std::uint32_t>(k);
  channel_->Send(message, &fd, 1);
}

void PeerLink::Open(const std::shared_ptr<Session>& session) {
  pending_.push_back(session);
  if (up_) OpenNext();
}

void PeerLink::OpenNext() {
  const auto now = std::chrono::steady_clock::now();
  while (!openings_.empty() && openings_.front().until <= now) {
    openings_.pop_front();
  }
  while (!dead_ && !pending_.empty() &&
         openings_.size() < kMostOpenings + pending_.size() / kPerOpening) {
    const std::shared_ptr<Session> session = std::move(pending_.front());
    pending_.pop_front();
    const base::Reason why = OpenNow(session, false);
    if (why != base::Reason::kNone) session->Fail(why, false);
  }
  if (dead_ || pending_.empty() || std::exchange(opens_later_, true)) return;
  open_timer_.Start(openings_.front().until - now, weak_from_this(),
                    &PeerLink::OnOpenTimer);
}

void PeerLink::OnOpenTimer() {
  opens_later_ = false;
  OpenNext();
}

// The next begins later: the caller is in the middle of something.
void PeerLink::EndOpening(int index) {
  const auto ended = [index](const Opening& one) { return one.index == index; };
  if (std::erase_if(openings_, ended) == 0 || dead_ || pending_.empty()) return;
  boost::asio::post(core_->io, [core = core_, weak = weak_from_this()] {
    const Step step(core);
    if (const auto self = weak.lock()) self->OpenNext();
  });
}

bool PeerLink::Offer(const std::shared_ptr<Session>& session) {
  return up_ && OwnUid() && !channel_->backed_up() &&
         unanswered_ < kMostUnanswered &&
         OpenNow(session, true) == base::Reason::kNone;
}

base::Reason PeerLink::OpenNow(const std::shared_ptr<Session>& session,
                               bool offer) {
  if (dead_) return base::Reason::kPeerGone;
  if (free_.empty()) {
    const int number = link_->segments();
    if (number >= kMaxSegments) return base::Reason::kTooMany;
    errno = 0;
    base::UniqueFd segment = link_->AddSegment();
    if (!segment.ok()) return ErrnoReason(errno == 0 ? ENOMEM : errno);
    auto message = NewMessage<SegmentMsg>();
    message.number = static_cast<std::uint32_t>(number);
    const int fd = segment.get();
    channel_->Send(message, &fd, 1);
    const int first = number * kSegmentStreams;
    slots_.resize(static_cast<std::size_t>(first) + kSegmentStreams);
    for (int i = kSegmentStreams - 1; i >= 0; --i) {
      free_.push_back({first + i, {}});
    }
    trimmed_ = free_.size();
  }
  auto message = NewMessage<OpenMsg>();
  if (!session->PrepareOpen(&message)) return base::Reason::kLaneError;
  const int index = free_.back().index;
  free_.pop_back();
  trimmed_ = std::min(trimmed_, free_.size());
  const std::uint32_t epoch = core_->NextEpoch();
  link_->Scrub(index);
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  slot = Slot();
  slot.epoch = epoch;
  slot.ours = slot.theirs = true;
  slot.session = session;
  ++unanswered_;
  message.index = static_cast<std::uint32_t>(index);
  message.epoch = epoch;
  message.offer = offer;
  if (offer) {
    session->Offered(shared_from_this(), index, epoch);
  } else {
    openings_.push_back(
        {index, std::chrono::steady_clock::now() + kOpeningTime});
    session->OpenSent(shared_from_this(), index, epoch);
  }
  SendClaim(*session, message);
  return base::Reason::kNone;
}

template <typename Message>
void PeerLink::SendClaim(const Session& session, const Message& message) {
  base::UniqueFd token;
  base::UniqueFd witness;
  if (gives_tokens_) {
    const BorrowedNumber number = session.fd();
    token = OpenToken(number);
    if (far()) witness = OpenWitness(number, session.ends(), session.role());
  }
  const int fds[] = {token.get(), witness.get()};
  const int count = !token.ok() ? 0 : witness.ok() ? 2 : 1;
  channel_->Send(message, fds, count);
}

void PeerLink::Answer(const std::shared_ptr<Session>& session, int index,
                      std::uint32_t epoch, const stream::Nonce& peers,
                      Proof proof) {
  auto reply = NewMessage<OpenedMsg>();
  reply.index = static_cast<std::uint32_t>(index);
  reply.epoch = epoch;
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  slot = Slot();
  slot.epoch = epoch;
  slot.ours = slot.theirs = slot.answered = true;
  slot.session = session;
  std::memcpy(reply.nonce, session->nonce().data(), sizeof reply.nonce);
  reply.claim = session->OwnClaim();
  SendClaim(*session, reply);
  session->Opened(shared_from_this(), index, epoch, peers, proof);
}

bool PeerLink::TakeClaim(const Claim& claim, Packet& packet,
                         Claimed* claimed) const {
  const int most = far() ? 2 : process_.visible() ? 0 : 1;
  if (packet.fd_count > most) return false;
  *claimed = {claim, 0, -1};
  if (packet.fd_count >= 1) {
    claimed->token = TokenInode(packet.fds[0].get(), channel_->fd());
  }
  if (packet.fd_count == 2) claimed->witness = packet.fds[1].get();
  return true;
}

Proof PeerLink::ProveFar(const Session& session, const Claimed& claimed) const {
  const bool proven = claimed.token != 0 && !name().empty() &&
                      session.FarEnd(claimed.witness) == claimed.token;
  return proven ? Proof::kToken : Proof::kNone;
}

Proof PeerLink::Prove(const Session& session, const Claimed& claimed,
                      bool later) const {
  if (!session.CanBePeer(claimed.claim, later)) return Proof::kNone;
  if (far()) return ProveFar(session, claimed);
  const std::uint32_t other = session.OtherEnd();
  if (other == 0) return Proof::kNone;
  if (process_.visible()) {
    return process_.Holds(claimed.claim.number, other) ? Proof::kSeen
                                                       : Proof::kNone;
  }
  // The channel has no name, so the nonces are not bound to it (BoundTo).  A
  // process that has seen the token could hand the nonces on as well.
  return claimed.token == other && !name().empty() ? Proof::kToken
                                                   : Proof::kNone;
}

void PeerLink::SendReady(int index, std::uint32_t epoch, Proof proof) {
  auto message = NewMessage<ReadyMsg>();
  message.proof = static_cast<std::uint32_t>(proof);
  message.index = static_cast<std::uint32_t>(index);
  message.epoch = epoch;
  channel_->Send(message);
}

void PeerLink::Delivered(int index, std::shared_ptr<Seeker> seeker) {
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  slot.session.reset();
  slot.seeker = std::move(seeker);
  delivered_ = true;
  EndOpening(index);
}

PeerLink::Slot* PeerLink::Find(std::uint32_t index, std::uint32_t epoch) {
  if (index >= slots_.size()) return nullptr;
  Slot& slot = slots_[index];
  // A side says nothing of a stream after its CLOSED.  A number is used again
  // only after both CLOSED.  So every mismatch is the peer's fault.
  if (!slot.theirs || slot.epoch != epoch) return nullptr;
  return &slot;
}

void PeerLink::FreeIfDone(int index) {
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  if (slot.used()) return;
  slot = Slot();
  if (!decider()) return;
  free_.push_back({index, std::chrono::steady_clock::now()});
  TrimLater();
}

void PeerLink::TrimLater() {
  if (trims_ || std::exchange(trims_later_, true)) return;
  trim_timer_.Start(kTrimAfter, weak_from_this(), &PeerLink::TrimNow);
}

// Has a thread trim the numbers that no stream has used for a while.
void PeerLink::TrimNow() {
  trims_later_ = false;
  if (dead_ || trims_) return;
  const auto until = std::chrono::steady_clock::now() - kTrimAfter;
  auto trim = std::make_unique<Trim>();
  const auto first = free_.begin() + static_cast<std::ptrdiff_t>(trimmed_);
  auto last = first;
  while (last != free_.end() && last->since <= until &&
         trim->numbers.size() < kMostTrimmed) {
    trim->numbers.push_back((last++)->index);
  }
  free_.erase(first, last);
  if (trim->numbers.empty()) {
    if (free_.size() > trimmed_) TrimLater();
    return;
  }
  trim->core = core_;
  trim->link = weak_from_this();
  trim->memory = link_;
  const std::vector<int> numbers = trim->numbers;
  trims_ = true;
  if (base::StartHelper(&TrimAll, trim.get()) != 0) return Trimmed(numbers);
  static_cast<void>(trim.release());
}

void PeerLink::Trimmed(const std::vector<int>& numbers) {
  trims_ = false;
  for (const int number : numbers) free_.push_front({number, {}});
  trimmed_ += numbers.size();
  if (free_.size() > trimmed_) TrimLater();
}

void PeerLink::CloseOurs(int index, std::uint32_t epoch, base::Reason reason) {
  if (dead_) return;
  Slot& slot = slots_[static_cast<std::size_t>(index)];
  if (!slot.ours || slot.epoch != epoch) return;
  slot.ours = false;
  slot.session.reset();
  slot.seeker.reset();
  EndOpening(index);
  auto message = NewMessage<ClosedMsg>();
  message.index = static_cast<std::uint32_t>(index);
  message.epoch = epoch;
  message.reason = static_cast<std::uint32_t>(reason);
  channel_->Send(message);
  FreeIfDone(index);
}

void PeerLink::OnChannelEnd(base::Reason reason) { Die(reason); }

void PeerLink::Die(base::Reason reason) {
  if (dead_) return;
  dead_ = true;
  const auto self = shared_from_this();
  RCSOCK_LOG(1, "link lost: %s", base::ReasonKey(reason));
  timer_.Stop();
  trim_timer_.Stop();
  open_timer_.Stop();
  channel_->Close();
  link_->Kill(reason);
  core_->RemoveLink(this);
  held_.clear();
  for (auto& session : std::exchange(pending_, {})) {
    session->Fail(reason, false);
  }
  if (auto founder = founder_.lock()) founder->Fail(reason, false);
  for (Slot& slot : slots_) {
    if (auto session = std::exchange(slot.session, {}).lock()) {
      session->LinkEnded(this, reason);
    }
    if (auto seeker = std::exchange(slot.seeker, {})) {
      seeker->LinkLost(reason);
    }
  }
}

void PeerLink::OnPacket(Packet& packet) {
  if (dead_) return;
  if (!Handle(packet)) return Die(base::Reason::kProtocol);
  // After any message: a RUNG may have found no room in the socket.
  core_->RingBells(link_->TakeRung());
}

}  // namespace rcsock::rendezvous
