// Connects two QPs of this process through rdma_cm, and tries every operation
// that a lane uses.

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/clock.h"
#include "lib/verbs/verbs.h"
#include "tools/rcsock/doctor/host.h"
#include "tools/rcsock/doctor/lab_memory.h"
#include "tools/rcsock/doctor/spawn.h"

namespace rcsock::tools {
namespace {

constexpr std::size_t kBytes = LabMemory::kBytes;
constexpr int kLimitMs = 3000;
constexpr std::uint32_t kImmediate = 0x5ca1ab1e;

struct Side {
  verbs::Pd pd;
  verbs::Cq cq;
  std::unique_ptr<LabMemory> memory;
  verbs::Mr mr;
  // The last member: its QP is destroyed first.
  verbs::Id id;
};

class PingPong {
 public:
  // Chooses the memory of both queue pairs: the host's, or that of GPU `gpu`.
  // Returns "", or what has failed.
  std::string SetMemory(int gpu) {
    std::string bad;
    for (Side* side : {&client_, &server_}) {
      side->memory = LabMemory::Make(gpu, &bad);
      if (!bad.empty()) return bad;
    }
    return "";
  }
  // Returns true if Connect has failed because a device did not register the
  // memory.
  bool refused() const { return refused_; }
  // Returns "", or what has failed.
  std::string Connect(const sockaddr_storage& at) {
    verbs::Error error;
    channel_ = verbs::CreateEventChannel(&error);
    if (channel_ == nullptr) return Said(error);
    listener_ = verbs::CreateId(channel_.get(), nullptr, &error);
    if (listener_ == nullptr) return Said(error);
    sockaddr_storage address = at;
    auto* name = reinterpret_cast<sockaddr*>(&address);
    if (verbs::calls.rdma_bind_addr(listener_.get(), name) != 0) {
      return Call("rdma_bind_addr");
    }
    if (verbs::calls.rdma_listen(listener_.get(), 1) != 0) {
      return Call("rdma_listen");
    }
    // The port has one place in both families.
    reinterpret_cast<sockaddr_in*>(name)->sin_port =
        verbs::calls.rdma_get_src_port(listener_.get());
    client_.id = verbs::CreateId(channel_.get(), nullptr, &error);
    if (client_.id == nullptr) return Said(error);
    if (verbs::calls.rdma_resolve_addr(client_.id.get(), nullptr, name,
                                       kLimitMs) != 0) {
      return Call("rdma_resolve_addr");
    }
    std::string bad = Await(RDMA_CM_EVENT_ADDR_RESOLVED);
    if (!bad.empty()) return bad;
    if (verbs::calls.rdma_resolve_route(client_.id.get(), kLimitMs) != 0) {
      return Call("rdma_resolve_route");
    }
    bad = Await(RDMA_CM_EVENT_ROUTE_RESOLVED);
    if (!bad.empty()) return bad;
    if (client_.id->verbs == nullptr) return "the route leads to no device";
    bad = MakeQp(&client_);
    if (!bad.empty()) return bad;
    rdma_conn_param param{};
    param.responder_resources = 1;
    param.initiator_depth = 1;
    param.retry_count = 7;
    param.rnr_retry_count = 7;
    if (verbs::calls.rdma_connect(client_.id.get(), &param) != 0) {
      return Call("rdma_connect");
    }
    bad = Await(RDMA_CM_EVENT_CONNECT_REQUEST);
    if (!bad.empty()) return bad;
    server_.id.reset(requested_);
    bad = MakeQp(&server_);
    if (!bad.empty()) return bad;
    // The client speaks first, as iWARP demands.
    bad = PostRecv(&server_);
    if (!bad.empty()) return bad;
    if (verbs::calls.rdma_accept(server_.id.get(), &param) != 0) {
      return Call("rdma_accept");
    }
    bad = Await(RDMA_CM_EVENT_ESTABLISHED);
    return bad.empty() ? Await(RDMA_CM_EVENT_ESTABLISHED) : bad;
  }
  bool software() const {
    ibv_device_attr attr;
    return verbs::Query(client_.id->verbs, &attr, nullptr) &&
           (attr.vendor_id == verbs::kVendorRxe ||
            attr.vendor_id == verbs::kVendorSiw);
  }
  bool iwarp() const { return verbs::IsIwarp(client_.id->verbs); }

