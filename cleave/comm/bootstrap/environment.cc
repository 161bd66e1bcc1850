#include "cleave/comm/bootstrap/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <xxhash.h>

#include "cleave/base/error.h"

namespace cleave::inline comm {
namespace {

int parse(std::string_view name, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  CLEAVE_CHECK(error == std::errc() && end == text.data() + text.size(), Code::kUsage, name, "='",
               text, "'; expected a whole number");
  return value;
}

/// The variables of one kind of launcher.
struct Names {
  const char *rank, *world_size, *local_rank, *local_world_size;
};

constexpr Names kTorch{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kPmi{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Names kSlurm{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"};
// PMIx has no variable for the size; srun --mpi=pmix has SLURM's.
constexpr Names kPmix{"PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"};

class Reader {
 public:
  explicit Reader(const GetVariable& get) : get_(get) {}

  [[nodiscard]] std::string text(const char* name) const {
    const char* value = get_(name);
    return value == nullptr ? "" : value;
  }
  [[nodiscard]] bool has(const char* name) const { return !text(name).empty(); }
  [[nodiscard]] int number(const char* name) const { return parse(name, text(name)); }
  [[nodiscard]] std::optional<int> maybe(const char* name) const {
    return has(name) ? std::optional(number(name)) : std::nullopt;
  }

 private:
  const GetVariable& get_;
};

/// A batch script also has SLURM_PROCID=0, but only an srun step has several ranks.
bool is_slurm_step(const Reader& read) {
  return read.has("SLURM_PROCID") && (read.has("SLURM_STEP_ID") || read.has("SLURM_STEPID"));
}

std::optional<Names> find_names(const Reader& read) {
  if (read.has(kTorch.rank) || read.has(kTorch.world_size)) return kTorch;
  if (read.has(kOpenMpi.rank)) return kOpenMpi;
  // srun --mpi=pmi2 sets PMI_RANK, too, but not which ranks share a host.
  if (read.has(kPmi.rank) && (read.has(kPmi.local_world_size) || !is_slurm_step(read))) return kPmi;
  if (read.has(kPmix.rank) && is_slurm_step(read)) return kPmix;
  if (is_slurm_step(read)) return kSlurm;
  return std::nullopt;
}

bool is_this_host(const std::string& address) {
  return address.empty() || address == "localhost" || address == "::1" ||
         address.compare(0, 4, "127.") == 0;
}

/// Tasks on a node by Slurm's list: "2(x3),1" means three nodes with two tasks and one with one.
int tasks_of_node(std::string_view list, int node) {
  constexpr std::string_view kName = "SLURM_STEP_TASKS_PER_NODE";
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    const size_t repeat = item.find("(x");
    const int tasks = parse(kName, item.substr(0, repeat));
    if (repeat != std::string_view::npos) {
      node -= parse(kName, item.substr(repeat + 2, item.find(')') - repeat - 2));
    } else {
      --node;
    }
    if (node < 0) return tasks;
    list.remove_prefix(std::min(list.size(), item.size() + 1));
  }
  return 1;
}

/// The first name of a Slurm host list: "node[03-07,09]-a,other" begins with node03-a.
std::string first_host(const std::string& list) {
  const size_t open = list.find('[');
  if (open >= list.find(',')) return list.substr(0, list.find(','));
  const size_t close = list.find(']', open), end = list.find(',', close);
  if (open == std::string::npos || close == std::string::npos) return list;
  const std::string numbers = list.substr(open + 1, close - open - 1);
  return list.substr(0, open) + numbers.substr(0, numbers.find_first_of("-,")) +
         list.substr(close + 1, end == std::string::npos ? end : end - close - 1);
}

/// The default rendezvous address of an srun step: its first host, and a port below the ephemeral
/// ports.
void find_slurm_rendezvous(const Reader& read, Environment& found) {
  if (found.master_addr.empty()) found.master_addr = first_host(read.text("SLURM_STEP_NODELIST"));
  if (found.master_port != 0) return;
  const std::string id = found.job_id;
  found.master_port = 20000 + static_cast<int>(XXH3_64bits(id.data(), id.size()) % 10000);
}

/// Number of ranks on this host, from Slurm or the launcher's variable. If neither is set, all
/// ranks are on this host if rank 0 has a loopback address; otherwise each rank has its own host.
int local_world_size(const Reader& read, const Names& names, const Environment& found) {
  if (names.rank == kSlurm.rank || names.rank == kPmix.rank) {
    const int num_nodes =
        read.maybe("SLURM_STEP_NUM_NODES").value_or(read.maybe("SLURM_NNODES").value_or(1));
    if (num_nodes == 1) return found.world_size;
    return tasks_of_node(read.text("SLURM_STEP_TASKS_PER_NODE"),
                         read.maybe("SLURM_NODEID").value_or(0));
  }
  if (const auto size = read.maybe(names.local_world_size)) return *size;
  return is_this_host(found.master_addr) ? found.world_size : 1;
}

std::string job_id(const Reader& read) {
  std::string id;
  for (const char* name :
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "PMIX_NAMESPACE",
        "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"}) {
    if (read.has(name)) id += str(id.empty() ? "" : ".", read.text(name));
  }
  return id;
}

/// The MPI whose launcher sets these variables.
std::string mpi_flavour(const Reader& read) {
  if (read.has(kOpenMpi.rank)) return "openmpi";
  if (read.has(kPmi.rank)) return "mpich";  // MPICH and its relatives
  return read.has(kPmix.rank) ? "openmpi" : "";
}

/// Slurm counts how often it has requeued the job.
int num_restarts(const Reader& read, bool is_slurm) {
  for (const char* name : {"CLEAVE_RESTARTS", "TORCHELASTIC_RESTART_COUNT"}) {
    if (const auto count = read.maybe(name)) return *count;
  }
  return is_slurm ? read.maybe("SLURM_RESTART_COUNT").value_or(0) : 0;
}

void check_range(const Names& names, const Environment& found) {
  CLEAVE_CHECK(found.world_size >= 1, Code::kShape, names.world_size, "=", found.world_size,
               "; it must be at least 1");
  CLEAVE_CHECK(found.rank >= 0 && found.rank < found.world_size, Code::kShape, names.rank, "=",
               found.rank, " with ", names.world_size, "=", found.world_size, "; ", names.rank,
               " must be in [0, ", found.world_size, ")");
  CLEAVE_CHECK(found.local_world_size >= 1 && found.local_world_size <= found.world_size,
               Code::kShape, names.local_world_size, "=", found.local_world_size, " with ",
               names.world_size, "=", found.world_size, "; it must be in [1, ", found.world_size,
               "]");
  CLEAVE_CHECK(found.local_rank >= 0 && found.local_rank < found.local_world_size, Code::kShape,
               names.local_rank, "=", found.local_rank, " of ", found.local_world_size,
               " ranks on this host; it must be in [0, ", found.local_world_size, ")");
}

}  // namespace

std::optional<Environment> read_environment(const GetVariable& get) {
  const Reader read(get);
  const std::optional<Names> names = find_names(read);
  if (!names) return std::nullopt;
  const char* size_name = names->world_size;
  if (names->rank == kSlurm.rank && read.has("SLURM_STEP_NUM_TASKS"))
    size_name = "SLURM_STEP_NUM_TASKS";
  CLEAVE_CHECK(read.has(names->rank), Code::kUsage, size_name, "=", read.text(size_name),
               " is set but ", names->rank, " is not; set both or none");
  CLEAVE_CHECK(read.has(size_name), Code::kUsage, names->rank, "=", read.text(names->rank),
               " is set but ", size_name, " is not; set both or none");
  Environment found;
  found.rank = read.number(names->rank);
  found.world_size = read.number(size_name);
  found.master_addr = read.text("MASTER_ADDR");
  found.master_port = read.maybe("MASTER_PORT").value_or(0);
  found.local_world_size = local_world_size(read, *names, found);
  found.local_rank = read.maybe(names->local_rank)
                         .value_or(found.local_world_size == found.world_size ? found.rank : 0);
  found.job_id = job_id(read);
  const bool is_slurm = names->rank == kSlurm.rank || names->rank == kPmix.rank;
  if (is_slurm) found.host = read.text("SLURM_NODEID");
  if (names->rank == kTorch.rank) found.host = read.text("GROUP_RANK");
  if (is_slurm && found.local_world_size < found.world_size) find_slurm_rendezvous(read, found);
  if (read.text("TORCHELASTIC_USE_AGENT_STORE") == "True") ++found.master_port;
  found.token_file = read.text("CLEAVE_TOKEN_FILE");
  found.num_restarts = num_restarts(read, is_slurm);
  found.job_fd = read.maybe("CLEAVE_JOB_FD").value_or(-1);
  found.mpi = mpi_flavour(read);
  found.starts_mpi = names->rank != kTorch.rank && !found.mpi.empty();
  check_range(*names, found);
  return found;
}

std::optional<Environment> read_environment() {
  return read_environment([](const char* name) { return std::getenv(name); });
}

bool is_restart() {
  const auto environment = read_environment();
  return environment && environment->num_restarts > 0;
}

std::optional<int> take_local_rank(std::vector<std::string>& arguments) {
  std::optional<int> found;
  for (size_t i = 0; i < arguments.size();) {
    const std::string& argument = arguments[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    if (name != "--local-rank" && name != "--local_rank") {
      ++i;
      continue;
    }
    const bool is_next = equals == std::string::npos;  // the value is the next argument
    CLEAVE_CHECK(!is_next || i + 1 < arguments.size(), Code::kUsage, name,
                 " is the last argument; a whole number must follow it");
    found = parse(name, is_next ? arguments[i + 1] : argument.substr(equals + 1));
    const auto at = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    arguments.erase(at, at + (is_next ? 2 : 1));
  }
  return found;
}

void check_local_rank(const Environment& environment, std::optional<int> local_rank) {
  CLEAVE_CHECK(!local_rank || *local_rank == environment.local_rank, Code::kShape,
               "--local-rank=", *local_rank, " but LOCAL_RANK=", environment.local_rank,
               "; leave the flag out or make them equal");
}

}  // namespace cleave::inline comm
