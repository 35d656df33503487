#ifndef RCSOCK_ASIO_BASIC_ACCEPTOR_HPP_
#define RCSOCK_ASIO_BASIC_ACCEPTOR_HPP_

// Part of rcsock/asio.hpp: the listener.

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/cancellation_state.hpp>
#include <boost/asio/compose.hpp>
#include <memory>
#include <rcsock/asio/basic_stream_socket.hpp>

namespace rcsock::asio {

// As boost::asio::basic_socket_acceptor<tcp>, but it accepts streams. The
// listener itself is the kernel's.
template <class Executor = net::any_io_executor>
class basic_acceptor : public net::socket_base {
 public:
  using executor_type = Executor;
  template <class Executor1>
  struct rebind_executor {
    using other = basic_acceptor<Executor1>;
  };
  using native_handle_type = int;
  using protocol_type = net::ip::tcp;
  using endpoint_type = protocol_type::endpoint;
  using socket_type = basic_stream_socket<Executor>;
  using error_code = boost::system::error_code;

  explicit basic_acceptor(const executor_type& ex)
      : shared_(std::make_shared<shared>(ex)) {}
  template <class Context, class = std::enable_if_t<std::is_convertible_v<
                               Context&, net::execution_context&>>>
  explicit basic_acceptor(Context& context)
      : basic_acceptor(executor_type(context.get_executor())) {}
  template <class Where>
  basic_acceptor(Where&& where, const protocol_type& protocol)
      : basic_acceptor(std::forward<Where>(where)) {
    open(protocol);
  }
  // Opens, binds and listens.
  template <class Where>
  basic_acceptor(Where&& where, const endpoint_type& endpoint,
                 bool reuse_address_option = true)
      : basic_acceptor(std::forward<Where>(where)) {
    open(endpoint.protocol());
    if (reuse_address_option) set_option(reuse_address(true));
    bind(endpoint);
    listen();
  }
  template <class Where>
  basic_acceptor(Where&& where, const protocol_type& protocol,
                 native_handle_type handle)
      : basic_acceptor(std::forward<Where>(where)) {
    assign(protocol, handle);
  }
  basic_acceptor(basic_acceptor&& other)
      : shared_(std::make_shared<shared>(other.get_executor())) {
    shared_.swap(other.shared_);
  }
  basic_acceptor& operator=(basic_acceptor&& other) {
    if (this == &other) return *this;
    error_code ignored;
    close(ignored);
    shared_ = std::make_shared<shared>(other.get_executor());
    shared_.swap(other.shared_);
    return *this;
  }
  ~basic_acceptor() {
    error_code ignored;
    close(ignored);
  }

  executor_type get_executor() noexcept { return kernel().get_executor(); }
  bool is_open() const { return kernel().is_open(); }
  native_handle_type native_handle() { return kernel().native_handle(); }

