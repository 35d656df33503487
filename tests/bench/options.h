#ifndef RCSOCK_TESTS_BENCH_OPTIONS_H_
#define RCSOCK_TESTS_BENCH_OPTIONS_H_

#include <CLI/CLI.hpp>

#include "tests/bench/net.h"

namespace bench {

inline void AddEnds(CLI::App* app, Ends* ends) {
  app->add_option("--role", ends->role, "both ends, or one of them")
      ->check(CLI::IsMember({"both", "server", "client"}))
      ->capture_default_str();
  app->add_option("--host", ends->host)->capture_default_str();
  app->add_option("--port", ends->port, "0, for both: any");
  app->add_option("--cpu", ends->cpu,
                  "pin to this CPU (both: always CPU 0 and 1)");
}

}  // namespace bench

#endif  // RCSOCK_TESTS_BENCH_OPTIONS_H_
