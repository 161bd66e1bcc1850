// The notebook's execute(): trains the classifier and makes the table that the notebook prints.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace imdb_bert {

// The notebook's arguments with its names and defaults, then the constants of its other files.
struct ExecuteOptions {
  int ntasks = 2;  // number of ranks
  int64_t epochs = 1;
  int64_t samples = 1024;  // reviews of the training file, from its start; 0: all
  int64_t layers = 6;
  int64_t dim = 768;
  int64_t heads = 1;
  int64_t bsz = 1;  // reviews per step and data-parallel rank
  int tp = 0;       // tensor-parallel size; 0: all ranks

  std::string data, test_data;   // CSV files with the header review,sentiment
  int64_t test_samples = 0;      // reviews of the test file; 0: all
  std::string tokenizer_folder;  // empty: bytes
  int64_t seq_len = 128;
  double lr = 1e-3;
  std::string dtype = "bf16";  // of the computation; master weights are fp32
  uint64_t seed = 0;
  std::string out;      // run folder
  bool resume = false;  // continue the run in `out`; without one, start it
};

struct RankResult {
  int rank = 0, tp_rank = 0, dp_rank = 0;
  int64_t peak_bytes = 0;  // peak size of its tensors during its first two steps
};

struct Result {
  std::vector<RankResult> ranks{};
  double seconds = 0;   // of all training steps
  double accuracy = 0;  // on the test file, 0 to 1
  int signal = 0;       // the signal that stopped training early, or 0
};

// Trains, saves to `out`, measures. All processes of a launcher return the same. Throws
// cleave::Error.
Result execute(const ExecuteOptions& options);

// One line per rank: memory, time, accuracy.
std::string table(const Result& result);

}  // namespace imdb_bert
