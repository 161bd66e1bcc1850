// Flags of other programs, and words without a flag.
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/cli/synonyms.h"
#include "tests/e2e/fake_program.h"

namespace cleave::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Words = std::vector<std::string>;

// The first words of the lines of help that describe a flag, by command: "--lr RATE".
std::vector<std::pair<std::string, std::string>> flags_in_help() {
  std::vector<std::pair<std::string, std::string>> found;
  for (const char* command :
       {"train", "generate", "eval", "predict", "verify", "plan", "launch", "convert"}) {
    std::istringstream help(run_cleave({command, "--help"}).out);
    for (std::string line; std::getline(help, line);) {
      if (line.starts_with("  [")) line = "  " + line.substr(3, line.find(']') - 3) + " DIR";
      if (!line.starts_with("  -")) continue;
      found.emplace_back(command, line.substr(2, line.find("  ", 2) - 2));
    }
  }
  return found;
}

TEST(Synonyms, EveryFlagAndValue_ExistsInTheHelpOfACommand) {
  const auto all = flags_in_help();
  ASSERT_GT(all.size(), 100U);
  for (const cli::Synonym& synonym : cli::synonyms()) {
    const std::string flag = (synonym.flag.size() == 1 ? "-" : "--") + std::string(synonym.flag);
    const bool has_choice = synonym.rest.starts_with(' ') && flag == "--dtype";
    bool is_there = false;
    for (const auto& [command, text] : all) {
      const bool is_it = text == flag || text.starts_with(flag + ' ');
      const std::string value = has_choice ? std::string(synonym.rest.substr(1)) : "";
      is_there = is_there || (is_it && text.find(value) != std::string::npos);
    }
    EXPECT_TRUE(is_there) << flag << synonym.rest;
  }
}

TEST(Synonyms, Names_StandForEachFlagOnce) {
  std::set<std::string> seen;
  for (const cli::Synonym& synonym : cli::synonyms()) {
    std::istringstream names{std::string(synonym.names)};
    for (std::string name; names >> name;) {
      EXPECT_TRUE(seen.insert(name + " " + std::string(synonym.flag)).second) << name;
      EXPECT_NE(name, synonym.flag);
    }
  }
}

class Word : public testing::Test {
 protected:
  Word() {
    std::filesystem::create_directories(folder_ / "model");
    std::ofstream(in("data.txt")) << "text";
  }
  [[nodiscard]] std::string in(const std::string& name) const { return folder_ / name; }

  TempFolder folder_;
};

void expect_refused(const Words& words, const std::string& message) {
  const RunResult ran = run_fake(words);
  EXPECT_EQ(ran.err, "cleave: " + message + "\n");
  EXPECT_EQ(ran.exit_code, 2);
}

