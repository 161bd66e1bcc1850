// Stands in for libcleave: prints the options that it receives on stdout, or fails as --model says.
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "cleave/base/error.h"
#include "cleave/base/stop.h"
#include "cleave/generate/options.h"
#include "cleave/mesh/gpus.h"
#include "cleave/train/doctor.h"
#include "cleave/train/options.h"
#include "cleave/verify/options.h"

namespace {

using Object = nlohmann::ordered_json;

/// Read when the library is loaded, as libgomp does.
const char* const kSpins = std::getenv("GOMP_SPINCOUNT");  // NOLINT(concurrency-mt-unsafe)

void fail_as_requested(const std::string& model) {
  if (model.starts_with("error-")) {
    const int code = std::stoi(model.substr(6));
    throw cleave::Error(static_cast<cleave::Code>(code), "requested failure");
  }
  if (model.starts_with("signal-")) throw cleave::Stopped{std::stoi(model.substr(7))};
  if (model == "memory") throw std::bad_alloc();
  if (model == "exception") throw std::runtime_error("first line\nsecond line");
  if (model == "other") throw 7;
  if (model == "terminate") std::terminate();
}

template <class Number>
Object or_null(const std::optional<Number>& number) {
  return number ? Object(*number) : Object(nullptr);
}

}  // namespace

extern "C" void cleave_train(const cleave::TrainOptions& o) {
  fail_as_requested(o.model);
  const Object options = {{"model", o.model},
                          {"data", o.data},
                          {"task", o.task},
                          {"tokenizer", o.tokenizer},
                          {"chat-template", o.chat_template},
                          {"train-on", o.train_on},
                          {"out", o.out},
                          {"tp", o.tp},
                          {"dp", o.dp},
                          {"steps", or_null(o.steps)},
                          {"epochs", or_null(o.epochs)},
                          {"batch-size", o.batch_size},
                          {"micro-batch-size", o.micro_batch_size},
                          {"seq-len", o.seq_len},
                          {"lr", o.lr},
                          {"schedule", o.schedule},
                          {"min-lr", o.min_lr},
                          {"warmup", or_null(o.warmup)},
                          {"decay-steps", or_null(o.decay_steps)},
                          {"optimizer", o.optimizer},
                          {"adam-betas", o.adam_betas},
                          {"adam-eps", o.adam_eps},
                          {"weight-decay", o.weight_decay},
                          {"decay-on", o.decay_on},
                          {"param-group", o.param_groups},
                          {"clip", o.clip},
                          {"ema", o.ema},
                          {"dtype", o.dtype},
                          {"reduce-dtype", o.reduce_dtype},
                          {"seed", o.seed},
                          {"lora", o.lora},
                          {"lora-alpha", o.lora_alpha},
                          {"lora-targets", o.lora_targets},
                          {"lora-dropout", o.lora_dropout},
                          {"lora-base", o.lora_base},
                          {"rslora", o.rslora},
                          {"dora", o.dora},
                          {"save-every", o.save_every},
                          {"keep-last", o.keep_last},
                          {"resume", o.resume},
                          {"over-commit", o.over_commit},
                          {"eval-data", o.eval_data},
                          {"eval-every", o.eval_every},
                          {"early-stop", o.early_stop},
                          {"record-step", o.record_step},
                          {"log", o.log},
                          {"shuffle", o.shuffle},
                          {"packing", o.packing},
                          {"plan", o.plan},
                          {"gemm", o.gemm},
                          {"threads-per-rank", o.threads_per_rank},
                          {"timeout", o.timeout_s},
                          {"transport", o.transport},
                          {"fast-sums", o.fast_sums},
                          {"device", o.device},
                          {"command", o.command}};
  std::cout << options.dump() << '\n';
}

extern "C" void cleave_generate(const cleave::GenerateOptions& o) {
  const Object options = {{"model", o.model},
                          {"tokenizer", o.tokenizer},
                          {"prompts", o.prompts},
                          {"prompt-ids", o.prompt_ids},
                          {"max-new-tokens", o.max_new_tokens},
                          {"num-beams", o.num_beams},
                          {"num-return-sequences", o.num_return_sequences},
                          {"length-penalty", or_null(o.length_penalty)},
                          {"early-stopping", o.early_stopping},
                          {"no-repeat-ngram-size", or_null(o.no_repeat_ngram_size)},
                          {"repetition-penalty", or_null(o.repetition_penalty)},
                          {"do-sample", o.do_sample},
                          {"temperature", or_null(o.temperature)},
                          {"top-k", or_null(o.top_k)},
                          {"top-p", or_null(o.top_p)},
                          {"seed", o.seed},
                          {"eos-id", or_null(o.eos_id)},
                          {"stop", o.stop},
                          {"tp", o.tp},
                          {"ep", o.ep},
                          {"dtype", o.dtype},
                          {"kv-cache-dtype", o.kv_cache_dtype},
                          {"device", o.device},
                          {"json", o.json},
                          {"stream", o.stream},
                          {"chat", o.chat},
                          {"record-step", o.record_step},
                          {"out", o.out},
                          {"gemm", o.gemm},
                          {"threads-per-rank", o.threads_per_rank},
                          {"timeout", o.timeout_s},
                          {"transport", o.transport},
                          {"fast-sums", o.fast_sums}};
  std::cout << options.dump() << '\n';
}

extern "C" void cleave_eval(const cleave::EvalOptions& o) {
  const Object options = {{"model", o.model},
                          {"data", o.data},
                          {"task", o.task},
                          {"dpo-beta", o.dpo_beta},
                          {"reference", o.reference},
                          {"tokenizer", o.tokenizer},
                          {"tp", o.tp},
                          {"ep", o.ep},
                          {"seq-len", o.seq_len},
                          {"batch-size", o.batch_size},
                          {"dtype", o.dtype},
                          {"device", o.device},
                          {"json", o.json},
                          {"gemm", o.gemm},
                          {"threads-per-rank", o.threads_per_rank},
                          {"timeout", o.timeout_s},
                          {"transport", o.transport},
                          {"fast-sums", o.fast_sums},
                          {"spins", kSpins == nullptr ? "" : kSpins}};
  std::cout << options.dump() << '\n';
}

extern "C" int cleave_verify(const cleave::VerifyOptions& o) {
  fail_as_requested(o.model);
  const Object options = {{"model", o.model},
                          {"layer", o.layer},
                          {"fuzz", o.fuzz},
                          {"seed", o.seed},
                          {"json", o.json},
                          {"tp", o.tp},
                          {"ep", o.ep},
                          {"dp", o.dp},
                          {"plan", o.plan},
                          {"sequence-parallel", o.sequence_parallel},
                          {"dtype", o.dtype},
                          {"gemm", o.gemm},
                          {"threads-per-rank", o.threads_per_rank},
                          {"timeout", o.timeout_s},
                          {"transport", o.transport},
                          {"fast-sums", o.fast_sums},
                          {"device", o.device}};
  std::cout << options.dump() << '\n';
  return o.model == "differs" ? 9 : 0;
}

extern "C" void cleave_doctor(cleave::Facts& facts) {
  facts.emplace_back("libtorch_version", "9.9.9");
}

// A host with eight GPUs.
void cleave_require_gpus(int count) {
  if (count > 8) throw cleave::Error(cleave::Code::kShape, "requested failure");
}
