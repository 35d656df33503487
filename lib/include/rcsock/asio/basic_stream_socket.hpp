#ifndef RCSOCK_ASIO_BASIC_STREAM_SOCKET_HPP_
#define RCSOCK_ASIO_BASIC_STREAM_SOCKET_HPP_

// Part of rcsock/asio.hpp: the stream.

#include <netinet/in.h>
#include <sys/ioctl.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/socket_base.hpp>
#include <rcsock/asio/operations.hpp>

namespace rcsock::asio {

namespace net = boost::asio;

// As boost::asio::basic_stream_socket<tcp>, with its members: a TCP connection
// whose bytes move to a lane when the peer uses rcsock too.
template <class Executor = net::any_io_executor>
class basic_stream_socket : public net::socket_base {
 public:
  using executor_type = Executor;
  template <class Executor1>
  struct rebind_executor {
    using other = basic_stream_socket<Executor1>;
  };
  using native_handle_type = int;
  using protocol_type = net::ip::tcp;
  using endpoint_type = protocol_type::endpoint;
  using lowest_layer_type = basic_stream_socket;
  using error_code = boost::system::error_code;

  explicit basic_stream_socket(const executor_type& ex)
      : executor_(ex), service_(find(executor_)) {}
  template <class Context, class = std::enable_if_t<std::is_convertible_v<
                               Context&, net::execution_context&>>>
  explicit basic_stream_socket(Context& context)
      : basic_stream_socket(executor_type(context.get_executor())) {}
  template <class Where>
  basic_stream_socket(Where&& where, const protocol_type& protocol)
      : basic_stream_socket(std::forward<Where>(where)) {
    open(protocol);
  }
  template <class Where>
  basic_stream_socket(Where&& where, const endpoint_type& endpoint)
      : basic_stream_socket(std::forward<Where>(where)) {
    open(endpoint.protocol());
    bind(endpoint);
  }
  template <class Where>
  basic_stream_socket(Where&& where, const protocol_type& protocol,
                      native_handle_type handle)
      : basic_stream_socket(std::forward<Where>(where)) {
    assign(protocol, handle);
  }
  basic_stream_socket(basic_stream_socket&& other) noexcept
      : executor_(other.executor_), service_(other.service_) {
    take(other);
  }
  // For another executor of that context.
  template <class Executor1, class = std::enable_if_t<
                                 std::is_convertible_v<Executor1, Executor> &&
                                 !std::is_same_v<Executor1, Executor>>>
  basic_stream_socket(basic_stream_socket<Executor1>&& other)
      : executor_(other.executor_), service_(other.service_) {
    take(other);
  }
  basic_stream_socket& operator=(basic_stream_socket&& other) noexcept {
    if (this == &other) return *this;
    destroy();
    executor_ = other.executor_;
    service_ = other.service_;
    take(other);
    return *this;
  }
  ~basic_stream_socket() { destroy(); }

  const executor_type& get_executor() noexcept { return executor_; }
  lowest_layer_type& lowest_layer() { return *this; }
  const lowest_layer_type& lowest_layer() const { return *this; }
  native_handle_type native_handle() {
    return state_ == nullptr ? -1 : state_->fd;
  }
  bool is_open() const { return state_ != nullptr; }

