#ifndef RCSOCK_TOOLS_RCSOCK_PERF_FIELDS_H_
#define RCSOCK_TOOLS_RCSOCK_PERF_FIELDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

// Checks what a peer has sent, one field at a time.  Each field must be there,
// of the right kind and within its bounds.  Otherwise these throw Error.

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
// Returns at most `most` bytes. '?' replaces what a terminal would obey.
std::string TextField(const nlohmann::json& object, const char* name,
                      std::size_t most);

}  // namespace rcsock::perf

#endif  // RCSOCK_TOOLS_RCSOCK_PERF_FIELDS_H_
