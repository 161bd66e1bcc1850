#include "cleave/comm/shm/rank_endpoint.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

#include "cleave/comm/api/calling_thread.h"
#include "cleave/comm/api/operation.h"
#include "cleave/comm/diagnostics/flight_log.h"

namespace cleave::inline comm {
namespace {

// Spinning longer than this costs more than a sleep. If ranks share a core, spinning only keeps the
// awaited rank from running.
constexpr int kSpinsOnOwnCore = 4000;
constexpr int kSpinsOnSharedCore = 50;

void publish_cpus(RankSlot& slot) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return;  // no CPUs: counts as a shared core
  uint64_t words[kMaxCpus / 64] = {};
  for (size_t i = 0; i < kMaxCpus; ++i) {
    if (CPU_ISSET(i, &set)) words[i / 64] |= uint64_t{1} << i % 64;
  }
  for (size_t i = 0; i < std::size(words); ++i) {
    slot.cpus[i].store(words[i], std::memory_order_relaxed);
  }
}

/// The first sentences of the first line of a text, without the last full stop.
std::string_view first_sentences(std::string_view text, int count) {
  text = text.substr(0, text.find('\n'));
  size_t end = 0;
  for (int sentence = 0; sentence < count && end != std::string_view::npos; ++sentence) {
    end = text.find(". ", end + 1);
  }
  text = text.substr(0, end);
  if (text.ends_with('.')) text.remove_suffix(1);
  return text;
}

/// Whether libtorch reports with this text that a GPU or its libraries have failed.
bool is_gpu_failure(std::string_view text) {
  return text.starts_with("CUDA error: ") || text.starts_with("cuDNN error: ") ||
         text.starts_with("CUDA driver error: ");
}

/// "PATH: Permission denied; ...": its what() begins with the name of a C++ function.
Error of_file_system(const std::filesystem::filesystem_error& error) {
  const std::string path = error.path1().string();
  if (path.empty()) return Error(Code::kIo, error.what());
  const bool is_denied = error.code() == std::errc::permission_denied;
  return Error(Code::kIo, str(path, ": ", error.code().message(),
                              is_denied ? "; change the permissions of it, or of a folder above "
                                          "it (chmod)"
                                        : ""));
}

}  // namespace

Error as_error(const std::exception_ptr& caught) {
  try {
    std::rethrow_exception(caught);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc& error) {
    return Error(Code::kMemory, str("out of memory (", error.what(), ")"));
  } catch (const std::filesystem::filesystem_error& error) {
    return of_file_system(error);
  } catch (const std::system_error& error) {
    // std::thread: no memory for a stack, or too many threads.
    const bool is_full = error.code() == std::errc::resource_unavailable_try_again ||
                         error.code() == std::errc::not_enough_memory;
    if (!is_full) return Error(Code::kBug, error.what());
    return Error(Code::kMemory, str("out of memory or threads (", error.what(),
                                    "); raise the limits, ulimit -v and -u"));
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    // libtorch's allocators have no common exception type. In the messages of a GPU's allocator,
    // only the second and third sentence give the size and the GPU's memory.
    for (const auto& [sign, count] :
         {std::pair<std::string_view, int>{"can't allocate memory", 1}, {"out of memory", 3}}) {
      const size_t at = text.find(sign);
      if (at == std::string_view::npos) continue;
      const std::string_view rest = first_sentences(text.substr(at), count);
      const size_t details = rest.find(". ");
      return Error(Code::kMemory,
                   str("out of memory (",
                       details == std::string_view::npos ? rest : rest.substr(details + 2), ")"));
    }
    if (is_gpu_failure(text)) {
      return Error(Code::kBug, str("the device failed: ", text.substr(0, text.find('\n')),
                                   "; to see in which operation, set CUDA_LAUNCH_BLOCKING=1"));
    }
    // libtorch appends a backtrace.
    return Error(Code::kBug, str(text.substr(0, text.find("\nException raised from "))));
  } catch (...) {
    return Error(Code::kBug, "an exception that is not a std::exception");
  }
}

