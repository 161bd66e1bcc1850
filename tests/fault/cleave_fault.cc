// cleave-fault: trains a tiny model with injected faults, resumes it after each as a user would,
// and compares the last checkpoint bit for bit with that of an undisturbed run. No fault may lose
// more steps than lie between two checkpoints.
//
// usage: cleave-fault [--rounds N] [--seed S] [--first R] [--program FILE]
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <sstream>
#include <sys/resource.h>
#include <thread>
#include <utility>

#include "cleave/base/clock.h"
#include "cleave/base/error.h"
#include "cleave/base/str.h"
#include "tests/fault/run.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/train_program.h"

namespace cleave::fault {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr int kNumSteps = 60;
constexpr int kMostFaults = 3;        // per round
constexpr double kLongestRunS = 120;  // a longer run counts as hung, which is a failure
constexpr double kTimeoutS = 20;      // --timeout of the runs: more than a busy machine needs

struct Layout {
  std::string flags;
  int processes = 0;  // under cleave launch; 0: threads of one process
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {{"", 0},
                                          {"", 1},
                                          {"--tp 2", 0},
                                          {"--tp 2", 2},
                                          {"--dp 2 --zero 1", 2},
                                          {"--dp 2 --fsdp", 2},
                                          {"--pp 2", 2},
                                          {"--tp 2 --dp 2", 4},
                                          {"--tp 2 --async-save", 2}};
  return all;
}

/// A fault that is injected into a training run.
struct Fault {
  std::string name;
  std::function<void(Run&, std::mt19937_64&)> strike;
  std::vector<int> codes;      // allowed exit codes; also 0, if the fault came too late
  bool for_processes = false;  // needs ranks that are processes and wait for each other
  int max_restarts = 0;        // of cleave launch
};

pid_t any_rank(Run& run, std::mt19937_64& random) {
  const auto ranks = run.ranks();
  return ranks[random() % ranks.size()];
}

/// Sets a resource limit of every running rank.
void limit_ranks(Run& run, __rlimit_resource resource, rlim_t value) {
  for (const pid_t rank : run.ranks()) {
    rlimit limit{};
    prlimit(rank, resource, nullptr, &limit);
    limit.rlim_cur = std::min(value, limit.rlim_max);
    prlimit(rank, resource, &limit, nullptr);
  }
}

/// The current address space of a process, in bytes.
rlim_t address_space(pid_t pid) {
  std::ifstream in(str("/proc/", pid, "/statm"));
  rlim_t pages = 0;
  in >> pages;
  return pages * 4096;
}

/// Whether the process has started main() and loads libtorch. Before, the dynamic loader and other
/// libraries' initializers may end it with any signal when no memory is left.
bool is_in_main(pid_t pid) {
  std::ifstream in(str("/proc/", pid, "/maps"));
  const std::string maps{std::istreambuf_iterator<char>(in), {}};
  return maps.find("/libtorch_cpu.so") != std::string::npos;
}

/// Waits until every running rank is in main(), or until the run has ended.
void wait_for_main(Run& run) {
  const auto are_in_main = [&] {
    const auto ranks = run.ranks();
    return std::all_of(ranks.begin(), ranks.end(), is_in_main);
  };
  while (!run.has_ended() && !are_in_main()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = {
      {"kill a rank", [](Run& run, auto& random) { kill(any_rank(run, random), SIGKILL); }, {137}},
      {"kill a rank, restarts on",
       [](Run& run, auto& random) { kill(any_rank(run, random), SIGKILL); },
       {},
       true,
       3},
      {"kill the launcher", [](Run& run, auto&) { kill(run.pid(), SIGKILL); }, {137}},
      {"kill all processes",
       [](Run& run, auto&) {
         for (const pid_t pid : run.pids()) kill(pid, SIGKILL);
       },
       {137}},
      {"stop a rank (SIGSTOP)",
       [](Run& run, auto& random) { kill(any_rank(run, random), SIGSTOP); },
       {6, 7},
       true},
      {"SIGTERM", [](Run& run, auto&) { kill(run.pid(), SIGTERM); }, {143}},
      {"SIGINT", [](Run& run, auto&) { kill(run.pid(), SIGINT); }, {130}},
      {"SIGTERM twice",
       [](Run& run, auto&) {
         kill(run.pid(), SIGTERM);
         std::this_thread::sleep_for(std::chrono::milliseconds(250));
         kill(run.pid(), SIGTERM);
       },
       {143, 137}},
      {"no file may grow",
       [](Run& run, auto&) { limit_ranks(run, RLIMIT_FSIZE, 1000); },
       {5, 6, 10}},
      // 127: from the dynamic loader, if a rank has just started.
      {"no descriptor is left",
       [](Run& run, auto&) { limit_ranks(run, RLIMIT_NOFILE, 3); },
       {5, 6, 10, 127}},
      {"no memory is left",
       [](Run& run, auto& random) {
         wait_for_main(run);
         const rlim_t more = random() % 2 == 0 ? 0 : rlim_t{1} << 20;
         limit_ranks(run, RLIMIT_AS, address_space(run.ranks().front()) + more);
       },
       {5, 6, 10, 127}},
  };
  return all;
}

/// When a fault is injected: after a fraction of an undisturbed run's time, or after a step.
struct Moment {
  int step = -1;
  double part = 0;
  double delay_s = 0;
};

/// A round, determined only by the seed.
struct Plan {
  Layout layout;
  int save_every = 1;
  std::vector<std::pair<const Fault*, Moment>> strikes{};
  bool flips_a_bit = false;  // of the newest checkpoint after the first fault
};

Moment any_moment(std::mt19937_64& random) {
  Moment moment;
  // During the start or during training; most of such a short run is its start.
  if (random() % 4 == 0) {
    moment.part = static_cast<double>(random() % 1000) / 1000;
  } else {
    moment.step = static_cast<int>(random() % kNumSteps);
    moment.delay_s = static_cast<double>(random() % 20'000) * 1e-6;
  }
  return moment;
}

Plan plan_of(uint64_t seed) {
  std::mt19937_64 random(seed);
  Plan plan{.layout = layouts()[random() % layouts().size()],
            .save_every = 1 + static_cast<int>(random() % 20)};
  const size_t num_faults = 1 + random() % kMostFaults;
  while (plan.strikes.size() < num_faults) {
    const Fault& fault = faults()[random() % faults().size()];
    if (fault.for_processes && plan.layout.processes < 2) continue;
    plan.strikes.emplace_back(&fault, any_moment(random));
  }
  plan.flips_a_bit = random() % 5 == 0;
  return plan;
}

Words split_words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

class Chaos {
 public:
  explicit Chaos(std::string program) : program_(std::move(program)) {
    std::ofstream(folder_ / "tiny.json") << test::kTinyLlama;
  }

  /// Runs one round and records its story. Throws Error if the bits differ.
  void round(uint64_t seed) {
    const Plan plan = plan_of(seed);
    const Unbroken& whole = unbroken(plan);
    std::mt19937_64 random(seed + 1);
    fs::remove_all(run_folder());
    story_ = str(plan.layout.flags, plan.layout.processes == 0 ? " as threads" : " as processes",
                 ", --save-every ", plan.save_every);
    bool flips = plan.flips_a_bit;
    for (const auto& [fault, when] : plan.strikes) {
      Run run(command(plan, fault->max_restarts), {}, log());
      wait_for(when, whole.seconds, run);
      fault->strike(run, random);
      const auto code = run.wait(kLongestRunS);
      story_ += str("; ", fault->name, " at ", describe(when, whole.seconds), ": ",
                    code ? str("exit ", *code) : "hung");
      CLEAVE_CHECK(code && is_expected(*fault, *code, run.text()), Code::kBug, story_, "\n",
                   run.text());
      if (*code == 0) break;
      check_lost_steps(plan);
      if (std::exchange(flips, false)) flip_a_bit(plan, random);
    }
    Run last(command(plan, 0), {}, log());
    const auto code = last.wait(kLongestRunS);
    CLEAVE_CHECK(code == 0, Code::kBug, story_, "; resumed: ", code ? str("exit ", *code) : "hung",
                 "\n", last.text());
    const std::string bits = bits_of(newest_of(run_folder()));
    CLEAVE_CHECK(bits == whole.bits, Code::kBug, story_, "; ends with ", bits,
                 ", the unbroken run with ", whole.bits);
    story_ += "; bits " + bits;
  }
  [[nodiscard]] const std::string& story() const { return story_; }

 private:
  struct Unbroken {
    std::string bits;
    double seconds = 0;
  };

  [[nodiscard]] std::string run_folder() const { return folder_ / "run"; }
  [[nodiscard]] std::string log() const { return folder_ / "log"; }

  /// The moment in seconds or steps, for the round's line.
  [[nodiscard]] static std::string describe(const Moment& moment, double whole_s) {
    if (moment.step >= 0) return str("step ", moment.step);
    std::ostringstream text;
    text << std::setprecision(2) << moment.part * whole_s << " s";
    return text.str();
  }

  /// Waits until the moment, or until the run has ended.
  void wait_for(const Moment& moment, double whole_s, Run& run) const {
    const auto begin = monotonic_s();
    const auto has_come = [&] {
      if (moment.step < 0) return monotonic_s() - begin > moment.part * whole_s;
      return num_steps() >= moment.step;
    };
    while (!has_come() && !run.has_ended() && monotonic_s() - begin < kLongestRunS) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(moment.delay_s));
  }

  [[nodiscard]] static bool is_expected(const Fault& fault, int code, const std::string& text) {
    if (code == 0) return true;  // the fault came too late
    if (fault.name == "no memory is left") {
      const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
      // The dynamic loader crashes if the limit is lowered while it maps libraries.
      if (code == 128 + SIGSEGV) return says("killed by signal 11 before it joined");
      if (code == 1) return says("libgomp: Thread creation failed");
    }
    return std::find(fault.codes.begin(), fault.codes.end(), code) != fault.codes.end();
  }

  /// Checks the number of steps that must be repeated. An async save completes up to one interval
  /// later.
  void check_lost_steps(const Plan& plan) {
    const std::string newest = newest_of(run_folder());
    const int64_t saved = newest.empty() ? 0 : std::stoll(newest.substr(newest.rfind('_') + 1));
    const int64_t lost = num_steps() - saved;
    const bool is_async = plan.layout.flags.find("--async-save") != std::string::npos;
    story_ += str(", ", lost, lost == 1 ? " step lost" : " steps lost");
    CLEAVE_CHECK(lost <= plan.save_every * (is_async ? 2 : 1), Code::kBug, story_);
  }

  /// Steps in the run's log.
  [[nodiscard]] int64_t num_steps() const {
    std::ifstream in(run_folder() + "/metrics.jsonl");
    return std::count(std::istreambuf_iterator<char>(in), {}, '\n');
  }

  /// The command line that starts or resumes the run.
  [[nodiscard]] Words command(const Plan& plan, int max_restarts,
                              const std::string& out_folder = "") const {
    const std::string out = out_folder.empty() ? run_folder() : out_folder;
    Words words;
    if (plan.layout.processes > 0) {
      words = {program_,         "launch",          "-n", str(plan.layout.processes),
               "--max-restarts", str(max_restarts), "--"};
    }
    words.push_back(program_);
    for (const std::string& word : test::train(
             out, {"--model", folder_ / "tiny.json", "--steps", str(kNumSteps), "--timeout",
                   str(kTimeoutS), "--save-every", str(plan.save_every), "--keep-last", "3"})) {
      words.push_back(word);
    }
    for (const std::string& word : split_words(plan.layout.flags)) words.push_back(word);
    if (!newest_of(out).empty()) words.push_back("--resume");
    return words;
  }

  /// The undisturbed run, made once per layout.
  const Unbroken& unbroken(const Plan& plan) {
    const std::string key = str(plan.layout.flags, plan.layout.processes);
    if (const auto known = unbroken_.find(key); known != unbroken_.end()) return known->second;
    const std::string out = folder_ / "whole";
    fs::remove_all(out);
    const double begin = monotonic_s();
    Run run(command(plan, 0, out), {}, log());
    const auto code = run.wait(kLongestRunS);
    CLEAVE_CHECK(code == 0, Code::kBug, "the unbroken run of ", key, " failed:\n", run.text());
    return unbroken_[key] = {bits_of(newest_of(out)), monotonic_s() - begin};
  }

  /// Flips a bit of the newest checkpoint: --resume must refuse it, and a restart must use an older
  /// one.
  void flip_a_bit(const Plan& plan, std::mt19937_64& random) {
    const std::string newest = newest_of(run_folder());
    if (newest.empty()) return;
    const std::string file = newest + "/model.safetensors";
    if (!fs::exists(file)) return;
    const auto at = static_cast<std::streamoff>(random() % fs::file_size(file));
    {
      std::fstream io(file, std::ios::in | std::ios::out | std::ios::binary);
      io.seekg(at);
      const int byte = io.get();
      io.seekp(at);
      io.put(static_cast<char>(byte ^ (1 << random() % 8)));
    }
    story_ += str("; bit ", at, " of ", fs::path(newest).filename().string(), " flipped");
    Run refused(command(plan, 0), {}, log());
    const auto code = refused.wait(kLongestRunS);
    CLEAVE_CHECK(code == 4, Code::kBug, story_, ", and --resume ended with ", code.value_or(-1),
                 "\n", refused.text());
    if (plan.layout.processes == 0 || num_checkpoints() < 2) {
      fs::remove_all(run_folder());  // no intact checkpoint, or no launcher that uses an older one
      return;
    }
    Words words = command(plan, 0);
    words.pop_back();  // --resume
    Run restarted(words, {"CLEAVE_RESTARTS=1"}, log());
    const auto restarted_code = restarted.wait(kLongestRunS);
    CLEAVE_CHECK(restarted_code == 0, Code::kBug, story_, ", and a restart ended with ",
                 restarted_code.value_or(-1), "\n", restarted.text());
    story_ += ", restarted from an older one";
  }

  [[nodiscard]] int num_checkpoints() const {
    int found = 0;
    for (const auto& entry : fs::directory_iterator(run_folder())) {
      const std::string name = entry.path().filename();
      found += name.starts_with("step_") && name.find('.') == std::string::npos ? 1 : 0;
    }
    return found;
  }

  const test::TempFolder folder_;
  std::string program_;
  std::map<std::string, Unbroken> unbroken_;
  std::string story_;
};

struct Options {
  uint64_t rounds = 10, seed = 1, first = 0;
  std::string program = test::program();
};

Options read_options(const Words& words) {
  Options options;
  for (size_t i = 0; i < words.size(); i += 2) {
    CLEAVE_CHECK(i + 1 < words.size(), Code::kUsage, words[i], " has no value");
    const std::map<std::string, uint64_t*> numbers = {
        {"--rounds", &options.rounds}, {"--seed", &options.seed}, {"--first", &options.first}};
    if (words[i] == "--program") {
      options.program = words[i + 1];
      continue;
    }
    const auto found = numbers.find(words[i]);
    CLEAVE_CHECK(found != numbers.end(), Code::kUsage, "unknown flag ", words[i],
                 "; expected --rounds, --seed, --first, --program");
    *found->second = std::stoull(words[i + 1]);
  }
  return options;
}

int run_all(const Options& options) {
  Chaos chaos(options.program);
  uint64_t num_failed = 0;
  for (uint64_t r = options.first; r < options.first + options.rounds; ++r) {
    std::string outcome;
    try {
      chaos.round(options.seed * 1'000'003 + r);
      outcome = chaos.story();
    } catch (const Error& error) {
      ++num_failed;
      outcome = str("FAILED: ", error.what());
    }
    std::cout << "round " << r << ": " << outcome << "\n  repeat: cleave-fault --seed "
              << options.seed << " --first " << r << " --rounds 1" << std::endl;
  }
  std::cout << options.rounds - num_failed << " of " << options.rounds
            << " rounds ended with the bits of the unbroken run (seed " << options.seed << ")\n";
  return num_failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cleave::fault

int main(int argc, char** argv) {
  try {
    return cleave::fault::run_all(cleave::fault::read_options({argv + 1, argv + argc}));
  } catch (const cleave::Error& error) {
    std::cerr << "cleave-fault: " << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}
