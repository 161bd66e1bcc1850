#pragma once
#include <filesystem>
#include <string>

#include "cleave/file/file.h"

namespace cleave::inline format {

/// Opens a file that an index names in the index's folder. Throws Error(kIo) that names both, with
/// the command of a download, if the file is not there; else as File::open_read_below() does.
File open_indexed(const std::filesystem::path& index, const std::string& name);

}  // namespace cleave::inline format
