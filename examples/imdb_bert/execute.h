// The notebook's execute(): one training of the classifier, and the table that it reads at the end.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace imdb_bert {

// The notebook's arguments under their names and with its defaults, and what its other files fix.
struct ExecuteOptions {
  int ntasks = 2;  // ranks in all
  int64_t epochs = 1;
  int64_t samples = 1024;  // reviews of the training file, from its start; 0: all
  int64_t layers = 6;
  int64_t dim = 768;
  int64_t heads = 1;
  int64_t bsz = 1;  // reviews of one data-parallel rank at once
  int tp = 0;       // ranks that share a model; 0: all

  std::string data, test_data;   // CSV: review,sentiment
  int64_t test_samples = 0;      // reviews of the test file; 0: all
  std::string tokenizer_folder;  // empty: bytes
  int64_t seq_len = 128;
  double lr = 1e-3;
  std::string dtype = "bf16";  // of the arithmetic; weights stay fp32
  uint64_t seed = 0;
  std::string out;  // run folder
};

struct RankResult {
  int rank = 0, tp_rank = 0, dp_rank = 0;
  int64_t peak_bytes = 0;  // of its tensors at once, in its first two steps
};

struct Result {
  std::vector<RankResult> ranks{};
  double seconds = 0;   // of all training steps
  double accuracy = 0;  // on the test file, 0 to 1
  int signal = 0;       // that ended it early, or 0
};

// Trains, saves to `out`, measures. The same on every rank of a launcher. Throws cleave::Error.
Result execute(const ExecuteOptions& options);

// A line a rank: memory, time, accuracy.
std::string table(const Result& result);

}  // namespace imdb_bert
