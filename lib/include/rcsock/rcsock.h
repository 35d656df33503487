#ifndef RCSOCK_RCSOCK_H_
#define RCSOCK_RCSOCK_H_

/* Sockets over shared memory and RDMA: link with -lrcsock (pkg-config rcsock).
 *
 * rcs_X is POSIX's or Linux's X, with its parameters, results, errno and
 * meaning, on ordinary file descriptors.  A TCP connection made by rcs_socket
 * or rcs_accept is a stream: its bytes move to a faster lane when its peer uses
 * rcsock too.  Every other descriptor passes straight through.
 *
 * Once a descriptor is a stream, send, receive, wait, copy, configure and close
 * by rcs_ calls only.  getpeername and the like may be plain.  See
 * rcs_socket(3).
 */

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct mmsghdr; /* <sys/socket.h> with _GNU_SOURCE */
struct sigaction;

/* --- Making and ending connections */
int rcs_socket(int domain, int type, int protocol);
int rcs_bind(int fd, const struct sockaddr* address, socklen_t length);
int rcs_listen(int fd, int backlog);
int rcs_accept(int fd, struct sockaddr* address, socklen_t* length);
int rcs_accept4(int fd, struct sockaddr* address, socklen_t* length, int flags);
int rcs_connect(int fd, const struct sockaddr* address, socklen_t length);
int rcs_getsockname(int fd, struct sockaddr* address, socklen_t* length);
int rcs_getpeername(int fd, struct sockaddr* address, socklen_t* length);
int rcs_shutdown(int fd, int how);
int rcs_close(int fd);
int rcs_close_range(unsigned first, unsigned last, int flags);
void rcs_closefrom(int first);

/* --- Data */
ssize_t rcs_read(int fd, void* to, size_t length);
ssize_t rcs_readv(int fd, const struct iovec* iov, int count);
ssize_t rcs_recv(int fd, void* to, size_t length, int flags);
ssize_t rcs_recvfrom(int fd, void* to, size_t length, int flags,
                     struct sockaddr* address, socklen_t* address_length);
ssize_t rcs_recvmsg(int fd, struct msghdr* message, int flags);
int rcs_recvmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags,
                 struct timespec* timeout);
ssize_t rcs_write(int fd, const void* from, size_t length);
ssize_t rcs_writev(int fd, const struct iovec* iov, int count);
ssize_t rcs_send(int fd, const void* from, size_t length, int flags);
ssize_t rcs_sendto(int fd, const void* from, size_t length, int flags,
                   const struct sockaddr* address, socklen_t address_length);
ssize_t rcs_sendmsg(int fd, const struct msghdr* message, int flags);
int rcs_sendmmsg(int fd, struct mmsghdr* messages, unsigned count, int flags);
ssize_t rcs_sendfile(int out, int in, off_t* offset, size_t count);
ssize_t rcs_splice(int in, off_t* in_offset, int out, off_t* out_offset,
                   size_t length, unsigned flags);
ssize_t rcs_preadv2(int fd, const struct iovec* iov, int count, off_t offset,
                    int flags);
ssize_t rcs_pwritev2(int fd, const struct iovec* iov, int count, off_t offset,
                     int flags);

/* --- Waiting */
int rcs_poll(struct pollfd* fds, nfds_t count, int timeout);
int rcs_ppoll(struct pollfd* fds, nfds_t count, const struct timespec* timeout,
              const sigset_t* mask);
int rcs_select(int count, fd_set* in, fd_set* out, fd_set* except,
               struct timeval* timeout);
int rcs_pselect(int count, fd_set* in, fd_set* out, fd_set* except,
                const struct timespec* timeout, const sigset_t* mask);
int rcs_epoll_create(int size);
int rcs_epoll_create1(int flags);
int rcs_epoll_ctl(int set, int op, int fd, struct epoll_event* event);
int rcs_epoll_wait(int set, struct epoll_event* events, int capacity,
                   int timeout);
int rcs_epoll_pwait(int set, struct epoll_event* events, int capacity,
                    int timeout, const sigset_t* mask);
int rcs_epoll_pwait2(int set, struct epoll_event* events, int capacity,
                     const struct timespec* timeout, const sigset_t* mask);

/* For a set inside an event loop that is not rcsock's, such as a program's own
 * or Asio's.  A plain epoll or poll of `set` sees what the kernel has.  It sees
 * what the lanes have only while the set is armed.  One thread at a time calls:
 *
 *   1. rcs_epoll_look, which takes what the lanes have.  It spins for `spin_us`
 *      at most, and does not ask the kernel.  Returns the number of events, 0,
 *      or -1.  EAGAIN: nothing for so long that it is better to sleep.
 *      ENODATA: no stream of the set is on a lane, so the kernel's answer is
 *      enough.
 *   2. rcs_epoll_arm.  0: `set` becomes readable when something comes.  1: look
 *      again, something has come.
 *   3. The loop's own wait.
 *   4. rcs_epoll_disarm.  If `set` was readable, then also
 *      rcs_epoll_wait(set, ..., 0) until it returns 0. */
