#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cleave {

/// What a rank says of itself when it meets rank 0.
struct Hello {
  uint64_t magic;  ///< kJobMagic of its build
  int32_t rank, world_size;
  int32_t pid;
};

/// Who has come to the meeting of a job's ranks, kept by rank 0.
class Membership {
 public:
  /// Rank 0 itself is there.
  explicit Membership(int world_size);

  /// Notes a rank; returns "", or why it and those that are there cannot be one job: another world
  /// size or version, a rank that is taken or out of range. `where` is said of its process in
  /// messages, e.g. " at 10.0.0.2".
  std::string add(const Hello& hello, const std::string& where = "");

  [[nodiscard]] bool is_complete() const { return num_there_ == names_.size(); }
  /// "pid 77 at 10.0.0.2" of a rank that is there.
  [[nodiscard]] const std::string& name(int rank) const {
    return names_[static_cast<size_t>(rank)];
  }
  /// The ranks that have not come, as "rank(s) 1, 3 of 4 did not join; start all ranks".
  [[nodiscard]] std::string missing() const;

 private:
  std::vector<std::string> names_;  // by rank; "" is not there
  size_t num_there_ = 1;
};

}  // namespace cleave