char process_state(int pid) {
  std::ifstream file(str("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text);
  // Also where /proc is not mounted: kill() finds every process, even one of another user.
  if (text.empty()) return kill(pid, 0) == 0 || errno != ESRCH ? '?' : '\0';
  const size_t end = text.rfind(") ");  // the end of its name, which may contain anything
  return end == std::string::npos || end + 2 == text.size() ? '\0' : text[end + 2];
}

RankEndpoint::RankEndpoint(std::shared_ptr<SharedSegment> segment, int rank,
                           const RankOptions& options, std::unique_ptr<TcpReplicator> replicator)
    : segment_(std::move(segment)),
      rank_(rank),
      options_(options),
      replicator_(std::move(replicator)),
      num_exceptions_(std::uncaught_exceptions()) {
  CLEAVE_CHECK(options.timeout_s > 0, Code::kUsage, "timeout=", options.timeout_s,
               " s; it must be positive");
  publish_cpus(slot());
  choose_num_spins();
  slot().pid.store(getpid());
  slot().state.store(RankState::kJoined);
  if (replicator_) replicator_->start();
}

RankEndpoint::~RankEndpoint() {
  const bool unwinds = std::uncaught_exceptions() > num_exceptions_;
  slot().state.store(unwinds ? RankState::kUnwound : RankState::kLeft);
  replicator_.reset();
  for (const int fd : pidfds_) {
    if (fd >= 0) close(fd);
  }
}

void RankEndpoint::choose_num_spins() {
  if (knows_all_cpus_.load(std::memory_order_relaxed)) return;
  if (segment_->is_replica()) {  // the replicator's thread needs a core, too
    num_spins_.store(kSpinsOnSharedCore, std::memory_order_relaxed);
    return;
  }
  // The union over the present ranks, because ranks may share CPUs or be bound to different ones.
  uint64_t all[kMaxCpus / 64] = {};
  int num_known = 0;
  for (int rank = 0; rank < segment_->num_ranks(); ++rank) {
    uint64_t any = 0;
    for (size_t i = 0; i < std::size(all); ++i) {
      const uint64_t word = segment_->rank(rank).cpus[i].load(std::memory_order_relaxed);
      all[i] |= word;
      any |= word;
    }
    num_known += any != 0 ? 1 : 0;
  }
  int num_cpus = 0;
  for (const uint64_t word : all) num_cpus += std::popcount(word);
  const bool has_own_core = segment_->num_present() <= num_cpus;
  num_spins_.store(has_own_core ? kSpinsOnOwnCore : kSpinsOnSharedCore, std::memory_order_relaxed);
  knows_all_cpus_.store(num_known == segment_->num_present(), std::memory_order_relaxed);
}

bool RankEndpoint::abort_for(int rank, const Error& cause) const {
  const RankSlot& failed = segment_->rank(rank);
  Abort record{.rank = rank, .code = cause.code(), .group = "", .text = cause.what()};
  record.step = failed.step.load();
  const uint64_t number = failed.num_operations.load();
  if (number != 0) {
    const FlightRecord last = log_read(failed, number - 1);
    record.op = last.op;
    record.sequence = last.sequence;
    record.group = segment_->group(last.group).name;
  }
  return segment_->abort(record);
}

void RankEndpoint::fail(const Error& cause) const {
  // Several ranks may detect the same desync at the same time; each throws its own Error.
  if (!abort(cause) && cause.code() != Code::kDesync) throw_stopped();
  throw Error(cause);
}

void RankEndpoint::throw_stopped() const {
  const Abort cause =
      segment_->aborted().value_or(Abort{.rank = -1, .group = "", .text = "the job was stopped"});
  if (cause.code == Code::kDesync) throw Error(Code::kDesync, cause.text);
  std::string text = cause.text;
  if (cause.rank != rank_ && text.find(str("rank ", cause.rank)) == std::string::npos) {
    text = str("rank ", cause.rank, " failed: ", text);
  }
  throw Error(Code::kPeer,
              str(text, "; rank ", rank_, " stopped ", describe_place(*segment_, beside(), rank_),
                  describe_step(*segment_, rank_)));
}

bool RankEndpoint::is_dead(int rank) {
  if (!segment_->is_shared()) return false;
  const std::lock_guard lock(pidfds_mutex_);
  if (pidfds_.empty()) pidfds_.assign(static_cast<size_t>(segment_->num_ranks()), -1);
  int& fd = pidfds_[static_cast<size_t>(rank)];
  const RankSlot& other = segment_->rank(rank);
  if (other.state.load() != RankState::kJoined) return false;
  if (fd < 0) fd = static_cast<int>(syscall(SYS_pidfd_open, other.pid.load(), 0));
  pollfd ended{fd, POLLIN, 0};
  const auto is_ended_state = [](char state) {
    return state == '\0' || state == 'Z' || state == 'X';
  };
  // Linux before 5.3 has no pidfd_open, and containers may forbid it.
  const bool has_ended =
      fd < 0 ? is_ended_state(process_state(other.pid.load())) : poll(&ended, 1, 0) == 1;
  // Read the state last: a rank that exits in order records this before its process ends.
  return has_ended && other.state.load() == RankState::kJoined;
}

int RankEndpoint::num_spins() const {
  const int chosen = num_spins_.load(std::memory_order_relaxed);
  // A helper thread shares the core of its rank, which computes meanwhile.
  return CallThread::is_current() ? std::min(chosen, kSpinsOnSharedCore) : chosen;
}

CallThread& RankEndpoint::make_call_thread() {
  return *call_threads_.emplace_back(std::make_unique<CallThread>());
}

void RankEndpoint::end_call_threads() {
  for (const auto& thread : call_threads_) thread->end();
}

void RankEndpoint::note_thread() const {
  if (CallThread::is_in_call() || ForBlockedThread::is_active()) return;
  const auto self = static_cast<uint64_t>(pthread_self());
  uint64_t known = slot().user_thread.load(std::memory_order_relaxed);
  if (known == self) return;
  if (known != 0 || !slot().user_thread.compare_exchange_strong(known, self)) {
    slot().uses_many_threads.store(1);
  }
}

}  // namespace cleave::inline comm
