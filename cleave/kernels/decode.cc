#include "cleave/kernels/decode.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "cleave/kernels/cuda/block.h"
#include "cleave/kernels/device.h"

namespace cleave::inline kernels {
namespace {

/// The keys of one block, and the most blocks of a query: with few sequences, several blocks per
/// query keep a GPU busy.
constexpr int64_t kKeysOfPart = 512;
constexpr int64_t kMostParts = 32;
/// Logits of one block.
constexpr int64_t kLogitsOfPart = 2048;

AppendTokenJob::Strides strides_of(const Tensor& t) {
  return {.batch = t.stride(0), .head = t.stride(1)};
}

/// With stride 1 in the last dim.
Tensor with_rows(const Tensor& t) {
  return t.stride(3) == 1 ? t : t.contiguous();
}

const int64_t* numbers_of(const Tensor& t) {
  return t.defined() ? t.const_data_ptr<int64_t>() : nullptr;
}

void append(const DeviceKernels& kernels, const Tensor& q, const Tensor& k, const Tensor& v,
            const DecodeAttention& a, const Tensor& rotated) {
  kernels.append_token({.is_bf16 = q.scalar_type() == at::kBFloat16,
                        .batch = q.size(0),
                        .heads = q.size(1),
                        .kv_heads = k.size(1),
                        .width = q.size(3),
                        .half = a.cos.defined() ? a.cos.size(-1) : 0,
                        .capacity = a.keys.size(2),
                        .q = q.const_data_ptr(),
                        .k = k.const_data_ptr(),
                        .v = v.const_data_ptr(),
                        .of_q = strides_of(q),
                        .of_k = strides_of(k),
                        .of_v = strides_of(v),
                        .rotated_q = rotated.mutable_data_ptr(),
                        .keys = a.keys.mutable_data_ptr(),
                        .values = a.values.mutable_data_ptr(),
                        .cos = a.cos.defined() ? a.cos.const_data_ptr() : nullptr,
                        .sin = a.sin.defined() ? a.sin.const_data_ptr() : nullptr,
                        .positions = numbers_of(a.positions),
                        .num_keys = numbers_of(a.num_keys)});
}

}  // namespace

bool takes_decode_attention(const Tensor& q, at::ScalarType type) {
  return device_kernels(q) != nullptr && q.scalar_type() == type && q.size(2) == 1 &&
         q.size(3) <= kMostDecodeWidth;
}

Tensor decode_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const DecodeAttention& attention) {
  const DeviceKernels& kernels = *device_kernels(q);
  const int64_t batch = q.size(0), heads = q.size(1), width = q.size(3);
  const Tensor rotated = at::empty({batch, heads, width}, q.options());
  append(kernels, with_rows(q), with_rows(k), with_rows(v), attention, rotated);
  Tensor out = at::empty({batch, heads, 1, width}, q.options());
  const int64_t capacity = attention.keys.size(2);
  const int64_t num_parts = std::clamp<int64_t>(capacity / kKeysOfPart, 1, kMostParts);
  Tensor parts;
  if (num_parts > 1) {
    parts = at::empty({batch, heads, num_parts, width + 2}, q.options().dtype(at::kFloat));
  }
  kernels.decode_attention({.is_bf16 = q.scalar_type() == at::kBFloat16,
                            .batch = batch,
                            .heads = heads,
                            .kv_heads = k.size(1),
                            .width = width,
                            .capacity = capacity,
                            .group = attention.group,
                            .skipped = attention.skipped,
                            .window = attention.window,
                            .num_parts = num_parts,
                            .scale = static_cast<float>(1 / attention.divisor),
                            .soft_cap = static_cast<float>(attention.soft_cap),
                            .q = rotated.const_data_ptr(),
                            .keys = attention.keys.const_data_ptr(),
                            .values = attention.values.const_data_ptr(),
                            .out = out.mutable_data_ptr(),
                            .parts = parts.defined() ? parts.mutable_data_ptr<float>() : nullptr,
                            .num_keys = numbers_of(attention.num_keys),
                            .first_key = numbers_of(attention.first_key)});
  return out;
}

