#include "lib/base/file_text.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "lib/base/unique_fd.h"

namespace rcsock::base {
namespace {

constexpr std::size_t kLongest = 16;

class FileTextTest : public testing::Test {
 protected:
  int File(const std::string& text) {
    file_.reset(::memfd_create("text", MFD_CLOEXEC));
    EXPECT_EQ(::pwrite(file_.get(), text.data(), text.size(), 0),
              static_cast<ssize_t>(text.size()));
    return file_.get();
  }
  std::vector<std::string> Lines(const std::string& text,
                                 std::size_t most = 1000,
                                 const std::string& last = "") {
    std::vector<std::string> lines;
    EachLine<kLongest>(File(text), most, [&](std::string_view line) {
      lines.emplace_back(line);
      return line == last;
    });
    return lines;
  }

 private:
  UniqueFd file_;
};

using Strings = std::vector<std::string>;

TEST_F(FileTextTest, EachLineThatEnds) {
  EXPECT_EQ(Lines("one\ntwo\nthree"), (Strings{"one", "two"}));
  EXPECT_EQ(Lines(""), Strings{});
}

TEST_F(FileTextTest, LinesAcrossReads) {
  std::string text;
  Strings all;
  for (int i = 0; i < 50; ++i) {
    all.push_back("line " + std::to_string(i));
    text += all.back() + "\n";
  }
  EXPECT_EQ(Lines(text), all);
}

TEST_F(FileTextTest, LongLinesArePassedOver) {
  const std::string fits(kLongest - 1, 'f');
  for (std::size_t length = kLongest; length < 4 * kLongest; ++length) {
    const std::string text =
        "a\n" + std::string(length, 'x') + "\n" + fits + "\nb\n";
    EXPECT_EQ(Lines(text), (Strings{"a", fits, "b"})) << length;
  }
}

TEST_F(FileTextTest, EndsWhereItIsToldTo) {
  EXPECT_EQ(Lines("one\ntwo\nthree\n", 1000, "two"), (Strings{"one", "two"}));
}

TEST_F(FileTextTest, ReadsNoMoreThanItMay) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "a\n";
  const std::size_t lines = Lines(text, 100).size();
  EXPECT_GE(lines, 50u);
  EXPECT_LE(lines, 50 + kLongest);
}

TEST_F(FileTextTest, ReadStart) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", File("0123456789"));
  char text[4];
  EXPECT_EQ(ReadStart(path, text, sizeof text), "0123");
  char more[32];
  EXPECT_EQ(ReadStart(path, more, sizeof more), "0123456789");
  EXPECT_EQ(ReadStart("/nonexistent", text, sizeof text), "");
}

// A program counts on the lowest free number.
TEST_F(FileTextTest, TheDescriptorIsHigh) {
  const UniqueFd lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const UniqueFd file(OpenText("/proc/self/status"));
  ASSERT_TRUE(file.ok());
  EXPECT_GT(file.get(), lowest.get() + 100);
}

}  // namespace
}  // namespace rcsock::base
