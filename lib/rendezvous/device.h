#ifndef RCSOCK_LIB_RENDEZVOUS_DEVICE_H_
#define RCSOCK_LIB_RENDEZVOUS_DEVICE_H_

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>

#include "lib/lane/rdma/domain.h"
#include "lib/rendezvous/cm.h"

namespace rcsock::rendezvous {

class Rdma;

// One device that this process uses.  Owns the device's domain, the events of
// its context, and an id bound to the device.  Without that id librdmacm may
// close the context of a device that has gone, while the domain still uses it.
//
// Threads: the conductor's.  Its last connection destroys it.
class Device : public CmOwner, public std::enable_shared_from_this<Device> {
 public:
  // Returns the device that `id` is bound to.  Returns null and sets *why if it
  // fails.
  static std::shared_ptr<Device> Make(Core* core, std::shared_ptr<Cm> cm,
                                      const rdma_cm_id* id, base::Reason* why);
  Device(Core* core, std::shared_ptr<Cm> cm);
  ~Device() override;

  lane::rdma::Domain* domain() const { return domain_.get(); }
  ibv_context* context() const { return keeper_->verbs; }
  // The device has gone or failed.  All its lanes are dead, and no new lane is
  // made.
  void Lose();
  bool lost() const { return lost_; }
  // The conductor ends.  Lanes may live on for a while.
  void Close();
  void OnCm(const CmEvent& event) override;
  // Whether the device reports LAST_WQE_REACHED.  False after kInVain waits in
  // vain in a row, until a report comes.
  bool Reports() const { return in_vain_ < kInVain; }
  void Reported() { in_vain_ = 0; }
  void NotReported() { ++in_vain_; }
  // Handles asynchronous events, up to a bound.  Returns true if there may be
  // more.
  bool OnAsync();
  // A lane has put off a send.  Sends it within Pace::flush_us.
  void FlushSoon();

 private:
  static constexpr int kInVain = 3;

  void WaitAsync();
  // Handles an event that has been acknowledged.  `qp_num`: the QP's number, if
  // the event is about a QP.
  void OnEvent(const ibv_async_event& event, std::uint32_t qp_num, Rdma* rdma);
  void Flush();

  Core* const core_;
  std::shared_ptr<Cm> cm_;
  verbs::Id keeper_;
  std::shared_ptr<lane::rdma::Domain> domain_;
  std::unique_ptr<boost::asio::posix::stream_descriptor> async_;
  std::optional<boost::asio::steady_timer> flush_timer_;
  std::chrono::steady_clock::time_point flushed_{};
  bool flush_waits_ = false;
  bool lost_ = false;
  int in_vain_ = 0;
};

// Whether rdma_connect on this device returns only once the peer has answered.
bool ConnectBlocks(ibv_context* context);

// True for the kernel's devices without hardware, rxe and siw.
bool IsSoftware(ibv_context* context);

// True for Soft-RoCE, and for a device that does not say what it is.
bool IsRxe(ibv_context* context);

// Returns the reason that a failed call gives a stream.
base::Reason VerbsReason(const verbs::Error& error);
void LogError(const verbs::Error& error);

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_LIB_RENDEZVOUS_DEVICE_H_
