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
#include <span>
#include <string>
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
  TimeLimit(const Environment& environment, double timeout_s) {
    std::string text =
        str("timeout of ", timeout_s, " s: rank ", environment.rank, " of ", environment.world_size,
            " waits in MPI for the others; start all ranks with the same --transport, and install "
            "the same build of Cleave, with libcleave_mpi, on every host");
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

fs::path plugin_path() {
  Dl_info own{};
  CLEAVE_CHECK(dladdr(reinterpret_cast<void*>(&plugin_path), &own) != 0, Code::kIo,
               "the folder of Cleave's library is not known to the dynamic loader");
  return fs::path(own.dli_fname).parent_path() / "libcleave_mpi.so";
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
               " is from another build of Cleave; build or install both together");
  std::unique_ptr<Mpi> mpi;
  make(&mpi);
  return mpi;
}

/// Never destroyed, because MPI ends when the process exits.
std::shared_ptr<HostNetwork>& network_of_process() {
  static auto* const network = new std::shared_ptr<HostNetwork>();
  return *network;
}

}  // namespace

HostNetwork::HostNetwork(std::unique_ptr<Mpi> mpi, const Environment& environment, double timeout_s)
    : mpi_(std::move(mpi)) {
  // MPI would begin a world of size 1.
  CLEAVE_CHECK(mpi_->is_launched(), Code::kShape, "--transport mpi: rank ", environment.rank,
               " of ", environment.world_size, " was not started by ", mpi_->library(),
               ", with which libcleave_mpi is built; ", mpi_->advice(),
               ", or choose --transport tcp");
  {
    const TimeLimit limit(environment, timeout_s);
    mpi_->begin();
  }
  if (mpi_->size() == environment.world_size && mpi_->rank() == environment.rank) return;
  const std::string text = str(
      "rank ", environment.rank, " of ", environment.world_size, " is rank ", mpi_->rank(), " of ",
      mpi_->size(), " in ", mpi_->library(), "; ", mpi_->advice(), ", or choose --transport tcp");
  // Before the exception: no job of this process ends MPI later. Alone it has nobody to wait for.
  if (mpi_->size() == 1) mpi_->finalize();
  throw Error(Code::kShape, text);
}

void HostNetwork::find_rendezvous(Environment& environment, double timeout_s) {
  Rendezvous found;
  if (environment.rank == 0) found = rendezvous_of(environment);
  const TimeLimit limit(environment, timeout_s);
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
  return std::make_unique<MpiExchange>(job, *mpi_, ranks, host, static_cast<int>(tag));
}

void HostNetwork::note_failure(Code code) {
  int none = 0;
  failure_.compare_exchange_strong(none, static_cast<int>(code));
}

void HostNetwork::end() {
  const int code = failure_.load();
  if (code == 0) return mpi_->finalize();
  // abort() flushes nothing.
  std::cout.flush();
  (void)std::fflush(nullptr);
  mpi_->abort(code);
}

std::shared_ptr<HostNetwork> host_network(const Environment& environment,
                                          const RankOptions& options) {
  const std::string& transport = options.transport;
  CLEAVE_CHECK(transport == "auto" || transport == "tcp" || transport == "mpi", Code::kUsage,
               "--transport ", transport, " is unknown; choose auto, tcp or mpi");
  if (transport == "tcp" || (transport == "auto" && !environment.starts_mpi)) return nullptr;
  const fs::path path = plugin_path();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    if (transport == "auto") return nullptr;
    throw Error(Code::kUsage, str("--transport mpi: this build has no ", path.string(),
                                  "; build Cleave where mpicxx is installed (Debian: "
                                  "libopenmpi-dev), or choose tcp"));
  }
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& network = network_of_process();
  if (network != nullptr) return network;
  auto mpi = load(path);
  if (transport == "auto" && !mpi->is_launched()) {
    if (environment.rank == 0) {
      log_warning("the hosts use TCP: the launcher starts another MPI than ", mpi->library(),
                  ", with which libcleave_mpi is built");
    }
    return nullptr;
  }
  network = std::make_shared<HostNetwork>(std::move(mpi), environment, options.timeout_s);
  static const pid_t owner = getpid();
  (void)std::atexit([] {
    // A forked child has not begun MPI.
    if (getpid() == owner) network_of_process()->end();
  });
  return network;
}

}  // namespace cleave::inline comm
