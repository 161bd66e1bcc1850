// NeuronX Distributed's developer guide in C++: BERT pre-training with tensor-parallel attention
// and data parallelism. The README.md in this folder shows a run.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "cleave/base/error.h"
#include "cleave/comm/launch/failure.h"
#include "cleave/mesh/job.h"
#include "examples/checks.h"
#include "pretrain.h"

using namespace bert_pretraining;  // NOLINT(google-build-using-namespace)

namespace {

struct Arguments {
  PretrainOptions train;
  DatasetOptions data;
  int num_ranks = 0;
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  a.train.print = true;
  if (const char* folder = std::getenv("CLEAVE_DATA")) {
    a.data.file = std::string(folder) + "/text/wikitext-2/valid.txt";
    a.train.tokenizer_folder = std::string(folder) + "/tokenizers/bert-base-uncased";
  }
  CLI::App app("BERT pre-training: masked tokens and next sentences, over tp x dp ranks");
  app.option_defaults()->always_capture_default();
  const auto count = [&](const char* flag, auto& value, const char* help, int64_t least) {
    app.add_option(flag, value, help)->check(CLI::Range(least, int64_t{1000000}));
  };
  app.add_option("--data", a.data.file, "text; lines ' = Title = ' begin documents");
  app.add_option("--tokenizer", a.train.tokenizer_folder, "folder with a WordPiece vocab.txt");
  app.add_option("--output_dir", a.train.output_dir, "new folder for the trained model");
  count("--num_ranks", a.num_ranks, "number of ranks; 0: tensor_parallel_size", 0);
  count("--tensor_parallel_size", a.train.tensor_parallel_size, "", 1);
  count("--batch_size", a.train.batch_size, "sequences per data-parallel rank and micro-batch", 1);
  count("--grad_accum_usteps", a.train.grad_accum_usteps, "micro-batches per step", 1);
  count("--max_steps", a.train.max_steps, "", 1);
  count("--warmup_steps", a.train.warmup_steps, "", 0);
  app.add_option("--lr", a.train.lr)->check(examples::check_rate, "in [0 - 1]");
  app.add_option("--seed", a.train.seed)->check(examples::check_seed);
  count("--max_seq_length", a.data.seq_len, "", 8);
  count("--max_pred_length", a.data.max_pred_length, "most masked tokens per sequence", 1);
  count("--max_documents", a.data.max_documents, "0: all", 0);
  count("--hidden_size", a.train.model.hidden_size, "", 1);
  count("--num_hidden_layers", a.train.model.num_hidden_layers, "", 1);
  count("--num_attention_heads", a.train.model.num_attention_heads, "", 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    throw cleave::Error(cleave::Code::kUsage, error.what());
  }
  // A save is refused there too, but after the training.
  CLEAVE_CHECK(a.train.output_dir.empty() || !std::filesystem::exists(a.train.output_dir),
               cleave::Code::kUsage, "--output_dir ", a.train.output_dir,
               " exists already; remove it or choose another folder");
  CLEAVE_CHECK(!a.data.file.empty() && !a.train.tokenizer_folder.empty(), cleave::Code::kUsage,
               "--data or --tokenizer is missing and CLEAVE_DATA is not set; name a text and the "
               "folder of a WordPiece tokenizer");
  if (a.num_ranks == 0) a.num_ranks = a.train.tensor_parallel_size;
  a.data.tokenizer = cleave::load_tokenizer(a.train.tokenizer_folder);
  a.data.seed = a.train.seed;
  a.train.model.vocab_size = a.data.tokenizer->vocab_size();
  a.train.model.intermediate_size = 4 * a.train.model.hidden_size;
  a.train.model.max_position_embeddings = a.data.seq_len;
  return a;
}

}  // namespace

int main(int argc, char** argv) {
  return cleave::run_main([&] {
    const Arguments a = parse(argc, argv);
    const PretrainingDataset dataset(a.data);  // shared by all rank threads of this process
    std::printf("%lld sequences of %lld tokens\n", static_cast<long long>(dataset.size()),
                static_cast<long long>(a.data.seq_len));
    cleave::run_job(a.num_ranks, [&](cleave::World& world) { pretrain(world, a.train, dataset); });
    return 0;
  });
}
