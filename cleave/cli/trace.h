#pragma once

namespace cleave::cli {

/// From now on remembers where the last few exceptions were thrown, in any thread.
void start_trace();

/// Prints them on stderr, oldest first; nothing without start_trace().
void print_trace();

}  // namespace cleave::cli
