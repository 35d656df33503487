#include "lib/posix/lifecycle/own_code.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/posix/lifecycle/code_look.h"

namespace rcsock::posix {
namespace {

std::vector<OwnCode::Range> List() {
  OwnCode code;
  std::vector<OwnCode::Range> ranges;
  EXPECT_TRUE(code.List(&ranges));
  return ranges;
}

// What the system has under every C++ program is not read, so that the first
// stream of a process waits for nothing.
TEST(OwnCode, RuntimeIsNotRead) {
  ASSERT_NE(::dlopen("libm.so.6", RTLD_NOW), nullptr);
  for (const OwnCode::Range& one : List()) {
    for (const char* name : {"/ld-linux", "/libc.so", "/libm.so",
                             "/libstdc++.so", "/libgcc_s.so", "[vdso]"}) {
      EXPECT_EQ(one.path.find(name), std::string::npos) << one.path;
    }
  }
}

TEST(OwnCode, MemoryWithoutAFile) {
  constexpr std::size_t kSize = 4096;
  void* const at = ::mmap(nullptr, kSize, PROT_READ | PROT_EXEC,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  const auto begin = reinterpret_cast<std::uint64_t>(at);
  const std::vector<OwnCode::Range> ranges = List();
  const auto one =
      std::find_if(ranges.begin(), ranges.end(), [&](const auto& range) {
        return range.code.begin <= begin && begin < range.code.end;
      });
  ASSERT_NE(one, ranges.end());
  EXPECT_TRUE(one->path.empty());
  EXPECT_TRUE(one->code.loose);
  ::munmap(at, kSize);
}

// --- Looks

constexpr std::size_t kPage = 4096;
// mov eax, 0; syscall; ret
constexpr unsigned char kRead[] = {0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3};

// Looks once; what it says of the code of this process.
std::string LookOnce(KnownCode* known, CodeLook::At at = CodeLook::At::kAll,
                     bool* missed = nullptr) {
  CodeLook look(0, at);
  EXPECT_TRUE(look.Begin(*known));
  EXPECT_TRUE(look.Step(std::uint64_t{1} << 46));
  if (look.culprit().empty()) look.Remember(known);
  if (missed != nullptr) *missed = look.missed();
  return look.culprit();
}

void* Map(int protection, int fd = -1, void* where = nullptr,
          std::size_t size = kPage) {
  void* const at = ::mmap(where, size, protection,
                          MAP_PRIVATE | (fd < 0 ? MAP_ANONYMOUS : 0) |
                              (where == nullptr ? 0 : MAP_FIXED_NOREPLACE),
                          fd, 0);
  EXPECT_NE(at, MAP_FAILED);
  return at;
}

// Memory that the program writes code to is read each time.
TEST(CodeLook, MemoryOfNoFileIsReadAgain) {
  KnownCode known;
  void* const at = Map(PROT_READ | PROT_WRITE | PROT_EXEC);
  EXPECT_EQ(LookOnce(&known), "");
  std::memcpy(at, kRead, sizeof kRead);
  EXPECT_NE(LookOnce(&known), "");
  // No library has brought it.
  EXPECT_EQ(LookOnce(&known, CodeLook::At::kFiles), "");
  ::munmap(at, kPage);
  EXPECT_EQ(LookOnce(&known), "");
}

TEST(CodeLook, CodeThatMayOnlyRun) {
  KnownCode known;
  void* const at = Map(PROT_READ | PROT_WRITE);
  std::memcpy(at, kRead, sizeof kRead);
  ASSERT_EQ(::mprotect(at, kPage, PROT_EXEC), 0);
  EXPECT_NE(LookOnce(&known), "");
  ::munmap(at, kPage);
}

// A file that is written anew keeps its number, and its mapping the place.
TEST(CodeLook, FileWrittenAnew) {
  KnownCode known;
  const std::string path = ::testing::TempDir() + "/code";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0700);
  ASSERT_GE(fd, 0);
  const char nothing[16] = {};
  ASSERT_EQ(::pwrite(fd, nothing, sizeof nothing, 0), 16);
  void* const at = Map(PROT_READ | PROT_EXEC, fd);
  EXPECT_EQ(LookOnce(&known), "");
  ::munmap(at, kPage);
  ASSERT_EQ(::pwrite(fd, kRead, sizeof kRead, 16), 8);
  Map(PROT_READ | PROT_EXEC, fd, at);
  EXPECT_NE(LookOnce(&known), "");
  ::munmap(at, kPage);
  // What is not mapped any more is forgotten.
  EXPECT_EQ(LookOnce(&known), "");
  for (const KnownCode::Seen& one : known.mappings) {
    EXPECT_NE(one.begin, reinterpret_cast<std::uint64_t>(at));
  }
  ::close(fd);
  ::unlink(path.c_str());
}

// Code that cannot be read is not taken for read.
TEST(CodeLook, Unreadable) {
  KnownCode known;
  const int fd = ::memfd_create("code", 0);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, kPage), 0);
  // The second page lies behind the end of the file.
  void* const at = Map(PROT_READ | PROT_EXEC, fd, nullptr, 2 * kPage);
  bool missed = false;
  EXPECT_EQ(LookOnce(&known, CodeLook::At::kAll, &missed), "");
  EXPECT_TRUE(missed);
  for (const KnownCode::Seen& one : known.mappings) {
    EXPECT_NE(one.begin, reinterpret_cast<std::uint64_t>(at));
  }
  ::munmap(at, 2 * kPage);
  ::close(fd);
  EXPECT_EQ(LookOnce(&known, CodeLook::At::kAll, &missed), "");
  EXPECT_FALSE(missed);
}

// A filter refuses the call that reads memory, by an errno of its choice.
TEST(OwnMemory, FilterRefusesTheCall) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    sock_fprog program{4, filter};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      ::_exit(2);
    }
    unsigned char copy[sizeof kRead];
    OwnMemory memory;
    const bool read =
        memory.Read(reinterpret_cast<std::uint64_t>(kRead), copy, sizeof copy);
    ::_exit(read && std::memcmp(copy, kRead, sizeof copy) == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace rcsock::posix
