#pragma once
#include <string>

namespace cleave {

/// "pid 77 (python3)": who listens at a TCP port of this host; "another program" where this user
/// may not see it.
std::string port_holder(int port);

}  // namespace cleave
