#include "cleave/parallel/lora.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <ATen/ATen.h>

#include "cleave/base/str.h"
#include "cleave/nn/experts.h"
#include "cleave/nn/linear.h"
#include "cleave/nn/quantized_leaf.h"
#include "cleave/pipeline/stages.h"

namespace cleave::inline parallel {
namespace {

std::vector<Linear*> linears_of(Layer& layer) {
  std::vector<Linear*> found;
  layer.walk([&](Layer& l) {
    if (auto* linear = dynamic_cast<Linear*>(&l)) found.push_back(linear);
  });
  return found;
}

std::set<const Linear*> routers_of(Layer& layer) {
  std::set<const Linear*> found;
  layer.walk([&](Layer& l) {
    if (const auto* experts = dynamic_cast<const Experts*>(&l)) found.insert(&experts->router());
  });
  return found;
}

/// Dropout's masks depend on the place of a sequence in the batch, which rows of experts do not
/// have.
void refuse_experts(Layer& model, const std::vector<Linear*>& chosen) {
  std::set<const Linear*> of_experts;
  model.walk([&](Layer& l) {
    if (dynamic_cast<const Experts*>(&l) == nullptr) return;
    for (const Linear* linear : linears_of(l)) of_experts.insert(linear);
  });
  for (const Linear* linear : chosen) {
    CLEAVE_CHECK(!of_experts.contains(linear), Code::kUsage, "the LoRA target ", linear->path(),
                 " belongs to experts, which have no dropout of adapters; choose other targets "
                 "(--lora-targets), or leave out --lora-dropout");
  }
}

/// The Linear layers of the model's blocks, without routers.
std::vector<Linear*> linears_of_blocks(Layer& model, const std::vector<Layer*>& sequence) {
  const std::set<const Linear*> routers = routers_of(model);
  std::vector<Linear*> found;
  for (const size_t block : blocks_of(sequence)) {
    for (Linear* linear : linears_of(*sequence[block])) {
      if (!routers.contains(linear)) found.push_back(linear);
    }
  }
  return found;
}

bool ends_with_path(const std::string& path, const std::string& target) {
  return path == target || path.ends_with("." + target);
}

/// The last names of the layers' paths, each once: "q_proj, k_proj".
std::string names_of(const std::vector<Linear*>& linears) {
  std::vector<std::string> names;
  for (const Linear* linear : linears) {
    const std::string name = linear->path().substr(linear->path().rfind('.') + 1);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The layers that the targets name, in the model's order.
std::vector<Linear*> chosen_by(const std::vector<std::string>& targets, Layer& model,
                               const std::vector<Layer*>& sequence) {
  const std::vector<Linear*> all = linears_of(model);
  std::set<const Linear*> chosen;
  for (const std::string& target : targets) {
    bool matches = false;
    if (target == LoraOptions::kAllLinear) {
      const std::vector<Linear*> inner = linears_of_blocks(model, sequence);
      chosen.insert(inner.begin(), inner.end());
      matches = !inner.empty();
    }
    for (const Linear* linear : all) {
      if (!ends_with_path(linear->path(), target)) continue;
      chosen.insert(linear);
      matches = true;
    }
    CLEAVE_CHECK(matches, Code::kUsage, "the LoRA target '", target,
                 "' is not a linear layer of the model; it has ", names_of(all), ", and ",
                 LoraOptions::kAllLinear,
                 " stands for all but the head and the routers of experts");
  }
  std::vector<Linear*> found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found),
               [&](const Linear* linear) { return chosen.contains(linear); });
  return found;
}

/// The parameters of the layers that end so, and of the layers below them.
std::set<const Parameter*> trained_by(const std::vector<std::string>& ends, Layer& model) {
  std::set<const Parameter*> found;
  for (const std::string& end : ends) {
    std::string top = "-";          // of no layer
    model.walk([&](Layer& layer) {  // parents first
      if (ends_with_path(layer.path(), end)) top = layer.path();
      if (layer.path() != top && !layer.path().starts_with(top + ".")) return;
      for (const auto& p : layer.own_parameters()) found.insert(p.get());
    });
  }
  return found;
}

}  // namespace

std::string_view base_name(const std::optional<QuantizedForm>& form) {
  return form ? name(*form) : "dtype";
}

std::optional<QuantizedForm> base_form_from_name(std::string_view name) {
  using Form = std::optional<QuantizedForm>;
  for (const Form& form : {Form(), Form(QuantizedForm::kInt8), Form(QuantizedForm::kNf4)}) {
    if (base_name(form) == name) return form;
  }
  throw Error(Code::kUsage, str("lora_base=", name, "; it is dtype, int8 or nf4"));
}

double LoraOptions::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (is_rank_stabilized ? std::sqrt(r) : r);
}