  // --- Life
  void open(const protocol_type& protocol = protocol_type::v4()) {
    raise(&basic_stream_socket::open_with, "open", protocol);
  }
  error_code open(const protocol_type& protocol, error_code& ec) {
    return open_with(protocol, ec);
  }
  // Takes a TCP socket that rcs_socket or rcs_accept made. Any other stays on
  // TCP.
  void assign(const protocol_type& protocol, native_handle_type handle) {
    error_code ec;
    assign(protocol, handle, ec);
    net::detail::throw_error(ec, "assign");
  }
  error_code assign(const protocol_type& protocol, native_handle_type handle,
                    error_code& ec) {
    if (is_open()) return ec = net::error::already_open;
    ec.clear();
    state_ = service_->open(handle);
    v6_ = protocol == protocol_type::v6();
    user_non_blocking_ = native_non_blocking_ = lingers_ = false;
    return ec;
  }
  void close() {
    error_code ec;
    close(ec);
    net::detail::throw_error(ec, "close");
  }
  error_code close(error_code& ec) {
    ec.clear();
    if (!is_open()) return ec;
    const int fd = service_->release(state_);
    state_ = nullptr;
    // As in Asio: with SO_LINGER, close waits, whatever the descriptor's mode.
    if (lingers_ && native_non_blocking_) set_fd_non_blocking(fd, false);
    if (::rcs_close(fd) != 0) ec = detail::last_error();
    return ec;
  }
  native_handle_type release() {
    error_code ec;
    const native_handle_type fd = release(ec);
    net::detail::throw_error(ec, "release");
    return fd;
  }
  native_handle_type release(error_code& ec) {
    if (!is_open()) {
      ec = net::error::bad_descriptor;
      return -1;
    }
    ec.clear();
    const int fd = service_->release(state_);
    state_ = nullptr;
    return fd;
  }
  void cancel() {
    error_code ec;
    cancel(ec);
    net::detail::throw_error(ec, "cancel");
  }
  error_code cancel(error_code& ec) {
    if (!check(ec)) return ec;
    service_->cancel(state_);
    return ec;
  }
  void shutdown(shutdown_type what) {
    raise(&basic_stream_socket::shutdown_with, "shutdown", what);
  }
  error_code shutdown(shutdown_type what, error_code& ec) {
    return shutdown_with(what, ec);
  }

  // --- Addresses, options
  void bind(const endpoint_type& endpoint) {
    raise(&basic_stream_socket::bind_with, "bind", endpoint);
  }
  error_code bind(const endpoint_type& endpoint, error_code& ec) {
    return bind_with(endpoint, ec);
  }
  endpoint_type local_endpoint() const {
    error_code ec;
    endpoint_type endpoint = local_endpoint(ec);
    net::detail::throw_error(ec, "local_endpoint");
    return endpoint;
  }
  endpoint_type local_endpoint(error_code& ec) const {
    return name(&::getsockname, ec);
  }
  endpoint_type remote_endpoint() const {
    error_code ec;
    endpoint_type endpoint = remote_endpoint(ec);
    net::detail::throw_error(ec, "remote_endpoint");
    return endpoint;
  }
  endpoint_type remote_endpoint(error_code& ec) const {
    return name(&::rcs_getpeername, ec);
  }
  template <class Option>
  void set_option(const Option& option) {
    error_code ec;
    set_option(option, ec);
    net::detail::throw_error(ec, "set_option");
  }
  template <class Option>
  error_code set_option(const Option& option, error_code& ec) {
    if (!check(ec)) return ec;
    const protocol_type protocol = family();
    const int level = option.level(protocol);
    if (level == net::detail::custom_socket_option_level) {
      return ec = net::error::invalid_argument;
    }
    if (::rcs_setsockopt(state_->fd, level, option.name(protocol),
                         option.data(protocol),
                         static_cast<socklen_t>(option.size(protocol))) != 0) {
      return ec = detail::last_error();
    }
    if (level == SOL_SOCKET && option.name(protocol) == SO_LINGER) {
      lingers_ = true;
    }
    return ec;
  }
  template <class Option>
  void get_option(Option& option) const {
    error_code ec;
    get_option(option, ec);
    net::detail::throw_error(ec, "get_option");
  }
  template <class Option>
  error_code get_option(Option& option, error_code& ec) const {
    if (!check(ec)) return ec;
    const protocol_type protocol = family();
    auto size = static_cast<socklen_t>(option.size(protocol));
    if (::rcs_getsockopt(state_->fd, option.level(protocol),
                         option.name(protocol), option.data(protocol),
                         &size) != 0) {
      return ec = detail::last_error();
    }
    option.resize(protocol, size);
    return ec;
  }
  template <class Command>
  void io_control(Command& command) {
    error_code ec;
    io_control(command, ec);
    net::detail::throw_error(ec, "io_control");
  }
  template <class Command>
  error_code io_control(Command& command, error_code& ec) {
    if (!check(ec)) return ec;
    if (::rcs_ioctl(state_->fd, static_cast<unsigned long>(command.name()),
                    command.data()) != 0) {
      ec = detail::last_error();
    }
    return ec;
  }
  bool non_blocking() const { return user_non_blocking_; }
  void non_blocking(bool mode) {
    error_code ec;
    non_blocking(mode, ec);
    net::detail::throw_error(ec, "non_blocking");
  }
  error_code non_blocking(bool mode, error_code& ec) {
    if (!check(ec)) return ec;
    if (!set_fd_non_blocking(state_->fd, mode))
      return ec = detail::last_error();
    user_non_blocking_ = mode;
    if (!mode) native_non_blocking_ = false;
    return ec;
  }
  bool native_non_blocking() const { return native_non_blocking_; }
  void native_non_blocking(bool mode) {
    error_code ec;
    native_non_blocking(mode, ec);
    net::detail::throw_error(ec, "native_non_blocking");
  }
  error_code native_non_blocking(bool mode, error_code& ec) {
    if (!check(ec)) return ec;
    if (!mode && user_non_blocking_) {
      // As in Asio: the two modes would contradict each other.
      return ec = net::error::invalid_argument;
    }
    if (!set_fd_non_blocking(state_->fd, mode))
      return ec = detail::last_error();
    native_non_blocking_ = mode;
    return ec;
  }
  std::size_t available() const {
    error_code ec;
    const std::size_t n = available(ec);
    net::detail::throw_error(ec, "available");
    return n;
  }
  std::size_t available(error_code& ec) const {
    int n = 0;
    if (check(ec) && ::rcs_ioctl(state_->fd, FIONREAD, &n) != 0) {
      ec = detail::last_error();
    }
    return ec ? 0 : static_cast<std::size_t>(n);
  }
  bool at_mark() const {
    error_code ec;
    const bool mark = at_mark(ec);
    net::detail::throw_error(ec, "at_mark");
    return mark;
  }
  bool at_mark(error_code& ec) const {
    int mark = 0;
    if (check(ec) && ::rcs_ioctl(state_->fd, SIOCATMARK, &mark) != 0) {
      ec = detail::last_error();
    }
    return !ec && mark != 0;
  }

