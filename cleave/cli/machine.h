#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cleave::cli {

/// What the operating system says about this machine, section by section: cpu, memory, limits,
/// transports. Values are texts and numbers (bytes in names that end in _bytes).
nlohmann::ordered_json machine_facts();

/// Sentences about limits that will get in the way; none: all is well.
std::vector<std::string> machine_problems(const nlohmann::ordered_json& facts);

}  // namespace cleave::cli
