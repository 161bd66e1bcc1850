#include <array>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cleave/base/byte_count.h"
#include "cleave/base/resource_limits.h"
#include "cleave/base/str.h"
#include "cleave/cli/doctor.h"
#include "cleave/runtime/cpu_binding.h"

namespace cleave::cli {
namespace {

using Object = nlohmann::ordered_json;

// The text after the colon of the first line of a /proc file that begins with `name`.
std::string proc_line(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with(name)) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

Object cpu_features() {
  std::istringstream words(proc_line("/proc/cpuinfo", "flags") + ' ' +
                           proc_line("/proc/cpuinfo", "Features"));
  std::set<std::string> has;
  for (std::string word; words >> word;) has.insert(word);
  Object found = Object::array();
  for (const char* feature :
       {"avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni",
        "amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "bf16"}) {
    if (has.contains(feature)) found.push_back(feature);
  }
  return found;
}

template <class T>
Object or_none(const std::optional<T>& limit) {
  return limit ? Object(*limit) : Object("none");
}

Object cpu() {
  return {{"model", proc_line("/proc/cpuinfo", "model name")},
          {"features", cpu_features()},
          {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"usable_cores", usable_cpus().size()},
          {"group_limit_cores", or_none(cgroup_limits().cores)}};
}

int64_t meminfo_bytes(std::string_view name) {
  std::istringstream text(proc_line("/proc/meminfo", name));
  int64_t kib = 0;
  text >> kib;
  return kib * 1024;
}

// Free bytes of the file system that holds `path`; -1 if unknown.
int64_t free_bytes(const char* path) {
  struct statvfs info {};
  if (statvfs(path, &info) != 0) return -1;
  return static_cast<int64_t>(info.f_bavail * info.f_frsize);
}

Object limit(int resource) {
  rlimit value{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &value) != 0) return "not known";
  if (value.rlim_cur == RLIM_INFINITY) return "unlimited";
  return static_cast<int64_t>(value.rlim_cur);
}

bool has_memfd() {
  const int fd = memfd_create("cleave-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

}  // namespace

Object machine_facts() {
  return {{"cpu", cpu()},
          {"memory",
           {{"total_bytes", meminfo_bytes("MemTotal")},
            {"available_bytes", meminfo_bytes("MemAvailable")},
            {"group_limit_bytes", or_none(cgroup_limits().memory)}}},
          {"limits",
           {{"open_files", limit(RLIMIT_NOFILE)},
            {"locked_memory", limit(RLIMIT_MEMLOCK)},
            {"address_space", limit(RLIMIT_AS)},
            {"file_size", limit(RLIMIT_FSIZE)},
            {"dev_shm_free_bytes", free_bytes("/dev/shm")},
            {"disk_free_bytes", free_bytes(".")}}},
          {"transports",
           {{"rank_threads", "in place, within one process"},
            {"rank_processes",
             has_memfd() ? "shared memory, one host" : "none: this system has no memfd_create"}}}};
}

std::vector<std::string> machine_problems(const Object& facts) {
  constexpr int64_t kFewFiles = 256;
  constexpr int64_t kLittleDisk = int64_t{1} << 30;
  std::vector<std::string> problems;
  const Object& limits = facts.at("limits");
  const Object& files = limits.at("open_files");
  if (files.is_number() && files.get<int64_t>() < kFewFiles) {
    problems.push_back(
        str("only ", files.get<int64_t>(), " files can be open; raise the limit: ulimit -n 1024"));
  }
  const auto disk = limits.at("disk_free_bytes").get<int64_t>();
  if (disk >= 0 && disk < kLittleDisk) {
    problems.push_back("only " + bytes_text(disk) +
                       " of disk space are free in this folder; a checkpoint may not fit");
  }
  if (limits.at("file_size").is_number()) {
    problems.emplace_back("the size of files is limited; raise the limit: ulimit -f unlimited");
  }
  return problems;
}

}  // namespace cleave::cli
