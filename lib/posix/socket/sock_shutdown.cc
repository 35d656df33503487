// shutdown(2) of a stream.

#include <sys/socket.h>

#include <atomic>
#include <cerrno>

#include "lib/base/real.h"
#include "lib/posix/socket/lookup.h"
#include "lib/posix/socket/registrations.h"
#include "lib/posix/socket/sock.h"
#include "lib/posix/socket/sock_looks.h"
#include "lib/posix/thread/signals.h"

namespace rcsock::posix {

int Sock::Shutdown(int number, int how) {
  // The kernel refuses such a call, and nothing is closed.
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) {
    return real::shutdown(number, how);
  }
  Critical critical;
  const bool closed = mode() == Mode::kEngine && Looks(this).TakeTcpEnd();
  tx_latch.lock();
  rx_latch.lock();
  if (!IsAt(number)) [[unlikely]] {
    rx_latch.unlock();
    tx_latch.unlock();
    Sock* const other = LookupHere(number);
    return other != nullptr ? other->Shutdown(number, how)
                            : real::shutdown(number, how);
  }
  int result;
  if (mode() != Mode::kEngine || stream_ == nullptr) {
    if (peer_.connected()) way_back_.HalfClosed();
    rx_latch.unlock();
    tx_latch.unlock();
    // The peer holds back the end of TCP for as long as a lane is agreed.
    search_.Cancel();
    result = real::shutdown(number, how);
    return result;
  }
  int error = 0;
  if (stream_->Gone() || (closed && stream_->AtKernel()) ||
      (stream_->Ended() ? real::shutdown(number, how) != 0
                        : stream_->Shut() && stream_->PeerEnded())) {
    error = ENOTCONN;  // and the shutdown is done, as in the kernel
  }
  if (how != SHUT_WR) {
    rd_shut_.Write(tx_latch, rx_latch) = true;
    Wake(false);
  }
  if (how != SHUT_RD) {
    const int r = stream_->ShutdownWrite();
    if (r < 0) error = -r;
    input_alone_.store(false, std::memory_order_release);
    stream_->Progress();
    HandleChanges();
    Wake(true);
    // The kernel makes an edge of a shutdown, whatever a registration asks for.
    Registrations::Ready(this);
  }
  rx_latch.unlock();
  tx_latch.unlock();
  if (error != 0) {
    errno = error;
    return -1;
  }
  return 0;
}

}  // namespace rcsock::posix
