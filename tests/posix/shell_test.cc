// The environment of popen(), where a handler that has interrupted one calls
// another.
#include "lib/posix/lifecycle/shell.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace rcsock::posix {
namespace {

char outer_name[] = "RCSOCK_INHERIT=outer";
char inner_name[] = "RCSOCK_INHERIT=inner";
char* outer_list[] = {outer_name, nullptr};
char* inner_list[] = {inner_name, nullptr};

TEST(ShellTest, APopenWithinAnotherOfItsThread) {
  char** const own = environ;
  {
    const PopenEnvironment outer(outer_list);
    EXPECT_STREQ(environ[0], outer_name);
    EXPECT_EQ(ProgramEnvironment(), own);
    char** const outers = environ;
    {
      const PopenEnvironment inner(inner_list);
      EXPECT_STREQ(environ[0], inner_name);
      EXPECT_EQ(ProgramEnvironment(), own);
      // Another thread's child has the program's.
      const pid_t child = ::fork();
      if (child == 0) {
        ShellForkChild();
        ::_exit(environ == own && ProgramEnvironment() == own ? 0 : 1);
      }
      int status = -1;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    EXPECT_EQ(environ, outers);
    EXPECT_EQ(ProgramEnvironment(), own);
    {
      // What the other hands over is not for a command that is handed nothing.
      const PopenEnvironment inner(nullptr);
      EXPECT_EQ(environ, own);
      EXPECT_EQ(ProgramEnvironment(), own);
    }
    EXPECT_EQ(environ, outers);
  }
  EXPECT_EQ(environ, own);
  EXPECT_EQ(ProgramEnvironment(), own);
  // The latch is free.
  std::thread([own] {
    const PopenEnvironment other(inner_list);
    EXPECT_STREQ(environ[0], inner_name);
    EXPECT_EQ(ProgramEnvironment(), own);
  }).join();
  EXPECT_EQ(environ, own);
}

}  // namespace
}  // namespace rcsock::posix