TEST(Synonyms, FlagOfAnotherProgram_NamesOurs) {
  const auto expect = [](const Words& words, const std::string& end) {
    expect_refused(words, "unknown flag " + words[1] + "; did you mean " + end);
  };
  expect({"train", "--learning-rate", "1e-3"}, "--lr");
  expect({"train", "--learning_rate", "1e-3"}, "--lr");
  expect({"train", "--optimizer.lr", "1e-3"}, "--lr");
  expect({"train", "--training.seq_len", "8"}, "--seq-len");
  expect({"train", "--parallelism.tensor_parallel_degree", "2"}, "--tp");
  expect({"train", "--tensor-model-parallel-size", "2"}, "--tp");
  expect({"train", "--pipeline-model-parallel-size", "2"}, "--pp");
  expect({"train", "--num-train-epochs", "2"}, "--epochs");
  expect({"train", "--output-dir", "x"}, "--out");
  expect({"train", "--max-steps", "2"}, "--steps");
  expect({"train", "--warmup-steps", "2"}, "--warmup");
  expect({"train", "--lr-wsd-decay-iters", "2"}, "--decay-steps");
  expect({"train", "--early-stopping-patience", "2"}, "--early-stop");
  expect({"train", "--bf16"}, "--dtype bf16");
  expect({"train", "--fp16"}, "--dtype fp16");
  expect({"generate", "--fp16"}, "--dtype fp32|bf16|int8|int4|int4_sym|fp64");
  expect({"generate", "--max-tokens", "5"}, "--max-new-tokens");
  expect({"generate", "-n", "5"}, "--max-new-tokens");
  expect({"train", "-n", "2"}, "--tp");
  expect({"train", "--batch", "2"}, "--batch-size");
  expect({"train", "--per-device-train-batch-size", "2"},
         "--batch-size; it counts the sequences of a step over all ranks");
  expect({"train", "--gradient-accumulation-steps", "2"},
         "--micro-batch-size; --batch-size counts the sequences of a whole step over all ranks, "
         "and the gradients of its micro-batches are summed");
  expect({"convert", "--output", "x"}, "--to");
  expect({"train", "--gpus", "2"}, "--device cuda");
  expect({"plan", "--num-gpus", "2"}, "--ranks");
  expect({"plan", "--gpus", "2"}, "--ranks");
  expect({"generate", "--temp", "0.5"}, "--temperature");
  expect({"generate", "-t", "2"}, "--threads-per-rank");
  expect({"generate", "-i"}, "--chat");
  expect({"train", "--lora-r", "8"}, "--lora");
  expect({"train", "--qlora"}, "--lora 16 --lora-base nf4");
  expect({"train", "--load-in-4bit"}, "--lora-base nf4");
  expect({"train", "--use_dora"}, "--dora");
  expect({"train", "--lora_target_modules", "q_proj"}, "--lora-targets");
  expect({"train", "--beta", "0.1"}, "--dpo-beta");
  expect({"train", "--assistant_only_loss"}, "--train-on assistant");
  expect({"train", "--evaluation_strategy", "steps"}, "--eval-every; it counts steps");
  expect({"train", "--min_lr_rate", "0.1"}, "--min-lr; it is a learning rate, not a share of --lr");
  expect({"train", "--profile"}, "--record-step; it records what all ranks do");
  expect({"train", "--trace"}, "--record-step; it records what all ranks do");
}

TEST(Synonyms, MisspelledFlagOfAnotherProgram_NamesOurs) {
  const auto expect = [](const Words& words, const std::string& end) {
    expect_refused(words, "unknown flag " + words[1] + "; did you mean " + end);
  };
  expect({"train", "--lerning-rate", "1e-3"}, "--lr");
  expect({"train", "--gradient_acumulation_steps", "2"},
         "--micro-batch-size; --batch-size counts the sequences of a whole step over all ranks, "
         "and the gradients of its micro-batches are summed");
  expect({"train", "--num-train-epoch", "2"}, "--epochs");
  expect({"generate", "--max-lenght", "5"}, "--max-new-tokens");
  // The flag of ours is nearer than --eval-dataset.
  expect({"train", "--eval-datas", "x"}, "--eval-data");
  expect({"train", "--seq_lne", "8"}, "--seq-len");
  // More letters differ from --num-ranks than a misspelling has; generate has no --lr.
  expect_refused({"train", "--num-shards", "x"},
                 "unknown flag --num-shards; see cleave train --help");
  expect_refused({"generate", "--lerning-rate", "1"},
                 "unknown flag --lerning-rate; see cleave generate --help");
}

