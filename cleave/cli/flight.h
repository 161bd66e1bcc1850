#pragma once
#include <string>

namespace cleave::cli {

/// Prints what a flight log tells: who holds the others up, what each rank does and waits for, and
/// the last operations of each; as one JSON object with `json`. Throws Error(kIo), Error(kFormat).
void print_flight_log(const std::string& path, bool json);

}  // namespace cleave::cli