  std::string SendRecv() {
    std::string bad = Fill(&client_, 1);
    if (bad.empty()) bad = Clear(&server_);
    if (bad.empty()) bad = Post(&client_, IBV_WR_SEND);
    if (bad.empty()) bad = Complete(&client_, IBV_WC_SEND);
    if (bad.empty()) bad = Complete(&server_, IBV_WC_RECV);
    if (bad.empty()) bad = Same();
    if (!bad.empty()) return bad;
    // The other way.
    bad = PostRecv(&client_);
    if (bad.empty()) bad = Fill(&server_, 2);
    if (bad.empty()) bad = Post(&server_, IBV_WR_SEND);
    if (bad.empty()) bad = Complete(&server_, IBV_WC_SEND);
    if (bad.empty()) bad = Complete(&client_, IBV_WC_RECV);
    return bad.empty() ? Same() : bad;
  }
  std::string Write() {
    std::string bad = Fill(&client_, 3);
    if (bad.empty()) bad = Clear(&server_);
    if (bad.empty()) bad = Post(&client_, IBV_WR_RDMA_WRITE);
    if (bad.empty()) bad = Complete(&client_, IBV_WC_RDMA_WRITE);
    // On some devices a completion does not mean that the peer's memory has the
    // bytes.
    const std::uint64_t deadline = Deadline();
    while (bad.empty() && !Same().empty() && base::NowNs() < deadline) {
    }
    return bad.empty() ? Same() : bad;
  }
  std::string Read() {
    std::string bad = Fill(&server_, 4);
    if (bad.empty()) bad = Clear(&client_);
    if (bad.empty()) bad = Post(&client_, IBV_WR_RDMA_READ);
    if (bad.empty()) bad = Complete(&client_, IBV_WC_RDMA_READ);
    return bad.empty() ? Same() : bad;
  }
  std::string WriteWithImm() {
    std::string bad = PostRecv(&server_);
    if (bad.empty()) bad = Fill(&client_, 5);
    if (bad.empty()) bad = Clear(&server_);
    if (bad.empty()) bad = Post(&client_, IBV_WR_RDMA_WRITE_WITH_IMM);
    if (bad.empty()) bad = Complete(&client_, IBV_WC_RDMA_WRITE);
    if (bad.empty()) bad = Complete(&server_, IBV_WC_RECV_RDMA_WITH_IMM);
    if (bad.empty() && last_.imm_data != htonl(kImmediate)) {
      return "the immediate arrived changed";
    }
    return bad.empty() ? Same() : bad;
  }

 private:
  static std::string Call(const char* name) {
    return fmt::format("{}: {}", name, std::strerror(errno));
  }
  static std::string Said(const verbs::Error& error) {
    return fmt::format("{}: {}", error.call, std::strerror(error.code));
  }
  static std::uint64_t Deadline() {
    return base::NowNs() + std::uint64_t{kLimitMs} * 1'000'000;
  }

