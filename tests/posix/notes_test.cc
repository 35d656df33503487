// The notes on a connection that is passed on: turns, and what is under way.
#include "lib/posix/sharing/notes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <set>

#include "lib/base/clock.h"
#include "lib/posix/sys/identity.h"

namespace rcsock::posix {
namespace {

int MakeSocket() {
  KnowOwnPid();
  return ::socket(AF_INET, SOCK_STREAM, 0);
}

// Another process, which keeps the turn at the notes of `fd` to itself.
class Keeper {
 public:
  explicit Keeper(int fd) {
    int said[2];
    EXPECT_EQ(::pipe(said), 0);
    child_ = ::fork();
    if (child_ == 0) {
      struct flock lock {};
      lock.l_type = F_WRLCK;
      lock.l_start = std::int64_t{1} << 62;
      lock.l_len = 1;
      const char ok = ::fcntl(fd, F_SETLK, &lock) == 0 ? 'y' : 'n';
      (void)!::write(said[1], &ok, 1);
      for (;;) ::pause();
    }
    char ok = 0;
    EXPECT_EQ(::read(said[0], &ok, 1), 1);
    EXPECT_EQ(ok, 'y');
    ::close(said[0]);
    ::close(said[1]);
  }
  ~Keeper() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

 private:
  pid_t child_;
};

TEST(NotesTest, ATurnThatIsKeptDelaysManyTriesAsLongAsOne) {
  const int fd = MakeSocket();
  const int other = MakeSocket();
  ASSERT_GE(other, 0);
  {
    const Keeper keeper(fd);
    const std::uint64_t start = base::NowNs();
    const std::uint64_t until = start + Notes::kPatienceNs;
    for (int i = 0; i < 253; ++i) {
      EXPECT_EQ(Notes(fd, until).AddShare(), 0u);
      EXPECT_EQ(Notes(fd, until).Arrive(1, false), 0u);
    }
    // (Each by itself would take 20 ms: ten seconds together.)
    EXPECT_LT(base::NowNs() - start, 5'000'000'000u);
    EXPECT_NE(Notes(other, 1).AddShare(), 0u);
  }
  EXPECT_NE(Notes(fd, 1).AddShare(), 0u);
  ::close(fd);
  ::close(other);
}

TEST(NotesTest, EachFlightLandsByItself) {
  const int fd = MakeSocket();
  const Notes notes(fd);
  constexpr std::uint64_t kTo = 77;
  const std::uint32_t tag = Notes::Tag();
  const std::uint64_t share = notes.AddShare();
  ASSERT_NE(share, 0u);
  EXPECT_TRUE(notes.Alone(share, true));
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(notes.AddFlight(kTo, Notes::TagAfter(tag, i)));
  }
  // One of them was not sent.
  notes.DropFlight(kTo, Notes::TagAfter(tag, 2));
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(notes.Alone(share, true));
    const std::uint64_t another = notes.Arrive(kTo, false);
    EXPECT_NE(another, 0u);
    notes.DropShare(another);
  }
  EXPECT_TRUE(notes.Alone(share, true));
  EXPECT_EQ(notes.Arrive(kTo, false), 0u);
  ::close(fd);
}

TEST(NotesTest, NoTwoDescriptorsOfACallHaveOneTag) {
  std::set<std::uint32_t> tags;
  const std::uint32_t tag = Notes::Tag();
  constexpr std::uint32_t kMost = 1024 * 253;
  for (std::uint32_t i = 0; i < kMost; ++i) {
    tags.insert(Notes::TagAfter(tag, i));
  }
  EXPECT_EQ(tags.size(), kMost);
}

}  // namespace
}  // namespace rcsock::posix
