#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cleave/base/dtype.h"

namespace cleave::inline comm {

/// Messages in flight. MPI may access their memory until are_done(), also after this object is
/// gone.
class MpiMessages {
 public:
  virtual ~MpiMessages() = default;
  MpiMessages() = default;
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;

  /// Starts to receive or to send. The other side names the same tag and number of bytes, at most
  /// 2^31 - 1.
  virtual void receive(std::span<std::byte> data, int from, int tag) = 0;
  virtual void send(std::span<const std::byte> data, int to, int tag) = 0;
  /// Starts to add the numbers of all ranks of a lane of make_lane(), in place and in an order of
  /// MPI's own. All call it in the same order, with as many bytes. The dtype is fp32 or fp64.
  virtual void sum(std::span<std::byte> data, DType dtype, int lane) = 0;
  /// Whether all have arrived, or can be left to MPI. Never waits. Data may move only during calls.
  virtual bool are_done() = 0;
  /// The ranks whose messages have not arrived here.
  virtual std::vector<int> awaited_ranks() = 0;
};

/// The calls of MPI that Cleave makes; libcleave_mpi_* implement them. Thread safe: one thread at a
/// time is inside MPI. An error of MPI is thrown as Error(kPeer).
class Mpi {
 public:
  virtual ~Mpi() = default;
  Mpi() = default;
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  /// "Open MPI 4.1.4".
  [[nodiscard]] virtual std::string library() const = 0;
  /// How all ranks join one world of this MPI: "start all ranks with ...".
  [[nodiscard]] virtual std::string advice() const = 0;
  /// Whether a launcher of this MPI has started this process. Otherwise its world is of size 1.
  [[nodiscard]] virtual bool is_launched() const = 0;

  /// Begins MPI, once in a process. Waits for all ranks. `makes_lanes`: for make_lane(), too.
  virtual void begin(bool makes_lanes) = 0;
  /// After begin(): this process's place in MPI_COMM_WORLD, and the largest tag.
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual int max_tag() const = 0;

  /// Makes a lane of these ranks, in which MpiMessages::sum() lets MPI add. All of them call it,
  /// with the same tag, and wait for each other. Other threads may make calls at the same time.
  virtual int make_lane(std::span<const int> ranks, int tag) = 0;
  /// Makes the messages of one exchange.
  virtual std::unique_ptr<MpiMessages> make_messages() = 0;
  /// Moves data that earlier calls have left to MPI. Never waits.
  virtual void progress() = 0;
  /// Copies the data of rank 0 to all ranks. Waits for them.
  virtual void broadcast(std::span<std::byte> data) = 0;
  /// Ends MPI. Waits for all ranks.
  virtual void finalize() = 0;
  /// Ends all ranks; the launcher's exit code is `code`.
  [[noreturn]] virtual void abort(int code) = 0;
};

/// Identifies this interface; it changes with every change of the classes above.
inline constexpr int kMpiInterface = 3;

}  // namespace cleave::inline comm

/// Exported by libcleave_mpi_openmpi and libcleave_mpi_mpich and found by dlsym: kMpiInterface of
/// its build, and the object.
extern "C" int cleave_mpi_interface();
extern "C" void cleave_mpi(std::unique_ptr<cleave::Mpi>* out);