  std::string MakeQp(Side* side) {
    verbs::Error error;
    ibv_context* context = side->id->verbs;
    side->pd = verbs::AllocPd(context, &error);
    if (side->pd == nullptr) return Said(error);
    side->mr = side->memory->Register(side->pd.get(),
                                      IBV_ACCESS_LOCAL_WRITE |
                                          IBV_ACCESS_REMOTE_WRITE |
                                          IBV_ACCESS_REMOTE_READ,
                                      &error);
    refused_ = side->mr == nullptr;
    if (refused_) return Said(error);
    side->cq = verbs::CreateCq(context, 16, nullptr, &error);
    if (side->cq == nullptr) return Said(error);
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = side->cq.get();
    attr.cap.max_send_wr = attr.cap.max_recv_wr = 4;
    attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
    attr.qp_type = IBV_QPT_RC;
    attr.sq_sig_all = 1;
    std::uint32_t no_inline = 0;
    return verbs::CreateQp(side->id.get(), side->pd.get(), &attr, &no_inline,
                           &error)
               ? ""
               : Said(error);
  }
  std::string Await(rdma_cm_event_type wanted) {
    pollfd fd{channel_->fd, POLLIN, 0};
    if (::poll(&fd, 1, kLimitMs) != 1) {
      return fmt::format("no {} within {} s",
                         verbs::calls.rdma_event_str(wanted), kLimitMs / 1000);
    }
    rdma_cm_event* event = nullptr;
    if (verbs::calls.rdma_get_cm_event(channel_.get(), &event) != 0) {
      return Call("rdma_get_cm_event");
    }
    std::string bad;
    if (event->event != wanted) {
      bad = fmt::format("{} (status {}) instead of {}",
                        verbs::calls.rdma_event_str(event->event),
                        event->status, verbs::calls.rdma_event_str(wanted));
    }
    requested_ = event->id;
    verbs::calls.rdma_ack_cm_event(event);
    return bad;
  }
  static ibv_sge Sge(Side* side) {
    return {reinterpret_cast<std::uint64_t>(side->memory->at()), kBytes,
            side->mr->lkey};
  }
  static std::string PostRecv(Side* side) {
    ibv_sge sge = Sge(side);
    ibv_recv_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    const int r = ibv_post_recv(side->id->qp, &wr, &bad);
    return r == 0 ? "" : fmt::format("ibv_post_recv: {}", std::strerror(r));
  }
  std::string Post(Side* side, ibv_wr_opcode opcode) {
    Side* other = side == &client_ ? &server_ : &client_;
    ibv_sge sge = Sge(side);
    ibv_send_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = htonl(kImmediate);
    wr.wr.rdma.remote_addr =
        reinterpret_cast<std::uint64_t>(other->memory->at());
    wr.wr.rdma.rkey = other->mr->rkey;
    ibv_send_wr* bad = nullptr;
    const int r = ibv_post_send(side->id->qp, &wr, &bad);
    return r == 0 ? "" : fmt::format("ibv_post_send: {}", std::strerror(r));
  }
  std::string Complete(Side* side, ibv_wc_opcode wanted) {
    const std::uint64_t deadline = Deadline();
    for (;;) {
      const int n = ibv_poll_cq(side->cq.get(), 1, &last_);
      if (n < 0) return "ibv_poll_cq failed";
      if (n == 1) break;
      if (base::NowNs() > deadline) {
        return fmt::format("no completion within {} s", kLimitMs / 1000);
      }
    }
    if (last_.status != IBV_WC_SUCCESS) {
      return verbs::calls.ibv_wc_status_str(last_.status);
    }
    return last_.opcode == wanted ? "" : "a completion of another kind";
  }
  static std::string Fill(Side* side, int seed) {
    LabMemory::Bytes bytes;
    for (std::size_t i = 0; i < kBytes; ++i) {
      bytes[i] =
          static_cast<unsigned char>((i * 131 + i / 256 + seed * 37) & 0xff);
    }
    return side->memory->Put(bytes);
  }
  static std::string Clear(Side* side) { return side->memory->Put({}); }
  std::string Same() {
    LabMemory::Bytes one, other;
    std::string bad = client_.memory->Take(&one);
    if (bad.empty()) bad = server_.memory->Take(&other);
    if (!bad.empty()) return bad;
    return one == other ? "" : "the bytes arrived changed";
  }

