// A GPU's memory itself goes to the peer: within a process, and to another.

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>

#include "lib/gpu/memory.h"
#include "tests/gpu/peer.h"
#include "tests/gpu/streams.h"

namespace gpu_test {
namespace {

constexpr std::size_t kSize = 3'000'001;

void FailCall(const char* name, int calls, int result) {
  if (Gpu::Get().real()) return;
  Gpu::Get().Call<void(const char*, int, int)>("fake_cuda_fail_call")(
      name, calls, result);
}
void Delay(unsigned us) {
  if (Gpu::Get().real()) return;
  Gpu::Get().Call<void(unsigned)>("fake_cuda_delay")(us);
}
void DelayBetween(unsigned us) {
  if (Gpu::Get().real()) return;
  Gpu::Get().Call<void(unsigned)>("fake_cuda_delay_between")(us);
}
// The bytes that went from device to device. A real driver does not count.
std::uint64_t Between() {
  return Gpu::Get().real() ? 0 : Gpu::Get().Counts().between;
}

class PassTest : public StreamTest {
 protected:
  void TearDown() override {
    FailCall(nullptr, 0, 0);
    Delay(0);
    DelayBetween(0);
    StreamTest::TearDown();
  }
  // Sends from one buffer, with plain bytes before and behind, and receives in
  // parts.
  void Transfer(const Buffer& from, const Buffer& to, std::size_t size,
                std::size_t part, unsigned seed) {
    const auto bytes = Pattern(size, seed);
    Gpu::Get().Put(from.at(), bytes);
    std::thread send([&] {
      rcs_sent sent{};
      EXPECT_EQ(rcs_send(one_, "before", 6, 0), 6);
      EXPECT_EQ(rcs_send_registered(one_, from.at(), size, 0, &sent),
                static_cast<ssize_t>(size))
          << std::strerror(errno);
      EXPECT_EQ(rcs_send(one_, "behind", 6, 0), 6);
    });
    EXPECT_EQ(Receive(6), std::vector<char>({'b', 'e', 'f', 'o', 'r', 'e'}));
    for (std::size_t done = 0; done < size; done += part) {
      const std::size_t n = std::min(part, size - done);
      ASSERT_EQ(rcs_recv_registered(other_, to.at() + done, n, MSG_WAITALL),
                static_cast<ssize_t>(n))
          << std::strerror(errno);
    }
    EXPECT_EQ(Receive(6), std::vector<char>({'b', 'e', 'h', 'i', 'n', 'd'}));
    send.join();
    EXPECT_TRUE(Gpu::Get().Take(to.at(), size) == bytes) << size << " " << part;
  }
};
INSTANTIATE_TEST_SUITE_P(, PassTest, testing::Values(Path::kLane),
                         [](const auto&) { return "Lane"; });

TEST_P(PassTest, InOrderAndInParts) {
  const Buffer from(kSize), to(kSize);
  const std::uint64_t before = Between();
  // The receiver looks for an offer for a while only, so a turn may miss it.
  const time_t end = time(nullptr) + 60;
  unsigned turn = 0;
  do {
    for (const std::size_t part :
         {kSize, std::size_t{1'000'000}, std::size_t{700'001},
          std::size_t{300'000}}) {
      Transfer(from, to, kSize, part, ++turn);
      if (HasFatalFailure()) return;
    }
  } while (!Gpu::Get().real() && Between() - before < 2 * kSize &&
           time(nullptr) < end);
  if (Gpu::Get().real()) return;
  EXPECT_GE(Between() - before, 2 * kSize);
}

// The peer gets a descriptor.
TEST_P(PassTest, MemoryThatTheProgramMaps) {
  {
    const Buffer from(kSize, Buffer::Kind::kMapped), to(kSize);
    const std::uint64_t before = Between();
    const time_t end = time(nullptr) + 60;
    unsigned turn = 0;
    do {
      ++turn;
      Transfer(from, to, kSize, turn % 2 == 0 ? kSize : 700'001, turn);
      if (HasFatalFailure()) return;
    } while (!Gpu::Get().real() && Between() - before < 3 * kSize &&
             time(nullptr) < end);
    if (Gpu::Get().real()) return;
    EXPECT_GE(Between() - before, 3 * kSize);
    EXPECT_GE(Gpu::Get().Counts().descriptors, 1u);
  }
  EXPECT_EQ(Gpu::Get().Counts().mapped, 0u);
  EXPECT_EQ(Gpu::Get().Counts().handles, 0u);
}

TEST_P(PassTest, MemoryThatCannotBeExported) {
  const Buffer from(kSize, Buffer::Kind::kUnshared), to(kSize);
  const std::uint64_t before = Between();
  for (unsigned turn = 0; turn < 3; ++turn) {
    Transfer(from, to, kSize, kSize, turn);
  }
  EXPECT_EQ(Between(), before);
}

// The bytes go by the ring at once.
TEST_P(PassTest, CallsThatFail) {
  if (Gpu::Get().real()) GTEST_SKIP();
  const Buffer from(kSize), to(kSize);
  unsigned seed = 0;
  for (const char* call : {"cuIpcGetMemHandle", "cuMemcpyDtoDAsync_v2"}) {
    for (const int behind : {0, 1, 2}) {
      ASSERT_TRUE(Promoted());
      FailCall(call, behind, 801);
      for (int turn = 0; turn < 3; ++turn) {
        Transfer(from, to, kSize, kSize, ++seed);
      }
      FailCall(nullptr, 0, 0);
      // Another lane tries again.
      ASSERT_EQ(rcs_demote(one_, 20'000), 0);
    }
  }
}

// The sender does not wait for a device. What the other one still copies does
// not count, and harms nothing.
TEST_P(PassTest, SlowCopiesAreWithdrawn) {
  if (Gpu::Get().real()) GTEST_SKIP();
  constexpr std::size_t kSome = 700'000;
  const Buffer from(kSome), to(kSome);
  const std::uint64_t before = Between();
  const time_t end = time(nullptr) + 60;
  DelayBetween(90'000);
  for (unsigned turn = 1; Between() < before + 3 * kSome / 2; ++turn) {
    ASSERT_LT(time(nullptr), end);
    Transfer(from, to, kSome, kSome, turn);
  }
}

TEST_P(PassTest, LeavesTheLaneAmidOffers) {
  const Buffer from(kSize), to(kSize);
  for (unsigned turn = 0; turn < 4; ++turn) {
    ASSERT_TRUE(Promoted()) << turn;
    Delay(200);
    DelayBetween(20'000);
    std::thread leave([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(3 + 4 * turn));
      rcs_demote(turn % 2 == 0 ? one_ : other_, 20'000);
    });
    Transfer(from, to, kSize, kSize, 6 + turn);
    leave.join();
    Delay(0);
    DelayBetween(0);
  }
}

// Small and large sends of another thread find no room meanwhile, and lose
// nothing.
TEST_P(PassTest, OtherThreadsSendMeanwhile) {
  const Buffer from(kSize);
  Gpu::Get().Put(from.at(), std::vector<char>(kSize, 'g'));
  constexpr int kPlain = 400;
  std::size_t plain = 0;
  for (int i = 0; i < kPlain; ++i) plain += i % 2 == 0 ? 50 : 9000;
  const Buffer to(2 * kSize + plain);
  Delay(300);
  std::thread device([&] {
    for (int turn = 0; turn < 2; ++turn) {
      rcs_sent sent{};
      EXPECT_EQ(rcs_send_registered(one_, from.at(), kSize, 0, &sent),
                static_cast<ssize_t>(kSize));
    }
  });
  std::thread host([&] {
    const std::vector<char> bytes(9000, 'p');
    for (int i = 0; i < kPlain; ++i) {
      const std::size_t n = i % 2 == 0 ? 50 : 9000;
      EXPECT_EQ(rcs_send(one_, bytes.data(), n, 0), static_cast<ssize_t>(n));
    }
  });
  EXPECT_EQ(
      rcs_recv_registered(other_, to.at(), 2 * kSize + plain, MSG_WAITALL),
      static_cast<ssize_t>(2 * kSize + plain));
  device.join();
  host.join();
  const auto got = Gpu::Get().Take(to.at(), 2 * kSize + plain);
  EXPECT_EQ(std::count(got.begin(), got.end(), 'g'),
            static_cast<std::ptrdiff_t>(2 * kSize));
  EXPECT_EQ(std::count(got.begin(), got.end(), 'p'),
            static_cast<std::ptrdiff_t>(plain));
}

TEST_P(PassTest, ShutDownMeanwhile) {
  const Buffer from(kSize), to(kSize);
  const auto bytes = Pattern(kSize, 21);
  Gpu::Get().Put(from.at(), bytes);
  DelayBetween(30'000);
  ssize_t sent_bytes = 0;
  std::thread send([&] {
    rcs_sent sent{};
    sent_bytes =
        rcs_send_registered(one_, from.at(), kSize, MSG_NOSIGNAL, &sent);
  });
  std::thread shut([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(12));
    EXPECT_EQ(rcs_shutdown(one_, SHUT_WR), 0);
  });
  const ssize_t got = rcs_recv_registered(other_, to.at(), kSize, MSG_WAITALL);
  send.join();
  shut.join();
  ASSERT_GE(got, 0);
  EXPECT_EQ(got, std::max<ssize_t>(sent_bytes, 0));
  EXPECT_TRUE(Gpu::Get().Take(to.at(), static_cast<std::size_t>(got)) ==
              std::vector<char>(bytes.begin(), bytes.begin() + got));
}

// What a peer may write.
TEST_P(PassTest, WrongHandlesAndOffsets) {
  const Buffer from(kSize);
  std::shared_ptr<rcsock::gpu::Memory> memory;
  ASSERT_EQ(rcsock::gpu::Memory::Find(from.at(), kSize, &memory), 0);
  ASSERT_NE(memory, nullptr);
  rcsock::gpu::Passed what{};
  ASSERT_EQ(memory->Pass(from.at() + 100, kSize, &what), 0);
  EXPECT_EQ(what.offset, 100u);
  EXPECT_GE(what.length, kSize - 100);
  const auto import = memory->Open(what, -1);
  ASSERT_NE(import, nullptr);
  EXPECT_EQ(import->At(what.offset, what.length), from.at() + 100);
  const std::uint64_t all = what.offset + what.length;
  EXPECT_EQ(import->At(all + (64 << 20), 1), nullptr);
  EXPECT_EQ(import->At(0, ~std::uint64_t{0}), nullptr);
  EXPECT_EQ(import->At(~std::uint64_t{0}, 2), nullptr);
  EXPECT_EQ(import->At(1, ~std::uint64_t{0}), nullptr);
  // A number that this process has not given away names no memory of its own.
  auto other = what;
  ++other.id;
  EXPECT_EQ(memory->Open(other, -1), nullptr);
  if (!Gpu::Get().real()) {
    for (unsigned i = 0; i < 64; i += 3) {
      other = what;
      other.id = 77;
      other.handle[i] ^= std::byte{0xff};
      EXPECT_EQ(memory->Open(other, -1), nullptr) << i;
    }
  }
  import->End();
  EXPECT_EQ(import->At(0, 1), nullptr);
}

// What a peer may send, and say of it.
TEST_P(PassTest, WrongDescriptors) {
  if (Gpu::Get().real()) GTEST_SKIP();
  constexpr std::size_t kAll = 2 * Gpu::kGranularity;
  const Buffer from(kAll, Buffer::Kind::kMapped);
  std::shared_ptr<rcsock::gpu::Memory> memory;
  ASSERT_EQ(rcsock::gpu::Memory::Find(from.at(), kAll, &memory), 0);
  rcsock::gpu::Passed what{};
  ASSERT_EQ(memory->Pass(from.at() + 100, kAll, &what), 0);
  EXPECT_EQ(what.way, rcsock::gpu::Passed::kByDescriptor);
  EXPECT_EQ(what.size, kAll);
  EXPECT_EQ(what.offset, 100u);
  EXPECT_EQ(what.length, kAll - 100);
  rcsock::base::UniqueFd fd;
  ASSERT_EQ(memory->Descriptor(from.at() + 100, &fd), 0);
  // Another process's, as far as this one knows.
  what.handle[0] ^= std::byte{1};
  const auto mapped = Gpu::Get().Counts().mapped;
  const auto opens = [&](std::uint64_t size, int number) {
    auto other = what;
    other.size = size;
    const auto import = memory->Open(other, number);
    if (import == nullptr) return false;
    import->End();
    return true;
  };
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int null = ::open("/dev/null", O_RDWR);
  const int foreign = ::memfd_create("other", 0);
  ASSERT_EQ(::ftruncate(foreign, kAll), 0);
  for (const int number : {-1, 1 << 20, ends[0], null, foreign}) {
    EXPECT_FALSE(opens(kAll, number)) << number;
  }
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{1}, kAll - 1, kAll + 1,
        kAll + Gpu::kGranularity, std::uint64_t{1} << 40,
        std::uint64_t{1} << 47, ~std::uint64_t{0}}) {
    EXPECT_FALSE(opens(size, fd.get())) << size;
  }
  for (const int number : {ends[0], ends[1], null, foreign}) ::close(number);
  EXPECT_EQ(Gpu::Get().Counts().mapped, mapped);
  EXPECT_EQ(Gpu::Get().Counts().handles, 0u);
  // Less than the allocation has: the rest is out of reach.
  auto half = what;
  half.size = kAll / 2;
  const auto import = memory->Open(half, fd.get());
  ASSERT_NE(import, nullptr);
  EXPECT_NE(import->At(0, kAll / 2), nullptr);
  EXPECT_EQ(import->At(0, kAll / 2 + 1), nullptr);
  EXPECT_EQ(import->At(kAll / 2, 1), nullptr);
  EXPECT_EQ(import->At(~std::uint64_t{0}, 2), nullptr);
  import->End();
  for (const char* call :
       {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap",
        "cuMemSetAccess", "cuCtxPushCurrent_v2"}) {
    FailCall(call, 0, 999);
    EXPECT_FALSE(opens(kAll, fd.get())) << call;
    FailCall(nullptr, 0, 0);
  }
  EXPECT_EQ(Gpu::Get().Counts().mapped, mapped);
  EXPECT_EQ(Gpu::Get().Counts().handles, 0u);
}

// All lanes of a context share what is open.
TEST_P(PassTest, OneImportForAllUsers) {
  if (Gpu::Get().real()) GTEST_SKIP();
  auto from = std::make_unique<Buffer>(kSize, Buffer::Kind::kMapped);
  std::shared_ptr<rcsock::gpu::Memory> memory;
  ASSERT_EQ(rcsock::gpu::Memory::Find(from->at(), kSize, &memory), 0);
  rcsock::gpu::Passed what{};
  ASSERT_EQ(memory->Pass(from->at(), kSize, &what), 0);
  rcsock::base::UniqueFd fd;
  ASSERT_EQ(memory->Descriptor(from->at(), &fd), 0);
  what.handle[0] ^= std::byte{1};
  const auto mapped = Gpu::Get().Counts().mapped;
  const auto one = memory->Open(what, fd.get());
  const auto other = memory->Open(what, -1);
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one, other);
  EXPECT_EQ(Gpu::Get().Counts().mapped, mapped + 1);
  one->End();
  EXPECT_NE(other->At(0, 1), nullptr);
  other->End();
  EXPECT_EQ(other->At(0, 1), nullptr);
  EXPECT_EQ(Gpu::Get().Counts().mapped, mapped);
  // The end of the context's last buffer closes it for all.
  const auto last = memory->Open(what, fd.get());
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(memory->Open(what, fd.get()), last);
  memory.reset();
  from.reset();
  EXPECT_EQ(last->At(0, 1), nullptr);
  EXPECT_EQ(Gpu::Get().Counts().mapped, mapped - 1);
}

// A driver that takes long to open memory holds up no thread that opens other
// memory.
TEST_P(PassTest, SlowDriver) {
  if (Gpu::Get().real()) GTEST_SKIP();
  const Buffer from(kSize, Buffer::Kind::kMapped);
  std::shared_ptr<rcsock::gpu::Memory> memory;
  ASSERT_EQ(rcsock::gpu::Memory::Find(from.at(), kSize, &memory), 0);
  rcsock::gpu::Passed what{};
  ASSERT_EQ(memory->Pass(from.at(), kSize, &what), 0);
  rcsock::base::UniqueFd fd;
  ASSERT_EQ(memory->Descriptor(from.at(), &fd), 0);
  what.handle[0] ^= std::byte{1};
  auto other = what;
  ++other.id;
  Gpu::Get().Call<void(unsigned)>("fake_cuda_delay_import")(2'000'000);
  std::atomic<bool> opened{false};
  std::shared_ptr<rcsock::gpu::Import> slow;
  std::thread waits([&] {
    slow = memory->Open(what, fd.get());
    opened = true;
  });
  // The driver is within the first import.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto quick = memory->Open(other, fd.get());
  EXPECT_FALSE(opened);
  // Another thread that opens what is being opened waits, and shares it.
  const auto shared = memory->Open(what, -1);
  waits.join();
  ASSERT_NE(quick, nullptr);
  ASSERT_NE(slow, nullptr);
  EXPECT_EQ(shared, slow);
  quick->End();
  slow->End();
  shared->End();
}

// --- To another process

class PassToPeerTest : public testing::Test {
 protected:
  void SetUp() override {
    Gpu::Get();
    sockaddr_in address{};
    Listen("127.0.0.1", &listener_, &address);
    port_ = ntohs(address.sin_port);
  }
  void TearDown() override {
    Delay(0);
    FailCall(nullptr, 0, 0);
    for (int fd : {fd_, listener_}) {
      if (fd >= 0) {
        EXPECT_EQ(rcs_close(fd), 0);
      }
    }
  }
  void Accept() {
    fd_ = rcs_accept(listener_, nullptr, nullptr);
    ASSERT_GE(fd_, 0);
    const time_t end = time(nullptr) + 20;
    char byte = 'x';
    while (rcs_get_lane(fd_) != RCS_SHM && time(nullptr) < end) {
      ASSERT_EQ(rcs_send(fd_, &byte, 1, 0), 1);
      ASSERT_EQ(rcs_recv(fd_, &byte, 1, MSG_WAITALL), 1);
    }
    byte = '!';
    ASSERT_EQ(rcs_send(fd_, &byte, 1, 0), 1);
  }
  // Sends what the peer expects (Receives), until it has enough.
  void SendAll(const Buffer& from) {
    for (unsigned turn = 0;; ++turn) {
      Gpu::Get().Put(from.at(), Pattern(kSize, turn));
      rcs_sent sent{};
      ASSERT_EQ(rcs_send_registered(fd_, from.at(), kSize, 0, &sent),
                static_cast<ssize_t>(kSize))
          << std::strerror(errno);
      char more = 0;
      ASSERT_EQ(rcs_recv(fd_, &more, 1, MSG_WAITALL), 1);
      if (more == 'n') return;
    }
  }

  int listener_ = -1;
  int fd_ = -1;
  std::uint16_t port_ = 0;
};

TEST_F(PassToPeerTest, PeerReceives) {
  Peer peer("receive", port_);
  const Buffer from(kSize);
  Accept();
  SendAll(from);
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(PassToPeerTest, PeerReceivesWhatTheProgramMaps) {
  Peer peer("receive", port_);
  const Buffer from(kSize, Buffer::Kind::kMapped);
  Accept();
  SendAll(from);
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(PassToPeerTest, PeerThatCannotMap) {
  if (Gpu::Get().real()) GTEST_SKIP();
  for (const char* what : {"receive_no_import", "receive_no_map"}) {
    Peer peer(what, port_);
    const Buffer from(kSize, Buffer::Kind::kMapped);
    Accept();
    SendAll(from);
    EXPECT_EQ(peer.Wait(), 0) << what;
    EXPECT_EQ(rcs_close(fd_), 0);
    fd_ = -1;
  }
}

TEST_F(PassToPeerTest, PeerThatDoesNotPass) {
  Peer peer("receive_by_ring", port_, false);
  const Buffer from(kSize);
  Accept();
  SendAll(from);
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(PassToPeerTest, PeerThatCannotOpen) {
  if (Gpu::Get().real()) GTEST_SKIP();
  Peer peer("receive_no_open", port_);
  const Buffer from(kSize);
  Accept();
  SendAll(from);
  EXPECT_EQ(peer.Wait(), 0);
}

// The receiver dies amid its copy: the sender's call ends, as on TCP.
TEST_F(PassToPeerTest, PeerDiesWhileItCopies) {
  Peer peer("receive_slowly", port_);
  const Buffer from(kSize);
  Accept();
  std::thread kill([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    ::kill(peer.pid(), SIGKILL);
  });
  ssize_t n = 0;
  for (int turn = 0; n >= 0 && turn < 1000; ++turn) {
    rcs_sent sent{};
    n = rcs_send_registered(fd_, from.at(), kSize, MSG_NOSIGNAL, &sent);
  }
  kill.join();
  EXPECT_EQ(n, -1);
  EXPECT_TRUE(errno == ECONNRESET || errno == EPIPE) << std::strerror(errno);
  EXPECT_EQ(peer.Wait(), -1);
}

// The sender dies with an offer open. What was received is right.
TEST_F(PassToPeerTest, PeerDiesWhileItSends) {
  Peer peer("send", port_);
  const Buffer to(kSize);
  Accept();
  Delay(500);
  std::thread kill([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    ::kill(peer.pid(), SIGKILL);
  });
  const auto bytes = Pattern(kSize, 5);
  ssize_t n = kSize;
  while (n == static_cast<ssize_t>(kSize)) {
    n = rcs_recv_registered(fd_, to.at(), kSize, MSG_WAITALL);
    if (n <= 0) break;
    ASSERT_TRUE(Gpu::Get().Take(to.at(), static_cast<std::size_t>(n)) ==
                std::vector<char>(bytes.begin(), bytes.begin() + n));
  }
  kill.join();
  EXPECT_EQ(peer.Wait(), -1);
}

// --- The other process

struct Other {
  int fd = -1;

  bool Connect(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    fd = rcs_socket(AF_INET, SOCK_STREAM, 0);
    if (rcs_connect(fd, reinterpret_cast<sockaddr*>(&address),
                    sizeof address) != 0) {
      return false;
    }
    char byte = 0;
    while (rcs_recv(fd, &byte, 1, MSG_WAITALL) == 1 && byte != '!') {
      if (rcs_send(fd, &byte, 1, 0) != 1) return false;
    }
    return byte == '!';
  }
  // Receives until enough has come from device to device, or, if none is
  // wanted, a few times.
  int Receives(bool wanted) {
    const Buffer to(kSize);
    const time_t end = time(nullptr) + 40;
    for (unsigned turn = 0;; ++turn) {
      const ssize_t n = rcs_recv_registered(fd, to.at(), kSize, MSG_WAITALL);
      if (n != static_cast<ssize_t>(kSize)) return 2;
      if (Gpu::Get().Take(to.at(), kSize) != Pattern(kSize, turn)) return 3;
      const bool enough =
          Gpu::Get().real() || !wanted ? turn >= 5 : Between() >= 3 * kSize;
      const bool over = enough || time(nullptr) > end;
      if (rcs_send(fd, over ? "n" : "y", 1, 0) != 1) return 4;
      if (!over) continue;
      if (!wanted && Between() != 0) return 5;
      return enough ? 0 : 6;
    }
  }
  int Sends() {
    const Buffer from(kSize);
    Gpu::Get().Put(from.at(), Pattern(kSize, 5));
    for (;;) {
      rcs_sent sent{};
      if (rcs_send_registered(fd, from.at(), kSize, MSG_NOSIGNAL, &sent) < 0) {
        return 7;
      }
    }
  }
};

int OtherMain(const std::string& what, std::uint16_t port) {
  Gpu::Get();
  if (what == "receive_slowly") Delay(3000);
  if (what == "receive_no_import") {
    FailCall("cuMemImportFromShareableHandle", 0, 801);
  }
  if (what == "receive_no_map") FailCall("cuMemMap", 0, 2);
  if (what == "receive_no_open") FailCall("cuIpcOpenMemHandle_v2", 0, 201);
  Other other;
  if (!other.Connect(port)) return 1;
  if (what == "send") return other.Sends();
  const int result =
      other.Receives(what == "receive" || what == "receive_slowly");
  // All that was opened is closed with the last buffer.
  const auto counts =
      Gpu::Get().real() ? fake_cuda::Counts{} : Gpu::Get().Counts();
  if (result == 0 && counts.opened + counts.mapped + counts.handles != 0) {
    return 8;
  }
  rcs_close(other.fd);
  return result;
}

}  // namespace
}  // namespace gpu_test

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "peer") {
    return gpu_test::OtherMain(argv[2],
                               static_cast<std::uint16_t>(std::atoi(argv[3])));
  }
  gpu_test::Peer::Prepare();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
