#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cleave/file/file.h"
#include "cleave/report/replay.h"

namespace cleave::test {

/// replay.json of a recorded step in a folder.
inline nlohmann::json trace_of(const std::filesystem::path& folder) {
  return nlohmann::json::parse(read_file((folder / kReplayTraceName).string()));
}

/// The begins of a trace's events of this kind, those of one rank or of all (-1).
inline std::vector<nlohmann::json> events_of(const nlohmann::json& trace, std::string_view kind,
                                             int rank = -1) {
  std::vector<nlohmann::json> out;
  for (const nlohmann::json& e : trace.at("traceEvents")) {
    const bool is_wanted = e.at("ph") == "B" && e.at("cat") == kind;
    if (is_wanted && (rank < 0 || e.at("pid") == rank)) out.push_back(e);
  }
  return out;
}

/// What a trace says of a rank besides its events: weights, bytes of each axis.
inline nlohmann::json rank_summary(const nlohmann::json& trace, int rank) {
  return trace.at("otherData").at("replay").at("ranks").at(static_cast<size_t>(rank));
}

/// Collectives of a trace that not all ranks of their group have called with the same operation at
/// the same site.
inline std::set<std::string> unpaired_collectives(const nlohmann::json& trace) {
  std::map<std::string, std::set<int>> callers;
  std::map<std::string, size_t> sizes;
  for (const nlohmann::json& e : events_of(trace, "collective")) {
    const nlohmann::json& a = e.at("args");
    if (a.contains("peer")) continue;
    const std::string key = nlohmann::json::array({a.at("axis"), a.at("ranks"), a.at("number"),
                                                   a.at("op"), e.at("name")})
                                .dump();
    callers[key].insert(e.at("pid").get<int>());
    sizes[key] = a.at("ranks").size();
  }
  std::set<std::string> out;
  for (const auto& [key, ranks] : callers) {
    if (ranks.size() != sizes[key]) out.insert(key);
  }
  return out;
}

}  // namespace cleave::test
