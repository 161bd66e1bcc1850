#pragma once
#include "cleave/layout/dtensor.h"

namespace cleave::inline nn {

/// Where there is a label: a class or an id other than -100, or a floating-point number other than
/// NaN. The shape of `labels`, bool.
Tensor has_label(const Tensor& labels);

/// Labels of the same shape and type that no loss counts.
Tensor no_labels_like(const Tensor& labels);

/// Squared errors of one number per sequence (a regression).
///
///   logits [B, 1] in any layout   labels [B] floating point, the same on every rank
///   count  divisor of the sum, e.g. the labels of the step's global batch; 0: the labels here
///   result a number, Replicate, fp32 or wider
///
/// Throws Error(kShape) for other shapes.
DTensor squared_error(const DTensor& logits, const Tensor& labels, int64_t count = 0);

/// Binary cross entropies of classes of which a sequence may have several: for each one,
/// -ln(probability) of its label, where the sigmoid of the logit is the probability of 1.
///
///   logits [B, C] in any layout   labels [B, C] floating point in [0, 1], the same on every rank
///   count  divisor of the sum as above; 0: the labels here, of all sequences and classes
///   result a number, Replicate, fp32 or wider
///
/// Throws Error(kShape) for other shapes.
DTensor binary_cross_entropy(const DTensor& logits, const Tensor& labels, int64_t count = 0);

/// The loss of the labels, summed and divided by `count` as above: cross_entropy() for classes and
/// ids, squared_error() for one floating-point number per sequence, binary_cross_entropy() for one
/// per class.
DTensor label_loss(const DTensor& logits, const Tensor& labels, int64_t count = 0);

}  // namespace cleave::inline nn