  // --- To connect and to wait
  void connect(const endpoint_type& endpoint) {
    error_code ec;
    if (!is_open()) {
      open(endpoint.protocol(), ec);
      net::detail::throw_error(ec, "connect");
    }
    connect(endpoint, ec);
    net::detail::throw_error(ec, "connect");
  }
  error_code connect(const endpoint_type& endpoint, error_code& ec) {
    if (!is_open() && open(endpoint.protocol(), ec)) return ec;
    ec.clear();
    if (::rcs_connect(state_->fd, endpoint.data(),
                      static_cast<socklen_t>(endpoint.size())) == 0) {
      return ec;
    }
    ec = detail::last_error();
    if (user_non_blocking_ ||
        (ec != net::error::in_progress && ec != net::error::would_block)) {
      return ec;
    }
    if (!wait_blocking(POLLOUT, ec)) return ec;
    return ec = detail::connect_result(state_->fd);
  }
  template <class Token = net::default_completion_token_t<executor_type>>
  auto async_connect(const endpoint_type& endpoint, Token&& token = Token()) {
    error_code ec;
    if (!is_open()) open(endpoint.protocol(), ec);
    return net::async_initiate<Token, void(error_code)>(initiate_connect{this},
                                                        token, endpoint, ec);
  }
  void wait(wait_type what) {
    raise(&basic_stream_socket::wait_with, "wait", what);
  }
  error_code wait(wait_type what, error_code& ec) {
    return wait_with(what, ec);
  }
  template <class Token = net::default_completion_token_t<executor_type>>
  auto async_wait(wait_type what, Token&& token = Token()) {
    return net::async_initiate<Token, void(error_code)>(initiate_wait{this},
                                                        token, what);
  }

