#include "save.h"

#include <map>

#include <ATen/ATen.h>

#include "cleave/checkpoint/save.h"
#include "cleave/file/file.h"
#include "cleave/mesh/mesh.h"

namespace bert_pretraining {
namespace {

using cleave::str;

cleave::Json config_json(const BertConfig& c) {
  return cleave::Json::parse(
      str(R"({"model_type": "bert", "architectures": ["BertForPreTraining"], "vocab_size": )",
          c.vocab_size, R"(, "hidden_size": )", c.hidden_size, R"(, "num_hidden_layers": )",
          c.num_hidden_layers, R"(, "num_attention_heads": )", c.num_attention_heads,
          R"(, "intermediate_size": )", c.intermediate_size, R"(, "max_position_embeddings": )",
          c.max_position_embeddings, R"(, "type_vocab_size": 2, "hidden_act": "gelu",)",
          R"( "layer_norm_eps": 1e-12, "hidden_dropout_prob": )", c.hidden_dropout_prob,
          R"(, "attention_probs_dropout_prob": 0.0, "pad_token_id": 0})"),
      "config.json");
}

std::vector<cleave::NamedFile> files_of(const std::string& folder) {
  std::vector<cleave::NamedFile> files;
  for (const std::string& name : cleave::tokenizer_files(folder)) {
    files.push_back({.name = name, .text = cleave::read_file(folder + "/" + name)});
  }
  return files;
}

}  // namespace

// Cleave's own BERT has the same parameters under the same names: gives it this rank's shards and
// saves it.
void save(const SaveOptions& options, cleave::World& world, BertForPreTraining& model,
          const cleave::Optimizer& optimizer) {
  std::map<std::string, std::shared_ptr<cleave::Parameter>> trained;
  for (const auto& p : model.parameters()) trained.emplace(p->name(), p);
  const auto saved = cleave::make_model(config_json(model.config()));
  saved->name_tree();
  const auto parameters = saved->parameters();
  for (const auto& p : parameters) {
    const auto& from = trained.at(p->name());
    p->replicate(from->axis());
    if (from->is_split()) {
      p->shard(from->axis(), static_cast<int>(from->split_dim()), from->placement().split());
    }
    p->set_leaf(from->leaf());
  }
  std::map<std::string, const cleave::Optimizer::State*> moments;
  for (const auto& state : optimizer.states()) moments.emplace(state.parameter->name(), &state);
  cleave::Optimizer saved_optimizer(parameters, {});
  saved_optimizer.set_num_steps(optimizer.num_steps());
  for (const auto& state : saved_optimizer.states()) {
    const auto* from = moments.at(state.parameter->name());
    state.exp_avg.copy_(from->exp_avg);
    state.exp_avg_sq.copy_(from->exp_avg_sq);
    saved_optimizer.set_num_steps(*state.parameter, from->num_steps);
  }
  cleave::save_checkpoint(options.folder,
                          {.step = options.step,
                           .model = saved.get(),
                           .optimizer = &saved_optimizer,
                           .dtype = parameters.front()->leaf().scalar_type(),
                           .carried = {},
                           .state_json = str(R"({"step": )", options.step, "}"),
                           .files = files_of(options.tokenizer_folder)},
                          {.world = cleave::Mesh::build(world, {{"world", world.size()}})["world"],
                           .tp = nxd::get_tensor_model_parallel_group(),
                           .dp = nxd::get_data_parallel_group()});
}

}  // namespace bert_pretraining
