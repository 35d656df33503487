#include "lib/base/code_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "lib/base/elf_code.h"
#include "lib/base/instruction.h"
#include "lib/base/raw_numbers.h"

namespace rcsock::base {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr std::uint64_t kBegin = 0x1000;

class Bytes : public CodeBytes {
 public:
  explicit Bytes(std::vector<std::uint8_t> all) : all_(std::move(all)) {}
  bool Read(std::uint64_t address, void* to, std::size_t size) override {
    if (address < kBegin || address - kBegin > all_.size() ||
        size > all_.size() - (address - kBegin)) {
      return false;
    }
    std::memcpy(to, all_.data() + (address - kBegin), size);
    return true;
  }
  std::uint64_t end() const { return kBegin + all_.size(); }

 private:
  const std::vector<std::uint8_t> all_;
};

std::vector<SystemCall> Find(std::vector<std::uint8_t> code,
                             bool loose = false) {
  Bytes bytes(std::move(code));
  CodeRange range;
  range.begin = kBegin;
  range.end = bytes.end();
  range.loose = loose;
  std::vector<SystemCall> found;
  EXPECT_TRUE(FindSystemCalls(&bytes, range, kBegin, bytes.end(), &found));
  return found;
}

std::vector<int> Numbers(const std::vector<std::uint8_t>& code,
                         bool loose = false) {
  std::vector<int> numbers;
  for (const SystemCall& one : Find(code, loose)) numbers.push_back(one.number);
  return numbers;
}

// Filled to the length of a function that is worth a look.
std::vector<std::uint8_t> Padded(std::vector<std::uint8_t> code) {
  code.insert(code.begin(), 48, 0x90);
  code.insert(code.end(), 48, 0x90);
  return code;
}

TEST(CodeScan, NumberInAnImmediate) {
  // mov eax, 232; syscall; ret
  EXPECT_THAT(Numbers(Padded({0xb8, 232, 0, 0, 0, 0x0f, 0x05, 0xc3})),
              ElementsAre(SYS_epoll_wait));
  // mov rax, 0; mov rdi, rbx; syscall
  EXPECT_THAT(Numbers(Padded({0x48, 0xc7, 0xc0, 0, 0, 0, 0, 0x48, 0x89, 0xdf,
                              0x0f, 0x05, 0xc3})),
              ElementsAre(SYS_read));
  // xor eax, eax; syscall
  EXPECT_THAT(Numbers(Padded({0x31, 0xc0, 0x0f, 0x05, 0xc3})),
              ElementsAre(SYS_read));
  // push 3; pop rax; syscall
  EXPECT_THAT(Numbers(Padded({0x6a, 3, 0x58, 0x0f, 0x05, 0xc3})),
              ElementsAre(SYS_close));
}

TEST(CodeScan, NumberByWayOfARegister) {
  // mov r8d, 202; mov eax, r8d; syscall
  EXPECT_THAT(Numbers(Padded({0x41, 0xb8, 202, 0, 0, 0, 0x44, 0x89, 0xc0, 0x0f,
                              0x05, 0xc3})),
              ElementsAre(SYS_futex));
}

TEST(CodeScan, NumberOfTwoWays) {
  // mov eax, 0; test edi, edi; je L; mov eax, 1; L: syscall
  EXPECT_THAT(Numbers(Padded({0xb8, 0, 0, 0, 0, 0x85, 0xff, 0x74, 5, 0xb8, 1, 0,
                              0, 0, 0x0f, 0x05, 0xc3})),
              UnorderedElementsAre(SYS_read, SYS_write));
}

TEST(CodeScan, NumberOfAnArgument) {
  // mov rax, rdi; mov rdi, rsi; syscall; cmp rax, -4095
  EXPECT_THAT(Numbers(Padded({0xc3, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x0f,
                              0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0xc3})),
              ElementsAre(SystemCall::kAny));
  // In memory that changes nothing is known of it.
  EXPECT_THAT(Numbers(Padded({0xc3, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x0f,
                              0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0xc3}),
                      true),
              IsEmpty());
}

TEST(CodeScan, PartOfAnotherInstruction) {
  // call +0x050f12; mov eax, 0x050f0000; lea rax, [rip+0x00050f00]
  EXPECT_THAT(
      Numbers(Padded({0xe8, 0x12, 0x0f, 0x05, 0x00, 0xb8, 0x00, 0x00, 0x0f,
                      0x05, 0x48, 0x8d, 0x05, 0x00, 0x0f, 0x05, 0x00, 0xc3})),
      IsEmpty());
}

TEST(CodeScan, RequestOfIoctl) {
  // mov eax, 16; mov esi, 0x5413; syscall
  const std::vector<SystemCall> found = Find(
      Padded({0xb8, 16, 0, 0, 0, 0xbe, 0x13, 0x54, 0, 0, 0x0f, 0x05, 0xc3}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].request, 0x5413);
  EXPECT_FALSE(MayUseStreams(found[0]));
  SystemCall other = found[0];
  other.request = 0x541b;  // FIONREAD
  EXPECT_TRUE(MayUseStreams(other));
  other.request = SystemCall::kAny;
  EXPECT_TRUE(MayUseStreams(other));
}

// Reads across the pieces that the scan is made of.
TEST(CodeScan, AnyPlace) {
  for (std::size_t at = (256 << 10) - 8; at < (256 << 10) + 8; ++at) {
    std::vector<std::uint8_t> code(300 << 10, 0x90);
    const std::uint8_t call[] = {0xb8, 7, 0, 0, 0, 0x0f, 0x05, 0xc3};
    std::copy(std::begin(call), std::end(call), code.begin() + at);
    EXPECT_THAT(Numbers(code), ElementsAre(SYS_poll)) << at;
  }
}

TEST(CodeScan, NotAllThere) {
  Bytes bytes({0x90, 0x0f});
  CodeRange range;
  range.begin = kBegin;
  range.end = kBegin + 100;
  std::vector<SystemCall> found;
  EXPECT_FALSE(FindSystemCalls(&bytes, range, kBegin, range.end, &found));
}

// Whatever stands there: no crash, no read outside.
TEST(CodeScan, Noise) {
  std::uint64_t state = 88172645463325252u;
  for (int round = 0; round < 50; ++round) {
    std::vector<std::uint8_t> code(4096);
    for (std::size_t i = 0; i < code.size(); ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      code[i] = static_cast<std::uint8_t>(state);
      if (i > 0 && (state >> 40) % 8 == 0) {
        code[i - 1] = 0x0f;
        code[i] = 0x05;
      }
    }
    Find(code);
    Find(code, true);
  }
}

TEST(RawNumbers, WhatUsesStreams) {
  for (const int number :
       {SYS_read, SYS_write, SYS_epoll_ctl, SYS_epoll_pwait2, SYS_poll,
        SYS_close, SYS_dup3, SYS_sendmsg, SYS_io_uring_enter, SYS_bpf,
        SYS_rt_sigaction, SystemCall::kAny}) {
    EXPECT_TRUE(MayUseStreams({0, number, SystemCall::kAny})) << number;
  }
  for (const int number :
       {SYS_futex, SYS_getrandom, SYS_gettid, SYS_mmap, SYS_membarrier,
        SYS_rt_sigreturn, SYS_openat, SYS_madvise, SYS_seccomp}) {
    EXPECT_FALSE(MayUseStreams({0, number, SystemCall::kAny})) << number;
  }
  EXPECT_TRUE(IsKnownLibrary("/usr/lib/x86_64-linux-gnu/libasan.so.8.0.0"));
  EXPECT_TRUE(IsKnownLibrary("/usr/lib/x86_64-linux-gnu/librcsock.so.0"));
  EXPECT_TRUE(IsKnownLibrary("/opt/librcsock_posix.so.0.1 (deleted)"));
  EXPECT_TRUE(IsKnownLibrary("/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4"));
  EXPECT_FALSE(IsKnownLibrary("/usr/lib/x86_64-linux-gnu/librcsock"));
  EXPECT_TRUE(IsKnownLibrary("/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30"));
  EXPECT_TRUE(IsKnownLibrary("/usr/lib/x86_64-linux-gnu/libibverbs.so.1"));
  EXPECT_TRUE(IsKnownLibrary("/usr/lib/librdmacm.so.1.3.44.0"));
  EXPECT_TRUE(IsKnownLibrary("/memfd:librdmacm (rcsock) (deleted)"));
  EXPECT_TRUE(IsKnownLibrary("/usr/lib/libibverbs/libmlx5-rdmav34.so"));
  EXPECT_FALSE(IsKnownLibrary("/memfd:other (deleted)"));
  EXPECT_FALSE(IsKnownLibrary("/usr/lib/x86_64-linux-gnu/libfoo.so"));
}

// --- Real files

std::vector<int> NumbersOf(const char* path) {
  ElfFile file;
  std::vector<int> numbers;
  EXPECT_TRUE(file.Open(path)) << path;
  for (const CodeRange& one : file.code().segments) {
    std::vector<SystemCall> found;
    EXPECT_TRUE(FindSystemCalls(&file, one, one.begin, one.end, &found));
    for (const SystemCall& call : found) numbers.push_back(call.number);
  }
  return numbers;
}

std::string PathOf(const char* library) {
  return std::string("/lib/x86_64-linux-gnu/") + library;
}

TEST(ElfFile, Libc) {
  const std::vector<int> numbers = NumbersOf(PathOf("libc.so.6").c_str());
  for (const int number : {SYS_read, SYS_write, SYS_epoll_wait, SYS_futex,
                           SYS_close, SYS_sendmsg, SystemCall::kAny}) {
    EXPECT_THAT(numbers, Contains(number));
  }
}

// OpenMP's own locks: the number stands far from its use.
TEST(ElfFile, Futexes) {
  const std::string path = PathOf("libgomp.so.1");
  if (ElfFile file; !file.Open(path.c_str())) GTEST_SKIP() << "no libgomp";
  for (const int number : NumbersOf(path.c_str())) EXPECT_EQ(number, SYS_futex);
}

TEST(ElfFile, WithoutSystemCalls) {
  for (const char* name : {"libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"}) {
    ElfFile file;
    if (!file.Open(PathOf(name).c_str())) continue;
    EXPECT_THAT(NumbersOf(PathOf(name).c_str()), IsEmpty()) << name;
  }
}

TEST(ElfFile, Needed) {
  ElfFile file;
  ASSERT_TRUE(file.Open("/proc/self/exe"));
  EXPECT_THAT(file.Needed(), Contains("libc.so.6"));
  EXPECT_FALSE(ElfFile().Open("/etc/passwd"));
  EXPECT_FALSE(ElfFile().Open("/nowhere"));
  EXPECT_FALSE(ElfFile().Open("/dev/zero"));
}

// Objdump agrees on where the instructions are.
TEST(ElfFile, AsObjdump) {
  const std::string path = PathOf("libc.so.6");
  const std::string command =
      "objdump -d --no-show-raw-insn " + path +
      " 2>/dev/null | awk '$2==\"syscall\"{print $1}' | sort -u | wc -l";
  FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  int expected = 0;
  const int read = std::fscanf(pipe, "%d", &expected);
  ::pclose(pipe);
  if (read != 1 || expected == 0) GTEST_SKIP() << "no objdump";
  ElfFile file;
  ASSERT_TRUE(file.Open(path.c_str()));
  std::vector<std::uint64_t> places;
  for (const CodeRange& one : file.code().segments) {
    std::vector<SystemCall> found;
    FindSystemCalls(&file, one, one.begin, one.end, &found);
    for (const SystemCall& call : found) places.push_back(call.address);
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  EXPECT_EQ(static_cast<int>(places.size()), expected);
}

}  // namespace
}  // namespace rcsock::base
