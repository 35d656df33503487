#ifndef RCSOCK_TESTS_LANE_RDMA_CM_PAIR_H_
#define RCSOCK_TESTS_LANE_RDMA_CM_PAIR_H_

#include <arpa/inet.h>
#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/lane/rdma_pair.h"

namespace rcsock::lane::test {

// Connects two QPs of this process through rdma_cm and the device that
// $RDMA_IP leads to.
class CmConnector {
 public:
  static constexpr int kNone = -1;

  bool Open() {
    verbs::Error error;
    if (!verbs::Load(&error)) return false;
    channel_ = verbs::CreateEventChannel(&error);
    if (channel_ == nullptr) return false;
    listener_ = verbs::CreateId(channel_.get(), nullptr, &error);
    if (listener_ == nullptr) return false;
    const char* ip = std::getenv("RDMA_IP");
    if (ip == nullptr) return false;
    address_.sin_family = AF_INET;
    ::inet_pton(AF_INET, ip, &address_.sin_addr);
    if (verbs::calls.rdma_bind_addr(
            listener_.get(), reinterpret_cast<sockaddr*>(&address_)) != 0 ||
        verbs::calls.rdma_listen(listener_.get(), 4) != 0) {
      return false;
    }
    address_.sin_port = verbs::calls.rdma_get_src_port(listener_.get());
    for (auto& id : ids_) id = nullptr;
    ids_[0] = verbs::CreateId(channel_.get(), nullptr, &error);
    return ids_[0] != nullptr &&
           verbs::calls.rdma_resolve_addr(
               ids_[0].get(), nullptr, reinterpret_cast<sockaddr*>(&address_),
               2000) == 0 &&
           Await(RDMA_CM_EVENT_ADDR_RESOLVED) &&
           verbs::calls.rdma_resolve_route(ids_[0].get(), 2000) == 0 &&
           Await(RDMA_CM_EVENT_ROUTE_RESOLVED);
  }
  // With a QP on id(0); `make` makes one on id(1).
  template <typename F>
  bool Connect(F make) {
    rdma_conn_param param{};
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    if (verbs::calls.rdma_connect(ids_[0].get(), &param) != 0 ||
        !Await(RDMA_CM_EVENT_CONNECT_REQUEST)) {
      return false;
    }
    ids_[1].reset(requested_);
    if (!make(ids_[1].get()) ||
        verbs::calls.rdma_accept(ids_[1].get(), &param) != 0) {
      return false;
    }
    return Await(RDMA_CM_EVENT_ESTABLISHED) && Await(RDMA_CM_EVENT_ESTABLISHED);
  }
  rdma_cm_id* id(int i) { return ids_[i].get(); }
  void Close() {
    for (auto& id : ids_) id.reset();
    listener_.reset();
    channel_.reset();
  }
  ~CmConnector() { Close(); }

 private:
  bool Await(rdma_cm_event_type wanted) {
    pollfd fd{channel_->fd, POLLIN, 0};
    if (::poll(&fd, 1, 5000) != 1) return false;
    rdma_cm_event* event = nullptr;
    if (verbs::calls.rdma_get_cm_event(channel_.get(), &event) != 0) {
      return false;
    }
    const bool good = event->event == wanted;
    if (!good) {
      std::fprintf(stderr, "rdma_cm event %d instead of %d, status %d\n",
                   event->event, wanted, event->status);
    }
    requested_ = event->id;
    verbs::calls.rdma_ack_cm_event(event);
    return good;
  }

  sockaddr_in address_{};
  verbs::EventChannel channel_;
  verbs::Id listener_;
  verbs::Id ids_[2];
  rdma_cm_id* requested_ = nullptr;
};

inline std::unique_ptr<RdmaPair> MakeCmPair(std::size_t ring_bytes,
                                            std::size_t most = 0) {
  auto cm = std::make_shared<CmConnector>();
  if (!cm->Open()) return nullptr;
  auto pair = std::make_unique<RdmaPair>();
  verbs::Error error;
  base::Reason why = base::Reason::kNone;
  for (auto& side : pair->side) {
    side.domain = rdma::Domain::Make(cm->id(0)->verbs, &side.board, &error);
    if (side.domain == nullptr) return nullptr;
    side.domain->SetRingBytes(ring_bytes, most == 0 ? ring_bytes : most);
  }
  const auto make = [&](int i, rdma_cm_id* id) {
    pair->side[i].lane =
        pair->side[i].domain->CreateLane(id, RdmaSide::kBell, &why, &error);
    if (pair->side[i].lane != nullptr) return true;
    std::fprintf(stderr, "no lane: %s, %s: %d\n", base::ReasonKey(why),
                 error.call == nullptr ? "" : error.call, error.code);
    return false;
  };
  if (!make(0, cm->id(0)) ||
      !cm->Connect([&](rdma_cm_id* id) { return make(1, id); })) {
    return nullptr;
  }
  pair->disconnect = [cm] { cm->Close(); };
  if (!pair->Meet()) return nullptr;
  pair->Coalesce();
  return pair;
}

}  // namespace rcsock::lane::test

#endif  // RCSOCK_TESTS_LANE_RDMA_CM_PAIR_H_
