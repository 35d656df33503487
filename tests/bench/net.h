#ifndef RCSOCK_TESTS_BENCH_NET_H_
#define RCSOCK_TESTS_BENCH_NET_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

// Plain sockets for the benchmark programs, which know nothing of rcsock.
// Whatever fails ends the program with one line.

namespace bench {

[[noreturn]] void Die(const char* what);

// Listens on `host`:`*port`; port 0 becomes the one that the kernel chose.
int Listen(const std::string& host, std::uint16_t* port);
int Accept(int listener);
// Connects; while nobody listens yet, tries again for up to ten seconds.
int Connect(const std::string& host, std::uint16_t port);
void SetNonBlocking(int fd);
void SetNoDelay(int fd);

// For blocking sockets.  ReadAll says false at the end of the stream.
void WriteAll(int fd, const void* data, std::size_t size);
bool ReadAll(int fd, void* data, std::size_t size);

// Lets the process have as many descriptors as it may.
void RaiseDescriptorLimit();

std::int64_t NowNs();

// Pins the process to the `index`-th CPU it may use; nothing if it has fewer.
void Pin(int index);

// How a program's two ends are started: `--role server`, `--role client`, or
// both in one command: then the server is the parent, on CPU 0, and the client
// its child, on CPU 1.
struct Ends {
  std::string role = "both";
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  int cpu = -1;  // pin to this one, if the role is server or client
};

// Runs the server with a listening socket, or the client with the port, or
// both.  Returns the exit status.
int RunEnds(const Ends& ends, const std::function<void(int listener)>& server,
            const std::function<void(std::uint16_t port)>& client);

}  // namespace bench

#endif  // RCSOCK_TESTS_BENCH_NET_H_