int rcs_epoll_look(int set, struct epoll_event* events, int capacity,
                   int spin_us);
int rcs_epoll_arm(int set);
int rcs_epoll_disarm(int set);

/* --- Descriptors and options */
int rcs_fcntl(int fd, int command, ...);
int rcs_ioctl(int fd, unsigned long request, ...);
int rcs_getsockopt(int fd, int level, int name, void* value, socklen_t* length);
int rcs_setsockopt(int fd, int level, int name, const void* value,
                   socklen_t length);
int rcs_dup(int fd);
int rcs_dup2(int from, int to);
int rcs_dup3(int from, int to, int flags);
int rcs_eventfd(unsigned initial, int flags);
int rcs_timerfd_create(int clock, int flags);
FILE* rcs_fdopen(int fd, const char* mode);
int rcs_vdprintf(int fd, const char* format, va_list arguments)
    __attribute__((format(printf, 2, 0)));
int rcs_dprintf(int fd, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

/* --- Processes */
int rcs_execve(const char* path, char* const argv[], char* const envp[]);
int rcs_execv(const char* path, char* const argv[]);
int rcs_execvp(const char* file, char* const argv[]);
int rcs_execvpe(const char* file, char* const argv[], char* const envp[]);
int rcs_fexecve(int fd, char* const argv[], char* const envp[]);
int rcs_execl(const char* path, const char* argument, ...)
    __attribute__((sentinel));
int rcs_execlp(const char* file, const char* argument, ...)
    __attribute__((sentinel));
int rcs_execle(const char* path, const char* argument, ...)
    __attribute__((sentinel(1)));
int rcs_fork(void);
int rcs_posix_spawn(pid_t* pid, const char* path,
                    const posix_spawn_file_actions_t* actions,
                    const posix_spawnattr_t* attributes, char* const argv[],
                    char* const envp[]);
int rcs_posix_spawnp(pid_t* pid, const char* file,
                     const posix_spawn_file_actions_t* actions,
                     const posix_spawnattr_t* attributes, char* const argv[],
                     char* const envp[]);
int rcs_system(const char* command);
FILE* rcs_popen(const char* command, const char* type);
int rcs_posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions,
                                         int from, int to);
void rcs_immediate_exit(int status) __attribute__((noreturn)); /* _exit */
void rcs_quick_exit(int status) __attribute__((noreturn));

/* --- Signals */
int rcs_sigaction(int number, const struct sigaction* action,
                  struct sigaction* old);
int rcs_siginterrupt(int number, int interrupt);
void (*rcs_signal(int number, void (*handler)(int)))(int);

/* --- Beyond POSIX
 * On failure all return -1 with errno.  EBADF: not open.  EOPNOTSUPP: a socket,
 * but no stream.  Also ENOTSOCK, EINVAL. */

#define RCS_TCP 0
#define RCS_SHM 1
#define RCS_RDMA 2

/* Where the bytes of a stream go at this moment: RCS_TCP, RCS_SHM, RCS_RDMA. */
int rcs_get_lane(int fd);

/* Returns why the stream is on TCP, or left its last lane: one of the reasons
 * in docs/tools.md ("All reasons"), "none" on a lane.  Do not free it.  On
 * failure returns null, with errno. */
const char* rcs_get_reason(int fd);

struct rcs_stream_info {
  int32_t lane;
  int32_t policy;
  char reason[32];
  uint64_t tx_bytes; /* since the connection began, over any path */
  uint64_t rx_bytes;
  uint64_t lane_tx_bytes; /* those over lanes */
  uint64_t lane_rx_bytes;
  uint64_t demotions; /* times that the stream left a lane */
  uint32_t lane_id;   /* changes each time it goes to a lane */
  uint32_t reserved;
};

/* Fills the first `size` bytes of what this version of the library knows.
 * Returns how many bytes it has filled. */
int rcs_get_stream_info(int fd, struct rcs_stream_info* info, size_t size);

struct rcs_lane_counts {
  uint64_t streams; /* for RCS_TCP: those that never left TCP */
  uint64_t tx_bytes;
  uint64_t rx_bytes;
};

/* Counts of the whole process: streams that have ended, and that live. */
struct rcs_process_info {
  uint64_t streams;
  uint64_t promoted;
  uint64_t demotions;
  uint64_t failovers;
  struct rcs_lane_counts lanes[3]; /* by RCS_TCP, ... */
};
int rcs_get_process_info(struct rcs_process_info* info, size_t size);

