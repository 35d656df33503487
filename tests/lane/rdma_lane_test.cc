// On a device: see tests/guest.

#include "tests/lane/rdma_cm_pair.h"

namespace rcsock::lane::test {

INSTANTIATE_TEST_SUITE_P(Rdma, LaneConformance,
                         testing::Values(+[]() -> std::unique_ptr<LanePair> {
                           return MakeCmPair(256 * 1024);
                         }));

}  // namespace rcsock::lane::test
