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

}  // namespace cleave::cli
