// What few programs do with a connection, and some of it no lane can follow.
#include <aio.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "tests/posix/pair.h"

extern char** environ;

namespace {

using namespace pair;

// A pointer that the compiler has no opinion on.
void* At(std::uintptr_t value) {
  static volatile std::uintptr_t kept;
  kept = value;
  return reinterpret_cast<void*>(kept);
}

// EFAULT, and neither a byte lost nor one sent.
Case bad_pointers(
    "bad_pointers",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      char text[4] = {};
      RecvAll(fd, text, 4);
      Log("%.4s", text);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      void* const high = At(0xffff'8000'0000'0000);
      const int set = ::epoll_create1(0);
      const int other = ::epoll_create1(0);
      const int file = ::open("/proc/self/exe", O_RDONLY);
      epoll_event readable{};
      readable.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &readable) == 0);
      for (void* const at : {At(0), At(8), high}) {
        Result("read", ::read(fd, at, 4));
        Result("recv", ::recv(fd, at, 4, 0));
        Result("peek", ::recv(fd, at, 4, MSG_PEEK));
        Result("recvfrom", ::recvfrom(fd, at, 4, 0, nullptr, nullptr));
        Result("write", ::write(fd, at, 4));
        Result("send", ::send(fd, at, 4, 0));
        iovec one{at, 4};
        Result("readv", ::readv(fd, &one, 1));
        Result("writev", ::writev(fd, &one, 1));
        msghdr message{};
        message.msg_iov = &one;
        message.msg_iovlen = 1;
        Result("recvmsg", ::recvmsg(fd, &message, 0));
        Result("sendmsg", ::sendmsg(fd, &message, 0));
        Result("readv of it", ::readv(fd, static_cast<iovec*>(at), 1));
        Result("writev of it", ::writev(fd, static_cast<iovec*>(at), 1));
        Result("recvmsg of it", ::recvmsg(fd, static_cast<msghdr*>(at), 0));
        Result("sendmsg of it", ::sendmsg(fd, static_cast<msghdr*>(at), 0));
        Result("poll", ::poll(static_cast<pollfd*>(at), 1, 0));
        Result("FIONREAD", ::ioctl(fd, FIONREAD, at));
        Result("SIOCOUTQ", ::ioctl(fd, SIOCOUTQ, at));
        for (const int name : {TCP_NODELAY, TCP_CORK}) {
          socklen_t size = sizeof(int);
          Result("get", ::getsockopt(fd, IPPROTO_TCP, name, at, &size));
          int value = 0;
          auto* const length = static_cast<socklen_t*>(at);
          Result("get it", ::getsockopt(fd, IPPROTO_TCP, name, &value, length));
          Result("set", ::setsockopt(fd, IPPROTO_TCP, name, at, sizeof value));
          size = 0;
          Result("no bytes", ::getsockopt(fd, IPPROTO_TCP, name, at, &size));
        }
        auto* const event = static_cast<epoll_event*>(at);
        Result("epoll_wait", ::epoll_wait(set, event, 4, 0));
        Result("epoll_pwait", ::epoll_pwait(set, event, 4, 0, nullptr));
        Result("add", ::epoll_ctl(other, EPOLL_CTL_ADD, fd, event));
        Result("mod", ::epoll_ctl(set, EPOLL_CTL_MOD, fd, event));
        if (at == nullptr) continue;  // which is an argument left out
        auto* const bits = static_cast<fd_set*>(at);
        timeval now{0, 0};
        Result("select in", ::select(fd + 1, bits, nullptr, nullptr, &now));
        Result("select out", ::select(fd + 1, nullptr, bits, nullptr, &now));
        Result("select but", ::select(fd + 1, nullptr, nullptr, bits, &now));
        Result("sendfile", ::sendfile(fd, file, static_cast<off_t*>(at), 4));
      }
      // Of what is no stream too.
      const int datagram = ::socket(AF_INET, SOCK_DGRAM, 0);
      for (const int to : {fd, datagram}) {
        for (void* const at : {At(0), At(8), high}) {
          Result("sendmmsg", ::sendmmsg(to, static_cast<mmsghdr*>(at), 1, 0));
        }
      }
      ::close(datagram);
      ::close(file);
      ::close(other);
      ::close(set);
      Result("poll", ::poll(static_cast<pollfd*>(At(0)), 1, 0));
      char text[16] = {};
      Result("recv", ::recv(fd, text, sizeof text, 0));
      Log("%s", text);
      SendAll(fd, "done", 4);
      Barrier();
    });

