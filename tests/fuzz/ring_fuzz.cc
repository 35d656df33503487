// A libFuzzer target (tests/fuzz/run): both ends of a ring against a model.
// tests/ring/ring_test.cc replays random inputs through the same driver.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tests/ring/ring_driver.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  if (!rcsock::ring::test::Driver(data, size).Run().empty()) std::abort();
  if (!rcsock::ring::test::RdmaDriver(data, size).Run().empty()) std::abort();
  return 0;
}
