// libcleave_mpi_openmpi and libcleave_mpi_mpich: the calls of MPI that Cleave makes. Built for each
// MPI that is found; host_network.cc loads one of them. MPI_THREAD_SERIALIZED is enough, because a
// mutex admits one thread at a time; only make_lane(), which waits for other ranks, needs
// MPI_THREAD_MULTIPLE.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <mpi.h>
#include <mutex>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/base/str.h"
#include "cleave/comm/hosts/mpi.h"

namespace cleave::inline comm {
namespace {

#ifdef OPEN_MPI
constexpr const char* kSrun = "srun --mpi=pmix";
constexpr std::array<const char*, 2> kLauncherVariables{"OMPI_COMM_WORLD_RANK", "PMIX_RANK"};
#else
constexpr const char* kSrun = "srun --mpi=pmi2";
constexpr std::array<const char*, 1> kLauncherVariables{"PMI_RANK"};
#endif

void check(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int size = 0;
  MPI_Error_string(result, text.data(), &size);
  throw Error(Code::kPeer, str(call, ": ", std::string(text.data(), static_cast<size_t>(size))));
}

class PluginMessages : public MpiMessages {
 public:
  PluginMessages(MPI_Comm comm, const std::vector<MPI_Comm>& lanes, std::mutex& mutex)
      : comm_(comm), lanes_(lanes), mutex_(mutex) {}

  void receive(std::span<std::byte> data, int from, int tag) override {
    const std::lock_guard lock(mutex_);
    senders_.push_back(from);
    check(MPI_Irecv(data.data(), static_cast<int>(data.size()), MPI_BYTE, from, tag, comm_,
                    &requests_.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Irecv");
  }

  void send(std::span<const std::byte> data, int to, int tag) override {
    const std::lock_guard lock(mutex_);
    senders_.push_back(-1);
    check(MPI_Isend(data.data(), static_cast<int>(data.size()), MPI_BYTE, to, tag, comm_,
                    &requests_.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Isend");
  }

  void sum(std::span<std::byte> data, DType dtype, int lane) override {
    const std::lock_guard lock(mutex_);
    senders_.push_back(-1);
    const auto count = static_cast<int>(static_cast<int64_t>(data.size()) / item_bytes(dtype));
    check(MPI_Iallreduce(MPI_IN_PLACE, data.data(), count,
                         dtype == DType::kF64 ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM,
                         lanes_[static_cast<size_t>(lane)],
                         &requests_.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Iallreduce");
  }

  bool are_done() override {
    const std::lock_guard lock(mutex_);
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                      MPI_STATUSES_IGNORE),
          "MPI_Testall");
    return done != 0;
  }

  std::vector<int> awaited_ranks() override {
    const std::lock_guard lock(mutex_);
    std::vector<int> ranks;
    for (size_t i = 0; i < requests_.size(); ++i) {
      int done = 1;
      if (senders_[i] >= 0) MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
      if (done == 0) ranks.push_back(senders_[i]);
    }
    return ranks;
  }

 private:
  MPI_Comm comm_;
  const std::vector<MPI_Comm>& lanes_;
  std::mutex& mutex_;
  std::vector<MPI_Request> requests_;
  std::vector<int> senders_;  // by request; -1: this rank
};

class PluginMpi : public Mpi {
 public:
  [[nodiscard]] std::string library() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int size = 0;
    MPI_Get_library_version(text.data(), &size);
    const std::string whole(text.data(), static_cast<size_t>(size));
    return whole.substr(0, whole.find_first_of(",\n"));
  }
  [[nodiscard]] std::string advice() const override {
    return str("start all ranks with its mpirun or with ", kSrun);
  }
  [[nodiscard]] bool is_launched() const override {
    return std::any_of(kLauncherVariables.begin(), kLauncherVariables.end(), [](const char* name) {
      const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): only read
      return value != nullptr && *value != '\0';
    });
  }

  void begin(bool makes_lanes) override {
    const int level = makes_lanes ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED;
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, level, &provided), "MPI_Init_thread");
    CLEAVE_CHECK(provided >= MPI_THREAD_SERIALIZED, Code::kUsage, library(),
                 " cannot be called by several threads; choose --transport tcp");
    CLEAVE_CHECK(provided >= level, Code::kUsage, library(),
                 " cannot be called by several threads at the same time; leave out --fast-sums");
    // Its own communicator, apart from the messages of other libraries in this process.
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    int* max_tag = nullptr;
    int has_max_tag = 0;
    check(MPI_Comm_get_attr(comm_, MPI_TAG_UB, &max_tag, &has_max_tag), "MPI_Comm_get_attr");
    if (has_max_tag != 0) max_tag_ = *max_tag;
  }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] int max_tag() const override { return max_tag_; }

  std::unique_ptr<MpiMessages> make_messages() override {
    return std::make_unique<PluginMessages>(comm_, lanes_, mutex_);
  }
  int make_lane(std::span<const int> ranks, int tag) override {
    MPI_Group all = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
    MPI_Comm lane = MPI_COMM_NULL;
    check(MPI_Comm_group(comm_, &all), "MPI_Comm_group");
    check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &group),
          "MPI_Group_incl");
    // Without the mutex: the other ranks may first need messages of this rank's other threads.
    check(MPI_Comm_create_group(comm_, group, tag, &lane), "MPI_Comm_create_group");
    check(MPI_Comm_set_errhandler(lane, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    MPI_Group_free(&group);
    MPI_Group_free(&all);
    const std::lock_guard lock(mutex_);
    lanes_.push_back(lane);
    return static_cast<int>(lanes_.size()) - 1;
  }
  void progress() override {
    const std::lock_guard lock(mutex_);
    int has_arrived = 0;
    // Asks for a message of this rank to itself. There is none: the call moves all data, and would
    // return early if it found one.
    check(MPI_Iprobe(rank_, 0, comm_, &has_arrived, MPI_STATUS_IGNORE), "MPI_Iprobe");
  }
  void broadcast(std::span<std::byte> data) override {
    const std::lock_guard lock(mutex_);
    check(MPI_Bcast(data.data(), static_cast<int>(data.size()), MPI_BYTE, 0, comm_), "MPI_Bcast");
  }
  void finalize() override { MPI_Finalize(); }
  [[noreturn]] void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);  // MPI promises only to try
  }

 private:
  std::mutex mutex_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<MPI_Comm> lanes_;
  int rank_ = 0, size_ = 1;
  int max_tag_ = 32767;  // what every MPI has
};

}  // namespace
}  // namespace cleave::inline comm

int cleave_mpi_interface() {
  return cleave::kMpiInterface;
}

void cleave_mpi(std::unique_ptr<cleave::Mpi>* out) {
  *out = std::make_unique<cleave::PluginMpi>();
}