  void open(const protocol_type& protocol = protocol_type::v4()) {
    error_code ec;
    open(protocol, ec);
    net::detail::throw_error(ec, "open");
  }
  error_code open(const protocol_type& protocol, error_code& ec) {
    if (is_open()) return ec = net::error::already_open;
    const int fd =
        ::rcs_socket(protocol.family(), protocol.type(), protocol.protocol());
    if (fd < 0) return ec = detail::last_error();
    if (assign(protocol, fd, ec)) ::rcs_close(fd);
    return ec;
  }
  void assign(const protocol_type& protocol, native_handle_type handle) {
    error_code ec;
    assign(protocol, handle, ec);
    net::detail::throw_error(ec, "assign");
  }
  error_code assign(const protocol_type& protocol, native_handle_type handle,
                    error_code& ec) {
    kernel().assign(protocol, handle, ec);
    if (!ec) shared_->v6 = protocol == protocol_type::v6();
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
    const int fd = kernel().release(ec);
    if (!ec && ::rcs_close(fd) != 0) ec = detail::last_error();
    return ec;
  }
  native_handle_type release() { return kernel().release(); }
  native_handle_type release(error_code& ec) { return kernel().release(ec); }
  void cancel() { kernel().cancel(); }
  error_code cancel(error_code& ec) {
    kernel().cancel(ec);
    return ec;
  }
  void bind(const endpoint_type& endpoint) {
    error_code ec;
    bind(endpoint, ec);
    net::detail::throw_error(ec, "bind");
  }
  error_code bind(const endpoint_type& endpoint, error_code& ec) {
    if (!check(ec)) return ec;
    if (::rcs_bind(native_handle(), endpoint.data(),
                   static_cast<socklen_t>(endpoint.size())) != 0) {
      ec = detail::last_error();
    }
    return ec;
  }
  void listen(int backlog = max_listen_connections) {
    error_code ec;
    listen(backlog, ec);
    net::detail::throw_error(ec, "listen");
  }
  error_code listen(int backlog, error_code& ec) {
    if (!check(ec)) return ec;
    if (::rcs_listen(native_handle(), backlog) != 0) ec = detail::last_error();
    return ec;
  }
  endpoint_type local_endpoint() const { return kernel().local_endpoint(); }
  endpoint_type local_endpoint(error_code& ec) const {
    return kernel().local_endpoint(ec);
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
    if (option.level(protocol) == net::detail::custom_socket_option_level) {
      kernel().set_option(option, ec);
      if (!ec) {
        enable_connection_aborted wanted;
        kernel().get_option(wanted, ec);
        shared_->tell_aborted = wanted.value();
      }
      return ec;
    }
    if (::rcs_setsockopt(native_handle(), option.level(protocol),
                         option.name(protocol), option.data(protocol),
                         static_cast<socklen_t>(option.size(protocol))) != 0) {
      ec = detail::last_error();
    }
    return ec;
  }
  template <class Option>
  void get_option(Option& option) const {
    kernel().get_option(option);
  }
  template <class Option>
  error_code get_option(Option& option, error_code& ec) const {
    kernel().get_option(option, ec);
    return ec;
  }
  template <class Command>
  void io_control(Command& command) {
    kernel().io_control(command);
  }
  template <class Command>
  error_code io_control(Command& command, error_code& ec) {
    kernel().io_control(command, ec);
    return ec;
  }
  bool non_blocking() const { return kernel().non_blocking(); }
  void non_blocking(bool mode) { kernel().non_blocking(mode); }
  error_code non_blocking(bool mode, error_code& ec) {
    kernel().non_blocking(mode, ec);
    return ec;
  }
  bool native_non_blocking() const { return kernel().native_non_blocking(); }
  void native_non_blocking(bool mode) { kernel().native_non_blocking(mode); }
  error_code native_non_blocking(bool mode, error_code& ec) {
    kernel().native_non_blocking(mode, ec);
    return ec;
  }
  void wait(wait_type what) { kernel().wait(what); }
  error_code wait(wait_type what, error_code& ec) {
    kernel().wait(what, ec);
    return ec;
  }
  template <class Token = net::default_completion_token_t<executor_type>>
  auto async_wait(wait_type what, Token&& token = Token()) {
    return kernel().async_wait(what, std::forward<Token>(token));
  }

  // --- To accept
  template <class Executor1>
  void accept(basic_stream_socket<Executor1>& peer) {
    error_code ec;
    accept(peer, ec);
    net::detail::throw_error(ec, "accept");
  }
  template <class Executor1>
  error_code accept(basic_stream_socket<Executor1>& peer, error_code& ec) {
    return accept_into(peer, nullptr, ec);
  }
  template <class Executor1>
  void accept(basic_stream_socket<Executor1>& peer, endpoint_type& from) {
    error_code ec;
    accept_into(peer, &from, ec);
    net::detail::throw_error(ec, "accept");
  }
  template <class Executor1>
  error_code accept(basic_stream_socket<Executor1>& peer, endpoint_type& from,
                    error_code& ec) {
    return accept_into(peer, &from, ec);
  }
  socket_type accept() {
    error_code ec;
    socket_type peer = accept(ec);
    net::detail::throw_error(ec, "accept");
    return peer;
  }
  socket_type accept(error_code& ec) {
    socket_type peer(get_executor());
    accept_into(peer, nullptr, ec);
    return peer;
  }
  template <class Executor1,
            class Token = net::default_completion_token_t<executor_type>>
  auto async_accept(basic_stream_socket<Executor1>& peer,
                    Token&& token = Token()) {
    return net::async_compose<Token, void(error_code)>(
        into_op<Executor1>{shared_, &peer, nullptr}, token, shared_->kernel);
  }
  template <class Executor1,
            class Token = net::default_completion_token_t<executor_type>>
  auto async_accept(basic_stream_socket<Executor1>& peer, endpoint_type& from,
                    Token&& token = Token()) {
    return net::async_compose<Token, void(error_code)>(
        into_op<Executor1>{shared_, &peer, &from}, token, shared_->kernel);
  }
  template <class Token = net::default_completion_token_t<executor_type>,
            class = std::enable_if_t<
                !net::execution::is_executor<std::decay_t<Token>>::value &&
                !std::is_convertible_v<Token, net::execution_context&>>>
  auto async_accept(Token&& token = Token()) {
    return net::async_compose<Token, void(error_code, socket_type)>(
        move_op<Executor>{shared_, get_executor()}, token, shared_->kernel);
  }
  // The accepted socket uses this executor.
  template <
      class Executor1,
      class Token = net::default_completion_token_t<executor_type>,
      class = std::enable_if_t<net::execution::is_executor<Executor1>::value>>
  auto async_accept(const Executor1& ex, Token&& token = Token()) {
    return net::async_compose<Token,
                              void(error_code, basic_stream_socket<Executor1>)>(
        move_op<Executor1>{shared_, ex}, token, shared_->kernel);
  }
  template <class Context,
            class Token = net::default_completion_token_t<executor_type>,
            class = std::enable_if_t<
                std::is_convertible_v<Context&, net::execution_context&>>,
            class Executor1 = typename Context::executor_type>
  auto async_accept(Context& context, Token&& token = Token()) {
    return async_accept(context.get_executor(), std::forward<Token>(token));
  }

