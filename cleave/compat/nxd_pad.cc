#include <algorithm>
#include <set>

#include "cleave/compat/nxd.h"

namespace cleave::nxd {
namespace {

thread_local bool is_padding = false;  // a rank may be a thread

/// While one lives, pad_model is not called again on this rank.
class PaddingNow {
 public:
  PaddingNow() { is_padding = true; }
  ~PaddingNow() { is_padding = false; }
  PaddingNow(const PaddingNow&) = delete;
  PaddingNow& operator=(const PaddingNow&) = delete;
};

struct Found {
  std::vector<Layer*> told;  ///< by the hook, parents first
  std::vector<ColumnParallelLinear*> columns;
  std::vector<RowParallelLinear*> rows;
};

Found find(Layer& model, const LayerClasses& wrapped) {
  Found found;
  std::set<const Layer*> seen;
  const auto take = [&](Layer& layer) {
    if (!seen.insert(&layer).second) return;
    if (auto* column = dynamic_cast<ColumnParallelLinear*>(&layer)) found.columns.push_back(column);
    auto* row = dynamic_cast<RowParallelLinear*>(&layer);
    // A whole input is cut by the layer itself, in whole heads or not.
    if (row != nullptr && row->input_is_parallel()) found.rows.push_back(row);
  };
  model.walk([&](Layer& layer) {
    const bool is_wrapped =
        wrapped.empty() || std::any_of(wrapped.begin(), wrapped.end(),
                                       [&](const auto& is_one) { return is_one(layer); });
    if (!is_wrapped) return;
    found.told.push_back(&layer);
    layer.walk(take);
  });
  return found;
}

}  // namespace

int64_t get_number_of_extra_heads(int64_t n_head, int64_t tp) {
  CLEAVE_CHECK(n_head >= 1 && tp >= 1, Code::kUsage, "n_head=", n_head, ", tp=", tp,
               "; both must be positive");
  return (tp - n_head % tp) % tp;
}

int64_t HeadRatio::of(int64_t size) const {
  CLEAVE_CHECK(size * padded % heads == 0, Code::kShape, size, " x ", padded, " / ", heads,
               " is no whole number: ", size, " does not consist of ", heads, " equal heads");
  return size * padded / heads;
}

void pad_model(Layer& model, int64_t tp_degree, int64_t n_heads, const PadModelOptions& options) {
  CLEAVE_CHECK(!is_padding, Code::kUsage,
               "pad_model was called from its own pad_hook_fn; the hook changes the layer that it "
               "is given, and pad_model is called once, outside it");
  const int64_t extra = get_number_of_extra_heads(n_heads, tp_degree);
  if (extra == 0) return;
  const HeadRatio ratio{.padded = n_heads + extra, .heads = n_heads};
  const Found found = find(model, options.wrapped_classes);
  std::vector<HeadCuts> row_cuts, column_cuts;
  std::set<int64_t> taken;  // widths that padded rows take
  const auto check_layer = [&](const auto& layer) {
    CLEAVE_CHECK(layer.group().size() == tp_degree, Code::kUsage, "tp_degree=", tp_degree,
                 "; the layers are split over ", layer.group().size(), " ranks");
    CLEAVE_CHECK(!layer.is_padded(), Code::kUsage, layer.title(), " is padded already");
    CLEAVE_CHECK(!layer.weight()->leaf().defined(), Code::kUsage,
                 "pad_model comes before move_model_to_device and before a checkpoint is loaded");
    return layer.head_cuts(n_heads, ratio.padded);
  };
  for (const RowParallelLinear* row : found.rows) {
    row_cuts.push_back(check_layer(*row));
    taken.insert(row->weight()->shape()[1]);
  }
  for (const ColumnParallelLinear* column : found.columns) {
    column_cuts.push_back(check_layer(*column));
    const int64_t width = column->weight()->shape()[0];
    CLEAVE_CHECK(taken.contains(width), Code::kShape, column->title(),
                 ": no padded RowParallelLinear takes these ", width,
                 " columns, as behind a vocabulary projection or of fused matrices, so zeros would "
                 "reach the result; name the attention classes, their output projection too, in "
                 "wrapped_classes");
  }
  const PaddingNow now;
  if (options.pad_hook_fn) {
    // Children first.
    for (auto layer = found.told.rbegin(); layer != found.told.rend(); ++layer) {
      options.pad_hook_fn(**layer, ratio);
    }
  }
  for (size_t i = 0; i < found.rows.size(); ++i) found.rows[i]->set_head_cuts(row_cuts[i]);
  for (size_t i = 0; i < found.columns.size(); ++i) found.columns[i]->set_head_cuts(column_cuts[i]);
}

}  // namespace cleave::nxd
