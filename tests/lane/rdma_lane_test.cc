// On a device: see tests/guest.

#include "tests/lane/rdma_cm_pair.h"

namespace rcsock::lane::test {

INSTANTIATE_TEST_SUITE_P(Rdma, LaneConformance,
                         testing::Values(+[]() -> std::unique_ptr<LanePair> {
                           return MakeCmPair(256 * 1024);
                         }));

// Growing from the smallest ring.
INSTANTIATE_TEST_SUITE_P(RdmaGrows, LaneConformance,
                         testing::Values(+[]() -> std::unique_ptr<LanePair> {
                           auto pair = MakeCmPair(rdma::kBlockMin, 1024 * 1024);
                           if (pair != nullptr) pair->large = false;
                           return pair;
                         }));

}  // namespace rcsock::lane::test
