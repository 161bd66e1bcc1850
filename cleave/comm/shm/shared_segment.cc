#include "cleave/comm/shm/shared_segment.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace cleave::inline comm {
namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t kThreadPayloadBytes = 16 << 10;    // larger messages are read in place
constexpr uint64_t kProcessPayloadBytes = 256 << 10;  // half of an L2 cache
constexpr uint64_t kSmallPayloadBytes = 16 << 10;     // when the arena runs low
constexpr uint64_t kThreadArenaBytes = 64 << 20;      // per rank, only reserved
constexpr uint64_t kProcessArenaBytes = 10 << 20;     // per rank, allocated at start
constexpr uint64_t kReplicaPayloadBytes = 1 << 20;    // large, because network round trips are long
constexpr uint64_t kReplicaArenaBytes = 256 << 20;    // per rank, only reserved
// Per rank, kept free for the small payloads of later groups and for message channels.
constexpr uint64_t kReservedBytes = kNumGroupsPerRank * (2 * kSmallPayloadBytes + (8 << 10));

constexpr std::chrono::seconds kFillTime{10};

uint64_t round_up(uint64_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

template <size_t kSize>
void copy_text(char (&to)[kSize], std::string_view from) {
  const size_t size = std::min(from.size(), kSize - 1);
  std::memcpy(to, from.data(), size);
  to[size] = '\0';
}

void check_num_ranks(int num_present, int num_ranks) {
  CLEAVE_CHECK(num_present >= 1 && num_present <= kMaxRanks, Code::kUsage,
               "number of ranks=", num_present, "; choose 1 to ", kMaxRanks, " ranks on one host");
  CLEAVE_CHECK(num_ranks <= kMaxJobRanks, Code::kUsage, "number of ranks=", num_ranks,
               "; choose at most ", kMaxJobRanks, " ranks on several hosts");
}

struct Sizes {
  uint64_t ranks, groups, channels, arena, end;
};

Sizes sizes_of(int num_ranks, int num_present, uint64_t arena_bytes) {
  const auto n = static_cast<uint64_t>(num_ranks), present = static_cast<uint64_t>(num_present);
  Sizes s{};
  s.ranks = round_up(sizeof(JobHeader));
  s.groups = s.ranks + n * sizeof(RankSlot);
  s.channels = s.groups + present * kNumGroupsPerRank * sizeof(GroupEntry);
  s.arena = round_up(s.channels + n * n * sizeof(uint64_t));
  s.end = s.arena + present * arena_bytes;
  return s;
}

std::byte* map(uint64_t bytes, int fd) {
  const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  CLEAVE_CHECK(base != MAP_FAILED, Code::kMemory, "mmap of ", bytes,
               " bytes for the ranks' shared segment failed: ", std::strerror(errno));
  return static_cast<std::byte*>(base);
}

}  // namespace

std::shared_ptr<SharedSegment> SharedSegment::create_private(int num_ranks) {
  check_num_ranks(num_ranks, num_ranks);
  return make(num_ranks, kThreadArenaBytes);
}

std::shared_ptr<SharedSegment> SharedSegment::create_shared(int num_ranks) {
  return create_for_host(num_ranks, num_ranks);
}

