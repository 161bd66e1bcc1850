#include "cleave/train/setup.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cleave/base/log.h"
#include "cleave/chat/pair_reader.h"
#include "cleave/checkpoint/adapter_config.h"
#include "cleave/checkpoint/load.h"
#include "cleave/checkpoint/names.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/bootstrap/first_rank.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/data/mix.h"
#include "cleave/file/file.h"
#include "cleave/file/model_path.h"
#include "cleave/file/weighted_path.h"
#include "cleave/mesh/cuda.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/model/bert/config.h"
#include "cleave/model/generation_config.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/planner/layout_options.h"
#include "cleave/report/record.h"
#include "cleave/text/utf8.h"
#include "cleave/train/check_data.h"
#include "cleave/train/fingerprint.h"
#include "cleave/train/task_setup.h"

namespace cleave::inline train {
namespace {

namespace fs = std::filesystem;

/// A new model reads bytes unless a tokenizer is given. Weights from a folder were trained with a
/// tokenizer: if the folder lacks it, there is none, and open_dataset() refuses text.
void choose_tokenizer(TrainSetup& setup) {
  const std::string& wanted = setup.options.tokenizer;
  if (!wanted.empty() && wanted != "bytes") {
    setup.tokenizer_folder = resolve_run_folder(local_model(wanted, "--tokenizer"));
  } else if (wanted.empty() && setup.folder) {
    const std::string source = tokenizer_source(*setup.folder);
    if (has_model_tokenizer(source)) setup.tokenizer_folder = source;
  }
  if (!setup.tokenizer_folder.empty()) {
    setup.tokenizer = load_model_tokenizer(setup.tokenizer_folder);
  } else if (wanted == "bytes" || !setup.folder) {
    setup.tokenizer = byte_tokenizer();
  }
}

/// The template is only read for chats, or if it is given: a run on other data does not fail
/// because of a model's unusual template.
void choose_chat_template(TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  const auto holds = setup.task == Task::kDpo ? holds_message_pairs : holds_chats;
  const bool trains_on_chats = std::any_of(o.data.begin(), o.data.end(),
                                           [&](const std::string& file) { return holds({file}); });
  const bool reads_chats = !labels_sequences(setup.task) && (trains_on_chats || holds(o.eval_data));
  if (!setup.tokenizer || (o.chat_template.empty() && !reads_chats)) return;
  setup.chat_template = load_model_chat_template(o.chat_template, setup.tokenizer_folder,
                                                 *setup.tokenizer, kTrainingTime);
}

/// Whether --model is a config.json: a model without weights.
bool is_config(const std::string& model) {
  return fs::path(model).extension() == ".json" && fs::is_regular_file(model);
}

/// config.json of a new model from a preset or a file, with the tokenizer's vocabulary size and
/// special ids; generation stops at its end id. Throws Error(kShape) if the file has fewer ids.
Json config_of_new(const std::string& name, const Tokenizer& tokenizer) {
  const Json base =
      is_config(name) ? Json::parse_file(name) : preset_config(name, tokenizer.vocab_size());
  if (is_config(name) && base.has("vocab_size")) {
    const int64_t vocab_size = base.at("vocab_size").as_int();
    CLEAVE_CHECK(tokenizer.vocab_size() <= vocab_size, Code::kShape, name, ": vocab_size is ",
                 vocab_size, ", and the tokenizer (", tokenizer.kind(), ") has ",
                 tokenizer.vocab_size(), " ids; leave vocab_size out, or raise it");
  }
  auto json = nlohmann::ordered_json::parse(base.dump());
  if (!base.has("vocab_size")) json["vocab_size"] = tokenizer.vocab_size();
  const SpecialIds& special = tokenizer.special();
  if (special.bos) json["bos_token_id"] = *special.bos;
  if (special.eos) {
    json["eos_token_id"] = *special.eos;
  } else if (!json.contains("eos_token_id")) {
    json["eos_token_id"] = nullptr;  // without the key, the family's default id would end texts
  }
  // Do not set it if the end token is also the padding token: embeddings of the padding id get no
  // gradient.
  if (special.pad && special.pad != special.eos) {
    json["pad_token_id"] = *special.pad;
  } else if (!json.contains("pad_token_id") && !begins_after_padding(base)) {
    // Nor those of the family's default id, except where positions begin after it.
    json["pad_token_id"] = nullptr;
  }
  return Json::parse(json.dump(), is_config(name) ? name : "preset " + name);
}

/// The key for the type: the one that the config already uses, else the older one, which every
/// reader knows.
std::string dtype_key(const Json& config) {
  return config.has("dtype") ? "dtype" : "torch_dtype";
}

std::string torch_name(at::ScalarType type) {
  if (type == at::kBFloat16) return "bfloat16";
  if (type == at::kHalf) return "float16";
  return type == at::kDouble ? "float64" : "float32";
}

Json state_of(const ModelFolder& checkpoint) {
  return Json::parse_file(checkpoint.path + "/" + std::string(kStateName));
}

/// --dtype, or else that of a resumed run, which is fp32 if its checkpoint does not say.
std::string dtype_of_run(const TrainSetup& setup) {
  if (!setup.options.dtype.empty()) return setup.options.dtype;
  return setup.resumes ? state_of(*setup.folder).string_or("dtype", "fp32") : "fp32";
}

void choose_types(TrainSetup& setup) {
  setup.options.dtype = dtype_of_run(setup);
  const auto dtype = dtype_from_name(setup.options.dtype);
  CLEAVE_CHECK(
      dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF64,
      Code::kUsage, "--dtype ", setup.options.dtype,
      " is not a type for training; choose fp32, bf16, fp16 or fp64");
  const at::ScalarType type = scalar_type(*dtype);
  setup.layout.compute_type = type;
  setup.config = with_key(setup.config, dtype_key(setup.config), torch_name(type));
}

/// Refuses --packing where it would mix texts.
void check_packing(const TrainSetup& setup, const Model& model) {
  const TrainOptions& o = setup.options;
  if (!o.packing) return;
  CLEAVE_CHECK(
      setup.task == Task::kLm, Code::kUsage,
      "--packing needs task lm, whose attention can stay within each text; this run is for ",
      "task ", setup.task == Task::kDpo ? "dpo" : model.task(), "; leave out --packing");
}

/// Whether a copy of what is saved is in the memory that a run computes in: on GPUs it is the
/// host's. The last checkpoint is never saved asynchronously.
bool copies_to_save(const TrainOptions& o) {
  const bool is_only_last = o.steps && o.save_every >= *o.steps;
  return o.async_save && !is_only_last && device_of(o.device).is_cpu();
}

/// Forecasts a step, and refuses a run on the CPU that does not fit into this host's memory.
/// Trainer checks the memory of a GPU. A user's model may have operations that libtorch cannot run
/// on the meta device. It is trained without a forecast.
void plan_step(TrainSetup& setup, int64_t seq_len) {
  setup.step = {.batch_size = setup.options.batch_size,
                .micro_batch_size = setup.micro_batch_size,
                .seq_len = seq_len,
                .optimizer = setup.optimizer,
                .rows_per_sample = setup.rows_per_sample(),
                .is_on_gpu = !device_of(setup.options.device).is_cpu(),
                .is_saved_async = copies_to_save(setup.options)};
  setup.planned.reset();  // that of another length
  try {
    setup.planned = forecast(setup.config, setup.layout, setup.step);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    log_warning("no forecast of memory and time: ", what.substr(0, what.find('\n')));
    return;
  }
  const auto available = available_memory();
  const bool is_on_host = device_of(setup.options.device).is_cpu();
  if (!available || !is_on_host || setup.options.over_commit) return;
  require_memory(setup, ranks_of_host(setup.layout), *available);
}

/// If sequences have lengths of their own: looks at all of them, and forecasts the step of the
/// longest ones. Before ranks start, since no rank may wait for another that long.
void plan_longest_step(TrainSetup& setup) {
  if (setup.fills_sequences) return;
  setup.utilization = utilization_of(*setup.data);
  // A forecast that failed before would fail again.
  if (setup.planned) plan_step(setup, setup.utilization->longest);
}

/// The adapters that are trained. A resumed run has those of its checkpoint.
std::optional<LoraOptions> choose_lora(const TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  std::optional<LoraOptions> wanted = lora_from(o);
  const bool has_adapter = setup.folder && !setup.folder->adapter.empty();
  if (setup.resumes && has_adapter) {
    LoraOptions saved = read_lora(setup.folder->adapter);
    saved.base_form = base_form_from_name(state_of(*setup.folder).string_or("lora_base", "dtype"));
    if (!wanted) return saved;
    wanted->trained_layers = saved.trained_layers;
    CLEAVE_CHECK(wanted->has_values_of(saved), Code::kUsage, "the run in ", o.out,
                 " was started with ", saved.flags(), "; give the same values to resume it");
    return wanted;  // load_adapter() compares the targets
  }
  if (!wanted) return std::nullopt;
  CLEAVE_CHECK(!setup.resumes, Code::kUsage, "the run in ", o.out,
               " was started without --lora; resume it without, or choose another --out");
  CLEAVE_CHECK(setup.folder, Code::kUsage,
               "--lora trains adapters of a trained model, and --model ", o.model,
               " has no weights; give a model folder");
  CLEAVE_CHECK(
      !has_adapter, Code::kUsage, o.model,
      " is an adapter; give its base model with --model, or merge it with `cleave convert` "
      "first");
  const auto model = make_model(setup.config);
  wanted->trained_layers =
      setup.changes_task ? new_layers(*model, *setup.folder) : classification_head(*model);
  return wanted;
}

/// Whether --model names a checkpoint of the run.
bool names_checkpoint(const TrainOptions& o) {
  std::error_code ignored;  // a path that cannot be accessed is another one
  return fs::exists(fs::path(o.model) / kStateName, ignored) &&
         fs::equivalent(fs::canonical(o.model, ignored).parent_path(), o.out, ignored);
}

/// Whether --model names the base model of resumed adapters, which may have moved. Without it, or
/// if it is the run or a checkpoint of it, the base model is the one that the checkpoint names.
bool names_base(const TrainOptions& o) {
  std::error_code ignored;  // a path that cannot be accessed is another one
  return o.model != TrainOptions{}.model && !fs::equivalent(o.model, o.out, ignored) &&
         !names_checkpoint(o);
}

/// Warns if adapters are resumed and --model names another checkpoint of the run: the user may have
/// meant to continue from that one.
void warn_of_other_checkpoint(const TrainOptions& o, const fs::path& checkpoint) {
  std::error_code ignored;  // a path that cannot be accessed is another one
  if (!names_checkpoint(o) || fs::equivalent(o.model, checkpoint, ignored)) return;
  const std::string name = fs::canonical(o.model, ignored).filename();
  log_warning_once("--model ", o.model, " is another checkpoint of the run, which continues from ",
                   checkpoint.filename().string(), "; to continue from ", name, ", write ", name,
                   " into ", (fs::path(o.out) / kLatestName).string());
}

ModelFolder open_checkpoint(const TrainOptions& o, const fs::path& checkpoint) {
  const bool has_adapter = fs::exists(checkpoint / kAdapterConfigName);
  if (has_adapter) warn_of_other_checkpoint(o, checkpoint);
  return has_adapter && names_base(o) ? ModelFolder::open_adapter(checkpoint.string(), o.model)
                                      : ModelFolder::open(checkpoint.string());
}

/// Refuses to resume adapters on another base model, before their layers do not fit it.
void require_base(const ModelFolder& folder, const std::string& fingerprint) {
  CLEAVE_CHECK(
      state_of(folder).string_or("base", "") == fingerprint, Code::kFormat, folder.weights_path(),
      " is not the model that the adapters in ", folder.path,
      " were trained on: its config, its weights or its manifest.json differ; give the whole "
      "folder of the original base model with --model");
}

/// Sets what a checkpoint of adapters says about its base model.
void note_base(TrainSetup& setup) {
  if (!setup.layout.lora) return;
  std::string given = setup.options.model;
  if (setup.resumes && !names_base(setup.options)) {  // a name stays a name
    const fs::path config = fs::path(setup.folder->adapter) / kAdapterConfigName;
    given = Json::parse_file(config, kConfigLimits).string_or("base_model_name_or_path", "");
  }
  setup.base_model = is_hub_name(given)
                         ? given
                         : fs::absolute(setup.folder->weights_path()).lexically_normal().string();
  CLEAVE_CHECK(first_bad_utf8(setup.base_model) == setup.base_model.size(), Code::kUsage,
               "--model ", setup.base_model,
               " is not UTF-8, and the files of an adapter name their base model; "
               "rename the folder");
  setup.base_fingerprint = base_fingerprint(*setup.folder);
  if (setup.resumes) require_base(*setup.folder, setup.base_fingerprint);
}

/// Chooses and checks the layout, before data is read and ranks start.
void choose_layout(TrainSetup& setup, Model& model, int world_size) {
  ParallelConfig& l = setup.layout;
  l = make_parallel_config(setup.options, model, l.compute_type, world_size);
  CLEAVE_CHECK(setup.options.batch_size >= l.dp, Code::kShape,
               "batch-size=", setup.options.batch_size, " is less than dp=", l.dp,
               "; every data-parallel rank needs a sequence");
  l.lora = choose_lora(setup);
  note_base(setup);
  try_layout(model, l);
  if (const auto environment = read_environment()) {
    const std::string warning = cross_host_warning(l, environment->local_world_size);
    if (!warning.empty()) log_warning_once(warning);
  }
  setup.micro_batch_size = setup.options.micro_batch_size > 0
                               ? setup.options.micro_batch_size
                               : default_micro_batch_size(setup.options.batch_size, l);
}

DatasetOptions dataset_options(const TrainSetup& setup, const std::vector<std::string>& files,
                               const Model& model) {
  return {.files = files,
          .tokenizer = setup.tokenizer,
          .seq_len = setup.options.seq_len,
          .cache_folder = (fs::path(setup.options.out) / kTokensName).string(),
          .vocab_size = model.facts().vocab_size,
          .task = setup.task,
          .classes = model.facts().labels};
}

/// Warns once about texts that were truncated or left out.
void warn_of(const std::string& what_was_cut) {
  if (!what_was_cut.empty()) log_warning_once(what_was_cut);
}

std::shared_ptr<const Dataset> read_data(const TrainSetup& setup,
                                         const std::vector<std::string>& files,
                                         const Model& model) {
  const DatasetOptions options = dataset_options(setup, files, model);
  if (options.task == Task::kDpo) {
    PairCounts counts;
    auto pairs = pair_dataset(options, setup.chat_template, &counts);
    warn_of(counts.warning(options.seq_len));
    return pairs;
  }
  if (labels_sequences(options.task) || !holds_chats(files)) return open_dataset(options);
  ChatCounts counts;
  auto data = chat_dataset(
      options,
      {.chat_template = setup.chat_template, .train_on_all = setup.options.train_on == "all"},
      &counts);
  warn_of(counts.warning(options.seq_len));
  return data;
}

/// `shuffles`: packing takes texts in the order of --seed. Evaluation data stay the same with any.
std::shared_ptr<const Dataset> open_data(const TrainSetup& setup,
                                         const std::vector<std::string>& files, const Model& model,
                                         bool shuffles) {
  const TrainOptions& o = setup.options;
  if (!o.packing) return read_data(setup, files, model);
  auto data = joins_text(setup.task, files) ? open_documents(dataset_options(setup, files, model))
                                            : read_data(setup, files, model);
  return packed_samples(std::move(data),
                        {.seq_len = o.seq_len, .shuffle = shuffles, .seed = o.seed});
}

/// Divides --data into files and their weights.
void choose_weights(TrainSetup& setup) {
  TrainOptions& o = setup.options;
  std::vector<std::string> files;
  for (WeightedPath& file : weighted_paths(o.data)) {
    if (file.weight) setup.weights.push_back(*file.weight);
    files.push_back(std::move(file.path));
  }
  o.data = std::move(files);
  CLEAVE_CHECK(
      !o.epochs || setup.weights.empty(), Code::kUsage,
      "--epochs counts passes over all data; --data with weights makes no such passes; give "
      "--steps");
}

/// Opens the training data. Each file with a weight is a source of its own.
void open_training_data(TrainSetup& setup, const Model& model) {
  const std::vector<std::string>& files = setup.options.data;
  if (setup.weights.empty()) {
    setup.data = open_data(setup, files, model, setup.options.shuffle);
    return;
  }
  CLEAVE_CHECK(setup.task != Task::kDpo, Code::kUsage,
               "--task dpo takes no weights of data files, because its first epoch must have every "
               "pair; give the files without weights");
  std::vector<WeightedData> sources;
  for (size_t i = 0; i < files.size(); ++i) {
    sources.push_back({.name = files[i],
                       .data = open_data(setup, {files[i]}, model, setup.options.shuffle),
                       .weight = setup.weights[i]});
  }
  setup.data = joined_dataset(sources);
  setup.order.mix = std::make_shared<DataMix>(sources);
}

/// Checks --seq-len, or chooses that of a resumed run, or the default.
void choose_length(TrainSetup& setup, const ModelFacts& facts) {
  int64_t& seq_len = setup.options.seq_len;
  if (seq_len == 0 && setup.resumes) seq_len = state_of(*setup.folder).int_or("seq_len", 0);
  if (seq_len == 0) seq_len = std::min(kDefaultSeqLen, facts.max_positions);
  CLEAVE_CHECK(seq_len >= 2, Code::kShape, "seq-len=", seq_len,
               "; next-token prediction needs at least 2 tokens");
  CLEAVE_CHECK(seq_len <= facts.max_positions, Code::kShape, "seq-len=", seq_len,
               " is more than the model's ", facts.max_positions, " positions; choose up to ",
               facts.max_positions);
}

void choose_steps(TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  setup.order.num_samples = setup.data->size();
  setup.order.batch_size = o.batch_size;
  setup.order.shuffle = o.shuffle;
  setup.order.seed = o.seed;
  setup.num_steps = o.epochs ? setup.order.steps_of(*o.epochs) : o.steps.value_or(1000);
  CLEAVE_CHECK(o.warmup.value_or(0) <= setup.num_steps, Code::kUsage, "--warmup is ",
               o.warmup.value_or(0), "; expected at most the ", setup.num_steps,
               " steps of the run");
  const int64_t warmup = o.warmup.value_or(setup.num_steps / 10);
  const auto kind = LrSchedule::kind_from_name(o.schedule);
  const int64_t left = setup.num_steps - warmup;
  const int64_t decay = kind == LrSchedule::Kind::kWsd
                            ? o.decay_steps.value_or(std::min(setup.num_steps / 10, left))
                            : 0;
  CLEAVE_CHECK(decay <= left, Code::kUsage, "--decay-steps is ", decay, "; expected at most the ",
               left, " steps after the warm-up of ", warmup);
  setup.schedule = {.kind = kind,
                    .peak = o.lr,
                    .min = o.min_lr,
                    .warmup = warmup,
                    .decay = decay,
                    .num_steps = setup.num_steps};
}

void check_recording(const TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  CLEAVE_CHECK(o.record_step <= setup.num_steps, Code::kUsage, "--record-step is ", o.record_step,
               "; expected at most the ", setup.num_steps, " steps of the run");
  CLEAVE_CHECK(o.record_step == 0 || o.device == "cpu", Code::kUsage, "--record-step records ",
               "ranks on the CPU and does not support --device ", o.device, "; leave it out");
}

void choose_optimizer(TrainSetup& setup, Model& model) {
  const TrainOptions& o = setup.options;
  setup.optimizer = {.kind = OptimizerOptions::kind_from_name(o.optimizer),
                     .beta1 = o.adam_betas[0],
                     .beta2 = o.adam_betas[1],
                     .eps = o.adam_eps,
                     .weight_decay = o.weight_decay,
                     .decay_on = OptimizerOptions::decay_from_name(o.decay_on),
                     .own = parameter_groups(o.param_groups, model)};
  if (o.ema > 0) setup.optimizer.ema = o.ema;
}

/// The checkpoint that --resume continues from. Without one the run starts from the beginning, so
/// that a job that a scheduler starts again needs only one command.
std::optional<fs::path> checkpoint_of_run(const std::string& out) {
  auto checkpoint = checkpoint_to_resume(out);
  if (checkpoint && !fs::is_directory(*checkpoint)) (void)resolve_run_folder(out);  // throws
  const std::vector<fs::path> all = checkpoint ? std::vector<fs::path>{} : list_checkpoints(out);
  CLEAVE_CHECK(all.size() != 1, Code::kFormat, all.empty() ? "" : all.front().string(),
               ", the only checkpoint, is damaged; restore it, or start again in another folder");
  CLEAVE_CHECK(all.empty(), Code::kFormat, out,
               " has checkpoints and no file `latest`, and the newest is damaged; write the name "
               "of an intact one into ",
               (fs::path(out) / kLatestName).string());
  if (!checkpoint) {
    log_warning_once("--resume: ", out, " has no checkpoint; the run starts from the beginning");
  }
  return checkpoint;
}

/// The files of the tokenizer, a given chat template, and the folder's generation settings.
std::vector<NamedFile> carried_files(const TrainSetup& setup) {
  std::vector<NamedFile> files;
  const std::string& source = setup.tokenizer_folder;
  if (setup.tokenizer) {
    files = source.empty() ? byte_tokenizer_files() : model_tokenizer_files(source);
  }
  if (setup.tokenizer && !setup.options.chat_template.empty()) {
    // The given template is for all conversations, also for those with tools.
    std::erase_if(files, [](const NamedFile& file) {
      return file.name == "chat_template.jinja" ||
             file.name.starts_with("additional_chat_templates/");
    });
    files.push_back({.name = "chat_template.jinja", .text = setup.chat_template->text()});
  }
  if (!setup.folder) return files;
  const fs::path path = generation_config_path(*setup.folder);
  if (!path.empty()) files.push_back({.name = path.filename().string(), .text = read_file(path)});
  return files;
}

}  // namespace

TrainSetup make_setup(const TrainOptions& options, int world_size,
                      const std::optional<IntactCheckpoint>& whole) {
  (void)device_of(options.device);  // throws before anything is read
  const bool is_folder =
      (fs::exists(options.model) || is_hub_name(options.model)) && !is_config(options.model);
  std::optional<fs::path> checkpoint;
  if (whole) {
    checkpoint = whole->path;
  } else if (options.resume) {
    checkpoint = checkpoint_of_run(options.out);
  }
  std::optional<ModelFolder> folder;
  if (checkpoint) {
    folder = open_checkpoint(options, *checkpoint);
  } else if (is_folder) {
    folder = ModelFolder::open(options.model);
  }
  TrainSetup setup(options, folder);
  setup.resumes = checkpoint.has_value();
  if (whole) {
    setup.is_verified = true;
    setup.damage = whole->damage;
  }
  choose_weights(setup);
  choose_tokenizer(setup);
  if (!folder) setup.config = config_of_new(options.model, *setup.tokenizer);
  const bool is_new_classifier = !setup.resumes && fit_to_task(setup);
  choose_types(setup);
  auto model = make_model(setup.config);
  model->check_trainable();
  setup.task = choose_task(options, *model);
  choose_layout(setup, *model, world_size);
  choose_length(setup, model->facts());
  check_packing(setup, *model);
  choose_optimizer(setup, *model);
  choose_chat_template(setup);
  // Before the data is read and its tokens are written. If its sequences have their own lengths,
  // the shortest ones show whether the weights fit.
  setup.fills_sequences = !setup.options.packing && joins_text(setup.task, setup.options.data);
  plan_step(setup,
            setup.fills_sequences ? setup.options.seq_len : std::max<int64_t>(2, setup.layout.tp));
  if (is_new_classifier) model = name_classes(setup);
  open_training_data(setup, *model);
  if (!options.eval_data.empty()) {
    setup.eval_data = open_data(setup, options.eval_data, *model, /*shuffles=*/false);
  }
  check_data(setup, model->facts());
  const auto rules = [&](const Dataset& data, uint64_t seed) {
    return batch_rules(*model, setup.tokenizer.get(), data.is_text(), seed);
  };
  setup.batches = rules(*setup.data, options.seed);
  if (setup.eval_data) setup.eval_batches = rules(*setup.eval_data, kEvalSeed);
  choose_steps(setup);
  check_recording(setup);
  setup.files = carried_files(setup);
  plan_longest_step(setup);
  return setup;
}

}  // namespace cleave::inline train
