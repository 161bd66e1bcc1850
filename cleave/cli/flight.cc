#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "cleave/cli/doctor.h"
#include "cleave/comm/api/operation.h"
#include "cleave/comm/diagnostics/flight_file.h"

namespace cleave::cli {
namespace {

using Object = nlohmann::ordered_json;

constexpr size_t kNumShown = 8;  // operations per rank

std::string rank_list(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + list_text(ranks);
}

std::string seconds_text(double seconds) {
  TextStream text;
  text << std::setprecision(3);
  if (seconds < 1e-3) {
    text << seconds * 1e6 << " us";
  } else if (seconds < 1) {
    text << seconds * 1e3 << " ms";
  } else {
    text << seconds << " s";
  }
  return text.str();
}

double seconds_between(uint64_t begin_ns, uint64_t end_ns) {
  return end_ns < begin_ns ? 0 : static_cast<double>(end_ns - begin_ns) * 1e-9;
}

/// Seconds since a rank's last recorded operation began or ended; nullopt if no time is known, as
/// for ranks of another host.
std::optional<double> idle_s(const FlightLog& log, const FlightRank& rank) {
  if (rank.operations.empty()) return std::nullopt;
  const FlightRecord& last = rank.operations.back();
  const uint64_t at = last.is_done ? last.end_ns : last.begin_ns;
  if (at == 0) return std::nullopt;
  return seconds_between(at, log.now_ns);
}

/// First word of the line of a rank that no rank waits for.
std::string state_word(const FlightRank& rank) {
  if (!rank.waits_for.empty()) return "waits";
  return rank.state == "joined" ? "works" : rank.state;
}

std::string place_of(const FlightLog& log, const FlightRank& rank) {
  std::string text = str("rank ", rank.rank, " (pid ", rank.pid);
  if (rank.step >= 0) text += str(", step ", rank.step);
  if (rank.state == "left" || rank.state == "unwound") text += ", " + rank.state;
  text += str(") is ", describe_place(log, rank));
  const auto idle = idle_s(log, rank);
  return idle ? text + str(", for ", seconds_text(*idle)) : text;
}

std::vector<int> waiting_for(const FlightLog& log, int rank) {
  std::vector<int> waiting;
  for (const FlightRank& other : log.ranks) {
    const auto& list = other.waits_for;
    if (std::find(list.begin(), list.end(), rank) != list.end()) waiting.push_back(other.rank);
  }
  return waiting;
}

/// Last sequence number of the collectives that a rank has begun on each axis.
std::map<uint32_t, uint64_t> begun_on_axes(const FlightRank& rank) {
  std::map<uint32_t, uint64_t> begun;
  for (const FlightRecord& record : rank.operations) {
    if (record.op == Op::kSend || record.op == Op::kRecv)
      continue;  // have their own sequence numbers
    begun[record.group] = std::max(begun[record.group], record.sequence);
  }
  return begun;
}

/// The ranks of an axis by the number of collectives that they have begun on it. A rank is left out
/// if the log no longer holds any of its operations on the axis: its count is then unknown.
std::map<uint64_t, std::vector<int>> ranks_by_count(const FlightLog& log, uint32_t axis) {
  std::map<uint64_t, std::vector<int>> ranks;
  for (const int rank : log.axes[axis].ranks) {
    if (static_cast<size_t>(rank) >= log.ranks.size()) continue;
    const FlightRank& seen = log.ranks[static_cast<size_t>(rank)];
    const auto begun = begun_on_axes(seen);
    const auto at = begun.find(axis);
    if (at == begun.end() && seen.num_operations > seen.operations.size()) continue;
    ranks[at == begun.end() ? 0 : at->second].push_back(rank);
  }
  return ranks;
}

/// Ranks that have begun fewer collectives on an axis than others of it, as sentences.
std::vector<std::string> behind(const FlightLog& log) {
  std::vector<std::string> lines;
  for (uint32_t a = 0; a < log.axes.size(); ++a) {
    const auto by_count = ranks_by_count(log, a);
    if (by_count.empty()) continue;
    const auto& [most, foremost] = *by_count.rbegin();
    for (const auto& [count, ranks] : by_count) {
      if (count == most) continue;
      const std::string last =
          count == 0 ? " began no collective" : str(" last began collective ", count);
      lines.push_back(str("axis ", log.axes[a].name, ": ", rank_list(ranks), last, ", ",
                          rank_list(foremost), " last began collective ", most));
    }
  }
  return lines;
}

void print_operations(const FlightLog& log, const FlightRank& rank) {
  const size_t shown = std::min(rank.operations.size(), kNumShown);
  std::cout << "rank " << rank.rank << ", last " << shown << " of " << rank.num_operations
            << " operations\n";
  for (size_t i = rank.operations.size() - shown; i < rank.operations.size(); ++i) {
    const FlightRecord& record = rank.operations[i];
    const std::string what = str(name(record.op), ' ', record.sequence);
    const std::string sizes =
        record.op == Op::kBarrier
            ? ""
            : str(name(static_cast<DType>(record.dtype)), " x ", record.count);
    std::string time = "not done";
    if (record.is_done) time = seconds_text(seconds_between(record.begin_ns, record.end_ns));
    if (record.is_done && record.begin_ns == 0) time = "done";
    std::cout << "  " << std::left << std::setw(22) << what << std::setw(8)
              << log.axes[record.group].name << std::setw(16) << sizes << std::setw(10) << time
              << record.site << '\n';
  }
}

void print_text(const FlightLog& log) {
  std::cout << "flight log of " << log.ranks.size() << " ranks, written by rank " << log.written_by
            << "\ncause   " << log.why << '\n';
  const std::vector<int> stuck = stuck_ranks(log);
  for (const int rank : stuck) {
    const std::vector<int> waiting = waiting_for(log, rank);
    std::cout << "stuck   " << place_of(log, log.ranks[static_cast<size_t>(rank)]) << "; "
              << rank_list(waiting) << (waiting.size() == 1 ? " waits for it\n" : " wait for it\n");
  }
  for (const FlightRank& rank : log.ranks) {
    if (std::find(stuck.begin(), stuck.end(), rank.rank) != stuck.end()) continue;
    const std::string wait =
        rank.waits_for.empty() ? "" : "; it waits for " + rank_list(rank.waits_for);
    std::cout << std::left << std::setw(8) << state_word(rank) << place_of(log, rank) << wait
              << '\n';
  }
  for (const std::string& line : behind(log)) std::cout << "behind  " << line << '\n';
  for (const FlightRank& rank : log.ranks) {
    if (rank.operations.empty()) continue;
    std::cout << '\n';
    print_operations(log, rank);
  }
}

void print_json(const FlightLog& log) {
  Object ranks = Object::array();
  for (const FlightRank& rank : log.ranks) {
    const auto idle = idle_s(log, rank);
    ranks.push_back({{"rank", rank.rank},
                     {"pid", rank.pid},
                     {"step", rank.step},
                     {"state", rank.state},
                     {"place", describe_place(log, rank)},
                     {"seconds", idle ? Object(*idle) : Object()},
                     {"waits_for", rank.waits_for},
                     {"num_operations", rank.num_operations}});
  }
  const Object facts = {{"cause", log.why},
                        {"written_by", log.written_by},
                        {"stuck", stuck_ranks(log)},
                        {"behind", behind(log)},
                        {"ranks", ranks}};
  std::cout << facts.dump() << '\n';
}

}  // namespace

void print_flight_log(const std::string& path, bool json) {
  const FlightLog log = read_flight_log(path);
  if (json) {
    print_json(log);
  } else {
    print_text(log);
  }
}

}  // namespace cleave::cli
