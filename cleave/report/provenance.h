#pragma once
#include <ctime>
#include <filesystem>
#include <string>

namespace cleave {

/// "2026-11-23 08:41:10 UTC"
std::string utc_text(std::time_t time);

/// The name of this host; "unknown" if the system does not say.
std::string host_name();

/// The model of this host's CPU; "unknown" if the system does not say.
std::string cpu_name();

/// The commit that is checked out in the git repository that holds `folder`, 40 or 64 hexadecimal
/// digits; "" if there is no repository or no commit. Reads git's files; does not run git.
std::string git_commit(const std::filesystem::path& folder);

}  // namespace cleave
