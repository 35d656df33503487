// How often the heap is used for an operation: never, once warm, whether the
// handler brings an allocator or leaves that to Asio.

#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/asio/pair.h"

namespace {
std::atomic<long> allocations{0};
}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (void* at = std::malloc(size)) return at;
  throw std::bad_alloc();
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }

namespace rcsock::asio_test {
namespace {

// Blocks of one size, used again and again.
class Recycled {
 public:
  void* Take(std::size_t size) {
    for (Block& b : blocks_) {
      if (b.used || size > sizeof b.bytes) continue;
      b.used = true;
      return b.bytes;
    }
    return ::operator new(size);
  }
  void Give(void* at) {
    for (Block& b : blocks_) {
      if (at != b.bytes) continue;
      b.used = false;
      return;
    }
    ::operator delete(at);
  }

 private:
  struct Block {
    alignas(std::max_align_t) char bytes[1024];
    bool used = false;
  };
  std::array<Block, 8> blocks_;
};

template <class T>
struct Allocator {
  using value_type = T;
  explicit Allocator(Recycled* r) : from(r) {}
  template <class U>
  Allocator(const Allocator<U>& other) : from(other.from) {}
  T* allocate(std::size_t n) {
    return static_cast<T*>(from->Take(n * sizeof(T)));
  }
  void deallocate(T* at, std::size_t) { from->Give(at); }
  bool operator==(const Allocator& other) const { return from == other.from; }
  Recycled* from;
};

template <class Socket, class Bind>
struct PingPong {
  Socket& a;
  Socket& b;
  Bind bind;
  int left;
  char in[1], out[1] = {'x'};
  void Go() {
    b.async_read_some(net::buffer(in), bind([this](error_code e, std::size_t) {
                        if (!e && --left > 0) Go();
                      }));
    a.async_write_some(net::buffer(out), bind([](error_code, std::size_t) {}));
  }
};

template <class Kind>
class Allocation : public ::testing::Test {};
TYPED_TEST_SUITE(Allocation, Kinds, KindNames);

template <class Kind, class Bind>
long Count(Bind bind) {
  net::io_context io;
  Pair<Kind> p(io);
  PingPong<typename Kind::socket, Bind> game{p.a, p.b, bind, 100, {}};
  game.Go();
  io.run();
  io.restart();
  game.left = 5000;
  const long before = allocations.load();
  game.Go();
  io.run();
  return allocations.load() - before;
}

TYPED_TEST(Allocation, WithARecyclingAllocator) {
  Recycled recycled;
  EXPECT_EQ(Count<TypeParam>([&](auto handler) {
              return net::bind_allocator(Allocator<void>(&recycled),
                                         std::move(handler));
            }),
            0);
}

TYPED_TEST(Allocation, WithAsiosOwn) {
  EXPECT_LE(Count<TypeParam>([](auto handler) { return handler; }), 2);
}

}  // namespace
}  // namespace rcsock::asio_test
