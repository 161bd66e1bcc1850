#pragma once

namespace cleave {

/// Whether a line of log_info() was lost because the disk is full, a quota is reached or the file
/// is too large. Lines for a closed pipe or terminal do not count.
bool is_stdout_lost();

}  // namespace cleave
