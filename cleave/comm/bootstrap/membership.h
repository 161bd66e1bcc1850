#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cleave::inline comm {

/// What a rank sends to rank 0 when it joins. If the ranks of one host of several rendezvous,
/// `rank` and `world_size` count only the ranks of that host.
struct RankInfo {
  uint64_t magic = 0;  ///< kJobMagic of the rank's build
  int32_t rank = 0, world_size = 0;
  int32_t pid = 0;
  int32_t job_rank = 0;  ///< among the ranks of all hosts
  /// LOCAL_WORLD_SIZE, if this rank expects other hosts but rank 0, on its host, does not; else 0
  int32_t local_world_size = 0;
  int32_t unused = 0;
};

/// A rank's host, as its launcher and the system describe it.
struct HostPlace {
  uint64_t host = 0;  ///< the same for all ranks of a host
  int32_t local_world_size = 0;
  int32_t unused = 0;
};

/// Why the ranks' LOCAL_WORLD_SIZEs contradict each other, so that ranks of a host would wait for
/// ranks that never join; "" if they do not. `places`: by rank.
std::string conflict_of_hosts(std::span<const HostPlace> places);

/// "1, 3", or of more than 16 ranks "1, 2, 3, 4, 5, 6, 7, 8, ... (230 in total)".
std::string ranks_text(const std::vector<int>& ranks);

/// Ranks registered so far. Rank 0 keeps it during rendezvous.
class Membership {
 public:
  /// Rank 0 itself is registered.
  explicit Membership(int world_size);

  /// Registers a rank. Returns "", or why it cannot join: another world size or version, a rank
  /// that is taken or out of range, or one that does not expect all ranks on its host. `where`
  /// follows its pid in messages, e.g. " at 10.0.0.2".
  std::string add(const RankInfo& info, const std::string& where = "");

  [[nodiscard]] bool is_complete() const { return num_registered_ == names_.size(); }
  /// "pid 77 at 10.0.0.2" of a registered rank.
  [[nodiscard]] const std::string& name(int rank) const {
    return names_[static_cast<size_t>(rank)];
  }
  /// The missing ranks, as "rank(s) 1, 3 of 4 did not join; start all ranks", as
  /// ranks_text() lists them.
  [[nodiscard]] std::string missing() const;

 private:
  std::vector<std::string> names_;  // by rank; "" if not registered
  size_t num_registered_ = 1;
};

}  // namespace cleave::inline comm
