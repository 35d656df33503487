#ifndef RCSOCK_TESTS_BASE_STUBBORN_FILE_H_
#define RCSOCK_TESTS_BASE_STUBBORN_FILE_H_

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace rcsock {

// A file of a FUSE daemon that never answers a close: whoever closes it waits,
// and no signal ends that, until the daemon dies.  The calling process gets a
// mount namespace of its own for it.
class StubbornFile {
 public:
  StubbornFile() {
    char name[] = "/tmp/stubborn.XXXXXX";
    if (::mkdtemp(name) == nullptr) return;
    directory_ = name;
    const int device = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0 || ::unshare(CLONE_NEWNS) != 0) return;
    ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    const std::string options = "fd=" + std::to_string(device) +
                                ",rootmode=40000,user_id=0,group_id=0," +
                                "allow_other";
    if (::mount("stubborn", name, "fuse", MS_NOSUID | MS_NODEV,
                options.c_str()) == 0) {
      const std::string parent = "/proc/" + std::to_string(::getpid()) + "/exe";
      daemon_ = ::fork();
      if (daemon_ == 0) Serve(device, parent);
      fd_ = ::open((directory_ + "/file").c_str(), O_RDONLY | O_CLOEXEC);
    }
    ::close(device);
  }
  StubbornFile(const StubbornFile&) = delete;
  StubbornFile& operator=(const StubbornFile&) = delete;
  ~StubbornFile() {
    if (daemon_ > 0) {
      ::kill(daemon_, SIGKILL);
      ::waitpid(daemon_, nullptr, 0);
    }
    if (fd_ >= 0) ::close(fd_);
    if (!directory_.empty()) {
      ::umount2(directory_.c_str(), MNT_DETACH);
      ::rmdir(directory_.c_str());
    }
  }

  // False: this machine has no FUSE, or it is not ours to mount.
  bool ok() const { return fd_ >= 0; }
  int get() const { return fd_; }

 private:
  [[noreturn]] static void Serve(int device, const std::string& parent) {
    // As large as the least that the kernel accepts for a read.
    static char request[1 << 17];
    for (;;) {
      // It ends with its parent, whose own close of the file would wait for it.
      // (Memory goes before descriptors do.)
      char name[1];
      if (::readlink(parent.c_str(), name, sizeof name) < 0) ::_exit(0);
      pollfd one{device, POLLIN, 0};
      if (::poll(&one, 1, 50) == 0) continue;
      const ssize_t n = ::read(device, request, sizeof request);
      if (n < 0 && errno == EINTR) continue;
      if (n < static_cast<ssize_t>(sizeof(fuse_in_header))) ::_exit(0);
      fuse_in_header in;
      std::memcpy(&in, request, sizeof in);
      struct {
        fuse_out_header head;
        char body[256];
      } out{};
      std::size_t size = 0;
      const auto attributes = [&](std::uint64_t node) {
        fuse_attr attr{};
        attr.ino = node;
        attr.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
        attr.nlink = 1;
        return attr;
      };
      switch (in.opcode) {
        case FUSE_INIT: {
          fuse_init_out init{};
          init.major = FUSE_KERNEL_VERSION;
          init.minor = FUSE_KERNEL_MINOR_VERSION;
          init.max_write = 4096;
          size = sizeof init;
          std::memcpy(out.body, &init, size);
          break;
        }
        case FUSE_LOOKUP: {
          fuse_entry_out entry{};
          entry.nodeid = 2;
          entry.attr = attributes(2);
          size = sizeof entry;
          std::memcpy(out.body, &entry, size);
          break;
        }
        case FUSE_GETATTR: {
          fuse_attr_out attr{};
          attr.attr = attributes(in.nodeid);
          size = sizeof attr;
          std::memcpy(out.body, &attr, size);
          break;
        }
        case FUSE_OPEN: {
          fuse_open_out open{};
          size = sizeof open;
          std::memcpy(out.body, &open, size);
          break;
        }
        case FUSE_FLUSH:
        case FUSE_RELEASE:
        case FUSE_FORGET:
          continue;
        default:
          out.head.error = -ENOSYS;
          break;
      }
      out.head.len = static_cast<std::uint32_t>(sizeof out.head + size);
      out.head.unique = in.unique;
      if (::write(device, &out, out.head.len) < 0) ::_exit(1);
    }
  }

  std::string directory_;
  pid_t daemon_ = -1;
  int fd_ = -1;
};

}  // namespace rcsock

#endif  // RCSOCK_TESTS_BASE_STUBBORN_FILE_H_