// Lengths that no buffer has: refused before a byte moves, or cut.
Case bad_lengths(
    "bad_lengths",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      char text[8] = {};
      RecvAll(fd, text, 4);
      Log("%.4s", text);
      Barrier();
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      const int file = ::open("/proc/self/exe", O_RDONLY);
      static char text[64];
      // (Where the compiler has no opinion.)
      for (const auto length :
           {reinterpret_cast<std::size_t>(At(static_cast<std::uintptr_t>(-1))),
            reinterpret_cast<std::size_t>(At(std::uintptr_t{1} << 63))}) {
        Result("write", ::write(fd, text, length));
        Result("read", ::read(fd, text, length));
        Result("sendfile", ::sendfile(fd, file, nullptr, length));
        iovec one{text, length};
        Result("writev", ::writev(fd, &one, 1));
        Result("readv", ::readv(fd, &one, 1));
        // (The rest of the buffer is not looked at.)
        Result("recv", ::recv(fd, text, length, MSG_PEEK));
        Result("recvfrom",
               ::recvfrom(fd, text, length, MSG_PEEK, nullptr, nullptr));
        Log("%s", text);
      }
      Result("recv", ::recv(fd, text,
                            reinterpret_cast<std::size_t>(
                                At(static_cast<std::uintptr_t>(-1))),
                            0));
      ::close(file);
      SendAll(fd, "done", 4);
      Barrier();
    });

