#include "tests/device/options.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace fake_device {
namespace {

void Set(Options* options, std::string_view word) {
  const std::size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  const std::string value(
      equals == std::string_view::npos ? "" : word.substr(equals + 1));
  const auto number =
      static_cast<std::uint32_t>(std::strtoul(value.c_str(), nullptr, 0));
  if (name == "ib") {
    options->iwarp = false;
  } else if (name == "iwarp") {
    options->iwarp = true;
  } else if (name == "unordered") {
    options->unordered = true;
  } else if (name == "late_flush") {
    options->late_flush = true;
  } else if (name == "late_events") {
    options->late_events = true;
  } else if (name == "nosrq") {
    options->nosrq = true;
  } else if (name == "keys" && value == "relaxed") {
    options->keys = Options::Keys::kRelaxed;
  } else if (name == "keys" && value == "strict") {
    options->keys = Options::Keys::kStrict;
  } else if (name == "inline") {
    options->inline_max = number;
  } else if (name == "max_qp_wr") {
    options->max_qp_wr = number;
  } else if (name == "max_cqe") {
    options->max_cqe = static_cast<int>(number);
  } else if (name == "max_srq_wr") {
    options->max_srq_wr = static_cast<int>(number);
  } else if (name == "max_qp") {
    options->max_qp = static_cast<int>(number);
  } else if (name == "max_sge") {
    options->max_sge = number;
  } else if (name == "max_cq") {
    options->max_cq = number;
  } else if (name == "max_srq") {
    options->max_srq = number;
  } else if (name == "max_mr") {
    options->max_mr = number;
  } else if (name == "vectors") {
    options->vectors = number;
  } else if (name == "lost_events") {
    options->lost_events = number;
  } else if (name == "vendor") {
    options->vendor = number;
  } else if (name == "seed") {
    options->seed = number;
  } else if (!word.empty()) {
    std::fprintf(stderr, "FAKE_DEVICE: no option \"%.*s\"\n",
                 static_cast<int>(word.size()), word.data());
    std::abort();
  }
}

std::string Environment(const char* name, const char* otherwise) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? otherwise : value;
}

}  // namespace

Options ReadOptions() {
  Options options;
  const std::string text = Environment("FAKE_DEVICE", "");
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = rest.find(',');
    Set(&options, rest.substr(0, end));
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
  options.space = Environment("FAKE_DEVICE_SPACE", "");
  options.directory = Environment("SYSFS_PATH", "/sys") + "/infiniband";
  return options;
}

}  // namespace fake_device
