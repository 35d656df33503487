// A libFuzzer target (tests/fuzz/run): the private data of rdma_cm, as it comes
// from a peer.
// tests/rendezvous/rdma_wire_test.cc feeds noise to the same functions.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "lib/rendezvous/rdma_wire.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace rcsock::rendezvous;  // NOLINT
  const ClusterKey none;
  Tuple tuple{};
  rcsock::stream::Nonce nonce{};
  Req req;
  if (DecodeReq(data, size, &req) == Parsed::kOk) {
    tuple.c_port = req.c_port;
    tuple.s_port = req.s_port;
    // What is understood is what would be said.
    if (CheckReq(data, tuple, none) &&
        std::memcmp(EncodeReq(req, tuple, none).data(), data, kReqSize) != 0) {
      std::abort();
    }
  }
  Rep rep;
  if (DecodeRep(data, size, tuple, nonce, none, &rep) == Parsed::kOk &&
      std::memcmp(EncodeRep(rep, tuple, nonce, none).data(), data, kRepSize) !=
          0) {
    std::abort();
  }
  Rej rej;
  DecodeRej(data, size, nonce, none, &rej);
  return 0;
}