std::shared_ptr<SharedSegment> SharedSegment::create_for_host(int num_ranks, int num_present) {
  check_num_ranks(num_present, num_ranks);
  const uint64_t bytes = sizes_of(num_ranks, num_present, kProcessArenaBytes).end;
  const int fd = memfd_create("cleave job", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CLEAVE_CHECK(fd >= 0, Code::kMemory, "memfd_create failed: ", std::strerror(errno));
  // Mapped before its pages are reserved, so that an address space limit fails first. Reserving all
  // pages now makes a full host an error here instead of a SIGBUS in a rank.
  std::shared_ptr<SharedSegment> segment(new SharedSegment(map(bytes, fd), bytes, fd));
  const int refused = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  CLEAVE_CHECK(refused == 0, Code::kMemory, "the ranks' shared segment needs ", bytes,
               " bytes of memory: ", std::strerror(refused),
               refused == EFBIG ? "; raise the limit on file sizes with ulimit -f"
                                : "; start fewer ranks or free memory");
  fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  segment->fill(num_ranks, num_present);
  return segment;
}

std::shared_ptr<SharedSegment> SharedSegment::create_replica(int num_ranks, int rank) {
  check_num_ranks(1, num_ranks);
  auto segment = make(num_ranks, kReplicaArenaBytes);
  segment->header().replica_of = rank;
  segment->header().payload_bytes = kReplicaPayloadBytes;
  return segment;
}

std::shared_ptr<SharedSegment> SharedSegment::attach(int fd) {
  struct stat info {};
  CLEAVE_CHECK(fstat(fd, &info) == 0, Code::kUsage, "descriptor ", fd,
               " of the shared segment: ", std::strerror(errno));
  const auto bytes = static_cast<uint64_t>(info.st_size);
  const int seals = fcntl(fd, F_GET_SEALS);
  CLEAVE_CHECK(seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && bytes >= sizeof(JobHeader),
               Code::kUsage, "descriptor ", fd, " is not a shared segment of Cleave");
  std::shared_ptr<SharedSegment> segment(new SharedSegment(map(bytes, fd), bytes, fd));
  const JobHeader& header = segment->header();
  CLEAVE_CHECK(header.magic == kJobMagic && header.bytes == bytes, Code::kShape,
               "shared segment has version ", header.magic & 0xffffU, ", this program ",
               kLayoutVersion, "; start all ranks from the same build");
  return segment;
}

std::shared_ptr<SharedSegment> SharedSegment::make(int num_ranks, uint64_t arena_bytes) {
  const uint64_t bytes = sizes_of(num_ranks, num_ranks, arena_bytes).end;
  std::shared_ptr<SharedSegment> segment(new SharedSegment(map(bytes, -1), bytes, -1));
  segment->fill(num_ranks, num_ranks);
  return segment;
}

void SharedSegment::fill(int num_ranks, int num_present) {
  const Sizes sizes = sizes_of(num_ranks, num_present, 0);
  auto* header = new (base_) JobHeader();
  header->magic = kJobMagic;
  header->bytes = bytes_;
  header->num_ranks = num_ranks;
  header->num_present = num_present;
  header->num_groups = num_present * kNumGroupsPerRank;
  header->replica_of = -1;
  header->groups_offset = sizes.groups;
  header->channels_offset = sizes.channels;
  header->arena_end = bytes_;
  header->payload_bytes = fd_ >= 0 ? kProcessPayloadBytes : kThreadPayloadBytes;
  header->arena_next.store(sizes.arena);
  // A slot has 33 KB; constructing it would take memory for every rank of a large job.
  for (int r = 0; r < num_ranks; ++r) rank(r).step.store(-1);
}

SharedSegment::~SharedSegment() {
  munmap(base_, bytes_);
  if (fd_ >= 0) close(fd_);
}

JobHeader& SharedSegment::header() const {
  return *std::launder(reinterpret_cast<JobHeader*>(base_));
}

RankSlot& SharedSegment::rank(int rank) const {
  const uint64_t offset =
      round_up(sizeof(JobHeader)) + static_cast<uint64_t>(rank) * sizeof(RankSlot);
  return *std::launder(reinterpret_cast<RankSlot*>(at(offset)));
}

GroupEntry& SharedSegment::group(uint32_t index) const {
  return *std::launder(
      reinterpret_cast<GroupEntry*>(at(header().groups_offset + index * sizeof(GroupEntry))));
}

std::span<const int32_t> SharedSegment::group_ranks(const GroupEntry& entry) const {
  return {std::launder(reinterpret_cast<const int32_t*>(at(entry.ranks_offset))),
          static_cast<size_t>(entry.num_members)};
}

MemberSlot& SharedSegment::member(const GroupEntry& entry, int member) const {
  const uint64_t offset = entry.members_offset + static_cast<uint64_t>(member) * sizeof(MemberSlot);
  return *std::launder(reinterpret_cast<MemberSlot*>(at(offset)));
}

std::byte* SharedSegment::payload(const GroupEntry& entry, int member, uint32_t buffer) const {
  const uint64_t index = static_cast<uint64_t>(member) * 2 + buffer;
  return at(entry.payload_offset + index * entry.payload_bytes);
}

uint64_t SharedSegment::try_allocate(uint64_t bytes, uint64_t reserved) {
  std::atomic<uint64_t>& next = header().arena_next;
  uint64_t begin = next.load();
  do {
    if (bytes + reserved > header().arena_end - begin) return 0;
  } while (!next.compare_exchange_weak(begin, begin + round_up(bytes)));
  return begin;
}

uint64_t SharedSegment::allocate(uint64_t bytes) {
  const uint64_t offset = try_allocate(bytes, 0);
  CLEAVE_CHECK(offset != 0, Code::kMemory, "the ranks' shared segment of ", bytes_,
               " bytes is used up; make fewer groups, at most ", kNumGroupsPerRank, " a rank");
  return offset;
}

void SharedSegment::fill_group(GroupEntry& entry, std::span<const int> ranks,
                               std::string_view name) {
  const uint64_t n = ranks.size();
  entry.num_members = static_cast<int32_t>(n);
  copy_text(entry.name, name);
  entry.ranks_offset = allocate(n * sizeof(int32_t));
  std::memcpy(at(entry.ranks_offset), ranks.data(), n * sizeof(int32_t));
  entry.members_offset = allocate(n * sizeof(MemberSlot));
  for (uint64_t m = 0; m < n; ++m)
    new (at(entry.members_offset + m * sizeof(MemberSlot))) MemberSlot();
  // A replica has no payloads for groups of other ranks.
  const auto self = static_cast<int>(header().replica_of);
  if (is_replica() && std::find(ranks.begin(), ranks.end(), self) == ranks.end()) return;
  entry.payload_bytes = header().payload_bytes;
  const uint64_t reserved = static_cast<uint64_t>(num_present()) * kReservedBytes;
  entry.payload_offset = try_allocate(n * 2 * entry.payload_bytes, reserved);
  if (entry.payload_offset == 0) {
    // All members need the same payload size, which replicas cannot agree on.
    CLEAVE_CHECK(!is_replica(), Code::kMemory, "group ", name, ": the ", bytes_,
                 " bytes for groups are used up; make fewer groups");
    entry.payload_bytes = kSmallPayloadBytes;
    entry.payload_offset = allocate(n * 2 * entry.payload_bytes);
  }
}

void SharedSegment::wait_until_ready(const GroupEntry& entry, std::string_view name) const {
  // Filling takes microseconds, unless the rank that fills it was killed.
  const auto deadline = std::chrono::steady_clock::now() + kFillTime;
  while (entry.is_ready.load(std::memory_order_acquire) == 0) {
    CLEAVE_CHECK(!is_aborted() && std::chrono::steady_clock::now() < deadline, Code::kPeer,
                 "another rank failed while group ", name, " was being made");
    std::this_thread::yield();
  }
}

uint32_t SharedSegment::join_group(uint64_t key, std::span<const int> ranks,
                                   std::string_view name) {
  const auto num_groups = static_cast<uint32_t>(header().num_groups);
  for (uint32_t probe = 0; probe < num_groups; ++probe) {
    const auto index = static_cast<uint32_t>((key + probe) % num_groups);
    GroupEntry& entry = group(index);
    uint64_t found = entry.key.load();
    if (found == 0 && entry.key.compare_exchange_strong(found, key)) {
      fill_group(entry, ranks, name);
      entry.is_ready.store(1, std::memory_order_release);
      return index;
    }
    if (found != key) continue;
    wait_until_ready(entry, name);
    return index;
  }
  throw Error(Code::kMemory, str("more than ", num_groups, " groups in one job"));
}

std::optional<uint32_t> SharedSegment::find_group(uint64_t key) const {
  const auto num_groups = static_cast<uint32_t>(header().num_groups);
  for (uint32_t probe = 0; probe < num_groups; ++probe) {
    const auto index = static_cast<uint32_t>((key + probe) % num_groups);
    const GroupEntry& entry = group(index);
    const uint64_t found = entry.key.load();
    if (found == 0) return std::nullopt;
    if (found == key && entry.is_ready.load(std::memory_order_acquire) != 0) return index;
  }
  return std::nullopt;
}

std::atomic<uint64_t>& SharedSegment::channel_offset(int from, int to) const {
  const uint64_t index =
      static_cast<uint64_t>(from) * static_cast<uint64_t>(num_ranks()) + static_cast<uint64_t>(to);
  return *std::launder(reinterpret_cast<std::atomic<uint64_t>*>(
      at(header().channels_offset + index * sizeof(uint64_t))));
}

uint64_t SharedSegment::channel(int from, int to, uint64_t bytes) {
  std::atomic<uint64_t>& offset = channel_offset(from, to);
  uint64_t known = offset.load(std::memory_order_acquire);
  if (known != 0) return known;
  const uint64_t made = allocate(bytes);
  // If both ends allocate at the same time, one of the two allocations stays unused.
  return offset.compare_exchange_strong(known, made) ? made : known;
}

MessageRing& SharedSegment::ring(int from, int to) {
  return *std::launder(reinterpret_cast<MessageRing*>(at(channel(from, to, sizeof(MessageRing)))));
}

ChannelEnds& SharedSegment::make_channel_ends(int from, int to) {
  return *std::launder(reinterpret_cast<ChannelEnds*>(at(channel(from, to, sizeof(ChannelEnds)))));
}

ChannelEnds* SharedSegment::channel_ends(int from, int to) const {
  const uint64_t offset = channel_offset(from, to).load(std::memory_order_acquire);
  return offset == 0 ? nullptr : std::launder(reinterpret_cast<ChannelEnds*>(at(offset)));
}

bool SharedSegment::abort(const Abort& cause) {
  AbortRecord& record = header().abort;
  AbortState none = AbortState::kNone;
  if (!record.state.compare_exchange_strong(none, AbortState::kWriting)) return false;
  record.rank = cause.rank;
  record.code = static_cast<int32_t>(cause.code);
  record.step = cause.step;
  record.sequence = cause.sequence;
  record.op = cause.op;
  copy_text(record.group, cause.group);
  copy_text(record.text, cause.text);
  record.state.store(AbortState::kSet, std::memory_order_seq_cst);
  return true;
}

std::optional<Abort> SharedSegment::aborted() const {
  const AbortRecord& record = header().abort;
  // Writing takes a microsecond, unless the writer was killed while writing.
  for (int tries = 0; record.state.load() == AbortState::kWriting && tries < 1000; ++tries) {
    std::this_thread::yield();
  }
  const AbortState state = record.state.load(std::memory_order_acquire);
  if (state == AbortState::kNone) return std::nullopt;
  if (state == AbortState::kWriting) {
    return Abort{.rank = -1, .code = Code::kPeer, .group = "", .text = "a rank was killed"};
  }
  return Abort{record.rank, static_cast<Code>(record.code),
               record.step, record.sequence,
               record.op,   record.group,
               record.text};
}

void SharedSegment::share_failure(SharedSegment& a, SharedSegment& b) {
  if (a.is_aborted() == b.is_aborted()) return;
  SharedSegment& from = a.is_aborted() ? a : b;
  SharedSegment& to = a.is_aborted() ? b : a;
  const auto cause = from.aborted();
  // Rank -1: the rank that fails is still writing it. The next call copies it.
  if (cause && cause->rank >= 0) to.abort(*cause);
}

void SharedSegment::note_resume_hint(std::string_view text) {
  header().hint_state.store(0, std::memory_order_release);
  copy_text(header().resume_hint, text);
  header().hint_state.store(1, std::memory_order_release);
}

std::string SharedSegment::resume_hint() const {
  return header().hint_state.load(std::memory_order_acquire) == 1 ? header().resume_hint : "";
}

}  // namespace cleave::inline comm
