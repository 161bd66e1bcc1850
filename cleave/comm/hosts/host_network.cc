#include "cleave/comm/hosts/host_network.h"

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

#include "cleave/base/log.h"
#include "cleave/comm/hosts/mpi_exchange.h"
#include "cleave/comm/net/tcp.h"

namespace cleave::inline comm {
namespace {

namespace fs = std::filesystem;

/// Ends the process unless destroyed in time: a blocking call of MPI cannot be interrupted.
class TimeLimit {
 public:
  /// `place` names this rank; `remedy` says what makes the other ranks come.
  TimeLimit(double timeout_s, const std::string& place, const std::string& remedy) {
    std::string text =
        str("timeout of ", timeout_s, " s: ", place, " waits in MPI for the other ranks; ", remedy);
    thread_ = std::thread([this, timeout_s, text = std::move(text)] {
      std::unique_lock lock(mutex_);
      const std::chrono::duration<double> limit(timeout_s);
      if (ended_.wait_for(lock, limit, [this] { return has_ended_; })) return;
      log_error(text);
      _exit(static_cast<int>(Code::kTimeout));
    });
  }
  ~TimeLimit() {
    {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;
};

/// Rank 0's rendezvous address.
struct Rendezvous {
  std::array<char, 256> address{};
  int port = 0;
};

/// A port of all interfaces that is free now; rank 0 listens on it a moment later.
int free_port() {
  const auto any = find_address("0.0.0.0", 0);
  const Descriptor listener = any ? listen_at(*any) : Descriptor();
  CLEAVE_CHECK(listener.is_open(), Code::kIo,
               "no port is free for the rendezvous; set MASTER_PORT");
  return own_address(listener.get()).port();
}

Rendezvous rendezvous_of(const Environment& environment) {
  Rendezvous found;
  if (environment.master_addr.empty()) {
    CLEAVE_CHECK(gethostname(found.address.data(), found.address.size() - 1) == 0, Code::kIo,
                 "this host has no name; set MASTER_ADDR to an address of rank 0's host");
  } else {
    environment.master_addr.copy(found.address.data(), found.address.size() - 1);
  }
  found.port = environment.master_port > 0 ? environment.master_port : free_port();
  return found;
}

/// The plugin of the launcher's MPI, otherwise another one's; "" if there is none.
fs::path find_plugin(const std::string& launched) {
  Dl_info own{};
  CLEAVE_CHECK(dladdr(reinterpret_cast<void*>(&find_plugin), &own) != 0, Code::kIo,
               "the folder of Cleave's library is not known to the dynamic loader");
  for (const std::string& flavour : {launched, std::string("openmpi"), std::string("mpich")}) {
    fs::path path = fs::path(own.dli_fname).parent_path() / str("libcleave_mpi_", flavour, ".so");
    std::error_code ignored;
    if (fs::exists(path, ignored)) return path;
  }
  return {};
}

/// What to do about ranks that do not begin MPI.
constexpr const char* kBeginRemedy =
    "start all ranks with the same --transport, and install the same build of Cleave, with the "
    "same MPI, on every host";

/// Checks the options of a job whose hosts have only their TCP connections.
void check_without_mpi(const RankOptions& options) {
  CLEAVE_CHECK(
      !options.fast_sums, Code::kUsage,
      "--fast-sums needs MPI between the hosts; start the ranks with mpirun or srun --mpi=... "
      "of the MPI that Cleave is built with, or leave out --fast-sums");
}

std::unique_ptr<Mpi> load(const fs::path& path) {
  // Global: MPI's own plugins need the symbols of its library.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  CLEAVE_CHECK(library != nullptr, Code::kIo, "--transport mpi: ", path.string(),
               " cannot be loaded: ",
               dlerror(),  // NOLINT(concurrency-mt-unsafe): per thread in glibc
               "; install the MPI that it was built with, or choose --transport tcp");
  const auto interface =
      reinterpret_cast<decltype(&cleave_mpi_interface)>(dlsym(library, "cleave_mpi_interface"));
  const auto make = reinterpret_cast<decltype(&cleave_mpi)>(dlsym(library, "cleave_mpi"));
  CLEAVE_CHECK(interface != nullptr && make != nullptr && interface() == kMpiInterface, Code::kIo,
               "--transport mpi: ", path.string(),
               " is from another build of Cleave; build or install it together with the program");
  std::unique_ptr<Mpi> mpi;
  make(&mpi);
  return mpi;
}

/// Waits until the reader of a pipe has taken everything written to it, at most a second. MPICH's
/// launcher forwards the output of its ranks through pipes, and drops what is still in them when a
/// rank aborts: the line with the cause.
void wait_until_read(int fd) {
  constexpr int kLimitMs = 1000;
  struct stat file {};
  if (fstat(fd, &file) != 0 || !S_ISFIFO(file.st_mode)) return;
  for (int i = 0; i < kLimitMs; ++i) {
    int unread = 0;
    if (ioctl(fd, FIONREAD, &unread) != 0 || unread == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Never destroyed, because MPI ends when the process exits.
std::shared_ptr<HostNetwork>& network_of_process() {
  static auto* const network = new std::shared_ptr<HostNetwork>();
  return *network;
}

}  // namespace

HostNetwork::HostNetwork(std::unique_ptr<Mpi> mpi, const Environment& environment,
                         const RankOptions& options)
    : mpi_(std::move(mpi)),
      place_(str("rank ", environment.rank, " of ", environment.world_size)),
      timeout_s_(options.timeout_s),
      fast_sums_(options.fast_sums) {
  // MPI would begin a world of size 1.
  CLEAVE_CHECK(mpi_->is_launched(), Code::kShape, "--transport mpi: ", place_,
               " was not started by ", mpi_->library(), ", which this build loads; ",
               mpi_->advice(), ", or choose --transport tcp");
  {
    const TimeLimit limit(timeout_s_, place_, kBeginRemedy);
    mpi_->begin(fast_sums_);
  }
  if (mpi_->size() == environment.world_size && mpi_->rank() == environment.rank) return;
  const std::string text =
      str(place_, " is rank ", mpi_->rank(), " of ", mpi_->size(), " in ", mpi_->library(), "; ",
          mpi_->advice(), ", or choose --transport tcp");
  // End MPI now: after the exception no job of this process does. One rank waits for nobody.
  if (mpi_->size() == 1) mpi_->finalize();
  throw Error(Code::kShape, text);
}

void HostNetwork::find_rendezvous(Environment& environment) {
  Rendezvous found;
  if (environment.rank == 0) found = rendezvous_of(environment);
  const TimeLimit limit(timeout_s_, place_, kBeginRemedy);
  mpi_->broadcast(std::as_writable_bytes(std::span(&found, 1)));
  if (environment.master_addr.empty()) environment.master_addr = found.address.data();
  if (environment.master_port == 0) environment.master_port = found.port;
}

std::unique_ptr<HostExchange> HostNetwork::connect(const std::shared_ptr<RankEndpoint>& job,
                                                   const std::vector<int>& ranks, int host,
                                                   int first, int64_t channel) {
  // Unique among the groups of all first members.
  const int64_t tag = channel * mpi_->size() + first;
  CLEAVE_CHECK(tag <= mpi_->max_tag(), Code::kShape, "group ", channel + 1, " of rank ", first,
               " over several hosts: ", mpi_->library(), " has ", mpi_->max_tag(),
               " tags for all ranks; make fewer groups, or choose --transport tcp");
  std::optional<int> sums_at;
  if (fast_sums_) {
    const TimeLimit limit(timeout_s_, place_, "read their messages for the cause");
    sums_at = mpi_->make_lane(ranks, static_cast<int>(tag));
  }
  return std::make_unique<MpiExchange>(job, *mpi_, ranks, host, static_cast<int>(tag), sums_at);
}

void HostNetwork::note_failure(Code code) {
  int none = 0;
  failure_.compare_exchange_strong(none, static_cast<int>(code));
}

void HostNetwork::end() {
  // Neither abort() nor TimeLimit flushes the output.
  std::cout.flush();
  (void)std::fflush(nullptr);
  const int code = failure_.load();
  if (code != 0) {
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) wait_until_read(fd);
    mpi_->abort(code);
  }
  const TimeLimit limit(timeout_s_, place_,
                        "one of them has ended without MPI_Finalize; read its messages");
  mpi_->finalize();
}

std::shared_ptr<HostNetwork> host_network(const Environment& environment,
                                          const RankOptions& options) {
  const std::string& transport = options.transport;
  CLEAVE_CHECK(transport == "auto" || transport == "tcp" || transport == "mpi", Code::kUsage,
               "--transport ", transport, " is unknown; choose auto, tcp or mpi");
  const bool is_auto = transport == "auto";
  const bool wants_mpi = is_auto ? environment.starts_mpi : transport == "mpi";
  const fs::path path = wants_mpi ? find_plugin(environment.mpi) : fs::path();
  CLEAVE_CHECK(!path.empty() || is_auto || !wants_mpi, Code::kUsage,
               "--transport mpi: this build has no libcleave_mpi_openmpi.so and no "
               "libcleave_mpi_mpich.so; build Cleave where mpicxx is installed (Debian: "
               "libopenmpi-dev or libmpich-dev), or choose tcp");
  if (path.empty()) {
    check_without_mpi(options);
    return nullptr;
  }
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& network = network_of_process();
  if (network != nullptr) return network;
  auto mpi = load(path);
  if (is_auto && !mpi->is_launched()) {
    check_without_mpi(options);
    if (environment.rank == 0) {
      log_warning("the hosts use TCP, not MPI: Cleave is built with ", mpi->library(),
                  ", and the launcher started the ranks with another MPI");
    }
    return nullptr;
  }
  network = std::make_shared<HostNetwork>(std::move(mpi), environment, options);
  static const pid_t owner = getpid();
  (void)std::atexit([] {
    // A forked child has not begun MPI.
    if (getpid() == owner) network_of_process()->end();
  });
  return network;
}

}  // namespace cleave::inline comm