/* What a stream may do.  What a listener accepts has the listener's policy. */
#define RCS_POLICY_AUTO 0  /* default: look for a lane after some traffic */
#define RCS_POLICY_TCP 1   /* stay on TCP; a stream on a lane comes back */
#define RCS_POLICY_EAGER 2 /* look for a lane with the first byte */
int rcs_set_policy(int fd, int policy);
int rcs_get_policy(int fd);

/* Looks for a lane now, before the usual traffic.  The peer must call it too,
 * or see traffic.  The stream moves with the next bytes that it sends. */
int rcs_promote(int fd);

/* Moves the stream back to TCP, and waits until it is there, `timeout_ms` at
 * most (-1: 5 s).  ETIMEDOUT: the peer does not answer; the stream moves when
 * it can.  Later traffic may promote it again. */
int rcs_demote(int fd, int timeout_ms);

/* Registers memory from which much will be sent.  The memory may be a GPU's:
 * then the calls for registered memory take it (docs/gpu.md has their errors).
 * An RDMA device that sends from the memory pins it until it is unregistered.
 * Memory that is not registered can be sent as well.  EEXIST: the memory
 * overlaps a registered buffer.  ENOENT: it is not registered.  EBUSY: what was
 * sent from it may have to be sent again. */
int rcs_register_buffer(void* address, size_t length);
int rcs_unregister_buffer(void* address, size_t length);

/* Zero copy: rcs_send of bytes in a registered buffer.  The program must not
 * change them until rcs_sent_done returns 1.  An RDMA device sends 16 KiB and
 * more straight from there.  All else is copied, as by rcs_send, and done at
 * once.  MSG_ZEROCOPY works too, with its error queue; on a lane it copies.
 * With memory of a GPU it is EOPNOTSUPP. */
struct rcs_sent {
  uint32_t lane;   /* 0: the buffer is needed no more */
  uint32_t copied; /* when done, as SO_EE_CODE_ZEROCOPY_COPIED */
  uint64_t posted;
  int64_t ticket;
};
ssize_t rcs_send_registered(int fd, const void* from, size_t length, int flags,
                            struct rcs_sent* sent);
/* Returns 1 if the buffer is the program's again, 0 if not yet.  The peer
 * reports late which bytes it has taken.  With `may_copy`, bytes that have
 * arrived and are not taken are copied now, and the buffer is needed no more.
 */
int rcs_sent_done(int fd, struct rcs_sent* sent, int may_copy);

/* As rcs_recv, into a registered buffer.  EINVAL: `to` is in no such buffer.
 * While the call waits for 4 MiB and more, an RDMA device may write what comes
 * straight there, unless the memory is a GPU's; all else is copied.  Once it
 * returns, no device writes there.  The buffer behind the returned count may
 * have been written to, also if the call returns -1.  With MSG_WAITALL, bytes
 * already under way come straight there, too.  No handler may jump out of the
 * call, unless it was installed by rcs_sigaction or under the preload, and the
 * memory is the host's. */
ssize_t rcs_recv_registered(int fd, void* to, size_t length, int flags);

/* --- Direct placement, on an RDMA lane
 *
 * One end exposes memory, and tells its peer the rcs_exposure in any way.  The
 * peer's device then writes there, without any call of the first end.  Bytes
 * that the peer sends on the stream later are read later.  All exposures end
 * with the lane.  ESTALE: the lane has ended, or there is none.  A write that
 * rcs_placed has not confirmed by 1 may have arrived or not; send it in another
 * way.  rsocket.h's riowrite is made of this. */
struct rcs_exposure {
  uint64_t address;
  uint64_t length;
  uint32_t key;
  uint32_t lane_id;
};
int rcs_expose(int fd, void* address, size_t length, struct rcs_exposure* what);
/* From now on nothing is written there.  A later write of the peer's ends the
 * lane. */
int rcs_hide(int fd, const struct rcs_exposure* what);
/* Begins to write `length` bytes to `offset` in the peer's memory.  `from` must
 * be in a registered buffer, and unchanged until rcs_placed returns 1.  Returns
 * a ticket, or -1.  EAGAIN: not now.  ENOBUFS: not registered, or the device
 * refuses it. */
int64_t rcs_place(int fd, const struct rcs_exposure* where, uint64_t offset,
                  const void* from, size_t length);
/* Returns 1 if that write and all before it are in the peer's memory, 0 if not
 * yet. */
int rcs_placed(int fd, const struct rcs_exposure* where, int64_t ticket);

/* 0xMMmmpp (major, minor, patch) of this header, and of the library in use. */
#define RCSOCK_VERSION 0x000100u
uint32_t rcs_version(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* RCSOCK_RCSOCK_H_ */
