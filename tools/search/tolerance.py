"""How far two right answers may lie apart.

Both sides compute the same numbers and round differently. Nothing here is tuned to a machine:

* A number that comes out of D roundings in series, each by a relative u at random, is off by at most L sqrt(D) u of the size
  of its terms, but for a chance of 2 exp(-L^2 / 2) (Higham and Mary, SIAM J. Sci. Comput. 41, 2019, theorem 2.4). A sum of K
  terms in the same type multiplies D by K. bf16, fp16 and int8 add their products up in fp32, where K counts for nothing, but
  each rank of tp and each micro-batch adds one rounding: K is then what the layout adds.
* A transformer's layer has about 12 operations in series: two norms, q, rotation, scores, softmax, values, output, sum, up,
  activation, down, sum. Embedding, last norm, head and loss are 6 more. Backward goes through them once more.
* A mean over n labels of independent errors is sqrt(n) times less off; so is a norm, to first order.
* Each optimizer step starts from weights that are off already, so errors add up over steps.

These bounds leave out by how much a model amplifies an error (large weights, sharp softmax). So a number beyond its bound is
only a suspicion; confirm.py then measures that amplification and decides. L = 4 keeps the bound tight: what is too tight
costs time and nothing else.
"""
import math
from dataclasses import dataclass

L = 4
UNIT = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "int8": 2.0**-8}
OPERATIONS_OF_A_LAYER, OPERATIONS_AROUND = 12, 6


@dataclass(frozen=True)
class Bounds:
    """Relative bounds of one case."""
    unit: float
    number: float  # of one number of a forward pass
    mean: float    # of a loss, which is a mean over labels
    gradient: float  # of one tensor of gradients, relative to its norm
    norm: float    # of the norm of all gradients

    def loss(self, value):
        return self.mean * max(abs(value), 1.0)


def bounds(dtype, layers, sum_length, parts=1, labels=1):
    """`sum_length`: the longest sum of a product; `parts`: sums that a layout splits one into."""
    unit = UNIT[dtype]
    terms = sum_length if dtype in ("fp32", "fp64") else 1 + parts
    depth = OPERATIONS_OF_A_LAYER * layers + OPERATIONS_AROUND
    number = L * unit * math.sqrt(depth * terms)
    gradient = L * unit * math.sqrt(2 * depth * terms)
    share = math.sqrt(max(labels, 1))
    # A metric is printed as a float.
    floor = UNIT["fp32"] if dtype != "fp64" else 4 * unit
    return Bounds(unit, number, number / share + floor, gradient, gradient / share + gradient**2 + floor)


def amplified(response, dtype, sum_length):
    """What rounding explains, where changing every weight once by u changed the answer by `response`.

    Instead of one change a weight there are 12 roundings a layer for about 4 matrices in series, and sums of K terms round
    K partial sums that are each sqrt(K / 2) terms large on average.
    """
    terms = sum_length / 2 if dtype in ("fp32", "fp64") else 1
    return L * math.sqrt(OPERATIONS_OF_A_LAYER / 4 * max(terms, 1)) * response


def largest_update(options):
    """Most that one step of Adam moves a weight, as a factor of the rate: |m| / sqrt(v) of bias-corrected moments.

    It is 1 for gradients of one size; one gradient after zeros gives (1 - b1) / sqrt(1 - b2).
    """
    b1, b2 = options.get("betas", (0.9, 0.95))
    return max(1.0, (1 - b1) / math.sqrt(1 - b2)) + 0.01


def norm2(values):
    return math.sqrt(math.fsum(v * v for v in values))


def distance(a, b):
    return norm2([x - y for x, y in zip(a, b)])
