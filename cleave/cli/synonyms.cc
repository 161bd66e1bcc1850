#include "cleave/cli/synonyms.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <variant>

#include "cleave/base/option.h"
#include "cleave/base/str.h"
#include "cleave/base/suggest.h"

namespace cleave::cli {
namespace {

constexpr std::string_view kGlobal = "; it counts the sequences of a step over all ranks";
constexpr std::string_view kMicroBatches =
    "; --batch-size counts the sequences of a whole step over all ranks, and the gradients of its "
    "micro-batches are summed";

constexpr std::string_view kCountsSteps = "; it counts steps";

// A name may stand for several flags: the first that a command has is meant.
constexpr Synonym kSynonyms[] = {
    {"model",
     "model-name-or-path model-path model-name pretrained-model-name-or-path "
     "model-dir checkpoint checkpoint-path checkpoint-dir ckpt load from-pretrained "
     "m"},
    {"from", "model input src source"},
    {"to", "out output output-dir dst"},
    {"data",
     "train-file train-data train-data-path data-path data-file data-dir dataset "
     "dataset-path dataset-name dataset-files input input-file text-file"},
    {"eval-data",
     "validation-file valid-file eval-file eval-dataset valid-data valid-data-path "
     "validation-data"},
    {"tokenizer",
     "tokenizer-path tokenizer-name tokenizer-name-or-path tokenizer-model "
     "tokenizer-dir model"},
    {"text", "prompt input"},
    {"prompt", "text input p"},
    {"text-file", "prompt-file file input-file data"},
    {"prompt-file", "text-file file input-file data f"},
    {"chat", "interactive conversation i cnv"},
    {"temperature", "temp"},
    {"out", "output-dir output save save-dir save-folder logdir log-dir run-dir dump-folder o"},
    {"steps",
     "max-steps train-iters train-steps training-steps num-steps num-train-steps "
     "max-iters iterations iters num-iters"},
    {"epochs", "num-train-epochs num-epochs train-epochs"},
    {"seq-len",
     "max-seq-length max-seq-len seq-length sequence-length max-length block-size "
     "context-length context-size ctx-size model-max-length seq ctx n-ctx max-model-len "
     "cutoff-len"},
    {"max-new-tokens", "max-tokens max-length n-predict num-predict new-tokens n"},
    {"lr", "learning-rate peak-lr max-lr"},
    {"warmup", "warmup-steps lr-warmup-iters lr-warmup-steps num-warmup-steps warmup-iters"},
    {"schedule", "lr-scheduler-type lr-scheduler lr-schedule lr-decay-style scheduler decay-type"},
    {"min-lr", "lr-min eta-min lr-end"},
    {"decay-steps", "lr-wsd-decay-iters num-decay-steps wsd-decay-steps cooldown-steps"},
    {"clip", "max-grad-norm clip-grad grad-clip max-norm gradient-clipping gradient-clip-val"},
    {"ema", "ema-decay model-ema-decay use-ema"},
    {"weight-decay", "wd"},
    {"optimizer", "optim"},
    {"param-group", "param-groups parameter-group lr-mult"},
    {"adam-eps", "adam-epsilon eps"},
    {"seed", "random-seed data-seed s"},
    {"save-every", "save-steps save-interval save-freq checkpoint-interval interval"},
    {"keep-last", "save-total-limit keep-latest-k"},
    {"log", "report-to logging-dir tensorboard-dir tensorboard",
     " tensorboard; DIR/metrics.jsonl always has a line for each step"},
    {"record-step", "profile profiler enable-profiling trace", "; it records what all ranks do"},
    {"resume", "resume-from-checkpoint continue"},
    {"async-save", "async-mode async-checkpoint"},
    {"eval-every", "eval-steps eval-interval validation-freq"},
    {"early-stop", "early-stopping-patience early-stopping patience"},
    {"early-stop", "load-best-model-at-end metric-for-best-model greater-is-better",
     "; it keeps the checkpoint with the lowest loss on --eval-data"},
    {"quiet", "disable-tqdm"},
    {"tp",
     "tensor-model-parallel-size tensor-parallel-size tensor-parallel-degree "
     "tensor-parallel tp-size tp-degree ranks n"},
    {"pp",
     "pipeline-model-parallel-size pipeline-parallel-size pipeline-parallel-degree "
     "pipeline-parallel pp-size pp-degree"},
    {"dp",
     "data-parallel-size data-parallel-degree data-parallel-replicate-degree "
     "data-parallel dp-size dp-degree"},
    {"ep",
     "expert-model-parallel-size expert-parallel-size expert-parallel-degree expert-parallel "
     "ep-size"},
    {"lora", "lora-r lora-rank r"},
    {"lora", "qlora", " 16 --lora-base nf4"},
    {"lora", "use-lora peft use-peft peft-type finetuning-type adapter", " 16"},
    {"lora-targets", "lora-target-modules target-modules"},
    {"dora", "use-dora"},
    {"rslora", "use-rslora"},
    {"task", "task-type"},
    {"dpo-beta", "beta pref-beta"},
    {"train-on", "assistant-only-loss completion-only-loss", " assistant"},
    {"packing", "packing-strategy padding-free group-by-length train-sampling-strategy",
     "; it saves padding"},
    {"packing", "eval-packing", "; it packs --eval-data too"},
    {"lora-base", "load-in-8bit quantization-bit", " int8"},
    {"lora-base", "load-in-4bit bnb-4bit-quant-type", " nf4"},
    {"schedule-pp", "pipeline-parallel-schedule pipeline-schedule"},
    {"virtual-pipeline",
     "virtual-pipeline-model-parallel-size virtual-pipeline-size "
     "num-virtual-stages-per-pipeline-rank"},
    {"zero", "zero-stage stage"},
    {"recompute", "recompute-granularity activation-checkpoint-mode"},
    {"dtype", "torch-dtype precision mixed-precision data-type"},
    {"reduce-dtype", "mixed-precision-reduce communication-data-type grad-reduce-dtype"},
    {"reduce-dtype", "grad-reduce-in-bf16", " bf16"},
    {"threads-per-rank", "threads num-threads intra-op-threads t"},
    {"num-beams", "beam-size beam-width"},
    {"repetition-penalty", "repeat-penalty"},
    {"eos-id", "eos-token-id"},
    {"stop", "stop-sequence stop-strings reverse-prompt"},
    {"do-sample", "sample"},
    {"n", "nproc-per-node np nproc num-processes num-ranks world-size"},
    {"ranks", "world-size num-gpus gpus n-gpus num-ranks n"},
    {"max-restarts", "max-restart"},
    {"batch-size",
     "train-batch-size global-batch-size per-device-eval-batch-size eval-batch-size batch bs bsz "
     "b"},
    {"batch-size", "per-device-train-batch-size per-device-batch-size local-batch-size", kGlobal},
    {"micro-batch-size", "gradient-accumulation-steps grad-accum-steps accumulate-grad-batches",
     kMicroBatches},
    {"eval-every", "eval-strategy evaluation-strategy", kCountsSteps},
    {"save-every", "save-strategy", kCountsSteps},
    {"min-lr", "min-lr-rate min-lr-ratio", "; it is a learning rate, not a share of --lr"},
    {"warmup", "warmup-ratio lr-warmup-fraction", kCountsSteps},
    {"adam-betas", "adam-beta1 adam-beta2 betas", " B1,B2"},
    {"dtype", "bf16 bfloat16", " bf16"},
    {"dtype", "fp16 half float16", " fp16"},
    {"dtype", "fp32 float32", " fp32"},
    {"dtype", "int8 load-in-8bit", " int8"},
    {"dtype", "int4 load-in-4bit", " int4"},
    {"recompute", "gradient-checkpointing gradient-checkpointing-kwargs activation-checkpointing",
     " full"},
    {"recompute", "recompute-activations", " selective"},
    {"zero", "use-distributed-optimizer distributed-optimizer", " 1"},
    {"fsdp", "use-torch-fsdp2 use-fsdp2 fully-shard"},
    {"fsdp", "data-parallel-shard-degree", " --dp N"},
    {"device", "cpu use-cpu no-cuda", " cpu"},
    {"device", "gpu gpus num-gpus n-gpus cuda use-cuda", " cuda"},
    {"config", "config-file"},
};

// Flags of other programs for what needs no flag here, or does not exist here.
struct Advice {
  std::string_view names;  // separated by spaces
  std::string_view text;
  std::string_view flag{};  // ours, which the command must have; empty: advice for all commands
};

constexpr std::string_view kContextParallel =
    "context-parallel-size context-parallel-degree context-parallel cp cp-size";

constexpr Advice kAdvice[] = {
    {"do-train do-eval do-predict",
     "cleave train trains, cleave eval and cleave predict do the rest"},
    {"overwrite overwrite-output-dir force",
     "no run is overwritten; choose another --out, or resume it with --resume", "resume"},
    {"num-layers n-layers n-layer num-hidden-layers hidden-size n-embd d-model dim "
     "num-attention-heads num-heads n-heads n-head ffn-hidden-size intermediate-size vocab-size",
     "the sizes of a new model are in its config.json; give that file as --model"},
    {kContextParallel,
     "there is no context parallelism; --tp N --sequence-parallel shards activations along the "
     "sequence",
     "sequence-parallel"},
    {kContextParallel, "there is no context parallelism"},
    {"deepspeed deepspeed-config deepspeed-config-file",
     "for ZeRO-1 give --zero 1, for ZeRO-3 --fsdp", "zero"},
    {"strategy sharding-strategy fsdp-sharding-strategy fsdp-config distributed-strategy",
     "--dp N is data parallel; --zero 1 also shards the optimizer over its ranks, and --fsdp "
     "everything",
     "zero"},
    {"use-flash-attn use-flash-attn-2 flash-attn flash-attention fa attn-implementation compile "
     "torch-compile torch-compile-backend torch-compile-mode use-liger-kernel liger-kernel-config",
     "fused kernels are the default; leave it out"},
    {"offload cpu-offload offload-optimizer offload-param activation-offloading",
     "nothing is offloaded; --zero 1, --fsdp and --recompute full save memory", "zero"},
    {"fp8", "there is no fp8; --dtype bf16 is the smallest type of training", "zero"},
    {"num-workers dataloader-num-workers dataloader-pin-memory dataloader-persistent-workers "
     "dataloader-prefetch-factor dataset-num-proc preprocessing-num-workers streaming",
     "files are read as they are needed, without other processes; leave it out"},
    {"nnodes num-nodes nproc-per-node node-rank world-size num-processes master-addr master-port "
     "rdzv-endpoint rdzv-backend hosts host hostfile",
     "--tp, --pp and --dp start ranks on this host, cleave launch on several hosts", "pp"},
    {"push-to-hub hub-model-id hub-token hub-strategy hub-private-repo hub-revision",
     "a checkpoint is a model folder; upload it with: hf upload"},
    {"ctx-size context-length max-model-len n-ctx c",
     "the text may be as long as the model's positions; leave it out", "max-new-tokens"},
    {"c", "did you mean --config", "config"},  // of generate, -c would be llama.cpp's --ctx-size
    {"n-gpu-layers gpu-layers ngl", "--device cuda runs the whole model on GPUs", "device"},
    {"verbose debug v log-level", "there are no log levels; leave it out"},
    {"dry-run", "cleave plan forecasts memory and time without a run"},
    {"wandb wandb-project logging-steps logging-strategy logging-first-step log-interval log-every "
     "json",
     "metrics.jsonl in --out has a line for each step; leave it out", "save-every"},
    {"run-name project", "a run has the name of its folder, --out", "save-every"},
    {"neftune-noise-alpha", "there is no noise on embeddings; leave it out"},
    {"label-smoothing-factor label-smoothing", "there is no label smoothing; leave it out"},
    {"optim-args", "--adam-betas, --adam-eps and --weight-decay set the optimizer", "adam-eps"},
    {"optim-target-modules", "--param-group sets parameters by name; there is no GaLore",
     "param-group"},
    {"lr-scheduler-kwargs", "--min-lr and --decay-steps set the schedule", "decay-steps"},
    {"bf16-full-eval fp16-full-eval", "evaluation has the type of --dtype; leave it out", "dtype"},
    {"tf32", "there is no TF32; --dtype bf16 is faster than fp32", "dtype"},
    {"trust-remote-code", "no program of a model folder is run; leave it out"},
    {"auto-find-batch-size", "cleave plan forecasts the memory of a batch"},
    {"eval-delay eval-on-start eval-accumulation-steps prediction-loss-only",
     "--eval-every sets the steps of evaluations", "eval-every"},
    {"save-only-model save-safetensors",
     "a checkpoint has safetensors files and the optimizer's state", "save-every"},
    {"ignore-data-skip average-tokens-across-devices ddp-backend "
     "ddp-find-unused-parameters ddp-bucket-cap-mb use-cache",
     "Cleave needs no such setting; leave it out"},
    {"full-determinism", "CLEAVE_DETERMINISTIC=1 gives the same bits on GPUs; CPUs always do"},
    {"dataset-text-field", "the text of a JSONL row is under \"text\"; rename the key", "data"},
    {"remove-unused-columns label-names", "other keys of a row are ignored; leave it out", "data"},
    {"dataloader-drop-last", "a batch at the end of an epoch takes sequences of the next one",
     "epochs"},
    {"shuffle-dataset", "data are shuffled unless --no-shuffle is given", "shuffle"},
    {"max-prompt-length max-completion-length truncation-mode",
     "sequences longer than --seq-len are truncated at their end", "seq-len"},
    {"eos-token pad-token", "the tokenizer's files name its special tokens; leave it out"},
    {"router-aux-loss-coef output-router-logits", "the model's config.json sets it"},
    {"loss-type f-divergence-type ld-alpha use-weighting sync-ref-model",
     "--task dpo has DPO's sigmoid loss, other tasks cross-entropy; leave it out", "dpo-beta"},
    {"precompute-ref-log-probs",
     "--task dpo always computes them before the first step; leave it out", "dpo-beta"},
    {"ref-model ref-model-name-or-path ref-adapter-name",
     "the reference model of --task dpo is the model at the start of the run", "dpo-beta"},
    {"disable-dropout", "--task dpo uses no dropout except --lora-dropout; leave it out",
     "dpo-beta"},
    {"bias lora-bias modules-to-save init-lora-weights rank-pattern alpha-pattern "
     "layers-to-transform layers-pattern exclude-modules target-parameters fan-in-fan-out "
     "layer-replication trainable-token-indices loftq-config eva-config corda-config use-qalora "
     "use-bdlora",
     "of PEFT's settings there are --lora, --lora-alpha, --lora-targets, --lora-dropout, --rslora "
     "and --dora",
     "lora"},
    {"tasks", "examples/lm_eval runs a checkpoint in lm-evaluation-harness"},
};

// What other programs write as the value of one of our flags.
struct ValueSynonym {
  std::string_view flag;
  std::string_view values;  // theirs, separated by spaces
  std::string_view meant;   // ours; a choice may be followed by words
};

constexpr ValueSynonym kValueSynonyms[] = {
    {"zero", "2", "--fsdp, which shards as ZeRO-3 does; there is no ZeRO-2"},
    {"zero", "3", "--fsdp, which shards as ZeRO-3 does"},
    {"dtype", "bfloat16", "bf16"},
    {"dtype", "float16 half f16", "fp16"},
    {"dtype", "fp16 float16 half f16", "fp32, in which fp16 files run without rounding"},
    {"dtype", "float32 float f32", "fp32"},
    {"dtype", "Q8_0", "q8_0"},
    {"dtype", "Q4_K_M q4_k Q4_K", "q4_k_m"},
    {"dtype", "float64 double", "fp64"},
    {"device", "gpu cuda:0", "cuda"},
    {"optimizer", "adamw_torch adamw_torch_fused adamw_hf", "adamw"},
};

bool has_word(std::string_view words, std::string_view word) {
  return str(' ', words, ' ').find(str(' ', word, ' ')) != std::string::npos;
}

// The name of a flag as the tables have it: of "--training.learning_rate" it is "learning-rate".
std::string bare_name(std::string_view typed) {
  std::string name(typed.substr(std::min(typed.find_first_not_of('-'), typed.size())));
  std::replace(name.begin(), name.end(), '_', '-');
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

std::span<const Synonym> synonyms() {
  return kSynonyms;
}

std::vector<Synonym> synonyms_of(std::string_view typed) {
  const std::string name = bare_name(typed);
  std::vector<Synonym> found;
  for (const Synonym& synonym : kSynonyms) {
    if (has_word(synonym.names, name)) found.push_back(synonym);
    // The last part of a dotted name may be a flag of ours.
    if (synonym.flag == name) found.push_back({.flag = synonym.flag, .names = {}});
  }
  return found;
}

std::optional<Synonym> misspelled_synonym(
    std::string_view typed, size_t limit,
    const std::function<bool(std::string_view flag)>& has_flag) {
  const std::string name = bare_name(typed);
  std::optional<Synonym> found;
  for (const Synonym& synonym : kSynonyms) {
    if (!has_flag(synonym.flag)) continue;
    std::istringstream theirs{std::string(synonym.names)};
    for (std::string word; theirs >> word;) {
      const size_t distance = edit_distance(name, word);
      if (distance >= limit || 5 * distance > std::max(name.size(), word.size())) continue;
      limit = distance;
      found = synonym;
    }
  }
  return found;
}

std::string_view advice_on(std::string_view typed,
                           const std::function<bool(std::string_view flag)>& has_flag) {
  const std::string name = bare_name(typed);
  for (const Advice& advice : kAdvice) {
    const bool fits = advice.flag.empty() || has_flag(advice.flag);
    if (fits && has_word(advice.names, name)) return advice.text;
  }
  return {};
}

std::string_view meant_value(const option::Row& row, std::string_view value) {
  const auto* choices = std::get_if<option::Choices>(&row.values);
  const auto accepts = [&](std::string_view word) {
    return std::find(choices->begin(), choices->end(), word) != choices->end();
  };
  for (const auto& [flag, values, meant] : kValueSynonyms) {
    if (flag != row.name || !has_word(values, value)) continue;
    const std::string_view choice = meant.substr(0, meant.find_first_of(" ,"));
    if (choices == nullptr || (!accepts(value) && accepts(choice))) return meant;
  }
  return {};
}

}  // namespace cleave::cli
