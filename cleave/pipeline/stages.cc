#include "cleave/pipeline/stages.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <typeindex>

#include "cleave/base/suggest.h"
#include "cleave/nn/embedding.h"

namespace cleave::inline pipeline {
namespace {

void check_num_stages(int num_stages) {
  CLEAVE_CHECK(num_stages >= 1, Code::kUsage, "a pipeline of ", num_stages,
               " stages; it needs at least 1");
}

void check_enough(size_t count, std::string_view what, int num_stages) {
  CLEAVE_CHECK(count >= static_cast<size_t>(num_stages), Code::kShape,
               "pp x virtual = ", num_stages, " stages are more than the model's ", count, " ",
               what, "; choose pp x virtual from 1 to ", count);
}

/// Consecutive ranges with ascending ends; the last end is the length of the list.
Stages ranges_up_to(const std::vector<size_t>& ends) {
  Stages stages;
  int64_t begin = 0;
  for (const size_t end : ends) {
    stages.push_back({begin, static_cast<int64_t>(end)});
    begin = static_cast<int64_t>(end);
  }
  return stages;
}

/// Index of the Layer with this name; Error(kShape) with the nearest names.
size_t index_of(const std::vector<Layer*>& sequence, const std::string& name) {
  std::vector<std::string> known;
  for (size_t i = 0; i < sequence.size(); ++i) {
    const auto& paths = sequence[i]->paths();
    if (std::find(paths.begin(), paths.end(), name) != paths.end()) return i;
    known.push_back(sequence[i]->path());
  }
  throw Error(Code::kShape, str("pipeline cut '", name, "' is not a layer of the model's sequence",
                                did_you_mean(name, known)));
}

/// Whether layers of one type, at these places, are blocks beside those of the most frequent type,
/// the last of which is at `last`: layers before it, or neighbours that do not end the sequence, as
/// several heads do.
bool are_further_blocks(const std::vector<Layer*>& sequence, const std::vector<size_t>& places,
                        size_t last) {
  const size_t front = places.front(), back = places.back();
  const bool are_neighbours = back - front + 1 == places.size() && back + 1 < sequence.size();
  if (back > last && !are_neighbours) return false;
  Layer& first = *sequence[places.front()];
  bool has_table = false;
  first.walk([&](const Layer& below) {
    has_table = has_table || dynamic_cast<const Embedding*>(&below) != nullptr;
  });
  return places.size() > 1 && !first.children().empty() && !has_table;
}

/// The layers of a layer's tree, itself included.
size_t num_layers_of(Layer& layer) {
  size_t count = 0;
  layer.walk([&](Layer&) { ++count; });
  return count;
}

}  // namespace

std::vector<size_t> blocks_of(const std::vector<Layer*>& sequence) {
  std::map<std::type_index, std::vector<size_t>> places;
  for (size_t i = 0; i < sequence.size(); ++i) {
    const Layer& layer = *sequence[i];
    places[typeid(layer)].push_back(i);
  }
  std::vector<size_t> best;
  for (const auto& entry : places) {
    const std::vector<size_t>& found = entry.second;
    // In a model with one block, embedding and head occur as often as blocks, but contain fewer
    // layers.
    const auto rank_of = [&](const std::vector<size_t>& at) {
      return std::tuple(at.size(), at.empty() ? 0 : num_layers_of(*sequence[at.back()]), at);
    };
    if (rank_of(found) > rank_of(best)) best = found;
  }
  std::vector<size_t> blocks = best;
  for (const auto& entry : places) {
    const std::vector<size_t>& found = entry.second;
    if (found == best || !are_further_blocks(sequence, found, best.back())) continue;
    blocks.insert(blocks.end(), found.begin(), found.end());
  }
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

Stages stages_from_cuts(const std::vector<Layer*>& sequence, const std::vector<std::string>& cuts,
                        int num_stages) {
  check_num_stages(num_stages);
  CLEAVE_CHECK(cuts.size() == static_cast<size_t>(num_stages) - 1, Code::kShape, cuts.size(),
               " pipeline cuts make ", cuts.size() + 1, " stages; pp x virtual = ", num_stages,
               " stages need ", num_stages - 1, " cuts");
  std::vector<size_t> ends;
  for (const std::string& cut : cuts) {
    const size_t end = index_of(sequence, cut) + 1;
    CLEAVE_CHECK(std::find(ends.begin(), ends.end(), end) == ends.end(), Code::kShape,
                 "pipeline cut '", cut, "' is given twice; name each stage's last layer once");
    CLEAVE_CHECK(end < sequence.size(), Code::kShape, "pipeline cut '", cut,
                 "' is the model's last layer, after which there is no stage; leave it out");
    ends.push_back(end);
  }
  std::sort(ends.begin(), ends.end());
  ends.push_back(sequence.size());
  return ranges_up_to(ends);
}

Stages even_stages(const std::vector<Layer*>& sequence, const std::vector<size_t>& blocks,
                   int num_stages) {
  check_num_stages(num_stages);
  check_enough(blocks.size(), "blocks", num_stages);
  const auto P = static_cast<size_t>(num_stages);
  std::vector<size_t> ends;
  size_t num_before = 0;
  for (size_t s = 0; s + 1 < P; ++s) {
    num_before += blocks.size() / P + (s >= P - blocks.size() % P ? 1 : 0);
    ends.push_back(blocks[num_before - 1] + 1);
  }
  ends.push_back(sequence.size());
  return ranges_up_to(ends);
}

// best[p][n]: the best division of the first n layers into p stages: the slowest stage decides,
// then the sum of squares, so that the other stages are even too.
Stages balanced_stages(const std::vector<double>& costs, int num_stages) {
  check_num_stages(num_stages);
  check_enough(costs.size(), "layers", num_stages);
  const size_t L = costs.size();
  const auto P = static_cast<size_t>(num_stages);
  std::vector<double> before(L + 1);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  struct Best {
    double slowest = std::numeric_limits<double>::infinity();
    double squares = 0;
    size_t begin = 0;  // of the last stage
  };
  std::vector<std::vector<Best>> best(P + 1, std::vector<Best>(L + 1));
  best[0][0].slowest = 0;
  for (size_t p = 1; p <= P; ++p) {
    for (size_t n = p; n <= L; ++n) {
      for (size_t begin = p - 1; begin < n; ++begin) {
        const Best& head = best[p - 1][begin];
        const double stage = before[n] - before[begin];
        const Best candidate{std::max(head.slowest, stage), head.squares + stage * stage, begin};
        Best& known = best[p][n];
        if (std::pair(candidate.slowest, candidate.squares) <
            std::pair(known.slowest, known.squares)) {
          known = candidate;
        }
      }
    }
  }
  std::vector<size_t> ends(P);
  size_t end = L;
  for (size_t p = P; p > 0; --p) {
    ends[p - 1] = end;
    end = best[p][end].begin;
  }
  return ranges_up_to(ends);
}

std::vector<double> layer_costs(const std::vector<Layer*>& sequence) {
  std::vector<double> costs;
  for (Layer* top : sequence) {
    double cost = 0;
    std::set<const Parameter*> tables;
    top->walk([&](Layer& layer) {
      const auto* embedding = dynamic_cast<const Embedding*>(&layer);
      if (embedding == nullptr) return;
      tables.insert(embedding->weight().get());
      cost += static_cast<double>(embedding->weight()->shape()[1]);
    });
    for (const auto& p : top->parameters()) {
      if (p->shape().size() > 1 && !tables.contains(p.get()))
        cost += 6.0 * static_cast<double>(p->numel());
    }
    costs.push_back(cost);
  }
  return costs;
}

}  // namespace cleave::inline pipeline
