#pragma once
#include <string>
#include <string_view>

#include "cleave/base/str.h"

namespace cleave::inline base {

namespace internal {
void write_stdout_line(const std::string& text);
void write_stderr_line(const std::string& text);
}  // namespace internal

/// One line on stdout. Lines of several threads never mix, and the live line stays below them.
template <class... Parts>
void log_info(const Parts&... parts) {
  internal::write_stdout_line(str(parts...));
}

/// One line on stderr: "cleave: warning: ...".
template <class... Parts>
void log_warning(const Parts&... parts) {
  internal::write_stderr_line(str("cleave: warning: ", parts...));
}

/// One line on stderr: "cleave: ...". Line breaks inside become spaces.
template <class... Parts>
void log_error(const Parts&... parts) {
  internal::write_stderr_line(str("cleave: ", parts...));
}

/// Shows `text` as the last line of the terminal and redraws it below each logged line; an empty
/// text removes it. Only for a stdout that is a terminal.
void set_live_line(std::string_view text);

/// Whether --quiet was given: the process prints results, warnings and errors, but no progress and
/// no summaries. Set before threads start.
void set_quiet(bool quiet);
bool is_quiet();

/// Like log_info(), but prints nothing with --quiet.
template <class... Parts>
void log_status(const Parts&... parts) {
  if (!is_quiet()) log_info(parts...);
}

/// Whether a line of log_info() was lost because the disk is full, a quota is reached or the file
/// is too large. Lines for a closed pipe or terminal do not count.
bool is_stdout_lost();

}  // namespace cleave::inline base
