#ifndef RCSOCK_TESTS_DEVICE_OPTIONS_H_
#define RCSOCK_TESTS_DEVICE_OPTIONS_H_

#include <cstdint>
#include <string>

namespace fake_device {

// What $FAKE_DEVICE says: words with commas between.  README.md explains them.
struct Options {
  enum class Keys : std::uint8_t { kAll, kStrict, kRelaxed };
  bool iwarp = false;
  bool unordered = false;
  bool late_flush = false;
  bool late_events = false;
  bool nosrq = false;
  Keys keys = Keys::kAll;
  std::uint32_t inline_max = 256;
  std::uint32_t max_qp_wr = 8192;
  int max_cqe = 32'767;
  int max_srq_wr = 32'767;
  int max_qp = 4096;
  std::uint32_t max_sge = 16;
  std::uint32_t max_cq = 65'536;
  std::uint32_t max_srq = 1024;
  std::uint32_t max_mr = 1 << 20;
  std::uint32_t vectors = 2;
  std::uint32_t lost_events = 0;  // each so manyth; 0: none
  std::uint32_t vendor = 0x15b3;
  std::uint32_t seed = 1;
  // Tests that run at once must not meet: $FAKE_DEVICE_SPACE.
  std::string space;
  // Where FIFOs are made: $SYSFS_PATH/infiniband.
  std::string directory;
};

// Ends the process with a message where a word is unknown.
Options ReadOptions();

}  // namespace fake_device

#endif  // RCSOCK_TESTS_DEVICE_OPTIONS_H_
