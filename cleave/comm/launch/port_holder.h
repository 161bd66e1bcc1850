#pragma once
#include <string>

#include "cleave/comm/net/tcp.h"

namespace cleave {

/// "pid 77 (python3)": who listens at an address of this host, or at its port on all of them;
/// "another program" where this user may not see it.
std::string port_holder(const HostAddress& address);

}  // namespace cleave