// Arguments that the kernel refuses, to calls that look at them here as well.
Case bad_arguments(
    "bad_arguments",
    [](int fd) {
      SendAll(fd, "abc", 3);
      char text[3];
      RecvAll(fd, text, sizeof text);
      Log("%.3s", text);
      Barrier();
    },
    [](int fd) {
      const long page = ::sysconf(_SC_PAGESIZE);
      char* const hole = static_cast<char*>(
          ::mmap(nullptr, static_cast<std::size_t>(page) * 2, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
      CHECK_THAT(hole != MAP_FAILED);
      pollfd one{fd, POLLIN, 0};
      const timespec now{0, 0};
      const auto most = reinterpret_cast<nfds_t>(At(static_cast<nfds_t>(-1)));
      Result("poll", ::poll(&one, most, 0));
      Result("ppoll", ::ppoll(&one, most, &now, nullptr));

      int port;
      const int listener = Listen(&port);
      const int callers[] = {Connect(port), Connect(port), Connect(port)};
      sockaddr_storage from{};
      auto* const address = reinterpret_cast<sockaddr*>(&from);
      socklen_t length = sizeof from;
      Result("accept to a hole",
             ::accept(listener, reinterpret_cast<sockaddr*>(hole), &length));
      char byte;
      int error;
      Log("rest %zu", Drain(callers[0], &error));
      length = static_cast<socklen_t>(-1);
      Result("accept, length -1", ::accept(listener, address, &length));
      Log("rest %zu", Drain(callers[1], &error));
      length = 4;
      const int accepted = ::accept(listener, address, &length);
      Log("accept, 4 bytes: %d, %u, %d", accepted >= 0, length,
          from.ss_family == AF_INET);
      SendAll(callers[2], "x", 1);
      RecvAll(accepted, &byte, 1);
      for (const int caller : callers) ::close(caller);
      ::close(accepted);
      ::close(listener);

      int ends[2];
      CHECK_THAT(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
      alignas(cmsghdr) char control[64] = {};
      iovec iov{&byte, 1};
      msghdr message{};
      message.msg_iov = &iov;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int));
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = 0;
      Result("sendmsg, cmsg_len 0", ::sendmsg(ends[0], &message, 0));
      ::close(ends[0]);
      ::close(ends[1]);

      char name[] = "true";
      char* const arguments[] = {name, nullptr};
      char* const none[] = {nullptr};
      char* const strings[] = {name, hole, nullptr};
      Result("execve, environment",
             ::execve("/bin/true", arguments, reinterpret_cast<char**>(hole)));
      Result("execve, a string", ::execve("/bin/true", arguments, strings));
      Result("execve, path", ::execve(hole, arguments, none));
      // What is near null is no mistake for none.
      char* const near = Opaque(reinterpret_cast<char*>(16));
      char* const near_string[] = {name, near, nullptr};
      Result("execve, near null", ::execve(near, arguments, none));
      Result("execve, environment near null",
             ::execve("/bin/true", arguments, reinterpret_cast<char**>(near)));
      Result("execve, a string near null",
             ::execve("/bin/true", arguments, near_string));
      pid_t child;
      Log("posix_spawn: %s",
          ErrorName(::posix_spawn(&child, "/bin/true", nullptr, nullptr,
                                  arguments, reinterpret_cast<char**>(hole))));
      Log("posix_spawn near null: %s",
          ErrorName(::posix_spawn(&child, near, nullptr, nullptr, arguments,
                                  environ)));
      CHECK_THAT(::munmap(hole, static_cast<std::size_t>(page) * 2) == 0);
      char text[4] = {};
      RecvAll(fd, text, 3);
      SendAll(fd, text, 3);
      Barrier();
    });

// connect() to AF_UNSPEC ends a connection; the same descriptor has the next.
Case disconnect(
    "disconnect",
    [](int) {
      const int port = static_cast<int>(Hear());
      const int fd = Connect(port);
      sockaddr_in to{};
      socklen_t length = sizeof to;
      CHECK_THAT(::getpeername(fd, reinterpret_cast<sockaddr*>(&to), &length) ==
                 0);
      for (int i = 0; i < 3; ++i) {
        if (i > 0) {
          Result("connect",
                 ::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to));
        }
        if (i == 0) Warm(fd);  // the others stay on TCP
        SendAll(fd, "unread", 6);
        char text[8] = {};
        RecvAll(fd, text, 3);
        Barrier();
        const sockaddr none{AF_UNSPEC, {}};
        Result("disconnect", ::connect(fd, &none, sizeof none));
        Result("recv", ::recv(fd, text, sizeof text, MSG_DONTWAIT));
        Barrier();
      }
      ::close(fd);
    },
    [](int) {
      const int listener = ListenAndTell();
      for (int i = 0; i < 3; ++i) {
        const int fd = Accept(listener);
        if (i == 0) Warm(fd);
        SendAll(fd, "abcdef", 6);  // of which three are never read
        AwaitBytes(fd, 6);
        Barrier();
        Barrier();
        int error = 0;
        Log("%zu bytes", Drain(fd, &error));
        Log("%s", ErrorName(error));
        ::close(fd);
      }
      ::close(listener);
    },
    {.warm = false, .connect = false, .seconds = 40});

Case pipes(
    "tee_vmsplice",
    [](int fd) {
      SendAll(fd, "0123456789", 10);
      char text[8] = {};
      RecvAll(fd, text, 7);
      Log("%s", text);
      SendAll(fd, "end", 3);
    },
    [](int fd) {
      AwaitBytes(fd, 10);
      int one[2], two[2];
      CHECK_THAT(::pipe(one) == 0 && ::pipe(two) == 0);
      Result("splice", ::splice(fd, nullptr, one[1], nullptr, 10, 0));
      Result("tee", ::tee(one[0], two[1], 10, 0));
      char text[16] = {};
      Result("read", ::read(one[0], text, 16));
      Log("%s", text);
      Result("read", ::read(two[0], text, 16));
      Log("%s", text);
      char words[] = "vmsplic";
      iovec part{words, 7};
      Result("vmsplice", ::vmsplice(one[1], &part, 1, 0));
      Result("splice", ::splice(one[0], nullptr, fd, nullptr, 7, 0));
      RecvAll(fd, text, 3);
      Log("%.3s", text);
    });