std::string LoraOptions::flags() const {
  return str("--lora ", rank, " --lora-alpha ", alpha, is_rank_stabilized ? " --rslora" : "",
             dropout > 0 ? str(" --lora-dropout ", dropout) : "", is_dora ? " --dora" : "",
             base_form ? str(" --lora-base ", name(*base_form)) : "");
}

std::string LoraOptions::describe() const {
  return str(is_rank_stabilized ? "rsLoRA" : "LoRA", is_dora ? " with magnitudes" : "", " of rank ",
             rank, base_form ? str(", base in ", name(*base_form)) : "");
}

std::vector<std::string> classification_head(Layer& model) {
  model.name_tree();
  std::vector<std::string> paths;
  model.walk([&paths](const Layer& layer) {
    for (const char* name : {"classifier", "score"}) {  // in PEFT 0.21: SEQ_CLS_HEAD_NAMES
      // A layer in it may have its path.
      const bool is_known = !paths.empty() && paths.back() == name;
      if (layer.path() == name && !is_known) paths.push_back(layer.path());
    }
  });
  return paths;
}

void attach_lora(Layer& model, const std::vector<Layer*>& sequence, const LoraOptions& options,
                 at::ScalarType compute) {
  model.name_tree();
  std::map<const Parameter*, int> owners;
  model.walk([&](Layer& layer) {
    for (const auto& p : layer.own_parameters()) ++owners[p.get()];
  });
  const std::vector<Linear*> linears = chosen_by(options.targets, model, sequence);
  for (const Linear* linear : linears) {
    CLEAVE_CHECK(owners[linear->weight().get()] == 1, Code::kUsage, "the LoRA target ",
                 linear->path(), " has the weight ", linear->weight()->name(),
                 ", which another layer uses too; a merged adapter would change both. Choose other "
                 "targets");
  }
  if (options.dropout > 0) refuse_experts(model, linears);
  const std::set<const Parameter*> trained = trained_by(options.trained_layers, model);
  for (const Linear* linear : linears) {
    CLEAVE_CHECK(!trained.contains(linear->weight().get()), Code::kUsage, "the LoRA target ",
                 linear->path(),
                 ", the head of a classifier, is trained itself; choose other targets");
  }
  for (const auto& p : model.parameters()) {
    if (!trained.contains(p.get())) p->freeze(compute);
  }
  if (options.base_form) {
    for (Linear* linear : linears_of_blocks(model, sequence)) {
      if (owners[linear->weight().get()] == 1) linear->freeze_quantized(*options.base_form);
    }
  }
  const LoraBranch branch{.rank = options.rank,
                          .scale = options.scale(),
                          .dropout = options.dropout,
                          .has_magnitudes = options.is_dora};
  for (Linear* linear : linears) linear->attach_lora(branch);
}

namespace {

/// Sums of squares of the whole rows of a weight, for this rank's outputs, in fp64: so that their
/// order, which depends on the layout, does not show after rounding.
Tensor squares_of_rows(const Linear& linear) {
  const Parameter& weight = *linear.weight();
  const int row_dim = linear.is_transposed() ? 1 : 0;
  const std::string site = weight.name() + " magnitudes";
  const Tensor values = weight.is_quantized() ? values_of_leaf(weight, at::kDouble)
                                              : weight.leaf().detach().to(at::kDouble);
  Tensor sums;
  if (weight.is_flat()) {
    const Tensor rows = rows_of_flat(weight, row_dim);
    const int64_t num_rows = weight.local_shape().at(static_cast<size_t>(row_dim));
    sums = at::zeros({num_rows}, values.options()).index_add(0, rows, values.square());
    sums = weight.data_axis().all_reduce(sums, site);
  } else {
    sums = values.square().sum(1 - row_dim);
  }
  return linear.is_row_split() ? weight.axis().all_reduce(sums, site) : sums;
}

}  // namespace

void start_magnitudes(Layer& model, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  for (const Linear* linear : linears_of(model)) {
    const auto& magnitudes = linear->magnitudes();
    if (!magnitudes || magnitudes->ownership() == Parameter::Ownership::kNotOwned) continue;
    const Range range = magnitudes->flat_range();
    const Tensor norms = squares_of_rows(*linear).sqrt();
    magnitudes->set_leaf(norms.narrow(0, range.begin, range.size()).to(type));
  }
}

}  // namespace cleave::inline parallel
