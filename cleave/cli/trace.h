#pragma once

namespace cleave::cli {

/// Starts to record where the last few exceptions of any thread were thrown.
void start_trace();

/// Prints them on stderr, oldest first; prints nothing without start_trace().
void print_trace();

}  // namespace cleave::cli
