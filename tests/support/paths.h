#pragma once
#include <string>

namespace cleave::test {

/// The path of a file or folder of the source tree: source_file("tests/golden").
std::string source_file(const std::string& name);
/// The path of this build's `cleave`.
std::string program();

}  // namespace cleave::test
