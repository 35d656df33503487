#include "tests/lane/shm_pair.h"

namespace rcsock::lane::test {

INSTANTIATE_TEST_SUITE_P(Shm, LaneConformance,
                         testing::Values(+[]() -> std::unique_ptr<LanePair> {
                           return ShmPair::Make();
                         }));

}  // namespace rcsock::lane::test