 private:
  // An operation in progress keeps it, so that the acceptor may move or end.
  struct shared {
    explicit shared(const executor_type& ex) : kernel(ex) {}
    net::basic_socket_acceptor<protocol_type, executor_type> kernel;
    bool v6 = false;
    bool tell_aborted = false;  // enable_connection_aborted
  };

  // Returns -1 with `ec` on failure; would_block: no connection waits.
  static int try_accept(shared& of, endpoint_type* from, error_code& ec) {
    for (;;) {
      endpoint_type address;
      auto size = static_cast<socklen_t>(address.capacity());
      const int fd =
          ::rcs_accept4(of.kernel.native_handle(), address.data(), &size, 0);
      if (fd >= 0) {
        ec.clear();
        if (from != nullptr) {
          address.resize(size);
          *from = address;
        }
        return fd;
      }
      if (errno == EINTR) continue;
      if (errno == ECONNABORTED && !of.tell_aborted) continue;
      if (errno == EPROTO && !of.tell_aborted) continue;
      ec = detail::last_error();
      return -1;
    }
  }

  // The part that both kinds of asynchronous accept share. Returns false if
  // another wait has begun. The first step is always a wait, so that nothing
  // completes inside the initiating function.
  template <class Self>
  static bool step(Self& self, const std::shared_ptr<shared>& of, bool& waiting,
                   endpoint_type* from, error_code& ec, int& fd) {
    fd = -1;
    if (!waiting) {
      waiting = true;
      self.reset_cancellation_state(net::enable_total_cancellation());
      error_code ignored;
      // Asio itself sets this flag of the descriptor, too.
      if (of->kernel.is_open() && !of->kernel.native_non_blocking()) {
        of->kernel.native_non_blocking(true, ignored);
      }
    } else {
      if (!ec && !of->kernel.is_open()) ec = net::error::operation_aborted;
      if (ec) return true;
      fd = try_accept(*of, from, ec);
      if (fd >= 0 ||
          (ec != net::error::would_block && ec != net::error::try_again)) {
        return true;
      }
    }
    of->kernel.async_wait(wait_read, std::move(self));
    return false;
  }

  template <class Executor1>
  struct into_op {
    std::shared_ptr<shared> of;
    basic_stream_socket<Executor1>* peer;
    endpoint_type* from;
    bool waiting = false;
    template <class Self>
    void operator()(Self& self, error_code ec = error_code()) {
      const std::shared_ptr<shared> kept = of;
      int fd = -1;
      if (!step(self, kept, waiting, from, ec, fd)) return;
      if (!ec) {
        peer->assign(protocol_of(*kept), fd, ec);
        if (ec) ::rcs_close(fd);
      }
      self.complete(ec);
    }
  };
  template <class Executor1>
  struct move_op {
    std::shared_ptr<shared> of;
    Executor1 ex;
    bool waiting = false;
    template <class Self>
    void operator()(Self& self, error_code ec = error_code()) {
      const std::shared_ptr<shared> kept = of;
      int fd = -1;
      if (!step(self, kept, waiting, nullptr, ec, fd)) return;
      basic_stream_socket<Executor1> peer(ex);
      if (!ec) peer.assign(protocol_of(*kept), fd, ec);
      self.complete(ec, std::move(peer));
    }
  };

  template <class Executor1>
  error_code accept_into(basic_stream_socket<Executor1>& peer,
                         endpoint_type* from, error_code& ec) {
    if (peer.is_open()) return ec = net::error::already_open;
    if (!check(ec)) return ec;
    for (;;) {
      const int fd = try_accept(*shared_, from, ec);
      if (fd >= 0) {
        if (peer.assign(family(), fd, ec)) ::rcs_close(fd);
        return ec;
      }
      if (non_blocking() ||
          (ec != net::error::would_block && ec != net::error::try_again)) {
        return ec;
      }
      kernel().wait(wait_read, ec);
      if (ec) return ec;
    }
  }

  bool check(error_code& ec) const {
    if (is_open()) {
      ec.clear();
      return true;
    }
    ec = net::error::bad_descriptor;
    return false;
  }
  static protocol_type protocol_of(const shared& of) {
    return of.v6 ? protocol_type::v6() : protocol_type::v4();
  }
  protocol_type family() const { return protocol_of(*shared_); }
  auto& kernel() { return shared_->kernel; }
  const auto& kernel() const { return shared_->kernel; }

  std::shared_ptr<shared> shared_;
};

using acceptor = basic_acceptor<>;

}  // namespace rcsock::asio

#endif  // RCSOCK_ASIO_BASIC_ACCEPTOR_HPP_
