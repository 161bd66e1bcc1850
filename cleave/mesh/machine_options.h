#pragma once
#include <string>
#include <vector>

#include "cleave/base/option.h"

namespace cleave::inline mesh {

/// How ranks use their machine: the options of every command that runs a model. Needs no libtorch.
struct MachineOptions {
  std::string gemm = "auto";
  std::string plain_kernels{};     ///< kernels left to libtorch, in set_plain_kernels's format
  int threads_per_rank = 0;        ///< 0 = cores / ranks
  double timeout_s = 60;           ///< longest wait for another rank
  std::string transport = "auto";  ///< between hosts: auto, tcp or mpi
  bool fast_sums = false;          ///< between hosts, MPI computes sums, in its own order
  std::string device = "cpu";
};

}  // namespace cleave::inline mesh

namespace cleave::option {

/// --tp of commands in which all ranks can be tensor-parallel.
inline Row tensor_parallel(int* target) {
  return {target,
          "tp",
          "N",
          "tensor-parallel ranks; each holds a shard of every layer",
          "1; under a launcher all remaining ranks",
          kRanks};
}

/// --ep of commands in which the experts lie on the data-parallel ranks.
inline Row data_expert_parallel(int* target, Across across = kMayDiffer) {
  return {target, "ep",
          "N",    "data-parallel ranks that divide each layer's experts among them; divides --dp",
          "",     kRanks,
          across};
}

/// --plan.
inline Row plan(std::string* target) {
  return {target, "plan", "FILE.json", "tensor-parallel plan: module names to parallel styles",
          "the model's"};
}

/// --plain-kernels.
inline Row plain_kernels(std::string* target) {
  return {
      target,
      "plain-kernels",
      "LIST",
      "use libtorch for these kernels, with commas and no spaces between them: attention, norm, "
      "gate, rotary, loss, few-rows, panels, adam, random; or all",
      "none",
      {},
      kMustMatch};
}

/// The options of MachineOptions.
inline std::vector<Row> rows(MachineOptions& o) {
  return {
      {&o.gemm, "gemm", "", "library for matrix products; auto times both once", "",
       Choices{"auto", "mkl", "onednn"}, kMustMatch},
      plain_kernels(&o.plain_kernels),
      {&o.threads_per_rank, "threads-per-rank", "N", "compute threads of a rank", "cores / ranks",
       kThreads},
      {&o.timeout_s, "timeout", "SECONDS", "longest wait for another rank; then all ranks stop", "",
       kSeconds},
      {&o.transport, "transport", "",
       "network between hosts; auto is mpi if mpirun or srun --mpi=... starts the ranks and "
       "this build has the same MPI, else tcp",
       "", Choices{"auto", "tcp", "mpi"}, kMustMatch},
      {&o.fast_sums,
       "fast-sums",
       "",
       "MPI adds fp32 and fp64 sums over hosts in its own order; the last bits may differ from run "
       "to run",
       "off",
       {},
       kMustMatch},
      {&o.device, "device", "", "device of all tensors", "", Choices{"cpu", "cuda"}, kMustMatch}};
}

/// `rows` and after them those of `more`.
inline std::vector<Row> joined(std::vector<Row> rows, const std::vector<Row>& more) {
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

}  // namespace cleave::option
