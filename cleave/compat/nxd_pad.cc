#include <algorithm>
#include <set>

#include "cleave/compat/nxd.h"

namespace cleave::nxd {
namespace {

thread_local bool is_padding = false;  // a rank may be a thread

/// Marks that pad_model runs on this rank, to refuse nested calls.
class PaddingScope {
 public:
  PaddingScope() { is_padding = true; }
  ~PaddingScope() { is_padding = false; }
  PaddingScope(const PaddingScope&) = delete;
  PaddingScope& operator=(const PaddingScope&) = delete;
};

struct Found {
  std::vector<Layer*> hooked;  ///< layers for pad_hook_fn, parents first
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
    // With a whole input, the layer shards it itself, so its columns need not match the heads.
    if (row != nullptr && row->input_is_parallel()) found.rows.push_back(row);
  };
  model.walk([&](Layer& layer) {
    const bool is_wrapped =
        wrapped.empty() || std::any_of(wrapped.begin(), wrapped.end(),
                                       [&](const auto& is_one) { return is_one(layer); });
    if (!is_wrapped) return;
    found.hooked.push_back(&layer);
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
               " is not an integer: ", size, " does not consist of ", heads, " equal heads");
  return size * padded / heads;
}

void pad_model(Layer& model, int64_t tp_degree, int64_t n_heads, const PadModelOptions& options) {
  CLEAVE_CHECK(!is_padding, Code::kUsage,
               "pad_model was called from its own pad_hook_fn; the hook may only change the layer "
               "that it is given");
  const int64_t extra = get_number_of_extra_heads(n_heads, tp_degree);
  if (extra == 0) return;
  const HeadRatio ratio{.padded = n_heads + extra, .heads = n_heads};
  const Found found = find(model, options.wrapped_classes);
  std::vector<HeadShards> row_shards, column_shards;
  std::set<int64_t> taken;  // input widths of padded RowParallelLinears
  const auto check_layer = [&](const auto& layer) {
    CLEAVE_CHECK(layer.group().size() == tp_degree, Code::kUsage, "tp_degree=", tp_degree,
                 "; the layers are sharded over ", layer.group().size(), " ranks");
    CLEAVE_CHECK(!layer.is_padded(), Code::kUsage, layer.title(), " is already padded");
    CLEAVE_CHECK(!layer.weight()->leaf().defined(), Code::kUsage,
                 "call pad_model before move_model_to_device and before loading a checkpoint");
    return layer.head_shards(n_heads, ratio.padded);
  };
  for (const RowParallelLinear* row : found.rows) {
    row_shards.push_back(check_layer(*row));
    taken.insert(row->weight()->shape()[1]);
  }
  for (const ColumnParallelLinear* column : found.columns) {
    column_shards.push_back(check_layer(*column));
    const int64_t width = column->weight()->shape()[0];
    CLEAVE_CHECK(taken.contains(width), Code::kShape, column->title(),
                 ": no padded RowParallelLinear takes its ", width,
                 " columns (a vocabulary projection, or fused matrices?), so zeros would reach the "
                 "result; name the attention classes, including their output projection, in "
                 "wrapped_classes");
  }
  const PaddingScope scope;
  if (options.pad_hook_fn) {
    // Children first.
    for (auto layer = found.hooked.rbegin(); layer != found.hooked.rend(); ++layer) {
      options.pad_hook_fn(**layer, ratio);
    }
  }
  for (size_t i = 0; i < found.rows.size(); ++i) found.rows[i]->set_head_shards(row_shards[i]);
  for (size_t i = 0; i < found.columns.size(); ++i)
    found.columns[i]->set_head_shards(column_shards[i]);
}

}  // namespace cleave::nxd