  verbs::EventChannel channel_;
  verbs::Id listener_;
  Side client_;
  Side server_;
  rdma_cm_id* requested_ = nullptr;
  bool refused_ = false;
  ibv_wc last_{};
};

bool ParseAddress(const std::string& text, sockaddr_storage* name) {
  auto* const four = reinterpret_cast<sockaddr_in*>(name);
  auto* const six = reinterpret_cast<sockaddr_in6*>(name);
  if (::inet_pton(AF_INET, text.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    return true;
  }
  six->sin6_family = AF_INET6;
  return ::inet_pton(AF_INET6, text.c_str(), &six->sin6_addr) == 1;
}

// Tries every operation of a lane. Stores what has worked, and what has not.
void TryOperations(PingPong* pair, nlohmann::json* told) {
  struct Operation {
    const char* name;
    std::string (PingPong::*run)();
  };
  std::string good;
  for (const Operation& one :
       {Operation{"SEND/RECV", &PingPong::SendRecv},
        Operation{"WRITE", &PingPong::Write},
        Operation{"READ", &PingPong::Read},
        Operation{"WRITE_WITH_IMM", &PingPong::WriteWithImm}}) {
    if (one.run == &PingPong::WriteWithImm && pair->iwarp()) {
      (*told)["iwarp"] = true;
      continue;
    }
    const std::string failed = (pair->*one.run)();
    if (!failed.empty()) {
      (*told)["failed"] = fmt::format("{}: {}", one.name, failed);
      break;
    }
    good += std::string(good.empty() ? "" : ", ") + one.name;
  }
  (*told)["good"] = good;
  (*told)["software"] = pair->software();
}

// What the findings say of the operations that have worked.
std::string Worked(const nlohmann::json& told) {
  return fmt::format("{} verified{}", told.value("good", ""),
                     told.value("iwarp", false)
                         ? " (iWARP has no immediates: a lane writes, then "
                           "sends)"
                         : "");
}

}  // namespace

int VerbsMain(const std::string& address, int gpu) {
  nlohmann::json told = {{"memory", ""}, {"connects", ""}, {"failed", ""}};
  sockaddr_storage name{};
  if (!ParseAddress(address, &name)) return 2;
  verbs::Error error;
  PingPong pair;
  std::string bad = pair.SetMemory(gpu);
  told["memory"] = bad;
  if (bad.empty()) {
    bad =
        verbs::Load(&error) ? pair.Connect(name) : "the libraries do not load";
    told["connects"] = bad;
    told["refused"] = pair.refused();
  }
  if (bad.empty()) TryOperations(&pair, &told);
  std::cout << told.dump(-1, ' ', false,
                         nlohmann::json::error_handler_t::replace)
            << std::endl;
  // A broken device must not hold up the answer.
  ::_exit(0);
}

void ExamineVerbs(const DeviceAddress& address, Findings* findings) {
  constexpr int kPatienceMs = 15'000;
  const std::string& about = address.device;
  Child child({"rcsock", "doctor-probe", "verbs", address.text, "0"}, nullptr);
  const auto told =
      nlohmann::json::parse(child.Line(kPatienceMs), nullptr, false);
  const std::string connects =
      told.is_object()
          ? told.value("connects", "")
          : fmt::format("no answer within {} s", kPatienceMs / 1000);
  if (!connects.empty()) {
    findings->Bad(about,
                  fmt::format("two QPs over {} do not connect: {}",
                              address.text, connects),
                  "dmesg | tail; ulimit -l; a firewall? RoCE v2 is UDP port "
                  "4791, iWARP is TCP");
    return;
  }
  const std::string failed = told.value("failed", "");
  if (!failed.empty()) {
    findings->Bad(about, fmt::format("over {}: {}", address.text, failed),
                  "dmesg | tail; the driver or the card is at fault, not "
                  "rcsock");
    return;
  }
  findings->Good(
      about, fmt::format("two QPs over {}: {}", address.text, Worked(told)));
  if (told.value("software", false)) {
    findings->Note(about,
                   "a device without hardware, slower than TCP: by default "
                   "streams stay on TCP (device_left_alone)",
                   "rcsock run --lanes=rdma, or `devices` that name it");
  }
}

void ExamineGpuVerbs(const DeviceAddress& address, int gpu,
                     Findings* findings) {
  constexpr int kPatienceMs = 30'000;
  const std::string about = fmt::format("GPU {}, {}", gpu, address.device);
  Child child({"rcsock", "doctor-probe", "gpu-verbs", address.text,
               std::to_string(gpu)},
              nullptr);
  const auto told =
      nlohmann::json::parse(child.Line(kPatienceMs), nullptr, false);
  if (!told.is_object()) {
    findings->Bad(about,
                  fmt::format("no answer within {} s", kPatienceMs / 1000),
                  "dmesg | tail; nvidia-smi");
    return;
  }
  if (const std::string bad = told.value("memory", ""); !bad.empty()) {
    // A program may have all of its memory, or have it for itself.
    findings->Warn(about, "not tried: its memory: " + bad,
                   "nvidia-smi; dmesg | tail");
    return;
  }
  const std::string connects = told.value("connects", "");
  if (told.value("refused", false)) {
    findings->Warn(about,
                   fmt::format("the device does not register the GPU's memory "
                               "({}): a lane copies its bytes",
                               connects),
                   "the driver's open kernel modules, Linux 5.12 and "
                   "rdma-core 34 or later; or modprobe nvidia-peermem");
    return;
  }
  // ExamineVerbs has said why.
  if (!connects.empty()) return;
  if (const std::string failed = told.value("failed", ""); !failed.empty()) {
    findings->Bad(about, fmt::format("over the GPU's memory: {}", failed),
                  "nvidia-smi topo -m; iommu=pt; ACS off on the bridges "
                  "between them; RCSOCK_LANES without rdma until then");
    return;
  }
  findings->Good(about, "two QPs over the GPU's memory: " + Worked(told));
}

void ExamineRoute(const sockaddr_storage& peer, const std::string& name,
                  Findings* findings) {
  verbs::Error error;
  const verbs::EventChannel channel = verbs::CreateEventChannel(&error);
  const verbs::Id id = channel == nullptr
                           ? nullptr
                           : verbs::CreateId(channel.get(), nullptr, &error);
  if (id == nullptr) return;  // the failure has been reported
  sockaddr_storage to = peer;
  const auto await = [&](rdma_cm_event_type wanted) -> std::string {
    pollfd fd{channel->fd, POLLIN, 0};
    if (::poll(&fd, 1, kLimitMs + 500) != 1) return "no answer";
    rdma_cm_event* event = nullptr;
    if (verbs::calls.rdma_get_cm_event(channel.get(), &event) != 0) {
      return std::strerror(errno);
    }
    const std::string bad =
        event->event == wanted
            ? ""
            : fmt::format("{} ({})", verbs::calls.rdma_event_str(event->event),
                          std::strerror(std::abs(event->status)));
    verbs::calls.rdma_ack_cm_event(event);
    return bad;
  };
  std::string bad;
  if (verbs::calls.rdma_resolve_addr(
          id.get(), nullptr, reinterpret_cast<sockaddr*>(&to), kLimitMs) != 0) {
    bad = std::strerror(errno);
  } else {
    bad = await(RDMA_CM_EVENT_ADDR_RESOLVED);
  }
  if (bad.empty() && id->verbs == nullptr) bad = "it leads to no device";
  if (bad.empty() && verbs::calls.rdma_resolve_route(id.get(), kLimitMs) != 0) {
    bad = std::strerror(errno);
  } else if (bad.empty()) {
    bad = await(RDMA_CM_EVENT_ROUTE_RESOLVED);
  }
  if (!bad.empty()) {
    findings->Bad("route", fmt::format("no RDMA route to {}: {}", name, bad),
                  "ip route get " + HostText(peer) +
                      " must show the network device of an RDMA device");
    return;
  }
  findings->Good(
      "route",
      fmt::format("{} is reached through {}", name,
                  verbs::calls.ibv_get_device_name(id->verbs->device)));
}

}  // namespace rcsock::tools
