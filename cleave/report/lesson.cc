#include "cleave/report/lesson.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cleave/base/byte_count.h"
#include "cleave/base/error.h"
#include "cleave/base/progress.h"

namespace cleave::inline report {
namespace {

double sent(const LessonRank& rank, const std::function<bool(const LessonCall&)>& counts) {
  int64_t sum = 0;
  for (const LessonCall& call : rank.calls) sum += counts(call) ? call.sent : 0;
  return static_cast<double>(sum);
}

/// Whether the call belongs to a block: not to the embedding, the final norm, the loss or the
/// update.
bool is_in_block(const LessonCall& call) {
  return call.axis == "tp" && call.is_in_layer && call.site.find("layers.") != std::string::npos;
}

bool is_on_dp(const LessonCall& call) {
  return call.axis == "dp";
}

double mean_cpu_s(const LessonRun& run) {
  const double sum = std::accumulate(
      run.ranks.begin(), run.ranks.end(), 0.0,
      [](double before, const LessonRank& rank) { return before + rank.layers_cpu_s; });
  return sum / static_cast<double>(run.ranks.size());
}

/// (n-1)/n
double others_share(const LessonSizes& s) {
  return static_cast<double>(s.ranks - 1) / static_cast<double>(s.ranks);
}

/// Bytes of b s h numbers.
double activation_bytes(const LessonSizes& s) {
  return static_cast<double>(s.batch * s.seq_len * s.hidden * kLessonNumberBytes);
}

double weight_bytes(const LessonSizes& s) {
  return static_cast<double>(all_weights(s) * kLessonNumberBytes);
}

/// Bytes that both kinds of tensor parallelism send in the blocks.
double block_traffic(const LessonSizes& s) {
  return 4 * activation_bytes(s) * static_cast<double>(s.layers) * 2 * others_share(s);
}

std::vector<LessonAnswer> of_tp(const LessonRuns& runs) {
  const LessonSizes& s = runs.sizes;
  const LessonRank& rank = runs.run.ranks.at(0);
  const LessonRank& one = runs.before.ranks.at(0);
  const double blocks = sent(rank, is_in_block);
  const double all = sent(rank, [](const LessonCall& call) { return call.axis == "tp"; });
  const auto n = static_cast<double>(s.ranks);
  const int64_t matrices = all_weights(s) - norm_weights(s);
  return {
      {.question = "How many bytes does a rank send inside the blocks in a step?",
       .formula = "4 b s h numbers x 4 bytes x L blocks x 2 (n-1)/n",
       .expected = block_traffic(s),
       .measured = blocks,
       .remark =
           str("Attention and MLP each need one all-reduce forward, after their second matrix, "
               "and one backward, before their first. Embedding, final norm, loss and gradient "
               "norm send ",
               bytes_text(all - blocks), " more.")},
      {.question = "How many bytes of weights does a rank hold?",
       .formula = "4 bytes x (matrices / n + norms)",
       .expected = static_cast<double>(kLessonNumberBytes) *
                   (static_cast<double>(matrices) / n + static_cast<double>(norm_weights(s))),
       .measured = static_cast<double>(rank.weights),
       .remark = str("Every rank has all of the norms. One rank alone holds ",
                     bytes_text(one.weights), ".")},
      {.question = "How much of one rank's computing does each of the n ranks do?",
       .formula = "1/n, and the parts that are not sharded",
       .unit = LessonUnit::kShare,
       .expected = 1 / n,
       .measured = mean_cpu_s(runs.run) / mean_cpu_s(runs.before),
       .remark = str("CPU time of forward and backward: ", duration_text(mean_cpu_s(runs.run)),
                     " a rank, ", duration_text(mean_cpu_s(runs.before)),
                     " on one rank. Norms and residual sums are computed on every rank, and small "
                     "matrices are slower.")}};
}

std::vector<LessonAnswer> of_sp(const LessonRuns& runs) {
  const LessonSizes& s = runs.sizes;
  const LessonRank& rank = runs.run.ranks.at(0);
  const LessonRank& tp = runs.before.ranks.at(0);
  const auto count = [](const LessonRank& r) {
    return std::count_if(r.calls.begin(), r.calls.end(), is_in_block);
  };
  const auto norms = static_cast<double>(2 * s.layers + 1);
  const auto tokens = static_cast<double>(s.batch * s.seq_len);
  return {{.question = "How many collectives do the blocks call in a step?",
           .formula = "8 L: a reduce-scatter and an all-gather for each of 4 all-reduces",
           .unit = LessonUnit::kCount,
           .expected = static_cast<double>(8 * s.layers),
           .measured = static_cast<double>(count(rank)),
           .remark =
               str("Tensor parallelism alone calls ", count(tp),
                   ". A reduce-scatter shards the sequence after the second matrix, an all-gather "
                   "joins it before the first.")},
          {.question = "How many bytes does a rank send inside the blocks?",
           .formula = "4 b s h numbers x 4 bytes x L blocks x 2 (n-1)/n, as with tp alone",
           .expected = block_traffic(s),
           .measured = sent(rank, is_in_block),
           .remark = str(
               "Each half of an all-reduce sends (n-1)/n of it. Tensor parallelism alone sends ",
               bytes_text(sent(tp, is_in_block)), ".")},
          {.question = "How much less memory does a rank need at its peak?",
           .formula = "(2 L + 1) norms x b s (h + 1) numbers x 4 bytes x (n-1)/n",
           .expected = norms * tokens * static_cast<double>(s.hidden + 1) * kLessonNumberBytes *
                       others_share(s),
           .measured = static_cast<double>(tp.peak - rank.peak),
           .remark = str(
               "For backward, a norm keeps its input and one number of each token; with sequence "
               "parallelism, each rank has 1/n of the tokens. Peak memory: ",
               bytes_text(tp.peak), " without it, ", bytes_text(rank.peak), " with it.")}};
}

std::vector<LessonAnswer> of_pp(const LessonRuns& runs) {
  const LessonSizes& s = runs.sizes;
  const LessonRank& first = runs.run.ranks.at(0);
  const LessonRank& gpipe = runs.before.ranks.at(0);
  const auto is_activation = [](const LessonCall& call) {
    return call.op == "send" && call.site == "a stage's message";
  };
  return {
      {.question = "How long do the ranks wait, as a share of the time in which they work?",
       .formula = "(p-1)/m, if all stages take equally long",
       .unit = LessonUnit::kShare,
       .expected = static_cast<double>(s.ranks - 1) / static_cast<double>(s.micro_batches),
       .measured = bubble_of(runs.run.ranks),
       .remark =
           str("From the recorded forwards and backwards with their CPU times, as if every "
               "rank had a core of its own. GPipe's order: ",
               number_text(bubble_of(runs.before.ranks), LessonUnit::kShare),
               ". The measured share differs from the formula because the stages are unequal: "
               "the last one also computes the head and the loss.")},
      {.question = "How many bytes of activations does the first rank send?",
       .formula = "m micro-batches x b/m s h numbers x 4 bytes",
       .expected = activation_bytes(s),
       .measured = sent(first, is_activation),
       .remark = str("The output of its last block, once for each micro-batch; as many bytes of "
                     "gradients come back. Tensor parallelism would send ",
                     bytes_text(block_traffic(s)), ".")},
      {.question = "Of how many micro-batches does the first rank hold activations?",
       .formula = "min(p, m); GPipe: m",
       .unit = LessonUnit::kCount,
       .expected = static_cast<double>(std::min(s.ranks, s.micro_batches)),
       .measured = static_cast<double>(most_in_flight(first)),
       .remark = str("1F1B begins a backward as soon as one can run. The rank needs ",
                     bytes_text(first.peak), " at its peak; with GPipe, which holds ",
                     most_in_flight(gpipe), ", ", bytes_text(gpipe.peak), ".")}};
}

std::vector<LessonAnswer> of_zero(const LessonRuns& runs) {
  const LessonSizes& s = runs.sizes;
  const LessonRank& rank = runs.run.ranks.at(0);
  const LessonRank& dp = runs.before.ranks.at(0);
  const auto n = static_cast<double>(s.ranks);
  return {
      {.question = "How many bytes of Adam's two moments does a rank hold?",
       .formula = "8 psi / n",
       .expected = 2 * weight_bytes(s) / n,
       .measured = static_cast<double>(rank.moments),
       .remark =
           str("psi is the number of elements of all weights. Data parallelism alone holds 8 psi, ",
               bytes_text(dp.moments), ", on every rank.")},
      {.question = "How many bytes of weights does it hold?",
       .formula = "4 psi + 4 psi / n",
       .expected = weight_bytes(s) * (1 + 1 / n),
       .measured = static_cast<double>(rank.weights),
       .remark = str("All weights for forward and backward, and the part that its moments update. "
                     "With 4 psi of gradients: 8 psi + 12 psi / n, instead of 16 psi.")},
      {.question = "How many bytes does a rank send?",
       .formula = "2 x 4 psi x (n-1)/n, as without ZeRO-1",
       .expected = 2 * weight_bytes(s) * others_share(s),
       .measured = sent(rank, is_on_dp),
       .remark = str("A reduce-scatter of the gradients and an all-gather of the new weights. The "
                     "all-reduce of data parallelism alone sends ",
                     bytes_text(sent(dp, is_on_dp)), ".")}};
}

std::vector<LessonAnswer> of_fsdp(const LessonRuns& runs) {
  const LessonSizes& s = runs.sizes;
  const LessonRank& rank = runs.run.ranks.at(0);
  const LessonRank& dp = runs.before.ranks.at(0);
  const auto n = static_cast<double>(s.ranks);
  return {
      {.question = "How many bytes of weights, gradients and moments does a rank hold?",
       .formula = "16 psi / n",
       .expected = 4 * weight_bytes(s) / n,
       .measured = static_cast<double>(rank.weights + rank.gradients + rank.moments),
       .remark = str("4 bytes of weights, 4 of gradients and 8 of moments for each of psi numbers. "
                     "Data parallelism alone holds 16 psi, ",
                     bytes_text(4 * weight_bytes(s)), ", on every rank.")},
      {.question = "How many bytes does a rank send?",
       .formula = "3 x 4 psi x (n-1)/n",
       .expected = 3 * weight_bytes(s) * others_share(s),
       .measured = sent(rank, is_on_dp),
       .remark = str("An all-gather of the weights for forward, one for backward, and a "
                     "reduce-scatter of the gradients. Data parallelism alone sends two thirds: ",
                     bytes_text(sent(dp, is_on_dp)), ".")},
      {.question = "How many bytes of gathered weights does it compute with at the same time?",
       .formula = "4 bytes x the numbers of one block",
       .expected = static_cast<double>(block_weights(s) * kLessonNumberBytes),
       .measured = static_cast<double>(rank.gathered),
       .remark =
           str("The weights of the next block are gathered meanwhile; until it runs, they count "
               "as buffers. All blocks have ",
               bytes_text(s.layers * block_weights(s) * kLessonNumberBytes), ".")}};
}

}  // namespace

int64_t norm_weights(const LessonSizes& s) {
  return (2 * s.layers + 1) * s.hidden;
}

int64_t block_weights(const LessonSizes& s) {
  return 4 * s.hidden * s.hidden + 3 * s.hidden * s.ffn + 2 * s.hidden;
}

int64_t all_weights(const LessonSizes& s) {
  return s.layers * block_weights(s) + 2 * s.vocab * s.hidden + s.hidden;
}

std::string number_text(double number, LessonUnit unit) {
  if (unit == LessonUnit::kBytes) return bytes_text(number);
  if (unit == LessonUnit::kCount) return str(std::llround(number));
  return fixed_text(100 * number, 1) + " %";
}

std::vector<LessonAnswer> lesson_answers(std::string_view name, const LessonRuns& runs) {
  static const std::map<std::string_view, std::vector<LessonAnswer> (*)(const LessonRuns&)> kAll{
      {"tp", of_tp}, {"sp", of_sp}, {"pp", of_pp}, {"zero", of_zero}, {"fsdp", of_fsdp}};
  const auto found = kAll.find(name);
  if (found == kAll.end()) CLEAVE_BUG("no lesson ", name);
  return found->second(runs);
}

std::string with_lesson(const std::string& page, const std::string& title,
                        const std::vector<LessonAnswer>& answers) {
  nlohmann::ordered_json questions = nlohmann::ordered_json::array();
  for (const LessonAnswer& a : answers) {
    questions.push_back({{"question", a.question},
                         {"formula", a.formula},
                         {"expected", number_text(a.expected, a.unit)},
                         {"measured", number_text(a.measured, a.unit)},
                         {"remark", a.remark}});
  }
  const nlohmann::ordered_json lesson = {{"title", title}, {"questions", questions}};
  constexpr std::string_view kData = "id=\"data\">{";
  const size_t at = page.find(kData);
  if (at == std::string::npos) CLEAVE_BUG("the page has no data");
  std::string with = page;
  // The texts have no '<' that could end the script element.
  return with.insert(at + kData.size(), "\"lesson\":" + lesson.dump() + ",");
}

}  // namespace cleave::inline report
