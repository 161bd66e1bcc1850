#include "cleave/nn/linear.h"

#include <cmath>

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/gemm.h"
#include "cleave/kernels/quantized_weight.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/magnitudes.h"
#include "cleave/nn/soft_cap.h"
#include "cleave/nn/subject.h"
#include "cleave/torch_internals/tensor.h"

namespace cleave::inline nn {
namespace {

/// Makes a frozen weight as a matrix [out, in] of a type. It holds the tensors, not the parameter:
/// FSDP frees their memory and gathers it again for backward.
std::function<Tensor()> frozen_matrix(const Parameter& weight, int out_dim, at::ScalarType type) {
  if (weight.is_quantized()) {
    return [frozen = weight.quantized(), type] {
      const Tensor values = dequantize(frozen, type);
      return frozen.row_dim == 0 ? values : values.t();
    };
  }
  return [values = out_dim == 0 ? weight.use() : weight.use().t()] { return values; };
}

/// Whether backward computes no gradient of a weight and its bias.
bool is_frozen(const Parameter& weight, const std::optional<Tensor>& bias) {
  return weight.is_quantized() ||
         (!weight.use().requires_grad() && !(bias && bias->requires_grad()));
}

/// The record on the sums of squares of a weight's rows: what they were computed from.
struct WeightRecord : TensorRecord {
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> leaf;
  uint32_t version = 0;
};

uint32_t version_of_weight(const Tensor& leaf) {
  return leaf.is_inference() ? 0 : version_of(leaf);  // inference mode does not count
}

/// Whether `squares` were computed from the weight's present values. It looks at the leaf, because
/// under FSDP use() is another tensor in each call. The leaf of a trained weight changes in each
/// step.
bool are_current(const Tensor& squares, const Parameter& weight) {
  const auto* record = record_on<WeightRecord>(squares);
  return record != nullptr && !weight.is_trained() &&
         record->leaf->_unsafe_get_target() == weight.leaf().unsafeGetTensorImpl() &&
         record->version == version_of_weight(weight.leaf());
}

/// Refuses magnitudes that nobody set: materialize() fills them with ones, and b with zeros.
void check_started(const std::string& path, const Tensor& magnitudes, const Tensor& norms,
                   const Tensor& b) {
  if (norms.is_meta() || norms.numel() == 0 || !magnitudes.eq(1).all().item<bool>()) return;
  const bool is_unset =
      b.eq(0).all().item<bool>() && norms.sub(1).abs().max().item<double>() > 1e-2;
  CLEAVE_CHECK(!is_unset, Code::kUsage, subject(path),
               "the magnitudes of its adapter are all 1, and the norms of the weight's rows are "
               "not; call start_magnitudes(model, type) after the weights are filled, or "
               "load_adapter()");
}

}  // namespace

Linear::Linear(const LinearOptions& options)
    : out_dim_(options.transposed ? 1 : 0),
      in_dim_(1 - out_dim_),
      default_style_(options.default_style),
      soft_cap_(options.soft_cap),
      least_bits_(options.least_bits) {
  CLEAVE_CHECK(options.in_features > 0 && options.out_features > 0, Code::kShape,
               "Linear(in_features=", options.in_features, ", out_features=", options.out_features,
               "); both must be positive");
  std::vector<int64_t> shape{options.out_features, options.in_features};
  if (options.transposed) std::swap(shape[0], shape[1]);
  weight_ = std::make_shared<Parameter>(shape, options.init);
  add("weight", weight_);
  if (options.bias) {
    bias_ =
        std::make_shared<Parameter>(std::vector<int64_t>{options.out_features}, options.bias_init);
    add("bias", bias_);
  }
}

void Linear::attach_lora(const LoraBranch& branch) {
  const int64_t rank = branch.rank;
  const int64_t in = features(in_dim_);
  const int64_t out = features(out_dim_);
  CLEAVE_CHECK(!lora_a_, Code::kUsage, subject(path()), "it has an adapter already");
  CLEAVE_CHECK(weight_->axis().size() == 1, Code::kUsage, subject(path()), "the layer is on ",
               weight_->axis().size(), " ranks of ", weight_->axis().name(),
               " already; attach adapters before the model is parallelized");
  CLEAVE_CHECK(rank >= 1 && rank <= std::min(in, out), Code::kShape, subject(path()), "LoRA rank ",
               rank, " does not fit a matrix of ", out, " x ", in, "; choose a rank from 1 to ",
               std::min(in, out));
  lora_a_ = std::make_shared<Parameter>(std::vector<int64_t>{rank, in},
                                        Init::uniform(1 / std::sqrt(static_cast<double>(in))));
  lora_b_ = std::make_shared<Parameter>(std::vector<int64_t>{out, rank}, Init::constant(0));
  lora_ = branch;
  const std::string& weight = weight_->name();
  const std::string stem =
      weight.substr(0, weight.rfind('.') + 1);  // "model.layers.0.mlp.up_proj."
  lora_a_->set_name(stem + "lora_A.weight");
  lora_b_->set_name(stem + "lora_B.weight");
  if (branch.has_magnitudes) {
    magnitudes_ = std::make_shared<Parameter>(std::vector<int64_t>{out}, Init::constant(1));
    magnitudes_->set_name(stem + "lora_magnitude_vector");
    magnitudes_->keep_leaf_type();
    magnitudes_->set_adapter();
  }
  for (auto* p : {&lora_a_, &lora_b_}) (*p)->set_adapter();
  add("lora_A.weight", lora_a_);
  add("lora_B.weight", lora_b_);
  if (magnitudes_) add("lora_magnitude_vector", magnitudes_);
}

void Linear::split_columns(const Axis& axis) {
  const SplitPtr split =
      column_shards_ ? column_shards_ : Split::balanced(features(out_dim_), axis.size());
  weight_->shard(axis, out_dim_, split);
  if (bias_) bias_->shard(axis, 0, split);
  if (lora_b_) lora_b_->shard(axis, 0, split);
  if (magnitudes_) magnitudes_->shard(axis, 0, split);
}

void Linear::split_rows(const Axis& axis) {
  const SplitPtr split =
      row_shards_ ? row_shards_ : Split::balanced(features(in_dim_), axis.size());
  weight_->shard(axis, in_dim_, split);
  if (bias_) bias_->replicate(axis);
  if (lora_a_) lora_a_->shard(axis, 1, split);
  if (!output_layout()) set_output_layout(Replicate{});
}

std::optional<Placement> Linear::accepts(const DTensor& x) const {
  if (is_column_split()) return Fanout{};
  if (is_row_split()) return Shard{static_cast<int>(x.dim()) - 1, weight_->placement().split()};
  return std::nullopt;
}

DTensor Linear::shared_input(const DTensor& x) const {
  return is_column_split() && !states_input() ? x.redistribute(Fanout{}) : x;
}

DTensor Linear::forward(const DTensor& x, const Context& context) {
  CLEAVE_CHECK(x.size(-1) == features(in_dim_), Code::kShape, subject(path()), "input of ",
               x.local().sizes(), " has width ", x.size(-1), "; in_features=", features(in_dim_));
  if (is_row_split()) {
    CLEAVE_CHECK(soft_cap_ == 0, Code::kShape, subject(path()),
                 "a soft cap needs the whole sums; give the layer the style colwise, or none");
    return rows(x, context);
  }
  const DTensor y = is_column_split() ? columns(x, context) : whole(x, context);
  return soft_cap_ == 0 ? y : y.with(soft_cap(y.local(), soft_cap_));
}

Tensor Linear::product(const DTensor& x, const std::optional<Tensor>& bias,
                       const Context& context) const {
  if (!lora_a_) return main_product(x.local(), bias, context);
  // The gradient of a matrix that is whole on every rank is a partial sum if x is sharded or
  // Fanout: each rank multiplies it with its part of x, or gets a part of its result's gradient.
  for (const auto& p : {lora_a_, lora_b_}) p->used_in(x);
  const Tensor input = branch_input(x, context);
  if (!magnitudes_ && !product_ && input.is_same(x.local()) && is_frozen(*weight_, bias)) {
    return affine_frozen(input, frozen_matrix(*weight_, out_dim_, input.scalar_type()), bias,
                         LowRank{lora_a_->use(), lora_b_->use(), lora_.scale});
  }
  // The narrow matrix is scaled, not the wide one: forward and backward have less to do.
  const Tensor narrow = affine(input, lora_a_->use(), std::nullopt) * lora_.scale;
  const Tensor low = affine(narrow, lora_b_->use(), std::nullopt);
  if (!magnitudes_) return main_product(x.local(), bias, context) + low;
  magnitudes_->used_in(x);
  const Tensor sum = main_product(input, std::nullopt, context) + low;
  Tensor y = with_magnitudes(sum, magnitudes_->use(), norms_of_sum(context));
  if (!input.is_same(x.local())) {
    y = y + main_product(x.local() - input, std::nullopt, context);  // what dropout took away
  }
  return bias ? y + *bias : y;
}

Tensor Linear::norms_of_sum(const Context& context) const {
  const at::NoGradGuard no_grad;
  const Tensor a = lora_a_->use().detach();
  const bool is_new = !are_current(squares_, *weight_);
  if (is_new) {
    const at::ScalarType type = magnitudes_->use().scalar_type();
    const Tensor weight =
        weight_->is_quantized() ? dequantize(weight_->quantized(), type) : weight_->use();
    squares_ = at::linalg_vector_norm(weight, 2, {in_dim_}, /*keepdim=*/false, type).square();
    change_record<WeightRecord>(squares_, [&](WeightRecord& record) {
      record.leaf.emplace(weight_->leaf().getIntrusivePtr());
      record.version = version_of_weight(weight_->leaf());
    });
  }
  const Tensor cross = main_product(a, std::nullopt, context);
  Tensor squares =
      squares_of_sum(squares_, cross, {.a = a, .b = lora_b_->use().detach(), .scale = lora_.scale});
  if (is_row_split()) squares = weight_->axis().all_reduce(squares, path() + " magnitudes");
  const Tensor norms = squares.clamp_min(0).sqrt();
  const Tensor divisors = norms.masked_fill(norms.eq(0), 1);  // rows of zeros have the magnitude 0
  if (is_new) check_started(path(), magnitudes_->use(), divisors, lora_b_->use());
  return divisors;
}

Tensor Linear::branch_input(const DTensor& x, const Context& context) const {
  if (!context.training || lora_.dropout == 0) return x.local();
  return x.local() * dropout_mask(x, lora_.dropout, path() + ".lora_dropout", context);
}

Tensor Linear::main_product(const Tensor& x, const std::optional<Tensor>& bias,
                            const Context& context) const {
  if (weight_->is_quantized()) {
    return affine_frozen(x, frozen_matrix(*weight_, out_dim_, x.scalar_type()), bias);
  }
  if (product_) return product_(x, bias);
  return affine(x, out_dim_ == 0 ? weight_->use() : weight_->use().t(), bias, context.deferred);
}

DTensor Linear::whole(const DTensor& x, const Context& context) {
  const Placement& p = x.placement();
  CLEAVE_CHECK(!p.is_partial() && !p.is_shard(x.dim() - 1), Code::kShape, path(),
               " is not sharded and got ", p.describe(), " made by ", x.maker(),
               "; give it a style in the plan");
  weight_->used_in(x);
  std::optional<Tensor> b;
  if (bias_) {
    bias_->used_in(x);
    b = bias_->use();
  }
  return x.with(product(x, b, context));
}

DTensor Linear::columns(const DTensor& x, const Context& context) const {
  CLEAVE_CHECK(!bias_ || bias_->placement().is_shard(), Code::kShape, path(),
               ": another layer shards the weight over its outputs, and the bias is whole; give "
               "this layer the style colwise");
  const std::optional<Tensor> b = bias_ ? std::optional(bias_->use()) : std::nullopt;
  const Placement out = Shard{static_cast<int>(x.dim()) - 1, weight_->placement().split()};
  return x.with(product(x, b, context), out);
}

DTensor Linear::rows(const DTensor& x, const Context& context) {
  DTensor y = mine(x.with(product(x, std::nullopt, context), Partial{}));
  if (!bias_) return y;
  // Without split_rows(), if the weight is tied to one that another layer has sharded.
  y = y.redistribute(output_layout().value_or(Replicate{}));
  CLEAVE_CHECK(
      !y.placement().is_partial() || !y.is_split(), Code::kShape, path(),
      ": the bias is added once, after the sum, but output=Partial leaves partial sums; remove "
      "the bias or set the output to Replicate or Shard(1)");
  bias_->used_in(y);
  return y.with(y.local() + bias_->use());
}

}  // namespace cleave::inline nn
