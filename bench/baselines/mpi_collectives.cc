// Times MPI's all-reduce in the same way as `cleave bench collectives --json`: in place, a line of
// JSON for each size, with the median over samples of at least 20 us. Built and run by
// bench/side_by_side.py, not by CMake.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mpi.h>
#include <sstream>
#include <string>
#include <vector>

namespace {

/// Page-aligned memory, as in `cleave bench collectives`.
char* pages(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes + 4095) / 4096 * 4096;
  char* memory = static_cast<char*>(std::aligned_alloc(4096, size));
  std::memset(memory, 0, size);
  return memory;
}

/// Rank 0's number, on every rank.
int64_t agreed(int64_t number) {
  MPI_Bcast(&number, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
  return number;
}

void measure(int64_t bytes, double seconds) {
  char* data = pages(bytes);
  const int count = static_cast<int>(bytes / 4);
  const auto time = [&](int64_t calls) {
    const double begin = MPI_Wtime();
    for (int64_t i = 0; i < calls; ++i) {
      MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - begin) / static_cast<double>(calls);
  };
  time(2);
  const double one =
      time(agreed(std::clamp<int64_t>(static_cast<int64_t>(1e-3 / time(3)), 1, 1000)));
  const auto num_calls = agreed(std::max<int64_t>(1, static_cast<int64_t>(20e-6 / one)));
  const auto num_samples =
      agreed(std::clamp<int64_t>(static_cast<int64_t>(seconds / std::max(one, 20e-6)), 5, 5000));
  std::vector<double> samples;
  for (int64_t i = 0; i < num_samples; ++i) samples.push_back(time(num_calls) * 1e6);
  std::sort(samples.begin(), samples.end());
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 0) {
    std::printf("{\"op\":\"all-reduce\",\"bytes\":%lld,\"median_us\":%.3f,\"p10_us\":%.3f}\n",
                static_cast<long long>(bytes), samples[samples.size() / 2],
                samples[samples.size() / 10]);
    std::fflush(stdout);
  }
  std::free(data);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.5;
  std::istringstream sizes(argc > 2 ? argv[2] : "1024,16384,262144,4194304,67108864");
  for (std::string size; std::getline(sizes, size, ',');) {
    measure(std::atoll(size.c_str()), seconds);
  }
  MPI_Finalize();
  return 0;
}