// These have no counterpart, and a similar name is not meant: neither --dora nor --model.
TEST(Synonyms, FlagWithoutACounterpart_SaysWhatToDoInstead) {
  const auto expect = [](const Words& words, const std::string& advice) {
    expect_refused(words, "unknown flag " + words[1] + "; " + advice);
  };
  expect({"train", "--do_train"},
         "cleave train trains, cleave eval and cleave predict do the rest");
  expect({"train", "--logging_steps", "10"},
         "metrics.jsonl in --out has a line for each step; leave it out");
  expect({"train", "--nnodes", "2"},
         "--tp, --pp and --dp start ranks on this host, cleave launch on several hosts");
  expect({"train", "--world-size", "2"},
         "--tp, --pp and --dp start ranks on this host, cleave launch on several hosts");
  expect({"train", "--deepspeed", "ds.json"}, "for ZeRO-1 give --zero 1, for ZeRO-3 --fsdp");
  expect({"train", "--cp", "2"},
         "there is no context parallelism; --tp N --sequence-parallel shards activations along the "
         "sequence");
  expect({"train", "--model.num_hidden_layers", "4"},
         "the sizes of a new model are in its config.json; give that file as --model");
  expect({"train", "--overwrite_output_dir"},
         "no run is overwritten; choose another --out, or resume it with --resume");
  expect({"train", "--sharding-strategy", "FULL_SHARD"},
         "--dp N is data parallel; --zero 1 also shards the optimizer over its ranks, and --fsdp "
         "everything");
  expect({"generate", "-ngl", "99"}, "--device cuda runs the whole model on GPUs");
  expect({"generate", "--ctx-size", "20"},
         "the text may be as long as the model's positions; leave it out");
  expect({"generate", "-c", "20"},
         "the text may be as long as the model's positions; leave it out");
  expect({"train", "--flash-attn"}, "fused kernels are the default; leave it out");
  expect({"train", "--fp8"}, "there is no fp8; --dtype bf16 is the smallest type of training");
  expect({"train", "--log-level", "info"}, "there are no log levels; leave it out");
  expect({"train", "--num-workers", "2"},
         "files are read as they are needed, without other processes; leave it out");
}

// Fields of transformers' TrainingArguments, of TRL's SFTConfig and DPOConfig, and of PEFT's
// LoraConfig.
TEST(Synonyms, FieldsOfHuggingFacesSettings_HaveAHint) {
  std::istringstream names(
      "adam_beta1 adam_beta2 adam_epsilon activation_offloading alpha_pattern assistant_only_loss "
      "auto_find_batch_size average_tokens_across_devices beta bf16 bf16_full_eval bias "
      "chat_template_path completion_only_loss data_seed dataloader_drop_last "
      "dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory "
      "dataloader_prefetch_factor dataset_num_proc dataset_text_field ddp_backend "
      "ddp_bucket_cap_mb ddp_find_unused_parameters ddp_timeout debug deepspeed disable_dropout "
      "disable_tqdm do_eval do_predict do_train eos_token eval_accumulation_steps eval_delay "
      "eval_on_start eval_packing eval_steps eval_strategy exclude_modules f_divergence_type "
      "fan_in_fan_out fp16 fp16_full_eval fsdp_config full_determinism "
      "gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs "
      "greater_is_better group_by_length hub_model_id hub_private_repo hub_strategy hub_token "
      "ignore_data_skip init_lora_weights label_names label_smoothing label_smoothing_factor "
      "layer_replication layers_pattern layers_to_transform ld_alpha learning_rate "
      "liger_kernel_config load_best_model_at_end loftq_config log_level logging_first_step "
      "logging_steps logging_strategy lora_bias lr_scheduler_kwargs lr_scheduler_type "
      "max_grad_norm max_length max_prompt_length max_steps metric_for_best_model modules_to_save "
      "neftune_noise_alpha num_train_epochs optim optim_args optim_target_modules output_dir "
      "overwrite_output_dir packing_strategy pad_token padding_free peft_type "
      "per_device_eval_batch_size per_device_train_batch_size precompute_ref_log_probs "
      "prediction_loss_only push_to_hub r rank_pattern remove_unused_columns report_to "
      "resume_from_checkpoint router_aux_loss_coef run_name save_only_model save_steps "
      "save_strategy save_total_limit shuffle_dataset sync_ref_model target_modules "
      "target_parameters task_type tf32 torch_compile train_sampling_strategy "
      "trainable_token_indices truncation_mode trust_remote_code use_cache use_cpu use_dora "
      "use_liger_kernel use_qalora use_rslora use_weighting warmup_ratio warmup_steps");
  for (std::string name; names >> name;) {
    const RunResult ran = run_fake({"train", "--" + name, "1"});
    EXPECT_EQ(ran.exit_code, 2) << name;
    EXPECT_THAT(ran.err, StartsWith("cleave: unknown flag --" + name + "; "));
    EXPECT_THAT(ran.err, Not(HasSubstr("--help"))) << name;
  }
  const auto expect = [](const std::string& flag, const std::string& hint) {
    expect_refused({"train", flag, "1"}, "unknown flag " + flag + "; " + hint);
  };
  expect("--neftune_noise_alpha", "there is no noise on embeddings; leave it out");
  expect("--group_by_length", "did you mean --packing; it saves padding");
  expect("--load_best_model_at_end",
         "did you mean --early-stop; it keeps the checkpoint with the lowest loss on --eval-data");
  // No similar name is meant: neither --eval-data nor --lora-base, --lora-alpha and --lora.
  expect("--eval_delay", "--eval-every sets the steps of evaluations");
  expect("--ld_alpha",
         "--task dpo has DPO's sigmoid loss, other tasks cross-entropy; leave it out");
  for (const char* flag : {"--lora_bias", "--use_qalora"}) {
    expect(flag,
           "of PEFT's settings there are --lora, --lora-alpha, --lora-targets, --lora-dropout, "
           "--rslora and --dora");
  }
}

