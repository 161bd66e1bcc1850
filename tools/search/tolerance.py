"""Bounds on the difference of two correct results.

Both sides compute the same numbers and round differently. Nothing here is tuned to a machine:

* The result of D roundings in series, each with a random relative error u, has an error of at most L sqrt(D) u relative to its
  terms, except with probability 2 exp(-L^2 / 2) (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, theorem 2.4). A sum of K
  terms in the same dtype multiplies D by K. bf16, fp16 and int8 sum their products in fp32, where K does not matter, but each
  tp rank and each micro-batch adds one rounding: K is then the number of these.
* A transformer layer has about 12 operations in series: two norms, q, rotation, scores, softmax, values, output, sum, up,
  activation, down, sum. Embedding, last norm, head and loss are 6 more. Backward repeats them once.
* The error of a mean over n labels with independent errors is smaller by sqrt(n); so is that of a norm, to first order. A norm in
  fp64 also rounds the partial sums of the squares; norms of other dtypes are summed in fp64.
* Each optimizer step starts from weights with errors, so errors add up over steps.

These bounds ignore how much a model amplifies an error (large weights, sharp softmax). So a number beyond its bound is only a
suspicion; confirm.py then measures the amplification and decides. L = 4 keeps the bound tight: a bound that is too tight costs
only time.
"""
import math
from dataclasses import dataclass

L = 4
UNIT = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "int8": 2.0**-8}
UNIT |= {"int4": UNIT["int8"], "int4_sym": UNIT["int8"]}  # of activations; the weights are the same on every layout
OPERATIONS_OF_A_LAYER, OPERATIONS_AROUND = 12, 6


@dataclass(frozen=True)
class Bounds:
    """Relative bounds of one case."""
    unit: float
    number: float  # for a number of a forward pass
    mean: float    # for a loss, which is a mean over labels
    gradient: float  # for a tensor of gradients, relative to its norm
    norm: float    # for the norm of all gradients

    def loss(self, value):
        return self.mean * max(abs(value), 1.0)


def bounds(dtype, layers, sum_length, parts=1, labels=1, squares=1):
    """`sum_length`: length of the longest sum in a product; `parts`: number of partial sums in a layout; `squares`: number of
    elements of the largest gradient."""
    unit = UNIT[dtype]
    terms = sum_length if dtype in ("fp32", "fp64") else 1 + parts
    depth = OPERATIONS_OF_A_LAYER * layers + OPERATIONS_AROUND
    number = L * unit * math.sqrt(depth * terms)
    gradient = L * unit * math.sqrt(2 * depth * terms)
    share = math.sqrt(max(labels, 1))
    # A metric is printed as a float.
    floor = UNIT["fp32"] if dtype != "fp64" else 4 * unit
    sum_of_squares = L * unit * math.sqrt(squares) if dtype == "fp64" else 0
    return Bounds(unit, number, number / share + floor, gradient, gradient / share + gradient**2 + sum_of_squares + floor)


def amplified(response, dtype, sum_length):
    """The difference that rounding explains, if changing every weight by u changes the result by `response`.

    Instead of one change per weight there are 12 roundings per layer for about 4 matrices in series, and sums of K terms round
    K partial sums whose average size is sqrt(K / 2) terms.
    """
    terms = sum_length / 2 if dtype in ("fp32", "fp64") else 1
    return L * math.sqrt(OPERATIONS_OF_A_LAYER / 4 * max(terms, 1)) * response


def largest_update(options):
    """Largest change of a weight by one Adam step, relative to the learning rate: |m| / sqrt(v) of bias-corrected moments.

    It is 1 for gradients of constant size; a gradient after zeros gives (1 - b1) / sqrt(1 - b2).
    """
    b1, b2 = options.get("betas", (0.9, 0.95))
    return max(1.0, (1 - b1) / math.sqrt(1 - b2)) + 0.01


def norm2(values):
    return math.sqrt(math.fsum(v * v for v in values))


def distance(a, b):
    return norm2([x - y for x, y in zip(a, b)])


def farthest(a, b):
    """The largest difference of two elements; infinite if there is a NaN, which max() would drop."""
    return max((math.inf if math.isnan(x - y) else abs(x - y) for x, y in zip(a, b)), default=0)
