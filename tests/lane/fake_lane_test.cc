// The RDMA lane on a device in memory.

#include "tests/lane/fake_pair.h"

namespace rcsock::lane::test {
namespace {

template <bool kIwarp, bool kImmediate, std::size_t kRing,
          std::size_t kMost = 0, bool kSoftware = false, bool kShared = true,
          bool kUnordered = false,
          FakeVerbs::Options::Keys kKeys = FakeVerbs::Options::Keys::kAll>
std::unique_ptr<LanePair> Make() {
  FakeVerbs::Options options;
  options.iwarp = kIwarp;
  options.immediate = kImmediate;
  options.software = kSoftware;
  options.unordered = kUnordered;
  options.keys = kKeys;
  options.inline_max = kIwarp ? 0 : 256;
  if (!kShared) options.max_srq_wr = 0;
  return OwnedFakePair::Make(options, kRing, kMost);
}

}  // namespace

constexpr std::size_t kLarge = 256 * 1024;
INSTANTIATE_TEST_SUITE_P(Ib, LaneConformance,
                         testing::Values(&Make<false, true, kLarge>));
INSTANTIATE_TEST_SUITE_P(Iwarp, LaneConformance,
                         testing::Values(&Make<true, true, kLarge>));
INSTANTIATE_TEST_SUITE_P(IbLater, LaneConformance,
                         testing::Values(&Make<false, false, kLarge>));
INSTANTIATE_TEST_SUITE_P(IwarpLater, LaneConformance,
                         testing::Values(&Make<true, false, kLarge>));

// Whose events stay in the channel for a while.
INSTANTIATE_TEST_SUITE_P(IbSoftware, LaneConformance,
                         testing::Values(&Make<false, true, kLarge, 0, true>));
INSTANTIATE_TEST_SUITE_P(IwarpSoftwareLater, LaneConformance,
                         testing::Values(&Make<true, false, kLarge, 0, true>));

// Rings that grow under way.
INSTANTIATE_TEST_SUITE_P(IbGrows, LaneConformance,
                         testing::Values(&Make<false, true, 32'768, kLarge>));
INSTANTIATE_TEST_SUITE_P(IwarpLaterGrows, LaneConformance,
                         testing::Values(&Make<true, false, 32'768, kLarge>));

// Without shared receive queues.
INSTANTIATE_TEST_SUITE_P(
    IbOwn, LaneConformance,
    testing::Values(&Make<false, true, kLarge, 0, false, false>));
INSTANTIATE_TEST_SUITE_P(
    IwarpOwn, LaneConformance,
    testing::Values(&Make<true, true, kLarge, 0, false, false>));
INSTANTIATE_TEST_SUITE_P(
    IbOwnLaterGrows, LaneConformance,
    testing::Values(&Make<false, false, 32'768, kLarge, false, false>));
INSTANTIATE_TEST_SUITE_P(
    IwarpOwnLaterGrows, LaneConformance,
    testing::Values(&Make<true, false, 32'768, kLarge, false, false>));

// That grants strict keys alone, or relaxed ones.
using Keys = FakeVerbs::Options::Keys;
INSTANTIATE_TEST_SUITE_P(IbStrict, LaneConformance,
                         testing::Values(&Make<false, true, kLarge, 0, false,
                                               true, false, Keys::kStrict>));
INSTANTIATE_TEST_SUITE_P(IbRelaxed, LaneConformance,
                         testing::Values(&Make<false, true, kLarge, 0, false,
                                               true, true, Keys::kRelaxed>));
INSTANTIATE_TEST_SUITE_P(IwarpRelaxed, LaneConformance,
                         testing::Values(&Make<true, true, kLarge, 0, false,
                                               true, true, Keys::kRelaxed>));

// Whose writes become visible in any order, until a completion orders them.
INSTANTIATE_TEST_SUITE_P(
    IbUnordered, LaneConformance,
    testing::Values(&Make<false, true, kLarge, 0, false, true, true>));
INSTANTIATE_TEST_SUITE_P(
    IwarpUnordered, LaneConformance,
    testing::Values(&Make<true, true, kLarge, 0, false, true, true>));
INSTANTIATE_TEST_SUITE_P(
    IbUnorderedLaterGrows, LaneConformance,
    testing::Values(&Make<false, false, 32'768, kLarge, false, true, true>));
INSTANTIATE_TEST_SUITE_P(
    IwarpUnorderedLaterGrows, LaneConformance,
    testing::Values(&Make<true, false, 32'768, kLarge, false, true, true>));

}  // namespace rcsock::lane::test
