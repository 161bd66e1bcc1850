#include "pretrain.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "cleave/model/bert/bert.h"
#include "save.h"
#include "tests/support/golden.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_folder.h"

namespace bert_pretraining {
namespace {

using cleave::World;

PretrainingDataset some_text(int64_t max_documents = 6) {
  const std::string folder = cleave::test::data_folder();
  DatasetOptions o;
  o.file = folder + "/text/wikitext-2/valid.txt";
  o.tokenizer = cleave::load_tokenizer(folder + "/tokenizers/bert-base-uncased");
  o.seq_len = 24;
  o.max_pred_length = 4;
  o.max_documents = max_documents;
  return PretrainingDataset(o);
}

PretrainOptions small_run(int64_t steps) {
  PretrainOptions o;
  o.model.vocab_size = 30522;
  o.model.hidden_size = 16;
  o.model.num_attention_heads = 4;
  o.model.intermediate_size = 32;
  o.model.max_position_embeddings = 24;
  o.max_steps = steps;
  o.warmup_steps = 3;
  o.lr = 1e-2;
  o.seed = 3;
  return o;
}

std::vector<Step> run(PretrainOptions options, int tp, int dp, const PretrainingDataset& dataset) {
  options.tensor_parallel_size = tp;
  options.batch_size /= dp;
  std::vector<Step> steps;
  cleave::run_ranks(tp * dp, [&](World& world) {
    at::get_num_threads();
    at::set_num_threads(1);
    const auto got = pretrain(world, options, dataset);
    if (world.rank() == 0) steps = got;
  });
  return steps;
}

// Oracle: one rank. Dropout, masks and pairs are identical; in fp64 only the order of sums differs,
// so losses stay within 1e-9 although each step depends on the earlier ones.
TEST(RealBertPretraining, AnyLayoutInFp64_GivesTheLossesAndNormsOfOneRank) {
  CLEAVE_NEEDS_DATA();
  const auto dataset = some_text();
  PretrainOptions o = small_run(12);
  o.model.dtype = at::kDouble;
  const auto want = run(o, 1, 1, dataset);
  for (const auto& [tp, dp] : std::vector<std::pair<int, int>>{{2, 1}, {2, 2}, {4, 1}}) {
    const auto got = run(o, tp, dp, dataset);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i].loss, want[i].loss, 1e-9) << "step " << i << " tp " << tp << " dp " << dp;
      EXPECT_NEAR(got[i].grad_norm, want[i].grad_norm, 1e-9) << "step " << i << " tp " << tp;
    }
  }
  // Two micro-batches of half the size are the same global batch.
  PretrainOptions halves = o;
  halves.batch_size /= 2;
  halves.grad_accum_usteps = 2;
  const auto got = run(halves, 2, 1, dataset);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i].loss, want[i].loss, 1e-9);
}

TEST(RealBertPretraining, OnRealText_TheLossFalls) {
  CLEAVE_NEEDS_DATA();
  const auto steps = run(small_run(60), 2, 2, some_text());
  double first = 0, last = 0;
  for (size_t i = 0; i < 10; ++i) {
    first += steps[i].loss / 10;
    last += steps[steps.size() - 1 - i].loss / 10;
  }
  EXPECT_NEAR(steps[0].loss, std::log(30522.0) + std::log(2.0), 0.5);  // uniform guesses
  EXPECT_LT(last, first - 1.5);
}

// Oracle: Cleave's own BERT (tested with golden files) on another number of ranks.
TEST(RealBertPretraining, SavedModel_IsTheLibrarysBert) {
  CLEAVE_NEEDS_DATA();
  const auto dataset = some_text();
  const Batch batch = dataset.batch({0, 1, 2}, 0);
  const cleave::test::TempFolder temporary;
  const std::string folder = (temporary / "saved").string();
  Scores want;
  const BertConfig config = [] {
    BertConfig c = small_run(0).model;
    c.dtype = at::kDouble;
    return c;
  }();
  cleave::run_ranks(2, [&](World& world) {
    nxd::initialize_model_parallel(world, {.tensor_model_parallel_size = 2});
    BertForPreTraining model(config);
    nxd::move_model_to_device(model, at::kCPU, {.seed = 2, .dtype = at::kDouble});
    cleave::Optimizer optimizer(model.parameters(), {});
    save({.folder = folder,
          .tokenizer_folder = cleave::test::data_folder() + "/tokenizers/bert-base-uncased",
          .step = 0},
         world, model, optimizer);
    const at::NoGradGuard no_grad;
    const Scores scores = model(batch, Context());
    if (world.rank() == 0) want = scores;
    nxd::destroy_model_parallel();
  });
  cleave::test::on_ranks(3, [&](const cleave::Axis& tp) {
    const at::NoGradGuard no_grad;
    const auto saved = cleave::ModelFolder::open(folder);
    const auto model = cleave::make_model(saved.config);
    cleave::parallelize_module(*model, tp, model->plan());
    cleave::load_model(*model, saved, at::kDouble);
    auto& bert = dynamic_cast<cleave::Bert&>(*model);
    Context context;
    context.key_mask = batch.attention_mask;
    context.token_types = batch.token_types;
    const auto hidden = bert.hidden({batch.ids, tp, cleave::Replicate{}}, context);
    const Tensor words = (*bert.predictions())(hidden, context).full_tensor();
    const Tensor next =
        (*bert.seq_relationship())((*bert.pooler())(hidden, context), context).full_tensor();
    const Tensor index = batch.masked_positions.unsqueeze(-1).expand({-1, -1, words.size(-1)});
    EXPECT_LE(cleave::test::largest_difference(words.gather(1, index), want.words), 1e-12);
    EXPECT_LE(cleave::test::largest_difference(next, want.next), 1e-12);
  });
}

