#include "cleave/cli/synonyms.h"

#include <algorithm>
#include <string>

#include "cleave/base/str.h"

namespace cleave::cli {
namespace {

constexpr std::string_view kGlobal = "; it counts the sequences of a step over all ranks";
constexpr std::string_view kMicroBatches =
    "; --batch-size counts the sequences of a whole step over all ranks, and the gradients of its "
    "micro-batches are summed";

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
    {"prompt-file", "text-file file input-file data"},
    {"out", "output-dir output save save-dir save-folder logdir log-dir run-dir dump-folder"},
    {"steps",
     "max-steps train-iters train-steps training-steps num-steps num-train-steps "
     "max-iters iterations iters num-iters"},
    {"epochs", "num-train-epochs num-epochs train-epochs"},
    {"seq-len",
     "max-seq-length max-seq-len seq-length sequence-length max-length block-size "
     "context-length context-size ctx-size model-max-length seq ctx"},
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
    {"seed", "random-seed data-seed"},
    {"save-every", "save-steps save-interval save-freq checkpoint-interval interval"},
    {"keep-last", "save-total-limit keep-latest-k"},
    {"out",
     "report-to wandb wandb-project logging-dir tensorboard-dir logging-steps log-interval "
     "log-every",
     "; DIR/metrics.jsonl has a line for each step"},
    {"resume", "resume-from-checkpoint continue"},
    {"async-save", "async-mode async-checkpoint"},
    {"eval-every", "eval-steps eval-interval validation-freq"},
    {"early-stop", "early-stopping-patience early-stopping patience"},
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
    {"lora", "lora-r lora-rank use-lora qlora"},
    {"lora-base", "load-in-8bit load-in-4bit", " int8"},
    {"schedule-pp", "pipeline-parallel-schedule pipeline-schedule"},
    {"virtual-pipeline",
     "virtual-pipeline-model-parallel-size virtual-pipeline-size "
     "num-virtual-stages-per-pipeline-rank"},
    {"zero", "zero-stage"},
    {"recompute", "recompute-granularity activation-checkpoint-mode"},
    {"dtype", "torch-dtype precision mixed-precision data-type"},
    {"threads-per-rank", "threads num-threads intra-op-threads"},
    {"num-beams", "beam-size beam-width"},
    {"repetition-penalty", "repeat-penalty"},
    {"eos-id", "eos-token-id"},
    {"stop", "stop-sequence stop-strings reverse-prompt"},
    {"do-sample", "sample"},
    {"n", "nproc-per-node np nproc num-processes num-ranks world-size"},
    {"ranks", "world-size num-gpus num-ranks"},
    {"max-restarts", "max-restart"},
    {"batch-size",
     "train-batch-size global-batch-size per-device-eval-batch-size eval-batch-size batch bs bsz"},
    {"batch-size", "per-device-train-batch-size per-device-batch-size local-batch-size", kGlobal},
    {"micro-batch-size", "gradient-accumulation-steps grad-accum-steps accumulate-grad-batches",
     kMicroBatches},
    {"warmup", "warmup-ratio lr-warmup-fraction", "; it counts steps"},
    {"adam-betas", "adam-beta1 adam-beta2 betas", " B1,B2"},
    {"dtype", "bf16 bfloat16", " bf16"},
    {"dtype", "fp16 half float16", " fp16"},
    {"dtype", "fp32 float32", " fp32"},
    {"dtype", "int8 load-in-8bit", " int8"},
    {"dtype", "int4 load-in-4bit", " int4"},
    {"recompute", "gradient-checkpointing activation-checkpointing", " full"},
    {"recompute", "recompute-activations", " selective"},
    {"zero", "use-distributed-optimizer distributed-optimizer", " 1"},
    {"fsdp", "use-torch-fsdp2 use-fsdp2 fully-shard"},
    {"fsdp", "data-parallel-shard-degree", " --dp N"},
    {"device", "cpu use-cpu", " cpu"},
    {"device", "gpu gpus num-gpus n-gpus cuda use-cuda", " cuda"},
};

}  // namespace

std::span<const Synonym> synonyms() {
  return kSynonyms;
}

std::vector<Synonym> synonyms_of(std::string_view typed) {
  std::string name(typed.substr(std::min(typed.find_first_not_of('-'), typed.size())));
  std::replace(name.begin(), name.end(), '_', '-');
  name = name.substr(name.rfind('.') + 1);
  std::vector<Synonym> found;
  for (const Synonym& synonym : kSynonyms) {
    const bool is_name =
        str(' ', synonym.names, ' ').find(str(' ', name, ' ')) != std::string::npos;
    if (is_name) found.push_back(synonym);
    // The last part of a dotted name may be a flag of ours.
    if (synonym.flag == name) found.push_back({.flag = synonym.flag, .names = {}});
  }
  return found;
}

}  // namespace cleave::cli
