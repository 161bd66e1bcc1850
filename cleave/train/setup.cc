#include "cleave/train/setup.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cleave/base/log.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/data/chats.h"
#include "cleave/data/classified.h"
#include "cleave/data/documents.h"
#include "cleave/file/file.h"
#include "cleave/file/hub_cache.h"
#include "cleave/file/latest.h"
#include "cleave/mesh/cuda.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/planner/layout_options.h"
#include "cleave/train/memory.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

/// A copy of a config.json with `key` set to `value`.
Json with_key(const Json& config, const std::string& key, const nlohmann::ordered_json& value) {
  auto json = nlohmann::ordered_json::parse(config.dump());
  json[key] = value;
  return Json::parse(json.dump(), "config.json");
}

/// A new model reads bytes unless a tokenizer is given. Weights from a folder were trained with a
/// tokenizer: if the folder lacks it, there is none, and open_dataset() refuses text.
void choose_tokenizer(TrainSetup& setup) {
  const std::string& wanted = setup.options.tokenizer;
  if (!wanted.empty() && wanted != "bytes") {
    setup.tokenizer_folder = resolve_run_folder(wanted);
  } else if (wanted.empty() && setup.folder && has_model_tokenizer(setup.folder->path)) {
    setup.tokenizer_folder = setup.folder->path;
  }
  if (!setup.tokenizer_folder.empty()) {
    setup.tokenizer = load_model_tokenizer(setup.tokenizer_folder);
  } else if (wanted == "bytes" || !setup.folder) {
    setup.tokenizer = byte_tokenizer();
  }
}

/// The template is only read for chats, or if it is given: a run on other data does not fail
/// because of a model's unusual template.
void choose_chat_template(TrainSetup& setup, const Model& model) {
  const TrainOptions& o = setup.options;
  const bool reads_chats =
      task_of(model) != Task::kClassify && (holds_chats(o.data) || holds_chats(o.eval_data));
  if (!setup.tokenizer || (o.chat_template.empty() && !reads_chats)) return;
  setup.chat_template = load_model_chat_template(o.chat_template, setup.tokenizer_folder,
                                                 *setup.tokenizer, kTrainingTime);
}

/// Whether --model is a config.json: a model without weights.
bool is_config(const std::string& model) {
  return fs::path(model).extension() == ".json" && fs::is_regular_file(model);
}

/// config.json of a new model from a preset or a file, with the tokenizer's vocabulary size and
/// special ids; generation stops at its end id.
Json config_of_new(const std::string& name, const Tokenizer& tokenizer) {
  const Json base =
      is_config(name) ? Json::parse_file(name) : preset_config(name, tokenizer.vocab_size());
  auto json = nlohmann::ordered_json::parse(base.dump());
  if (!base.has("vocab_size")) json["vocab_size"] = tokenizer.vocab_size();
  const SpecialIds& special = tokenizer.special();
  if (special.bos) json["bos_token_id"] = *special.bos;
  if (special.eos) {
    json["eos_token_id"] = *special.eos;
  } else if (!json.contains("eos_token_id")) {
    json["eos_token_id"] = nullptr;  // without the key, the family's default id would end texts
  }
  // Not if the end token is also the padding token: embeddings of the padding id get no gradient.
  if (special.pad && special.pad != special.eos) {
    json["pad_token_id"] = *special.pad;
  } else if (!json.contains("pad_token_id")) {
    json["pad_token_id"] = nullptr;  // nor those of the family's default id
  }
  return Json::parse(json.dump(), is_config(name) ? name : "preset " + name);
}

