#pragma once
#include <optional>

#include <ATen/core/Tensor.h>

namespace cleave::inline kernels {

using at::Tensor;

/// The attention of one new token of each of B sequences, on a device with kernels. How many tokens
/// there are is read from device memory, so that the calls can be recorded (recorded_work.h).
struct DecodeAttention {
  Tensor keys, values;  ///< the cache [B, G, capacity, K], contiguous; receives the new token
  Tensor cos, sin;      ///< [positions, half]; undefined: no rotary positions
  Tensor positions;     ///< [B] int64 on the device
  Tensor num_keys;      ///< [1] int64 on the device, with the new token; at most the capacity
  Tensor first_key;     ///< [B] int64 on the device: the first key that counts; undefined: 0
  int64_t group = 1;    ///< queries of a KV head, which are neighbours
  int64_t skipped = 0;  ///< queries of the first KV head that `q` does not have
  int64_t window = 0;   ///< only the last keys count; 0: all
  double divisor = 1;   ///< of the scores
  double soft_cap = 0;  ///< cap tanh(score / cap); 0: none
};

/// Whether decode_attention() supports queries like `q` [B, H, 1, K] with keys of `type`.
bool takes_decode_attention(const Tensor& q, at::ScalarType type);

/// Appends k and v [B, G, 1, K] to the cache and returns the result [B, H, 1, K] for q, of which
/// query head h reads KV head (h + skipped) / group < G. Not differentiable.
Tensor decode_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                        const DecodeAttention& attention);

/// x weight^T + bias by the kernel for few rows; empty if the device has none or it does not
/// support these. Not differentiable.
///
///   x [.., in]   weight [out, in]   bias [out]
std::optional<Tensor> device_few_rows(const Tensor& x, const Tensor& weight,
                                      const std::optional<Tensor>& bias);

/// Chooses the best token of each of R rows of logits on their device, for which there are kernels:
/// the largest logit, of equal ones the lowest id. `ids` [R] int64 receives the tokens, `num_keys`
/// [1] int64 grows by one, so that both are the inputs of the next step. Returns [R, 4] fp64 on the
/// device: the token, its logit, the largest logit, and the sum over the vocabulary of exp(logit -
/// largest). With a logit that is NaN or +infinity the sum is NaN, and the token may be any.
///
///   logits [R, V] fp32 or bf16
Tensor best_tokens(const Tensor& logits, const Tensor& ids, const Tensor& num_keys);

/// How a token is sampled from softmax(logits / temperature).
struct TokenSampling {
  double temperature = 1;
  int64_t top_k = 0;  ///< the k tokens with the largest logits and those equal to the last; 0: all
  double top_p = 1;   ///< after top_k: the best tokens whose probabilities add up to p; 1: all
};

/// Whether sample_tokens() supports a vocabulary of `size` tokens.
bool takes_sampling(const TokenSampling& sampling, int64_t size);

/// The same as best_tokens(), but samples each row's token with its number in [0, 1): the first id
/// at which the cumulative probability exceeds it. The token is -1, and the next step's any, where
/// the kernel would have to compare more tokens than it can.
///
///   uniforms [R] fp64 on the device
Tensor sample_tokens(const Tensor& logits, const TokenSampling& sampling, const Tensor& uniforms,
                     const Tensor& ids, const Tensor& num_keys);

}  // namespace cleave::inline kernels
