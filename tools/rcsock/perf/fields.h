#ifndef RCSOCK_TOOLS_RCSOCK_PERF_FIELDS_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_FIELDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

// What a peer has sent, looked at one field at a time: each must be there, of
// the right kind and within its bounds.  Else an Error is thrown.

namespace rcsock::perf {

[[noreturn]] void BadField(const char* name);

const nlohmann::json& Field(const nlohmann::json& object, const char* name);
std::uint64_t Number(const nlohmann::json& value, const char* name,
                     std::uint64_t low, std::uint64_t high);
std::uint64_t NumberField(const nlohmann::json& object, const char* name,
                          std::uint64_t low, std::uint64_t high);
double RealField(const nlohmann::json& object, const char* name, double low,
                 double high);
bool BoolField(const nlohmann::json& object, const char* name);
// At most `most` bytes; what a terminal would obey becomes '?'.
std::string TextField(const nlohmann::json& object, const char* name,
                      std::size_t most);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_FIELDS_H_