  // --- Data
  template <class Buffers>
  std::size_t receive(const Buffers& buffers) {
    return receive(buffers, message_flags{0});
  }
  template <class Buffers>
  std::size_t receive(const Buffers& buffers, message_flags flags) {
    error_code ec;
    const std::size_t n = receive(buffers, flags, ec);
    net::detail::throw_error(ec, "receive");
    return n;
  }
  template <class Buffers>
  std::size_t receive(const Buffers& buffers, message_flags flags,
                      error_code& ec) {
    using list_type =
        net::detail::buffer_sequence_adapter<net::mutable_buffer, Buffers>;
    return move_bytes<list_type>(buffers, ec, POLLIN, [&](msghdr* message) {
      const ssize_t n = ::rcs_recvmsg(state_->fd, message, flags);
      if (n == 0) ec = net::error::eof;
      return n;
    });
  }
  template <class Buffers>
  std::size_t send(const Buffers& buffers) {
    return send(buffers, message_flags{0});
  }
  template <class Buffers>
  std::size_t send(const Buffers& buffers, message_flags flags) {
    error_code ec;
    const std::size_t n = send(buffers, flags, ec);
    net::detail::throw_error(ec, "send");
    return n;
  }
  template <class Buffers>
  std::size_t send(const Buffers& buffers, message_flags flags,
                   error_code& ec) {
    using list_type =
        net::detail::buffer_sequence_adapter<net::const_buffer, Buffers>;
    return move_bytes<list_type>(buffers, ec, POLLOUT, [&](msghdr* message) {
      return ::rcs_sendmsg(state_->fd, message, flags | MSG_NOSIGNAL);
    });
  }
  template <class Buffers>
  std::size_t read_some(const Buffers& buffers) {
    error_code ec;
    const std::size_t n = read_some(buffers, ec);
    net::detail::throw_error(ec, "read_some");
    return n;
  }
  template <class Buffers>
  std::size_t read_some(const Buffers& buffers, error_code& ec) {
    return receive(buffers, message_flags{0}, ec);
  }
  template <class Buffers>
  std::size_t write_some(const Buffers& buffers) {
    error_code ec;
    const std::size_t n = write_some(buffers, ec);
    net::detail::throw_error(ec, "write_some");
    return n;
  }
  template <class Buffers>
  std::size_t write_some(const Buffers& buffers, error_code& ec) {
    return send(buffers, message_flags{0}, ec);
  }
  template <class Buffers,
            class Token = net::default_completion_token_t<executor_type>>
  auto async_receive(const Buffers& buffers, Token&& token = Token()) {
    return async_receive(buffers, message_flags{0}, std::forward<Token>(token));
  }
  template <class Buffers,
            class Token = net::default_completion_token_t<executor_type>>
  auto async_receive(const Buffers& buffers, message_flags flags,
                     Token&& token = Token()) {
    return net::async_initiate<Token, void(error_code, std::size_t)>(
        initiate_receive{this}, token, buffers, flags);
  }
  template <class Buffers,
            class Token = net::default_completion_token_t<executor_type>>
  auto async_send(const Buffers& buffers, Token&& token = Token()) {
    return async_send(buffers, message_flags{0}, std::forward<Token>(token));
  }
  template <class Buffers,
            class Token = net::default_completion_token_t<executor_type>>
  auto async_send(const Buffers& buffers, message_flags flags,
                  Token&& token = Token()) {
    return net::async_initiate<Token, void(error_code, std::size_t)>(
        initiate_send{this}, token, buffers, flags);
  }
  template <class Buffers,
            class Token = net::default_completion_token_t<executor_type>>
  auto async_read_some(const Buffers& buffers, Token&& token = Token()) {
    return async_receive(buffers, message_flags{0}, std::forward<Token>(token));
  }
  template <class Buffers,
            class Token = net::default_completion_token_t<executor_type>>
  auto async_write_some(const Buffers& buffers, Token&& token = Token()) {
    return async_send(buffers, message_flags{0}, std::forward<Token>(token));
  }

 private:
  template <class>
  friend class basic_stream_socket;
  using service_type = detail::engine_service;