/// If the task makes a new classifier of the model: sets the classes of the data in the config.
void fit_to_task(TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  const std::string own = make_model(setup.config)->task();
  const std::string task = o.task.empty() ? own : o.task;
  if (task != "classify" || (setup.folder && task == own)) return;
  const auto with_classes = [&](const std::vector<std::string>& names) {
    return classifier_config(setup.config, names);
  };
  if (make_model(with_classes({"any"}))->task() != task) return;  // make_setup() reports the task
  setup.config = with_classes(class_names(o.data));
  setup.changes_task = setup.folder.has_value();
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

void choose_types(TrainSetup& setup) {
  const auto dtype = dtype_from_name(setup.options.dtype);
  CLEAVE_CHECK(
      dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF64,
      Code::kUsage, "--dtype ", setup.options.dtype,
      " is no type for training; choose fp32, bf16, fp16 or fp64");
  const at::ScalarType type = scalar_type(*dtype);
  setup.layout.compute_type = type;
  setup.config = with_key(setup.config, dtype_key(setup.config), torch_name(type));
}

/// Whether the data is text that is packed into sequences of seq_len; chats, rows of ids and a
/// classifier's texts have their own length.
bool packs_text(const TrainSetup& setup, const Model& model) {
  const std::vector<std::string>& files = setup.options.data;
  return task_of(model) != Task::kClassify && !files.empty() && !holds_chats(files) &&
         file_kind(files.front()) != FileKind::kJsonRows;
}

/// Tokens of the longest sequence, to which its batch is padded.
int64_t longest_sequence(const Dataset& data) {
  size_t longest = 0;
  for (int64_t i = 0; i < data.size(); ++i) longest = std::max(longest, data.sample(i).ids.size());
  return static_cast<int64_t>(longest);
}

/// Forecasts a step, and refuses a run that does not fit into this host's memory. A user's model
/// may have operations that libtorch cannot run on the meta device. It is trained without a
/// forecast.
void plan_step(TrainSetup& setup, int64_t seq_len) {
  const StepShape step{.batch_size = setup.options.batch_size,
                       .micro_batch_size = setup.micro_batch_size,
                       .seq_len = seq_len,
                       .optimizer = setup.optimizer};
  try {
    setup.planned = forecast(setup.config, setup.layout, step);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    log_warning("no forecast of memory and time: ", what.substr(0, what.find('\n')));
    return;
  }
  const auto available = available_memory();
  const bool is_on_host = device_of(setup.options.device).is_cpu();
  if (!available || !is_on_host || setup.options.over_commit) return;
  require_memory(setup, step, ranks_of_host(setup.layout), *available);
}

/// Chooses and checks the layout, before data is read and ranks start.
void choose_layout(TrainSetup& setup, Model& model, int world_size) {
  ParallelConfig& l = setup.layout;
  l = make_parallel_config(setup.options, model, l.compute_type, world_size);
  CLEAVE_CHECK(setup.options.batch_size >= l.dp, Code::kShape,
               "batch-size=", setup.options.batch_size, " is less than dp=", l.dp,
               "; every data-parallel rank needs a sequence");
  try_layout(model, l);
  if (const auto environment = read_environment()) {
    const std::string warning = cross_host_warning(l, environment->local_world_size);
    if (!warning.empty() && environment->rank == 0) log_warning(warning);
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
          .cache_folder = (fs::path(setup.options.out) / "tokens").string(),
          .vocab_size = model.facts().vocab_size,
          .task = task_of(model),
          .classes = model.facts().labels};
}

std::shared_ptr<const Dataset> open_data(const TrainSetup& setup,
                                         const std::vector<std::string>& files,
                                         const Model& model) {
  const DatasetOptions options = dataset_options(setup, files, model);
  if (options.task == Task::kClassify || !holds_chats(files)) return open_dataset(options);
  ChatCounts counts;
  auto data = chat_dataset(
      options,
      {.chat_template = setup.chat_template, .train_on_all = setup.options.train_on == "all"},
      &counts);
  const std::string warning = counts.warning(options.seq_len);
  const auto environment = read_environment();
  if (!warning.empty() && (!environment || environment->rank == 0)) log_warning(warning);
  return data;
}

void check_length(const TrainSetup& setup, const ModelFacts& facts) {
  const int64_t seq_len = setup.options.seq_len;
  CLEAVE_CHECK(seq_len >= 2, Code::kShape, "seq-len=", seq_len,
               "; next-token prediction needs at least 2 tokens");
  CLEAVE_CHECK(seq_len <= facts.max_positions, Code::kShape, "seq-len=", seq_len,
               " is more than the model's max_position_embeddings=", facts.max_positions,
               "; choose up to ", facts.max_positions);
}

void check_vocabulary(const TrainSetup& setup, const ModelFacts& facts) {
  const int64_t tokens = setup.tokenizer ? setup.tokenizer->vocab_size() : 0;
  CLEAVE_CHECK(tokens <= facts.vocab_size, Code::kShape, "the tokenizer has ", tokens,
               " ids, more than the model's vocab_size=", facts.vocab_size,
               "; give the model's tokenizer with --tokenizer");
}

void choose_steps(TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  setup.order = {.num_samples = setup.data->size(),
                 .batch_size = o.batch_size,
                 .shuffle = o.shuffle,
                 .seed = o.seed};
  setup.num_steps = o.epochs ? setup.order.steps_of(*o.epochs) : o.steps.value_or(1000);
  CLEAVE_CHECK(o.warmup.value_or(0) <= setup.num_steps, Code::kUsage, "--warmup is ",
               o.warmup.value_or(0), "; expected at most the ", setup.num_steps,
               " steps of the run");
  setup.schedule = {.kind = LrSchedule::kind_from_name(o.schedule),
                    .peak = o.lr,
                    .warmup = o.warmup.value_or(setup.num_steps / 10),
                    .num_steps = setup.num_steps};
}

void choose_optimizer(TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  setup.optimizer = {.kind = OptimizerOptions::kind_from_name(o.optimizer),
                     .beta1 = o.adam_betas[0],
                     .beta2 = o.adam_betas[1],
                     .eps = o.adam_eps,
                     .weight_decay = o.weight_decay,
                     .decay_on = OptimizerOptions::decay_from_name(o.decay_on)};
}

/// The checkpoint that --resume continues from. Without one the run starts from the beginning, so
/// that a job that a scheduler starts again needs only one command.
std::optional<fs::path> checkpoint_of_run(const std::string& out) {
  auto checkpoint = checkpoint_to_resume(out);
  CLEAVE_CHECK(checkpoint || list_checkpoints(out).size() < 2, Code::kFormat, out,
               " has checkpoints and no file `latest`, and the newest is damaged; write the name "
               "of an intact one into ",
               (fs::path(out) / kLatestName).string());
  const auto environment = read_environment();
  if (!checkpoint && (!environment || environment->rank == 0)) {
    log_warning("--resume: ", out, " has no checkpoint; the run starts from the beginning");
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
    std::erase_if(files, [](const NamedFile& file) { return file.name == "chat_template.jinja"; });
    files.push_back({.name = "chat_template.jinja", .text = setup.chat_template->text()});
  }
  const std::string name = "generation_config.json";
  if (setup.folder && fs::exists(fs::path(setup.folder->path) / name)) {
    files.push_back({.name = name, .text = read_file(fs::path(setup.folder->path) / name)});
  }
  return files;
}

}  // namespace

