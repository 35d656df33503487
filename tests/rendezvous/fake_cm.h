#ifndef RCSOCK_TESTS_RENDEZVOUS_FAKE_CM_H_
#define RCSOCK_TESTS_RENDEZVOUS_FAKE_CM_H_

#include <sys/eventfd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/lane/fake_verbs.h"
#include "tests/rendezvous/util.h"

namespace rcsock::rendezvous {

// An rdma_cm in memory that connects the ids of one process with each other,
// their queue pairs those of a FakeVerbs.  Every IPv4 address leads to the
// device that Lead() has named last, as if a bond carried it there.
class FakeCmPair {
 public:
  explicit FakeCmPair(lane::test::FakeVerbs* verbs)
      : verbs_(verbs), leads_to_(verbs->context()) {
    g_fake = this;
    Open(verbs->context());
    verbs::Calls& calls = verbs::calls;
    Events(&calls);
    Ids(&calls);
    Connections(&calls);
  }

  // A device more, whose objects are the FakeVerbs' as well.
  ibv_context* Second() {
    second_device_ = *verbs_->context()->device;
    std::strcpy(second_device_.name, "fake1");
    second_ = *verbs_->context();
    second_.device = &second_device_;
    Open(&second_);
    return &second_;
  }
  // Null: the addresses lead nowhere.
  void Lead(ibv_context* to) { leads_to_.store(to); }
  // An asynchronous event of the device.
  void Async(ibv_context* of, ibv_event_type type, int port = 1) {
    {
      std::scoped_lock hold(mutex_);
      ibv_async_event event{};
      event.event_type = type;
      event.element.port_num = port;
      async_[of].push_back(event);
    }
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(of->async_fd, &one, sizeof one), 8);
  }
  // An event of rdma_cm for an id.
  void Say(rdma_cm_id* id, rdma_cm_event_type type, int status = 0,
           const std::string& data = "") {
    auto* event = new Event{};
    event->data = data;
    event->event.id = id;
    event->event.event = type;
    event->event.status = status;
    if (!data.empty()) {
      event->event.param.conn.private_data = event->data.data();
      event->event.param.conn.private_data_len =
          static_cast<std::uint8_t>(data.size());
    }
    {
      std::scoped_lock hold(mutex_);
      events_.push_back(event);
    }
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(channel_.fd, &one, sizeof one), 8);
  }

  struct Listening {
    rdma_cm_id* id;
    std::string device;
    std::uint16_t port;
  };
  std::vector<Listening> listening() {
    std::scoped_lock hold(mutex_);
    std::vector<Listening> all;
    for (const auto& [id, state] : ids_) {
      if (state.listens) {
        all.push_back({id, id->verbs->device->name, state.port});
      }
    }
    return all;
  }
  // Calls of rdma_listen that have succeeded.
  int listens() const { return listens_.load(); }
  // The last id that has connected, and the last that has accepted.
  rdma_cm_id* connector() const { return connector_.load(); }
  rdma_cm_id* acceptor() const { return acceptor_.load(); }

  // The last REQ's id at its listener.
  rdma_cm_id* request() const { return request_.load(); }
  bool Exists(rdma_cm_id* id) {
    std::scoped_lock hold(mutex_);
    return ids_.count(id) != 0;
  }

  // What ids have been told.
  struct Told {
    std::vector<int> ack_timeouts;
    std::vector<int> traffic_classes;
    std::vector<int> retries;  // of rdma_connect
  };
  Told told() {
    std::scoped_lock hold(mutex_);
    return told_;
  }
  void ForgetTold() {
    std::scoped_lock hold(mutex_);
    told_ = {};
  }

 private:
  struct Event {
    rdma_cm_event event;  // first
    std::string data;
  };
  struct State {
    std::uint16_t port = 0;
    bool listens = false;
    bool asked = false;  // by a REQ that has no answer yet
    rdma_cm_id* peer = nullptr;
  };

  static void Open(ibv_context* context) {
    context->cmd_fd = ::eventfd(0, EFD_CLOEXEC);
    context->async_fd =
        ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
  }

  static void Events(verbs::Calls* calls) {
    calls->ibv_get_async_event = [](ibv_context* context,
                                    ibv_async_event* event) {
      std::uint64_t one;
      if (::read(context->async_fd, &one, sizeof one) != sizeof one) return -1;
      std::scoped_lock hold(g_fake->mutex_);
      *event = g_fake->async_[context].front();
      g_fake->async_[context].pop_front();
      return 0;
    };
    calls->ibv_ack_async_event = [](ibv_async_event*) {};
    calls->rdma_create_event_channel = [] {
      g_fake->channel_.fd =
          ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
      return &g_fake->channel_;
    };
    calls->rdma_destroy_event_channel = [](rdma_event_channel*) {};
    calls->rdma_get_cm_event = [](rdma_event_channel* channel,
                                  rdma_cm_event** event) {
      for (;;) {
        std::uint64_t one;
        if (::read(channel->fd, &one, sizeof one) != sizeof one) return -1;
        std::scoped_lock hold(g_fake->mutex_);
        Event* next = g_fake->events_.front();
        g_fake->events_.pop_front();
        // One of an id that has gone is never seen.
        if (g_fake->ids_.count(next->event.id) == 0) {
          delete next;
          continue;
        }
        *event = &next->event;
        return 0;
      }
    };
    calls->rdma_ack_cm_event = [](rdma_cm_event* event) {
      delete reinterpret_cast<Event*>(event);
      return 0;
    };
    calls->rdma_event_str = [](rdma_cm_event_type) { return "fake"; };
    calls->rdma_get_devices = [](int*) -> ibv_context** { return nullptr; };
    calls->rdma_free_devices = [](ibv_context**) {};
  }

  static void Ids(verbs::Calls* calls) {
    calls->rdma_create_id = [](rdma_event_channel* channel, rdma_cm_id** id,
                               void* user, rdma_port_space) {
      *id = new rdma_cm_id{};
      (*id)->channel = channel;
      (*id)->context = user;
      std::scoped_lock hold(g_fake->mutex_);
      g_fake->ids_[*id] = {};
      return 0;
    };
    calls->rdma_destroy_id = [](rdma_cm_id* id) {
      rdma_cm_id* refused = nullptr;
      {
        std::scoped_lock hold(g_fake->mutex_);
        const State& mine = g_fake->ids_[id];
        if (mine.asked) refused = mine.peer;
        for (auto& [other, state] : g_fake->ids_) {
          if (state.peer == id) state.peer = nullptr;
        }
        g_fake->ids_.erase(id);
      }
      // As the kernel does for a REQ that nobody has answered.
      if (refused != nullptr) g_fake->Say(refused, RDMA_CM_EVENT_REJECTED, 28);
      delete id;
      return 0;
    };
    calls->rdma_bind_addr = [](rdma_cm_id* id, sockaddr* address) {
      std::scoped_lock hold(g_fake->mutex_);
      ibv_context* const to = g_fake->leads_to_.load();
      if (to == nullptr) {
        errno = ENODEV;
        return -1;
      }
      sockaddr_in in;
      std::memcpy(&in, address, sizeof in);
      State& state = g_fake->ids_[id];
      state.port = ntohs(in.sin_port);
      if (state.port == 0) state.port = g_fake->next_port_++;
      std::memcpy(&id->route.addr.src_storage, &in, sizeof in);
      id->verbs = to;
      id->port_num = 1;
      return 0;
    };
    calls->rdma_get_src_port = [](rdma_cm_id* id) {
      std::scoped_lock hold(g_fake->mutex_);
      return htons(g_fake->ids_[id].port);
    };
    calls->rdma_listen = [](rdma_cm_id* id, int) {
      std::scoped_lock hold(g_fake->mutex_);
      State& mine = g_fake->ids_[id];
      for (const auto& [other, state] : g_fake->ids_) {
        if (state.listens && state.port == mine.port) {
          errno = EADDRINUSE;
          return -1;
        }
      }
      mine.listens = true;
      g_fake->listens_.fetch_add(1);
      return 0;
    };
    calls->rdma_set_option = [](rdma_cm_id*, int, int option, void* value,
                                std::size_t length) {
      if (length != 1) return 0;
      const int told = *static_cast<std::uint8_t*>(value);
      std::scoped_lock hold(g_fake->mutex_);
      if (option == RDMA_OPTION_ID_TOS) {
        g_fake->told_.traffic_classes.push_back(told);
      } else if (option == RDMA_OPTION_ID_ACK_TIMEOUT) {
        g_fake->told_.ack_timeouts.push_back(told);
      }
      return 0;
    };
    calls->rdma_resolve_addr = [](rdma_cm_id* id, sockaddr*, sockaddr* peer,
                                  int) {
      std::memcpy(&id->route.addr.dst_storage, peer, sizeof(sockaddr_in));
      g_fake->Say(id, RDMA_CM_EVENT_ADDR_RESOLVED);
      return 0;
    };
    calls->rdma_resolve_route = [](rdma_cm_id* id, int) {
      g_fake->Say(id, RDMA_CM_EVENT_ROUTE_RESOLVED);
      return 0;
    };
  }

  static void Connections(verbs::Calls* calls) {
    calls->rdma_connect = [](rdma_cm_id* id, rdma_conn_param* parameters) {
      return g_fake->Connect(id, parameters);
    };
    calls->rdma_accept = [](rdma_cm_id* id, rdma_conn_param* parameters) {
      rdma_cm_id* const peer = g_fake->PeerOf(id);
      g_fake->acceptor_.store(id);
      if (peer == nullptr) return 0;
      g_fake->verbs_->Connect(id, peer);
      g_fake->Say(peer, RDMA_CM_EVENT_ESTABLISHED, 0, DataOf(*parameters));
      g_fake->Say(id, RDMA_CM_EVENT_ESTABLISHED);
      return 0;
    };
    calls->rdma_reject = [](rdma_cm_id* id, const void* data,
                            std::uint8_t length) {
      constexpr int kByConsumer = 28;
      if (rdma_cm_id* const peer = g_fake->PeerOf(id)) {
        g_fake->Say(peer, RDMA_CM_EVENT_REJECTED, kByConsumer,
                    {static_cast<const char*>(data), length});
      }
      return 0;
    };
    calls->rdma_disconnect = [](rdma_cm_id* id) {
      if (rdma_cm_id* const peer = g_fake->PeerOf(id)) {
        g_fake->Say(peer, RDMA_CM_EVENT_DISCONNECTED);
      }
      return 0;
    };
  }

  static std::string DataOf(const rdma_conn_param& parameters) {
    return {static_cast<const char*>(parameters.private_data),
            parameters.private_data_len};
  }
  // Who hears the answer, or the end, of this id's connection.
  rdma_cm_id* PeerOf(rdma_cm_id* id) {
    std::scoped_lock hold(mutex_);
    ids_[id].asked = false;
    return ids_[id].peer;
  }
  int Connect(rdma_cm_id* id, rdma_conn_param* parameters) {
    connector_.store(id);
    sockaddr_in to;
    std::memcpy(&to, &id->route.addr.dst_storage, sizeof to);
    rdma_cm_id* listener = nullptr;
    rdma_cm_id* request = nullptr;
    {
      std::scoped_lock hold(mutex_);
      told_.retries.push_back(parameters->retry_count);
      for (const auto& [other, state] : ids_) {
        if (state.listens && state.port == ntohs(to.sin_port)) listener = other;
      }
      if (listener != nullptr) {
        request = new rdma_cm_id{};
        request->channel = listener->channel;
        request->context = listener->context;
        request->verbs = listener->verbs;
        request->port_num = listener->port_num;
        request->route.addr.src_storage = id->route.addr.dst_storage;
        request->route.addr.dst_storage = id->route.addr.src_storage;
        ids_[request].peer = id;
        ids_[request].asked = true;
        request_.store(request);
        ids_[id].peer = request;
      }
    }
    constexpr int kNoListener = 8;
    if (request == nullptr) {
      Say(id, RDMA_CM_EVENT_REJECTED, kNoListener);
    } else {
      Say(request, RDMA_CM_EVENT_CONNECT_REQUEST, 0, DataOf(*parameters));
    }
    return 0;
  }

  static inline FakeCmPair* g_fake = nullptr;
  lane::test::FakeVerbs* const verbs_;
  std::atomic<ibv_context*> leads_to_;
  ibv_device second_device_{};
  ibv_context second_{};
  rdma_event_channel channel_{};
  std::atomic<int> listens_{0};
  std::atomic<rdma_cm_id*> connector_{nullptr};
  std::atomic<rdma_cm_id*> acceptor_{nullptr};
  std::atomic<rdma_cm_id*> request_{nullptr};
  std::mutex mutex_;  // what follows
  std::map<rdma_cm_id*, State> ids_;
  std::deque<Event*> events_;
  std::map<ibv_context*, std::deque<ibv_async_event>> async_;
  std::uint16_t next_port_ = 40000;
  Told told_;
};

}  // namespace rcsock::rendezvous

#endif  // RCSOCK_TESTS_RENDEZVOUS_FAKE_CM_H_
