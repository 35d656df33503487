#ifndef RCSOCK_TOOLS_RCSOCK_PERF_WORKER_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_WORKER_H_

namespace rcsock::perf {

// `rcsock perf-worker`: the process that measures.  `rcsock perf` starts it
// (child.h).  The job comes as a line of JSON on stdin.  These lines go to
// stdout:
//
//   listening  the port of the data connections (server)
//   interval   what has moved since the last interval (client)
//   result     what has been measured
//   error      in words; nothing comes after it
int RunWorker();

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_WORKER_H_
