#include "cleave/optim/muon.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/layout/shard_geometry.h"

namespace cleave::inline optim {

Tensor orthogonalized(const Tensor& matrix) {
  constexpr std::array kCoefficients = {3.4445, -4.7750, 2.0315};
  constexpr int kIterations = 5;
  constexpr double kLeastNorm = 1e-7;
  const at::NoGradGuard no_grad;
  const bool is_narrowed = matrix.is_cuda() && matrix.scalar_type() == at::kFloat;
  Tensor x = is_narrowed ? matrix.to(at::kBFloat16) : matrix;
  const bool is_tall = x.size(0) > x.size(1);  // the products are of the smaller size
  if (is_tall) x = x.t();
  x = x / x.norm().clamp_min(kLeastNorm);
  const auto [a, b, c] = kCoefficients;
  for (int i = 0; i < kIterations; ++i) {
    const Tensor gram = at::mm(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a, 1);
  }
  return (is_tall ? x.t() : x).to(matrix.scalar_type()).contiguous();
}

namespace {

using Part = std::function<Tensor(size_t)>;
using Function = std::function<Tensor(const Tensor&)>;
using Take = std::function<void(size_t, const Tensor&)>;

/// Matrices that are sharded over the same axes.
struct SameAxes {
  Axis data, tp;
  std::vector<size_t> members{};
};

std::vector<SameAxes> by_axes(const Parameters& matrices) {
  std::vector<SameAxes> out;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Axis& data = matrices[i]->data_axis();
    const Axis& tp = matrices[i]->axis();
    auto found = std::find_if(out.begin(), out.end(),
                              [&](const auto& s) { return s.data == data && s.tp == tp; });
    if (found == out.end()) {
      out.push_back({.data = data, .tp = tp});
      found = out.end() - 1;
    }
    found->members.push_back(i);
  }
  return out;
}

/// The columns or rows of a whole matrix that a rank of its tensor-parallel axis holds.
Tensor part_of_rank(const Parameter& p, const Tensor& whole, int rank) {
  std::vector<Tensor> pieces;
  for (const Range& range : p.placement().split()->ranges(rank)) {
    pieces.push_back(whole.narrow(p.split_dim(), range.begin, range.size()));
  }
  return pieces.empty() ? whole.narrow(p.split_dim(), 0, 0) : at::cat(pieces, p.split_dim());
}

/// One pass over matrices with the same axes. In each round every rank works on one matrix: number
/// k of a round belongs to rank k % D of the data-parallel axis and rank k / D of the
/// tensor-parallel axis.
class Rounds {
 public:
  Rounds(const Parameters& matrices, const SameAxes& group)
      : matrices_(matrices), group_(group), data_(group.data.size()), tp_(group.tp.size()) {
    exchange_sizes();
  }

  void run(const Part& part, const Function& function, const Take& take) {
    const size_t each = static_cast<size_t>(data_) * static_cast<size_t>(tp_);
    for (first_ = 0; first_ < group_.members.size(); first_ += each) {
      last_ = std::min(first_ + each, group_.members.size());
      run_round(part, function, take);
    }
  }

 private:
  /// How many elements of each matrix each data-parallel rank holds.
  void exchange_sizes() {
    std::vector<int64_t> mine;
    for (const size_t i : group_.members) mine.push_back(matrices_[i]->flat_range().size());
    const std::vector<int64_t> widths(static_cast<size_t>(data_), std::ssize(mine));
    const Tensor all =
        group_.data.all_gather(at::tensor(mine, at::kLong), 0, widths, "muon: sizes of shards");
    sizes_.assign(all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel());
  }
  [[nodiscard]] const Parameter& parameter(size_t member) const {
    return *matrices_[group_.members[member]];
  }
  [[nodiscard]] int64_t held_by(int data_rank, size_t member) const {
    return sizes_[static_cast<size_t>(data_rank) * group_.members.size() + member];
  }
  /// The member on which the rank at these indices works; nullopt if the round has too few members.
  [[nodiscard]] std::optional<size_t> member_of(int data_rank, int tp_rank) const {
    const size_t m = first_ + static_cast<size_t>(tp_rank) * static_cast<size_t>(data_) +
                     static_cast<size_t>(data_rank);
    return m < last_ ? std::optional(m) : std::nullopt;
  }

  void run_round(const Part& part, const Function& function, const Take& take) {
    std::vector<Tensor> locals = gather_over_data(part);
    const std::optional<size_t> own = member_of(group_.data.rank(), group_.tp.rank());
    const Tensor whole = gather_over_tp(locals);
    locals = scatter_over_tp(own ? function(whole) : whole);
    scatter_over_data(locals, take);
  }

  /// By rank t of tp: the local part of the matrix on which this data-parallel rank works there.
  std::vector<Tensor> gather_over_data(const Part& part) {
    std::vector<Tensor> sent;
    std::vector<std::vector<int64_t>> shapes;
    std::vector<std::vector<Tensor>> by_rank(static_cast<size_t>(data_));
    for (int r = 0; r < data_; ++r) {
      std::vector<Tensor> pieces;
      int64_t received = 0;
      for (int t = 0; t < tp_; ++t) {
        if (const auto m = member_of(r, t)) pieces.push_back(part(group_.members[*m]).reshape(-1));
        if (const auto m = member_of(group_.data.rank(), t)) received += held_by(r, *m);
      }
      if (!pieces.empty()) options_ = pieces.front().options();
      sent.push_back(pieces.empty() ? at::empty({0}, options_) : at::cat(pieces));
      shapes.push_back({received});
    }
    const std::vector<Tensor> got = group_.data.all_to_all(sent, shapes, "muon: gather over dp");
    std::vector<Tensor> locals;
    std::vector<int64_t> at(static_cast<size_t>(data_), 0);
    for (int t = 0; t < tp_; ++t) {
      const auto m = member_of(group_.data.rank(), t);
      if (!m) {
        locals.emplace_back();
        continue;
      }
      std::vector<Tensor> pieces;
      for (int r = 0; r < data_; ++r) {
        const int64_t size = held_by(r, *m);
        int64_t& begin = at[static_cast<size_t>(r)];
        pieces.push_back(got[static_cast<size_t>(r)].narrow(0, begin, size));
        begin += size;
      }
      locals.push_back(at::cat(pieces).view(parameter(*m).local_shape()));
    }
    return locals;
  }

