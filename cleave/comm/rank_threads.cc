#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "cleave/comm/page_world.h"

namespace cleave {
namespace {

using Failures = std::vector<std::optional<Error>>;  // by rank

void run_rank(const std::shared_ptr<JobPage>& page, int rank, const RankOptions& options,
              const std::function<void(World&)>& body, std::optional<Error>& failure) {
  PageWorld world(page, rank, options);
  try {
    body(world);
  } catch (...) {
    // Told before `world` ends, which would look like an orderly leave.
    failure = as_error(std::current_exception());
    world.abort(*failure);
  }
}

/// Throws the failure that the job page recorded, with its whole text where its rank threw it.
void rethrow_first(const JobPage& page, const Failures& failures) {
  const std::optional<Abort> first = page.aborted();
  if (!first) return;
  const auto rank = static_cast<size_t>(first->rank);
  if (first->rank >= 0 && failures[rank] && failures[rank]->code() == first->code &&
      std::string_view(failures[rank]->what()).substr(0, first->text.size()) == first->text) {
    throw Error(*failures[rank]);
  }
  throw Error(first->code, first->text);
}

}  // namespace

void run_ranks(int num_ranks, const std::function<void(World&)>& body, const RankOptions& options) {
  CLEAVE_CHECK(options.timeout_s > 0, Code::kUsage, "timeout=", options.timeout_s,
               " s; it must be positive");
  const std::shared_ptr<JobPage> page = JobPage::create_private(num_ranks);
  Failures failures(static_cast<size_t>(num_ranks));
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back(
          [&, rank] { run_rank(page, rank, options, body, failures[static_cast<size_t>(rank)]); });
    }
  } catch (const std::system_error& error) {
    page->abort({.rank = static_cast<int>(threads.size()),
                 .code = Code::kMemory,
                 .group = "",
                 .text = str("rank thread ", threads.size(), " could not start: ", error.what())});
  }
  for (std::thread& thread : threads) thread.join();
  rethrow_first(*page, failures);
}

}  // namespace cleave