  // Each operation has an initiation. get_executor makes it the handler's
  // default.
  struct initiation {
    using executor_type = Executor;
    basic_stream_socket* self;
    const executor_type& get_executor() const noexcept {
      return self->executor_;
    }
  };
  struct initiate_receive : initiation {
    template <class Handler, class Buffers>
    void operator()(Handler&& handler, const Buffers& buffers,
                    message_flags flags) const {
      basic_stream_socket& s = *this->self;
      net::detail::non_const_lvalue<Handler> h(handler);
      const bool nothing =
          s.is_open() &&
          net::detail::buffer_sequence_adapter<net::mutable_buffer,
                                               Buffers>::all_empty(buffers);
      detail::initiate<true>(*s.service_, s.state_,
                             (flags & message_out_of_band) != 0
                                 ? detail::descriptor::except
                                 : detail::descriptor::read,
                             detail::try_receive<Buffers>{buffers, flags},
                             h.value, s.executor_, nothing);
    }
  };
  struct initiate_send : initiation {
    template <class Handler, class Buffers>
    void operator()(Handler&& handler, const Buffers& buffers,
                    message_flags flags) const {
      basic_stream_socket& s = *this->self;
      net::detail::non_const_lvalue<Handler> h(handler);
      const bool nothing =
          s.is_open() &&
          net::detail::buffer_sequence_adapter<net::const_buffer,
                                               Buffers>::all_empty(buffers);
      detail::initiate<true>(*s.service_, s.state_, detail::descriptor::write,
                             detail::try_send<Buffers>{buffers, flags}, h.value,
                             s.executor_, nothing);
    }
  };
  struct initiate_wait : initiation {
    template <class Handler>
    void operator()(Handler&& handler, wait_type what) const {
      basic_stream_socket& s = *this->self;
      net::detail::non_const_lvalue<Handler> h(handler);
      const int which = what == wait_read    ? detail::descriptor::read
                        : what == wait_write ? detail::descriptor::write
                                             : detail::descriptor::except;
      detail::initiate<false>(*s.service_, s.state_, which,
                              detail::try_wait{events_of(what)}, h.value,
                              s.executor_);
    }
  };
  struct initiate_connect : initiation {
    template <class Handler>
    void operator()(Handler&& handler, const endpoint_type& endpoint,
                    error_code ec) const {
      basic_stream_socket& s = *this->self;
      net::detail::non_const_lvalue<Handler> h(handler);
      bool finished = true;
      if (!ec && !s.native_non_blocking_) s.set_internal_non_blocking(ec);
      if (!ec && ::rcs_connect(s.state_->fd, endpoint.data(),
                               static_cast<socklen_t>(endpoint.size())) != 0) {
        ec = detail::last_error();
        if (ec == net::error::in_progress || ec == net::error::would_block) {
          finished = false;
          ec.clear();
        }
      }
      detail::initiate<false>(*s.service_, s.state_, detail::descriptor::write,
                              detail::try_connect{}, h.value, s.executor_,
                              finished, ec);
    }
  };

