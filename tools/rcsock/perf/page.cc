#include "tools/rcsock/perf/report.h"
namespace rcsock::perf {
std::string Page(const Report&) { return ""; }
}  // namespace rcsock::perf
