#ifndef RCSOCK_POSIX_NAMES_H_
#define RCSOCK_POSIX_NAMES_H_

/* Has a source file use rcsock without an edit:
 *
 *     cc -include rcsock/posix_names.h ... -lrcsock
 *
 * recv() and so on then mean rcs_recv().  It must come before every other
 * header, so it includes none: a source may still define _GNU_SOURCE.  Only
 * functions with C linkage are renamed.  Methods, variables and fields that are
 * called `close` or `send` stay what they are.
 */

#if !defined(__x86_64__) || !defined(__linux__)
#error "rcsock/posix_names.h is for x86-64 Linux"
#endif

/* The checked versions of read, recv and poll would go past rcsock. */
#undef _FORTIFY_SOURCE

#pragma redefine_extname socket rcs_socket
#pragma redefine_extname listen rcs_listen
#pragma redefine_extname accept rcs_accept
#pragma redefine_extname accept4 rcs_accept4
#pragma redefine_extname connect rcs_connect
#pragma redefine_extname shutdown rcs_shutdown
#pragma redefine_extname close rcs_close
#pragma redefine_extname close_range rcs_close_range
#pragma redefine_extname closefrom rcs_closefrom
#pragma redefine_extname read rcs_read
#pragma redefine_extname readv rcs_readv
#pragma redefine_extname recv rcs_recv
#pragma redefine_extname recvfrom rcs_recvfrom
#pragma redefine_extname recvmsg rcs_recvmsg
#pragma redefine_extname recvmmsg rcs_recvmmsg
#pragma redefine_extname write rcs_write
#pragma redefine_extname writev rcs_writev
#pragma redefine_extname send rcs_send
#pragma redefine_extname sendto rcs_sendto
#pragma redefine_extname sendmsg rcs_sendmsg
#pragma redefine_extname sendmmsg rcs_sendmmsg
#pragma redefine_extname splice rcs_splice
#pragma redefine_extname poll rcs_poll
#pragma redefine_extname ppoll rcs_ppoll
#pragma redefine_extname select rcs_select
#pragma redefine_extname pselect rcs_pselect
#pragma redefine_extname epoll_create rcs_epoll_create
#pragma redefine_extname epoll_create1 rcs_epoll_create1
#pragma redefine_extname epoll_ctl rcs_epoll_ctl
#pragma redefine_extname epoll_wait rcs_epoll_wait
#pragma redefine_extname epoll_pwait rcs_epoll_pwait
#pragma redefine_extname epoll_pwait2 rcs_epoll_pwait2
#pragma redefine_extname ioctl rcs_ioctl
#pragma redefine_extname getsockopt rcs_getsockopt
#pragma redefine_extname getpeername rcs_getpeername
#pragma redefine_extname setsockopt rcs_setsockopt
#pragma redefine_extname dup rcs_dup
#pragma redefine_extname dup2 rcs_dup2
#pragma redefine_extname dup3 rcs_dup3
#pragma redefine_extname eventfd rcs_eventfd
#pragma redefine_extname timerfd_create rcs_timerfd_create
#pragma redefine_extname fdopen rcs_fdopen
#pragma redefine_extname vdprintf rcs_vdprintf
#pragma redefine_extname dprintf rcs_dprintf
#pragma redefine_extname execve rcs_execve
#pragma redefine_extname execv rcs_execv
#pragma redefine_extname execvp rcs_execvp
#pragma redefine_extname execvpe rcs_execvpe
#pragma redefine_extname fexecve rcs_fexecve
#pragma redefine_extname execl rcs_execl
#pragma redefine_extname execlp rcs_execlp
#pragma redefine_extname execle rcs_execle
#pragma redefine_extname fork rcs_fork
#pragma redefine_extname posix_spawn rcs_posix_spawn
#pragma redefine_extname posix_spawnp rcs_posix_spawnp
#pragma redefine_extname system rcs_system
#pragma redefine_extname popen rcs_popen
#pragma redefine_extname posix_spawn_file_actions_adddup2 \
    rcs_posix_spawn_file_actions_adddup2
#pragma redefine_extname quick_exit rcs_quick_exit
#pragma redefine_extname sigaction rcs_sigaction
#pragma redefine_extname siginterrupt rcs_siginterrupt
#pragma redefine_extname signal rcs_signal
#pragma redefine_extname _exit rcs_immediate_exit
#pragma redefine_extname _Exit rcs_immediate_exit

/* With _FILE_OFFSET_BITS=64 the C library's headers rename these functions.  A
 * pragma cannot change that, and an earlier declaration can.  Clang takes no
 * such declaration: leave that macro away, or link with -lrcsock_posix.
 */
#undef _FILE_OFFSET_BITS
#if defined(__GNUC__) && !defined(__clang__)
#ifndef __cplusplus
#define RCSOCK_AS(name) __asm__(#name)
#elif __cplusplus >= 201103L
#define RCSOCK_AS(name) noexcept __asm__(#name)
extern "C" {
#else
#define RCSOCK_AS(name) throw() __asm__(#name)
extern "C" {
#endif
struct iovec;
int fcntl(int, int, ...) __asm__("rcs_fcntl");
int fcntl64(int, int, ...) __asm__("rcs_fcntl");
long preadv2(int, const struct iovec*, int, long, int) __asm__("rcs_preadv2");
long pwritev2(int, const struct iovec*, int, long, int) __asm__("rcs_pwritev2");
long sendfile(int, int, long*, unsigned long) RCSOCK_AS(rcs_sendfile);
long sendfile64(int, int, long*, unsigned long) RCSOCK_AS(rcs_sendfile);
#undef RCSOCK_AS
#ifdef __cplusplus
} /* extern "C" */
#endif
#else
#pragma redefine_extname fcntl rcs_fcntl
#pragma redefine_extname fcntl64 rcs_fcntl
#pragma redefine_extname preadv2 rcs_preadv2
#pragma redefine_extname pwritev2 rcs_pwritev2
#pragma redefine_extname sendfile rcs_sendfile
#pragma redefine_extname sendfile64 rcs_sendfile
#endif

#endif /* RCSOCK_POSIX_NAMES_H_ */