// A set that a child has inherited, used by both in turn.
Case epoll_fork(
    "epoll_across_fork",
    [](int fd) {
      for (int i = 0; i < 4; ++i) {
        SendAll(fd, "abc", 3);
        char byte;
        RecvAll(fd, &byte, 1);
      }
      Echo(fd, 100);
      Barrier();
    },
    [](int fd) {
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN;
      CHECK_THAT(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
      const auto take = [&] {
        epoll_event got{};
        CHECK_THAT(::epoll_wait(set, &got, 1, 5000) == 1);
        CHECK_THAT(got.events == EPOLLIN);
        char text[3];
        RecvAll(fd, text, 3);
        CHECK_THAT(::epoll_wait(set, &got, 1, 0) == 0);
        SendAll(fd, "+", 1);
      };
      take();
      const pid_t child = ::fork();
      if (child == 0) {
        take();
        ::_exit(0);
      }
      int status = 0;
      CHECK_THAT(::waitpid(child, &status, 0) == child);
      Log("child %x", static_cast<unsigned>(status));
      take();
      take();
      Call(fd, 100);
      Barrier();
    });

// A number that no table is as long as.
Case high_number(
    "high_number",
    [](int fd) {
      Echo(fd, 450);
      int error;
      Log("rest %zu", Drain(fd, &error));
    },
    [](int fd) {
      Call(fd, 100);
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = 1'048'576;
      if (limit.rlim_max < limit.rlim_cur) limit.rlim_max = limit.rlim_cur;
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
        // The same work, for who may not raise it.
        Call(fd, 350);
        Log("done");
        return;
      }
      const int copy = ::fcntl(fd, F_DUPFD, 1'000'000);
      CHECK_THAT(copy >= 1'000'000);
      Call(copy, 100);
      Call(fd, 50);
      CHECK_THAT(::dup2(copy, 700'000) == 700'000);
      ::close(fd);
      Call(700'000, 100);
      ::close(copy);
      Call(700'000, 100);
      Log("done");
    });

// libc's own threads read and write.
Case posix_aio(
    "posix_aio",
    [](int fd) {
      Echo(fd, 200);
      char text[8];
      for (int i = 0; i < 4; ++i) {
        RecvAll(fd, text, 5);
        Log("%.5s", text);
        SendAll(fd, text, 5);
      }
      Echo(fd, 100);
    },
    [](int fd) {
      Call(fd, 200);
      const auto wait = [](aiocb* block) {
        const aiocb* list[] = {block};
        const timespec limit{5, 0};
        Result("suspend", ::aio_suspend(list, 1, &limit));
        Log("error %s", ErrorName(::aio_error(block)));
        Result("return", ::aio_return(block));
      };
      for (int i = 0; i < 4; ++i) {
        char text[] = "hello";
        char back[8] = {};
        aiocb out{};
        out.aio_fildes = fd;
        out.aio_buf = text;
        out.aio_nbytes = 5;
        aiocb in{};
        in.aio_fildes = fd;
        in.aio_buf = back;
        in.aio_nbytes = 5;
        if (i % 2 == 0) {
          Result("write", ::aio_write(&out));
          wait(&out);
          Result("read", ::aio_read(&in));
          wait(&in);
        } else {
          out.aio_lio_opcode = LIO_WRITE;
          in.aio_lio_opcode = LIO_NOP;
          aiocb* list[] = {nullptr, &in, &out};
          Result("list", ::lio_listio(LIO_WAIT, list, 3, nullptr));
          RecvAll(fd, back, 5);
        }
        Log("%s", back);
      }
      Call(fd, 100);
    });

// What the peer's program has not read has come all the same: there is nothing
// to wait for.
Case sent_and_unread(
    "sent_and_unread",
    [](int fd) {
      Echo(fd, 200);
      Barrier();
      char text[1000];
      RecvAll(fd, text, sizeof text);
    },
    [](int fd) {
      Call(fd, 200);
      const char text[1000] = {};
      SendAll(fd, text, sizeof text);
      int left = -1;
      for (const std::uint64_t end = NowMs() + 3000; NowMs() < end;) {
        CHECK_THAT(::ioctl(fd, SIOCOUTQ, &left) == 0);
        if (left == 0) break;
        pollfd none{-1, 0, 0};
        ::poll(&none, 1, 1);
      }
      Log("SIOCOUTQ %d", left);
      CHECK_THAT(::ioctl(fd, SIOCOUTQNSD, &left) == 0);
      Log("SIOCOUTQNSD %d", left);
      Barrier();
    });

// `work` in a thread with the smallest stack there is.
void OnSmallStack(void (*work)(int), int fd) {
  struct Job {
    void (*work)(int);
    int fd;
  } job{work, fd};
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  // (What a sanitizer adds to a frame is not of interest.)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::size_t kStack = 256 << 10;
#else
  constexpr std::size_t kStack = 20 << 10;
#endif
  CHECK_THAT(::pthread_attr_setstacksize(&attributes, kStack) == 0);
  pthread_t thread;
  CHECK_THAT(::pthread_create(
                 &thread, &attributes,
                 [](void* at) -> void* {
                   const auto* const own = static_cast<Job*>(at);
                   own->work(own->fd);
                   return nullptr;
                 },
                 &job) == 0);
  CHECK_THAT(::pthread_join(thread, nullptr) == 0);
}

Case small_stack(
    "small_stack",
    [](int fd) {
      Echo(fd, 200);
      char text[1000];
      RecvAll(fd, text, sizeof text);
      Log("%d", IsPattern(5, 0, text, sizeof text));
      Echo(fd, 1);
    },
    [](int fd) {
      Call(fd, 200);
      char path[] = "/tmp/pair.XXXXXX";
      const int file = ::mkstemp(path);
      CHECK_THAT(file >= 0 && ::unlink(path) == 0);
      char text[1000];
      Pattern(5, 0, text, sizeof text);
      CHECK_THAT(::pwrite(file, text, sizeof text, 0) == sizeof text);
      static int from;
      from = file;
      OnSmallStack(
          [](int to) {
            off_t at = 0;
            Result("sendfile", ::sendfile(to, from, &at, sizeof text));
          },
          fd);
      Call(fd, 1);
      ::close(file);
      const int child = ::fork();
      CHECK_THAT(child >= 0);
      if (child == 0) {
        OnSmallStack([](int) { ::execl("/bin/true", "true", nullptr); }, -1);
        ::_exit(9);
      }
      int status = 0;
      CHECK_THAT(::waitpid(child, &status, 0) == child);
      Log("execl %d", status);
    });

// A socket may listen first, and then be connected.
Case listened_before(
    "listened_before",
    [](int) {
      const int listener = ListenAndTell();
      const int fd = Accept(listener);
      Echo(fd, 300);
      ::close(fd);
      ::close(listener);
    },
    [](int) {
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address = posix_test::Loopback(0);
      const auto* at = reinterpret_cast<sockaddr*>(&address);
      CHECK_THAT(::bind(fd, at, sizeof address) == 0);
      Result("listen", ::listen(fd, 1));
      Result("shutdown", ::shutdown(fd, SHUT_RD));
      const int set = ::epoll_create1(0);
      epoll_event event{};
      event.events = EPOLLIN | EPOLLET;
      address = posix_test::Loopback(static_cast<int>(Hear()));
      Result("connect", ::connect(fd, at, sizeof address));
      Result("add", ::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
      Call(fd, 250);
      for (int i = 0; i < 50; ++i) {
        char text[16] = {};
        ::epoll_wait(set, &event, 1, 0);
        SendAll(fd, text, sizeof text);
        CHECK_THAT(::epoll_wait(set, &event, 1, 3000) == 1);
        RecvAll(fd, text, sizeof text);
      }
      ::close(set);
      ::close(fd);
      Log("told");
    },
    {.warm = false, .connect = false});

}  // namespace
