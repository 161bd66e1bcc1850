// The DLO-JZ course's notebook in C++: a BERT that classifies IMDb's reviews, with tensor and data
// parallelism. The README.md in this folder shows runs.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "cleave/base/error.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/launch/failure.h"
#include "cleave/mesh/job.h"
#include "examples/checks.h"
#include "execute.h"

using namespace imdb_bert;  // NOLINT(google-build-using-namespace)

namespace {

ExecuteOptions parse(int argc, char** argv) {
  ExecuteOptions o;
  if (const char* folder = std::getenv("CLEAVE_DATA")) {
    o.data = std::string(folder) + "/text/imdb/imdb-train.csv";
    o.test_data = std::string(folder) + "/text/imdb/imdb-test.csv";
    o.tokenizer_folder = std::string(folder) + "/tokenizers/bert-base-uncased";
  }
  CLI::App app("A BERT that classifies reviews, trained over tp x dp ranks");
  app.option_defaults()->always_capture_default();
  const auto count = [&](const char* flag, auto& value, const char* help, int64_t least) {
    app.add_option(flag, value, help)->check(CLI::Range(least, int64_t{1000000}));
  };
  count("--ntasks", o.ntasks, "number of ranks; ignored under a launcher", 1);
  count("--epochs", o.epochs, "passes over the reviews", 1);
  count("--samples", o.samples, "reviews of --data, from its start; 0: all", 0);
  count("--layers", o.layers, "transformer layers", 1);
  count("--dim", o.dim, "width of the hidden states", 1);
  count("--heads", o.heads, "attention heads; they divide --dim", 1);
  count("--bsz", o.bsz, "reviews per step and data-parallel rank", 1);
  count("--tp", o.tp, "tensor-parallel size; 0: all ranks", 0);
  app.add_option("--data", o.data, "CSV file with the header review,sentiment");
  app.add_option("--test_data", o.test_data, "CSV file with the same header, for the accuracy");
  count("--test_samples", o.test_samples, "reviews of --test_data; 0: all", 0);
  app.add_option("--tokenizer", o.tokenizer_folder, "folder of a tokenizer; empty: bytes");
  count("--seq_len", o.seq_len, "tokens per review", 2);
  app.add_option("--lr", o.lr, "learning rate")->check(examples::check_rate, "in [0 - 1]");
  app.add_option("--dtype", o.dtype, "bf16 or fp16 (mixed precision), fp32 or fp64");
  app.add_option("--seed", o.seed)->check(examples::check_seed);
  std::string execid;
  app.add_option("--execid", execid, "name of the run; its folder unless --out is given");
  app.add_option("--out", o.out, "new folder for the run");
  app.add_flag("--resume", o.resume, "continue the run in --out from its newest checkpoint");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    throw cleave::Error(cleave::Code::kUsage, error.what());
  }
  if (o.out.empty()) o.out = execid;
  CLEAVE_CHECK(!o.out.empty(), cleave::Code::kUsage,
               "the run has no folder; name it with --execid or --out");
  CLEAVE_CHECK(!o.data.empty() && !o.test_data.empty(), cleave::Code::kUsage,
               "--data or --test_data is missing and CLEAVE_DATA is not set; name two CSV files "
               "with the header review,sentiment");
  if (const int launched = cleave::launched_world_size(); launched > 0) o.ntasks = launched;
  return o;
}

// Whether this is rank 0's process, which prints.
bool is_first_process() {
  const auto environment = cleave::read_environment();
  return !environment || environment->rank == 0;
}

}  // namespace

int main(int argc, char** argv) {
  return cleave::run_main([&] {
    const Result result = execute(parse(argc, argv));
    if (result.signal != 0) return 128 + result.signal;
    if (is_first_process()) (void)std::fputs(table(result).c_str(), stdout);
    return 0;
  });
}
