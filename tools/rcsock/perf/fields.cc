#include "tools/rcsock/perf/fields.h"

#include <utility>

#include "tools/rcsock/perf/error.h"
#include "tools/rcsock/printable.h"

namespace rcsock::perf {

void BadField(const char* name) {
  Fail("the peer sent a message that makes no sense (\"{}\")", name);
}

const nlohmann::json& Field(const nlohmann::json& object, const char* name) {
  if (!object.is_object()) BadField(name);
  const auto found = object.find(name);
  if (found == object.end()) BadField(name);
  return *found;
}

std::uint64_t Number(const nlohmann::json& value, const char* name,
                     std::uint64_t low, std::uint64_t high) {
  if (!value.is_number_integer()) BadField(name);
  if (!value.is_number_unsigned() && value.get<std::int64_t>() < 0) {
    BadField(name);
  }
  const auto number = value.get<std::uint64_t>();
  if (number < low || number > high) BadField(name);
  return number;
}

std::uint64_t NumberField(const nlohmann::json& object, const char* name,
                          std::uint64_t low, std::uint64_t high) {
  return Number(Field(object, name), name, low, high);
}

double RealField(const nlohmann::json& object, const char* name, double low,
                 double high) {
  const nlohmann::json& value = Field(object, name);
  if (!value.is_number()) BadField(name);
  const auto number = value.get<double>();
  if (!(number >= low && number <= high)) BadField(name);
  return number;
}

bool BoolField(const nlohmann::json& object, const char* name) {
  const nlohmann::json& value = Field(object, name);
  if (!value.is_boolean()) BadField(name);
  return value.get<bool>();
}

std::string TextField(const nlohmann::json& object, const char* name,
                      std::size_t most) {
  const nlohmann::json& value = Field(object, name);
  if (!value.is_string()) BadField(name);
  auto text = value.get<std::string>();
  if (text.size() > most) BadField(name);
  return tools::WithoutControls(std::move(text));
}

}  // namespace rcsock::perf
