#pragma once
#include <functional>
#include <memory>

#include "cleave/nn/parameter.h"

namespace cleave::inline optim {

/// An approximation of U V^T for a matrix U S V^T (its singular value decomposition): five
/// Newton-Schulz iterations on the matrix divided by its Frobenius norm, after which nearly all
/// singular values are between 0.5 and 1.5. Zeros stay zeros. In the matrix's dtype; on a GPU fp32
/// matrices are iterated in bf16. Source: Jordan and others, "Muon: an optimizer for hidden layers
/// in neural networks", 2024, and torch.optim.Muon, which has the same coefficients.
///
///   matrix [R, C]   result [R, C]
Tensor orthogonalized(const Tensor& matrix);

/// Applies a function of whole matrices to matrices whose leaves may be sharded over tensor- and
/// data-parallel ranks. Each matrix is gathered on one of the ranks that share it, and its result
/// is sent back to all of them, so the ranks share the work. They hold one whole matrix at a time.
/// Data-parallel ranks with whole leaves share nothing: each computes all matrices.
///
/// `part(i)` returns what this rank's leaf holds of matrix i, in leaf_shape(); `take(i, t)` gets
/// the same part of the result. All ranks give the same matrices in the same order. Collective over
/// the axes of the matrices.
void for_whole_matrices(const Parameters& matrices, const std::function<Tensor(size_t)>& part,
                        const std::function<Tensor(const Tensor&)>& function,
                        const std::function<void(size_t, const Tensor&)>& take);

}  // namespace cleave::inline optim