bool is_packed(const Dataset& data) {
  const Sample first = data.sample(0);
  return data.is_text() && !first.label && first.labels.empty();
}

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
  if (checkpoint || is_folder) folder = ModelFolder::open(checkpoint.value_or(options.model));
  TrainSetup setup(options, folder);
  setup.resumes = checkpoint.has_value();
  if (whole) {
    setup.is_verified = true;
    setup.damage = whole->damage;
  }
  choose_tokenizer(setup);
  if (!folder) setup.config = config_of_new(options.model, *setup.tokenizer);
  if (!setup.resumes) fit_to_task(setup);
  choose_types(setup);
  const auto model = make_model(setup.config);
  model->check_trainable();
  CLEAVE_CHECK(options.task.empty() || options.task == model->task(), Code::kUsage, "--task ",
               options.task, " does not fit this model, which is trained for ", model->task());
  choose_layout(setup, *model, world_size);
  check_length(setup, model->facts());
  choose_optimizer(setup);
  choose_chat_template(setup, *model);
  // Before the data is read and its tokens are written, if the length of its sequences is known.
  const bool is_known = packs_text(setup, *model);
  if (is_known) plan_step(setup, options.seq_len);
  setup.data = open_data(setup, options.data, *model);
  if (!options.eval_data.empty()) {
    setup.eval_data = open_data(setup, options.eval_data, *model);
  }
  check_vocabulary(setup, model->facts());
  setup.batches = batch_rules(*model, setup.tokenizer.get(), setup.data->is_text(), options.seed);
  choose_steps(setup);
  setup.files = carried_files(setup);
  if (!is_known) plan_step(setup, longest_sequence(*setup.data));
  return setup;
}

}  // namespace cleave
