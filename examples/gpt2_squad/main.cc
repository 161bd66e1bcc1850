// OSLO's tensor-parallelism tutorial in C++: GPT-2 on SQuAD's contexts. The README.md in this
// folder shows a run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/launch/failure.h"
#include "cleave/mesh/job.h"
#include "examples/checks.h"
#include "squad.h"
#include "tutorial.h"

namespace gpt2_squad {
namespace {

struct Arguments {
  TutorialOptions tutorial{.model = "", .config = cleave::Json::parse("{}", "no config")};
  std::string data, config_file;
  std::string text = "I don't want a lot for Christmas. There is just one thing";
  int tensor_parallel_size = 2;
  int num_ranks = 0;
};

// deepspeed starts a script with --local_rank=N.
std::vector<std::string> without_local_rank(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const std::optional<int> local_rank = cleave::take_local_rank(words);
  if (const auto environment = cleave::read_environment()) {
    cleave::check_local_rank(*environment, local_rank);
  }
  return words;
}

Arguments parse(int argc, char** argv) {
  Arguments a;
  TutorialOptions& t = a.tutorial;
  t.print = true;
  if (const char* folder = std::getenv("CLEAVE_DATA")) {
    t.model = std::string(folder) + "/models/gpt2-shakespeare";
    a.data = std::string(folder) + "/text/squad/squad-v1.1-dev-part.json";
  }
  CLI::App app("OSLO's tutorial: GPT-2 on SQuAD's contexts, tensor parallel", "gpt2_squad");
  app.option_defaults()->always_capture_default();
  const auto count = [&](const char* flag, auto& value, const char* help, int64_t least) {
    app.add_option(flag, value, help)->check(CLI::Range(least, int64_t{1000000}));
  };
  app.add_option("--model", t.model, "folder of a GPT-2 with its tokenizer");
  app.add_option("--data", a.data, "file in SQuAD's format");
  app.add_option("--config", a.config_file, "OSLO's JSON file; replaces --tensor_parallel_size");
  count("--tensor_parallel_size", a.tensor_parallel_size, "", 1);
  count("--num_ranks", a.num_ranks, "number of ranks; 0: one copy of the model", 0);
  app.add_option("--output_dir", t.output_dir, "folder for parallel_ckpt and merged_ckpt");
  count("--batch_size", t.batch_size, "sequences per data-parallel rank", 1);
  count("--seq_len", t.seq_len, "tokens per sequence", 2);
  count("--save_interval", t.save_interval, "", 1);
  count("--train_step", t.train_step, "", 1);
  app.add_option("--lr", t.lr)->check(examples::check_rate, "in [0 - 1]");
  app.add_option("--seed", t.seed, "seed of the order of the contexts")
      ->check(examples::check_seed);
  app.add_flag("--learn_padding", t.learns_padding, "the loss counts padding, as in OSLO");
  app.add_option("--text", a.text, "text to continue with beam search (3 beams)");
  try {
    std::vector<std::string> words = without_local_rank(argc, argv);
    std::reverse(words.begin(), words.end());  // CLI11 reads a vector from its end
    app.parse(words);
  } catch (const CLI::Success& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    throw cleave::Error(cleave::Code::kUsage, error.what());
  }
  CLEAVE_CHECK(!t.model.empty() && !a.data.empty(), cleave::Code::kUsage,
               "--model or --data is missing and CLEAVE_DATA is not set; name the folder of a "
               "GPT-2 and a file in SQuAD's format");
  const std::string text = cleave::str(R"({"model_parallelism": {"tensor_parallel_size": )",
                                       a.tensor_parallel_size, "}}");
  t.config = a.config_file.empty()
                 ? cleave::oslo::Config(cleave::Json::parse(text, "--tensor_parallel_size"))
                 : cleave::oslo::Config(a.config_file);
  if (a.num_ranks == 0) a.num_ranks = t.config.tensor_parallel_size;
  return a;
}

void run(cleave::World& world, const Arguments& a, const std::vector<std::string>& contexts) {
  if (world.rank() == 0) std::printf("%zu contexts\n", contexts.size());
  train(world, a.tutorial, contexts);
  if (a.tutorial.output_dir.empty()) return;
  const std::string text = merge(world, a.tutorial, a.text);
  if (world.rank() == 0) std::printf("merged into merged_ckpt\n%s\n", text.c_str());
}

}  // namespace
}  // namespace gpt2_squad

int main(int argc, char** argv) {
  return cleave::run_main([&] {
    const auto a = gpt2_squad::parse(argc, argv);
    const auto contexts = gpt2_squad::read_contexts(a.data);
    cleave::run_job(a.num_ranks,
                    [&](cleave::World& world) { gpt2_squad::run(world, a, contexts); });
    return 0;
  });
}
