#include "cleave/comm/port_holder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include "cleave/base/str.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

/// "socket:[INODE]" of the sockets that listen at the port. Source: proc(5), /proc/net/tcp.
std::set<std::string> listening_sockets(int port) {
  constexpr std::string_view kListens = "0A";
  std::set<std::string> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // the head
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
      if (digits >> std::hex >> found && found == port) sockets.insert(str("socket:[", inode, ']'));
    }
  }
  return sockets;
}

bool holds_one(const fs::path& process, const std::set<std::string>& sockets) {
  std::error_code closed;  // to other users, and when it ends
  for (fs::directory_iterator fd(process / "fd", closed), end; !closed && fd != end;
       fd.increment(closed)) {
    std::error_code gone;
    if (sockets.contains(fs::read_symlink(fd->path(), gone).string())) return true;
  }
  return false;
}

}  // namespace

std::string port_holder(int port) {
  const std::set<std::string> sockets = listening_sockets(port);
  std::error_code closed;
  for (fs::directory_iterator entry("/proc", closed), end; !closed && entry != end;
       entry.increment(closed)) {
    const std::string pid = entry->path().filename().string();
    if (!std::all_of(pid.begin(), pid.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    if (sockets.empty() || !holds_one(entry->path(), sockets)) continue;
    std::string name;
    std::getline(std::ifstream(entry->path() / "comm"), name);
    return str("pid ", pid, " (", name, ')');
  }
  return "another program";
}

}  // namespace cleave