  static service_type* find(const executor_type& ex) {
    if constexpr (net::execution::is_executor<executor_type>::value) {
      return &net::use_service<service_type>(
          net::query(ex, net::execution::context));
    } else {
      return &net::use_service<service_type>(ex.context());
    }
  }
  static short events_of(wait_type what) {
    return what == wait_read    ? short{POLLIN}
           : what == wait_write ? short{POLLOUT}
                                : short{POLLPRI | POLLERR | POLLHUP};
  }
  static bool set_fd_non_blocking(int fd, bool mode) {
    int on = mode ? 1 : 0;
    return ::rcs_ioctl(fd, FIONBIO, &on) == 0;
  }
  void set_internal_non_blocking(error_code& ec) {
    if (!set_fd_non_blocking(state_->fd, true)) {
      ec = detail::last_error();
      return;
    }
    native_non_blocking_ = true;
  }
  protocol_type family() const {
    return v6_ ? protocol_type::v6() : protocol_type::v4();
  }
  bool check(error_code& ec) const {
    if (is_open()) {
      ec.clear();
      return true;
    }
    ec = net::error::bad_descriptor;
    return false;
  }
  template <class Argument>
  void raise(error_code (basic_stream_socket::*call)(const Argument&,
                                                     error_code&),
             const char* name, const Argument& argument) {
    error_code ec;
    (this->*call)(argument, ec);
    net::detail::throw_error(ec, name);
  }
  error_code open_with(const protocol_type& protocol, error_code& ec) {
    if (is_open()) return ec = net::error::already_open;
    const int fd =
        ::rcs_socket(protocol.family(), protocol.type(), protocol.protocol());
    if (fd < 0) return ec = detail::last_error();
    return assign(protocol, fd, ec);
  }
  error_code bind_with(const endpoint_type& endpoint, error_code& ec) {
    if (check(ec) && ::rcs_bind(state_->fd, endpoint.data(),
                                static_cast<socklen_t>(endpoint.size())) != 0) {
      ec = detail::last_error();
    }
    return ec;
  }
  error_code shutdown_with(const shutdown_type& what, error_code& ec) {
    if (check(ec) && ::rcs_shutdown(state_->fd, what) != 0) {
      ec = detail::last_error();
    }
    return ec;
  }
  error_code wait_with(const wait_type& what, error_code& ec) {
    if (!check(ec)) return ec;
    if (user_non_blocking_) {
      if (!detail::is_ready(state_->fd, events_of(what))) {
        ec = net::error::would_block;
      }
    } else {
      wait_blocking(events_of(what), ec);
    }
    return ec;
  }
  bool wait_blocking(short events, error_code& ec) const {
    pollfd one{state_->fd, events, 0};
    if (::rcs_poll(&one, 1, -1) < 0) {
      ec = detail::last_error();
      return false;
    }
    ec.clear();
    return true;
  }
  template <class Call>
  endpoint_type name(Call* call, error_code& ec) const {
    endpoint_type endpoint;
    if (!check(ec)) return endpoint;
    auto size = static_cast<socklen_t>(endpoint.capacity());
    if (call(state_->fd, endpoint.data(), &size) != 0) {
      ec = detail::last_error();
      return endpoint_type();
    }
    endpoint.resize(size);
    return endpoint;
  }
  template <class List, class Buffers, class Call>
  std::size_t move_bytes(const Buffers& buffers, error_code& ec, short event,
                         Call&& call) {
    if (!check(ec)) return 0;
    List list(buffers);
    if (list.all_empty()) return 0;
    msghdr message{};
    message.msg_iov = list.buffers();
    message.msg_iovlen = list.count();
    for (;;) {
      ec.clear();
      const ssize_t n = call(&message);
      if (n >= 0) return static_cast<std::size_t>(n);
      ec = detail::last_error();
      if (user_non_blocking_ ||
          (ec != net::error::would_block && ec != net::error::try_again)) {
        return 0;
      }
      if (!wait_blocking(event, ec)) return 0;
    }
  }
  template <class Executor1>
  void take(basic_stream_socket<Executor1>& other) {
    state_ = std::exchange(other.state_, nullptr);
    v6_ = other.v6_;
    user_non_blocking_ = other.user_non_blocking_;
    native_non_blocking_ = other.native_non_blocking_;
    lingers_ = other.lingers_;
  }
  void destroy() {
    if (!is_open()) return;
    const int fd = service_->release(state_);
    state_ = nullptr;
    if (lingers_) {
      // As in Asio: a destructor does not wait.
      const linger none{0, 0};
      ::rcs_setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    }
    ::rcs_close(fd);
  }

  executor_type executor_;
  service_type* service_;
  detail::descriptor* state_ = nullptr;  // null: closed
  bool v6_ = false;
  bool user_non_blocking_ = false;
  bool native_non_blocking_ = false;
  bool lingers_ = false;
};

using stream_socket = basic_stream_socket<>;

}  // namespace rcsock::asio

#endif  // RCSOCK_ASIO_BASIC_STREAM_SOCKET_HPP_