std::optional<Tensor> device_few_rows(const Tensor& x, const Tensor& weight,
                                      const std::optional<Tensor>& bias) {
  const DeviceKernels* const kernels = device_kernels(x);
  const int64_t in = x.size(-1);
  const int64_t rows = in == 0 ? 0 : x.numel() / in;
  const auto is_aligned = [](const Tensor& t) {
    return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
  };
  if (kernels == nullptr || rows > kMostDeviceRows || weight.numel() == 0 ||
      weight.scalar_type() != x.scalar_type() || weight.device() != x.device() ||
      !weight.is_contiguous() || in * static_cast<int64_t>(x.element_size()) % 16 != 0 ||
      !is_aligned(weight)) {
    return std::nullopt;
  }
  Tensor rows_of_x = x.contiguous();
  if (!is_aligned(rows_of_x)) rows_of_x = rows_of_x.clone();
  const Tensor added = bias ? bias->to(x.scalar_type()).contiguous() : Tensor();
  auto shape = x.sizes().vec();
  shape.back() = weight.size(0);
  Tensor y = at::empty(shape, x.options());
  kernels->few_rows({.is_bf16 = x.scalar_type() == at::kBFloat16,
                     .is_weight_ready = c10::InferenceMode::is_enabled(),
                     .rows = rows,
                     .in = in,
                     .out = weight.size(0),
                     .x = rows_of_x.const_data_ptr(),
                     .weight = weight.const_data_ptr(),
                     .bias = bias ? added.const_data_ptr() : nullptr,
                     .y = y.mutable_data_ptr()});
  return y;
}

Tensor best_tokens(const Tensor& logits, const Tensor& ids, const Tensor& num_keys) {
  const Tensor rows_of_logits = logits.contiguous();
  const int64_t rows = logits.size(0), width = logits.size(1);
  const int64_t num_parts = std::clamp<int64_t>(width / kLogitsOfPart, 1, kMostParts);
  constexpr auto kPartBytes = static_cast<int64_t>(sizeof(BestOfPart));
  const Tensor parts =
      at::empty({rows * num_parts * kPartBytes}, logits.options().dtype(at::kByte));
  Tensor results = at::empty({rows, kChoiceNumbers}, logits.options().dtype(at::kDouble));
  device_kernels(logits)->best_tokens({.is_bf16 = logits.scalar_type() == at::kBFloat16,
                                       .rows = rows,
                                       .width = width,
                                       .num_parts = num_parts,
                                       .logits = rows_of_logits.const_data_ptr(),
                                       .parts = static_cast<BestOfPart*>(parts.mutable_data_ptr()),
                                       .ids = ids.mutable_data_ptr<int64_t>(),
                                       .results = results.mutable_data_ptr<double>(),
                                       .num_keys = num_keys.mutable_data_ptr<int64_t>()});
  return results;
}

bool takes_sampling(const TokenSampling& sampling, int64_t size) {
  return size <= kListed * kSamplePart && (sampling.top_k < kListed || sampling.top_k >= size);
}

Tensor sample_tokens(const Tensor& logits, const TokenSampling& sampling, const Tensor& uniforms,
                     const Tensor& ids, const Tensor& num_keys) {
  const Tensor rows_of_logits = logits.contiguous();
  const int64_t rows = logits.size(0), width = logits.size(1);
  const int64_t num_parts = parts_of(width, kSamplePart);
  constexpr auto kPartBytes = static_cast<int64_t>(sizeof(PartOfLogits));
  const Tensor parts =
      at::empty({rows * num_parts * kPartBytes}, logits.options().dtype(at::kByte));
  Tensor lists;
  if (sampling.top_p < 1 || (sampling.top_k > 0 && sampling.top_k < width)) {
    lists = at::empty({2, rows * num_parts * kListed}, ids.options());
  }
  const auto list = [&](int64_t i) {
    return lists.defined() ? static_cast<uint64_t*>(lists[i].mutable_data_ptr()) : nullptr;
  };
  Tensor results = at::empty({rows, kChoiceNumbers}, logits.options().dtype(at::kDouble));
  device_kernels(logits)->sample_tokens(
      {.is_bf16 = logits.scalar_type() == at::kBFloat16,
       .rows = rows,
       .width = width,
       .temperature = static_cast<float>(sampling.temperature),
       .top_k = sampling.top_k,
       .top_p = sampling.top_p,
       .logits = rows_of_logits.const_data_ptr(),
       .uniforms = uniforms.const_data_ptr<double>(),
       .parts = static_cast<PartOfLogits*>(parts.mutable_data_ptr()),
       .lists = {list(0), list(1)},
       .ids = ids.mutable_data_ptr<int64_t>(),
       .results = results.mutable_data_ptr<double>(),
       .num_keys = num_keys.mutable_data_ptr<int64_t>()});
  return results;
}

}  // namespace cleave::inline kernels