// The advice names --zero, --dp, --resume and others, which these commands lack.
TEST(Synonyms, AdviceOnFlagsThatTheCommandLacks_IsNotGiven) {
  for (const char* command : {"generate", "eval"}) {
    for (const char* flag : {"--deepspeed", "--cpu-offload", "--nnodes", "--sharding-strategy",
                             "--overwrite-output-dir"}) {
      expect_refused({command, flag, "x"},
                     str("unknown flag ", flag, "; see cleave ", command, " --help"));
    }
    expect_refused({command, "--cp", "2"}, "unknown flag --cp; there is no context parallelism");
  }
  expect_refused({"eval", "--ctx-size", "20"}, "unknown flag --ctx-size; did you mean --seq-len");
  expect_refused({"eval", "--n-ctx", "20"}, "unknown flag --n-ctx; did you mean --seq-len");
  expect_refused({"train", "--max-model-len", "20"},
                 "unknown flag --max-model-len; did you mean --seq-len");
  expect_refused({"eval", "-c", "c.json"}, "unknown flag -c; did you mean --config");
  expect_refused({"generate", "--config-file", "c.json"},
                 "unknown flag --config-file; did you mean --config");
}

TEST(Synonyms, ValueOfAnotherProgram_NamesOurs) {
  const auto expect = [](const Words& words, const std::string& meant) {
    expect_refused(words, words[1] + " is '" + words[2] + "'; did you mean " + meant);
  };
  expect({"train", "--zero", "3"}, "--fsdp, which shards as ZeRO-3 does");
  expect({"train", "--zero", "2"}, "--fsdp, which shards as ZeRO-3 does; there is no ZeRO-2");
  expect({"plan", "--zero", "3"}, "--fsdp, which shards as ZeRO-3 does");
  expect({"train", "--dtype", "bfloat16"}, "bf16");
  expect({"train", "--dtype", "half"}, "fp16");
  expect({"train", "--device", "gpu"}, "cuda");
  for (const char* name : {"fp16", "float16", "half"}) {
    expect({"generate", "--dtype", name}, "fp32, in which fp16 files run without rounding");
  }
}

TEST_F(Word, ZeroInAConfigFile_NamesFsdp) {
  std::ofstream(in("c.json")) << R"({"zero": 3})";
  expect_refused(
      {"train", "--config", in("c.json")},
      in("c.json") + ": \"zero\" is '3'; did you mean --fsdp, which shards as ZeRO-3 does");
}

