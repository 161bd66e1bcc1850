#include "cleave/comm/launch/port_holder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <netinet/in.h>
#include <set>
#include <sstream>
#include <system_error>

#include "cleave/base/mutant.h"
#include "cleave/base/str.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

/// An address in the format of /proc/net/tcp: 32-bit words in host byte order.
std::string words_of(const HostAddress& address) {
  std::array<uint32_t, 4> words{};
  size_t count = 1;
  if (address.raw()->sa_family == AF_INET6) {
    count = words.size();
    std::memcpy(words.data(), &reinterpret_cast<const sockaddr_in6*>(address.raw())->sin6_addr, 16);
  } else {
    std::memcpy(words.data(), &reinterpret_cast<const sockaddr_in*>(address.raw())->sin_addr, 4);
  }
  std::ostringstream text;
  text << std::hex << std::uppercase << std::setfill('0');
  for (size_t i = 0; i < count; ++i) text << std::setw(8) << words.at(i);
  return text.str();
}

/// "socket:[INODE]" of the sockets that listen at this address. Source: proc(5), /proc/net/tcp.
std::set<std::string> listening_sockets(const HostAddress& address) {
  const std::string expected = words_of(address);
  constexpr std::string_view kListens = "0A";
  std::set<std::string> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // the table head
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, skipped, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) words >> skipped;
      words >> inode;
      const size_t colon = local.rfind(':');
      if (state != kListens || colon == std::string::npos) continue;
      std::istringstream digits(local.substr(colon + 1));
      int found = -1;
      const std::string host = local.substr(0, colon);
      const bool is_any = host.find_first_not_of('0') == std::string::npos;
      if (digits >> std::hex >> found && found == address.port() && (is_any || host == expected)) {
        sockets.insert(str("socket:[", inode, ']'));
      }
    }
  }
  return sockets;
}

bool has_any_open(const fs::path& process, const std::set<std::string>& sockets) {
  std::error_code closed;  // set if the process belongs to another user or ends
  for (fs::directory_iterator fd(process / "fd", closed), end; !closed && fd != end;
       fd.increment(closed)) {
    std::error_code gone;
    if (sockets.contains(fs::read_symlink(fd->path(), gone).string())) return true;
  }
  return false;
}

}  // namespace

std::string port_holder(const HostAddress& address) {
  const std::set<std::string> sockets = listening_sockets(address);
  if (sockets.empty() || mutant_enabled("rendezvous.no_holder")) return "another program";
  std::error_code closed;
  for (fs::directory_iterator entry("/proc", closed), end; !closed && entry != end;
       entry.increment(closed)) {
    const std::string pid = entry->path().filename().string();
    if (!std::all_of(pid.begin(), pid.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    if (!has_any_open(entry->path(), sockets)) continue;
    std::string name;
    std::getline(std::ifstream(entry->path() / "comm"), name);
    return str("pid ", pid, " (", name, ')');
  }
  return "another program";
}

}  // namespace cleave
