#include "lib/lane/rdma/slabs.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace rcsock::lane::rdma {
namespace {

bool IsZero(const std::byte* at, std::size_t bytes) {
  return std::all_of(at, at + bytes,
                     [](std::byte one) { return one == std::byte{0}; });
}

// "hg" among the flags of the mapping that has the address.
bool WantsHugePages(const std::byte* at) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  while (std::getline(maps, line)) {
    unsigned long from = 0;
    unsigned long to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      const auto address = reinterpret_cast<unsigned long>(at);
      inside = address >= from && address < to;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line.find(" hg") != std::string::npos;
    }
  }
  return false;
}

TEST(Slabs, BlocksAreZeroedAndApart) {
  for (const bool huge : {false, true}) {
    Slabs slabs(huge);
    std::vector<std::pair<std::byte*, std::size_t>> blocks;
    for (const std::size_t bytes :
         {4096u, 16'384u, 16'385u, 65'536u, 70'000u, 1'048'576u, 1'048'577u,
          8'388'608u, 64u, 262'144u}) {
      for (int i = 0; i < 3; ++i) {
        std::byte* base = slabs.Take(bytes);
        ASSERT_NE(base, nullptr);
        EXPECT_TRUE(IsZero(base, bytes));
        std::memset(base, 1, bytes);
        blocks.emplace_back(base, bytes);
      }
    }
    std::sort(blocks.begin(), blocks.end());
    for (std::size_t i = 1; i < blocks.size(); ++i) {
      EXPECT_LE(blocks[i - 1].first + blocks[i - 1].second, blocks[i].first);
    }
    for (const auto& [base, bytes] : blocks) slabs.Give(base, bytes);
    // The small ones stay.
    EXPECT_EQ(slabs.slabs(), 1u);
    std::byte* again = slabs.Take(16'384);
    EXPECT_TRUE(IsZero(again, 16'384));
    slabs.Give(again, 16'384);
  }
}

TEST(Slabs, AProcessWithFewLanesHasNoHugePage) {
  Slabs slabs(true);
  std::vector<std::byte*> small;
  for (std::size_t i = 0; i <= Slabs::kSlab / Slabs::kLeast; ++i) {
    small.push_back(slabs.Take(Slabs::kLeast));
  }
  EXPECT_FALSE(WantsHugePages(small.front()));
  EXPECT_TRUE(WantsHugePages(small.back()));
  std::byte* ring = slabs.Take(256 * 1024);
  EXPECT_TRUE(WantsHugePages(ring));
  // Two rings share a page.
  std::byte* second = slabs.Take(256 * 1024);
  const auto page = [](const std::byte* at) {
    return reinterpret_cast<std::uintptr_t>(at) / Slabs::kSlab;
  };
  EXPECT_EQ(page(ring), page(second));
  EXPECT_EQ(slabs.slabs(), 3u);
  slabs.Give(second, 256 * 1024);
  slabs.Give(ring, 256 * 1024);
  EXPECT_EQ(slabs.slabs(), 2u);
  std::byte* large = slabs.Take(4 * 1024 * 1024);
  EXPECT_TRUE(WantsHugePages(large));
  slabs.Give(large, 4 * 1024 * 1024);
  for (std::byte* base : small) slabs.Give(base, Slabs::kLeast);
}

TEST(Slabs, ADeviceInSoftwareHasNone) {
  Slabs slabs(false);
  std::byte* small = slabs.Take(Slabs::kLeast);
  std::byte* ring = slabs.Take(4 * 1024 * 1024);
  EXPECT_FALSE(WantsHugePages(small));
  EXPECT_FALSE(WantsHugePages(ring));
  slabs.Give(ring, 4 * 1024 * 1024);
  slabs.Give(small, Slabs::kLeast);
}

}  // namespace
}  // namespace rcsock::lane::rdma
