#include "lib/verbs/verbs.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "lib/base/unique_fd.h"

namespace rcsock::verbs {
namespace {

std::set<std::string> OpenFds() {
  std::set<std::string> fds;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    fds.insert(entry.path().filename());
  }
  return fds;
}

// The address of the device under test; null where there is none.
const char* DeviceAddress() {
  const char* device = std::getenv("RDMA_DEV");
  const char* address = std::getenv("RDMA_IP");
  return device != nullptr && *device != '\0' ? address : nullptr;
}

// An id bound to the device's address.
Id BoundId(rdma_event_channel* channel) {
  Error error;
  Id id = CreateId(channel, nullptr, &error);
  if (id == nullptr) return id;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, DeviceAddress(), &address.sin_addr);
  if (calls.rdma_bind_addr(id.get(), reinterpret_cast<sockaddr*>(&address)) !=
      0) {
    ADD_FAILURE() << "bind: " << errno;
    return nullptr;
  }
  AdoptContext(id->verbs);
  return id;
}

TEST(Verbs, LoadsOnceAndFindsEveryCall) {
  Error error;
  ASSERT_TRUE(Load(&error)) << error.call;
  const Calls first = calls;
  ASSERT_TRUE(Load(&error));
  EXPECT_EQ(first.rdma_connect, calls.rdma_connect);
#define X(name) EXPECT_NE(calls.name, nullptr) << #name;
  RCSOCK_VERBS_CALLS(X)
#undef X
  EXPECT_NE(calls.ibv_reg_mr, nullptr);
}

TEST(Verbs, AnyDeviceAgreesWithSysfs) {
  bool device = false;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(
           "/sys/class/infiniband_verbs", none)) {
    if (entry.is_directory()) device = true;
  }
  EXPECT_EQ(AnyDevice(), device);
  if (DeviceAddress() != nullptr) {
    EXPECT_TRUE(AnyDevice());
  }
}

TEST(Verbs, WithoutADeviceThereIsAnErrorAndNothingElse) {
  if (AnyDevice()) GTEST_SKIP() << "there is a device";
  Error error;
  ASSERT_TRUE(Load(&error));
  const auto before = OpenFds();
  EXPECT_EQ(CreateEventChannel(&error), nullptr);
  EXPECT_STREQ(error.call, "rdma_create_event_channel");
  EXPECT_NE(error.code, 0);
  EXPECT_EQ(OpenFds(), before);
}

TEST(Verbs, ObjectsOfADevice) {
  if (DeviceAddress() == nullptr) GTEST_SKIP() << "no device: see tests/guest";
  Error error;
  ASSERT_TRUE(Load(&error));
  std::set<std::string> before;
  // Twice: what the libraries keep after the first use is not a leak.
  for (int round = 0; round < 2; ++round) {
    EventChannel events = CreateEventChannel(&error);
    ASSERT_NE(events, nullptr) << error.call << error.code;
    EXPECT_TRUE(base::IsInternalFd(events->fd));
    Id id = BoundId(events.get());
    ASSERT_NE(id, nullptr);
    ASSERT_NE(id->verbs, nullptr);
    EXPECT_TRUE(base::IsInternalFd(id->verbs->cmd_fd));
    EXPECT_TRUE(base::IsInternalFd(id->verbs->async_fd));
    // Non-blocking: there is no event.
    rdma_cm_event* event = nullptr;
    EXPECT_EQ(calls.rdma_get_cm_event(events.get(), &event), -1);
    EXPECT_EQ(errno, EAGAIN);
    ibv_async_event async;
    EXPECT_NE(calls.ibv_get_async_event(id->verbs, &async), 0);

    ibv_device_attr limits;
    ASSERT_TRUE(Query(id->verbs, &limits, &error));
    EXPECT_GT(limits.max_cqe, 100);
    Pd pd = AllocPd(id->verbs, &error);
    ASSERT_NE(pd, nullptr);
    std::vector<char> memory(8192);
    Mr mr = Register(pd.get(), memory.data(), memory.size(),
                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &error);
    ASSERT_NE(mr, nullptr);
    Channel channel = CreateChannel(id->verbs, &error);
    ASSERT_NE(channel, nullptr);
    EXPECT_TRUE(base::IsInternalFd(channel->fd));
    ibv_cq* cq_of_event = nullptr;
    void* context = nullptr;
    EXPECT_NE(calls.ibv_get_cq_event(channel.get(), &cq_of_event, &context), 0);
    Cq cq = CreateCq(id->verbs, 100, channel.get(), &error);
    ASSERT_NE(cq, nullptr);
    Srq srq = CreateSrq(pd.get(), 64, 1, &error);
    ASSERT_NE(srq, nullptr) << error.code;

    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = cq.get();
    attr.srq = srq.get();
    attr.qp_type = IBV_QPT_RC;
    attr.cap.max_send_wr = 16;
    attr.cap.max_send_sge = 1;
    std::uint32_t inline_bytes = 1 << 20;  // more than any grants
    ASSERT_TRUE(CreateQp(id.get(), pd.get(), &attr, &inline_bytes, &error))
        << error.call << " " << error.code;
    EXPECT_GT(inline_bytes, 0u);
    EXPECT_LT(inline_bytes, 1u << 20);
    EXPECT_TRUE(ToError(id->qp, &error));

    // What asks for the impossible fails with the device's name.
    Error refused;
    EXPECT_EQ(CreateCq(id->verbs, limits.max_cqe + 1, channel.get(), &refused),
              nullptr);
    EXPECT_STREQ(refused.call, "ibv_create_cq");
    EXPECT_STRNE(refused.device, "");

    id.reset();
    srq.reset();
    cq.reset();
    channel.reset();
    mr.reset();
    pd.reset();
    events.reset();
    if (round == 0) {
      before = OpenFds();
    } else {
      EXPECT_EQ(OpenFds().size(), before.size());
    }
  }
}

}  // namespace
}  // namespace rcsock::verbs