TEST_F(Word, SynonymInAConfigFile_NamesTheKey) {
  std::ofstream(in("c.json")) << R"({"learning_rate": 1e-3})";
  expect_refused({"train", "--config", in("c.json")},
                 in("c.json") + ": unknown key \"learning_rate\"; did you mean \"lr\"");
  std::ofstream(in("typo.json")) << R"({"lerning_rate": 1e-3})";
  expect_refused({"train", "--config", in("typo.json")},
                 in("typo.json") + ": unknown key \"lerning_rate\"; did you mean \"lr\"");
}

// Oracle: the same command line with --model.
TEST_F(Word, ModelWithoutItsFlag_IsTheModelInEveryCommand) {
  const std::vector<Words> commands = {{"eval", "--data", in("data.txt")},
                                       {"generate", "--prompt", "a"},
                                       {"verify", "--tp", "2"},
                                       {"train", "--data", in("data.txt"), "--out", in("out")}};
  for (const Words& command : commands) {
    Words with_flag = command;
    with_flag.insert(with_flag.end(), {"--model", in("model")});
    auto wanted = received_options(with_flag);
    Words first = command;
    first.insert(first.begin() + 1, in("model"));
    auto got = received_options(first);
    wanted.erase("command");
    got.erase("command");
    EXPECT_EQ(got, wanted) << command.front();
    EXPECT_EQ(got["model"], in("model"));
  }
  std::ofstream(in("c.json")) << R"({"model": "other"})";
  EXPECT_EQ(received_options({"verify", in("model"), "--config", in("c.json")})["model"],
            in("model"));
}

TEST_F(Word, MoreWordsThanOneModel_AreRefused) {
  expect_refused({"eval", in("model"), "more", "--data", in("data.txt")},
                 "unexpected word 'more'; see cleave eval --help");
  expect_refused({"eval", "more", "--model", in("model")},
                 "unexpected word 'more'; did you mean --data 'more'");
  expect_refused({"train", "--fsdp", "true", "--data", in("data.txt"), "--out", in("new")},
                 "unexpected word 'true'; a switch takes no value, as in --NAME and --no-NAME");
  expect_refused(
      {"train", "--fsdp", "full_shard auto_wrap", "--data", in("data.txt")},
      "unexpected word 'full_shard auto_wrap'; a switch takes no value, as in --NAME and "
      "--no-NAME");
  // A text may begin with such a word.
  expect_refused({"generate", in("model"), "no one knows"},
                 "unexpected word 'no one knows'; did you mean --prompt 'no one knows'");
  expect_refused(
      {"tokenize", "--tokenizer", "bytes", in("data.txt")},
      "unexpected word '" + in("data.txt") + "'; did you mean --file '" + in("data.txt") + "'");
  expect_refused({"doctor", "more"}, "unexpected word 'more'; see cleave doctor --help");
  expect_refused({"inspect", "--model", in("model")},
                 "unknown flag --model; did you mean cleave inspect PATH");
}

// As a page or an editor shows "--": EN DASH, EM DASH, MINUS SIGN.
TEST_F(Word, FlagWithALongDash_IsNamedWithTwoHyphens) {
  for (const std::string dash : {"\xE2\x80\x93", "\xE2\x80\x94", "\xE2\x88\x92"}) {
    const std::string rest = "' begins with a long dash; did you mean --steps, with two hyphens";
    expect_refused({"train", "--out", in("new"), dash + "steps", "3"}, "'" + dash + "steps" + rest);
    expect_refused({"train", "--data", in("data.txt"), dash + "steps=3", "--out", in("new")},
                   "'" + dash + "steps=3" + rest);
    expect_refused({"train", "--out", in("new"), dash + "none", "more"},
                   "unexpected word 'more'; did you mean --data 'more'");
  }
}

TEST_F(Word, Help_ShowsThatTheFlagMayBeLeftOut) {
  for (const char* command : {"eval", "generate", "predict", "verify", "plan", "train"}) {
    EXPECT_THAT(run_cleave({command, "--help"}).out, HasSubstr("\n  [--model] ")) << command;
  }
  EXPECT_THAT(run_cleave({"convert", "--help"}).out, HasSubstr("\n  [--from] DIR "));
}

}  // namespace
}  // namespace cleave::test
