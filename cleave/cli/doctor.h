#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cleave::cli {

/// Facts about this machine by section: cpu, memory, limits, transports. Values are strings and
/// numbers (bytes if the name ends in _bytes).
nlohmann::ordered_json machine_facts();

/// Limits that will cause failures, as sentences; empty if there are none.
std::vector<std::string> machine_problems(const nlohmann::ordered_json& facts);

/// Prints a flight log: the ranks that others wait for, what each rank does and waits for, and the
/// last operations of each; as one JSON object with `json`. Throws Error(kIo), Error(kFormat).
void print_flight_log(const std::string& path, bool json);

}  // namespace cleave::cli
