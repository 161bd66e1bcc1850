#pragma once
#include <string>

#include "cleave/comm/net/tcp.h"

namespace cleave {

/// The process that listens at this address of this host, or at its port on all interfaces: "pid 77
/// (python3)", or "another program" if this user may not see it.
std::string port_holder(const HostAddress& address);

}  // namespace cleave
