#pragma once
#include <string>

namespace cleave::cli {

/// Prints a flight log: the ranks that others wait for, what each rank does and waits for, and the
/// last operations of each; as one JSON object with `json`. Throws Error(kIo), Error(kFormat).
void print_flight_log(const std::string& path, bool json);

}  // namespace cleave::cli