  /// The whole matrix on which this rank works; undefined if there is none.
  Tensor gather_over_tp(const std::vector<Tensor>& locals) const {
    std::vector<Tensor> sent;
    std::vector<std::vector<int64_t>> shapes;
    const std::optional<size_t> own = member_of(group_.data.rank(), group_.tp.rank());
    for (int t = 0; t < tp_; ++t) {
      const auto m = member_of(group_.data.rank(), t);
      const bool sends = m && parameter(*m).is_split();
      sent.push_back(sends ? locals[static_cast<size_t>(t)].reshape(-1) : at::empty({0}, options_));
      shapes.push_back(own && parameter(*own).is_split() ? local_shape(*own, t)
                                                         : std::vector<int64_t>{0});
    }
    const std::vector<Tensor> got = group_.tp.all_to_all(sent, shapes, "muon: gather over tp");
    if (!own) return {};
    const Parameter& p = parameter(*own);
    if (!p.is_split()) return locals[static_cast<size_t>(group_.tp.rank())];
    Tensor whole = at::empty(p.shape(), options_);
    for (int t = 0; t < tp_; ++t) {
      for (const auto& [range, begin] : pieces_of(p.placement().split()->ranges(t))) {
        whole.narrow(p.split_dim(), range.begin, range.size())
            .copy_(got[static_cast<size_t>(t)].narrow(p.split_dim(), begin, range.size()));
      }
    }
    return whole;
  }

  [[nodiscard]] std::vector<int64_t> local_shape(size_t member, int tp_rank) const {
    const Parameter& p = parameter(member);
    std::vector<int64_t> shape = p.shape();
    const auto dim = static_cast<size_t>(p.split_dim());
    if (p.is_split()) shape[dim] = p.placement().split()->width(tp_rank);
    return shape;
  }

  /// For each rank t of tp: this rank's local part of the result of t's matrix.
  std::vector<Tensor> scatter_over_tp(const Tensor& result) const {
    std::vector<Tensor> sent;
    std::vector<std::vector<int64_t>> shapes;
    const std::optional<size_t> own = member_of(group_.data.rank(), group_.tp.rank());
    for (int t = 0; t < tp_; ++t) {
      if (!own) {
        sent.push_back(at::empty({0}, options_));
      } else {
        const Parameter& p = parameter(*own);
        sent.push_back(p.is_split() ? part_of_rank(p, result, t) : result);
      }
      const auto m = member_of(group_.data.rank(), t);
      shapes.push_back(m ? local_shape(*m, group_.tp.rank()) : std::vector<int64_t>{0});
    }
    return group_.tp.all_to_all(sent, shapes, "muon: scatter over tp");
  }

  void scatter_over_data(const std::vector<Tensor>& locals, const Take& take) const {
    std::vector<std::vector<Tensor>> pieces(static_cast<size_t>(data_));
    std::vector<std::vector<int64_t>> shapes(static_cast<size_t>(data_), {0});
    for (int t = 0; t < tp_; ++t) {
      int64_t begin = 0;
      for (int r = 0; r < data_; ++r) {
        const auto rank = static_cast<size_t>(r);
        if (const auto m = member_of(group_.data.rank(), t)) {
          const int64_t size = held_by(r, *m);
          const Tensor flat = locals[static_cast<size_t>(t)].reshape(-1);
          pieces[rank].push_back(flat.narrow(0, begin, size));
          begin += size;
        }
        if (const auto m = member_of(r, t)) shapes[rank][0] += held_by(group_.data.rank(), *m);
      }
    }
    std::vector<Tensor> sent;
    for (const auto& each : pieces) {
      sent.push_back(each.empty() ? at::empty({0}, options_) : at::cat(each));
    }
    const std::vector<Tensor> got = group_.data.all_to_all(sent, shapes, "muon: scatter over dp");
    for (int r = 0; r < data_; ++r) {
      int64_t begin = 0;
      for (int t = 0; t < tp_; ++t) {
        const auto m = member_of(r, t);
        if (!m) continue;
        const int64_t size = held_by(group_.data.rank(), *m);
        const Tensor flat = got[static_cast<size_t>(r)].reshape(-1).narrow(0, begin, size);
        take(group_.members[*m], flat.view(parameter(*m).leaf_shape()));
        begin += size;
      }
    }
  }

  const Parameters& matrices_;
  const SameAxes& group_;
  int data_, tp_;                // ranks of the axes
  std::vector<int64_t> sizes_;   // by data-parallel rank, then member
  size_t first_ = 0, last_ = 0;  // members of the current round
  at::TensorOptions options_;    // of the matrices
};

}  // namespace

void for_whole_matrices(const Parameters& matrices, const Part& part, const Function& function,
                        const Take& take) {
  const at::NoGradGuard no_grad;
  for (const SameAxes& group : by_axes(matrices)) Rounds(matrices, group).run(part, function, take);
}

}  // namespace cleave::inline optim