// Oracle: the recipe's probabilities, within five standard deviations; there are enough sequences
// for these to be a few percent.
TEST(RealPretrainingDataset, MaskedTokens_FollowTheRecipe) {
  CLEAVE_NEEDS_DATA();
  const auto dataset = some_text(0);
  std::vector<int64_t> indices(std::min<size_t>(2000, static_cast<size_t>(dataset.size())));
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i);
  const Batch b = dataset.batch(indices, 1);
  const auto valid = b.masked_labels.ne(-100);
  const auto seen = b.ids.gather(1, b.masked_positions);
  const auto share = [&](const Tensor& which) {
    return which.logical_and(valid).sum().item<double>() / valid.sum().item<double>();
  };
  const int64_t mask = 103;  // of bert-base-uncased
  const double count = valid.sum().item<double>();
  const auto bound = [&](double p) { return 5 * std::sqrt(p * (1 - p) / count); };
  EXPECT_NEAR(share(seen.eq(mask)), 0.8, bound(0.8));
  EXPECT_NEAR(share(seen.eq(b.masked_labels)), 0.1, bound(0.1));
  const double num_pairs = static_cast<double>(indices.size());
  EXPECT_NEAR(b.next_sentence.sum().item<double>() / num_pairs, 0.5,
              5 * 0.5 / std::sqrt(num_pairs));
  // 15 % of the tokens, at most max_pred_length.
  EXPECT_LE(valid.sum(1).max().item<int64_t>(), 4);
  EXPECT_GE(valid.sum(1).min().item<int64_t>(), 1);
  // Other tokens are masked in another epoch.
  EXPECT_TRUE(at::equal(dataset.batch(indices, 1).ids, b.ids));
  EXPECT_FALSE(at::equal(dataset.batch(indices, 2).ids, b.ids));
}

// Oracle: the sequences of all ranks are one global batch; an epoch visits each sequence once.
TEST(DistributedSampler, OverAnyNumberOfRanks_VisitsEachSequenceOncePerEpoch) {
  for (const int ranks : {1, 2, 3}) {
    std::set<int64_t> seen;
    size_t count = 0;
    int64_t batches = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      DistributedSampler sampler({.dataset_size = 50,
                                  .num_replicas = ranks,
                                  .rank = rank,
                                  .batch_size = 12 / ranks,
                                  .seed = 1});
      sampler.set_epoch(2);
      batches = sampler.num_batches();
      for (int64_t b = 0; b < batches; ++b) {
        for (const int64_t index : sampler.batch(b)) {
          seen.insert(index);
          ++count;
        }
      }
    }
    EXPECT_EQ(batches, 4);
    EXPECT_EQ(count, 48U);  // the last two do not fill a batch
    EXPECT_EQ(seen.size(), 48U);
  }
  const auto first_of = [](int64_t epoch) {
    DistributedSampler sampler({.dataset_size = 50, .batch_size = 8});
    sampler.set_epoch(epoch);
    return sampler.batch(0);
  };
  EXPECT_EQ(first_of(1), first_of(1));
  EXPECT_NE(first_of(1), first_of(2));
}

TEST(BertPretraining, NumbersOutsideTheirRange_ExitWith2AndName) {
  for (const char* flag : {"--batch_size=0", "--grad_accum_usteps=-1", "--max_steps=0",
                           "--max_documents=-1", "--num_attention_heads=0", "--lr=-1", "--lr=nan",
                           "--lr=inf", "--seed=-1", "--seed=18446744073709551616"}) {
    const auto ran = cleave::test::run_program({CLEAVE_EXAMPLE, flag});
    EXPECT_EQ(ran.exit_code, 2) << flag << ran.err;
    const std::string name = std::string(flag).substr(0, std::string(flag).find('='));
    EXPECT_NE(ran.err.find(name + ": "), std::string::npos) << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  }
}

TEST(BertPretraining, OutputFolderThatExists_IsRefusedBeforeTraining) {
  const cleave::test::TempFolder folder;
  const std::string path = folder.path().string();
  const auto ran = cleave::test::run_program({CLEAVE_EXAMPLE, "--output_dir", path});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_EQ(ran.err, "cleave: --output_dir " + path +
                         " exists already; remove it or choose another folder\n");
  EXPECT_EQ(ran.out, "");
}

TEST(RealBertPretraining, HeadsThatDoNotDivide_AreRefusedByName) {
  CLEAVE_NEEDS_DATA();
  const auto run = [](const std::vector<std::string>& flags) {
    std::vector<std::string> command = {CLEAVE_EXAMPLE, "--max_documents=3", "--max_steps=1"};
    command.insert(command.end(), flags.begin(), flags.end());
    return cleave::test::run_program(command);
  };
  auto ran = run({"--hidden_size=63"});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_EQ(ran.err, "cleave: num_attention_heads=4 does not divide hidden_size=63\n");
  ran = run({"--tensor_parallel_size=3"});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_EQ(ran.err, "cleave: tensor_parallel_size=3 does not divide num_attention_heads=4\n");
}

TEST(BertPretraining, WrongFlag_ExitsWith2InOneLine) {
  const auto ran = cleave::test::run_program({CLEAVE_EXAMPLE, "--no_such_flag"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_EQ(ran.err, "cleave: The following argument was not expected: --no_such_flag\n");
}

}  // namespace
}  // namespace bert_pretraining
