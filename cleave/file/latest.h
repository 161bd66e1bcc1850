#pragma once
#include <filesystem>
#include <string_view>

namespace cleave {

/// The file of a run folder that names its newest checkpoint.
inline constexpr std::string_view kLatestName = "latest";

/// The newest checkpoint of a run folder, which its file `latest` names. A folder with config.json
/// or without `latest` is returned unchanged. Throws Error(kFormat) if `latest` does not hold the
/// name of a folder, Error(kIo) if there is no such folder.
std::filesystem::path resolve_run_folder(const std::filesystem::path& folder);

}  // namespace cleave
