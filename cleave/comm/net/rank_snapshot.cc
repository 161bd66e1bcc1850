#include <algorithm>
#include <cstring>
#include <thread>

#include "cleave/comm/api/operation.h"
#include "cleave/comm/net/frame.h"

namespace cleave::inline comm {
namespace {

constexpr uint64_t kNumEntries = 8;  // of the flight log, at most
constexpr int kNumWords = sizeof(FlightEntry) / sizeof(uint64_t);

struct Head {
  RankState state;
  int32_t pid;
  int64_t step;
  uint64_t num_operations;
  uint64_t wait_group;  // key
  uint32_t wait_epoch;
  WaitKind wait_kind;
  uint32_t wait_stamp;
  int32_t wait_peer;
  uint32_t uses_many_threads;
  uint32_t num_entries, num_stamps, num_ends;
};

struct Entry {
  uint64_t group;  // key
  uint64_t words[kNumWords];
};

struct Stamp {
  uint64_t group;  // key
  uint64_t stamp;
};

/// One end of a message ring; rank `from` moves the head, rank `to` the tail.
struct End {
  int32_t from, to;
  uint32_t value;
  uint32_t is_head;
};

// Visits the words of a flight entry in order. The first holds the group's index in its upper half.
template <class Visit>
void visit_words(FlightEntry& entry, const Visit& visit) {
  visit(entry.kind);
  for (auto* word : {&entry.sequence, &entry.count, &entry.begin_ns, &entry.end_ns}) visit(*word);
  for (auto& word : entry.site) visit(word);
}

template <class T>
void append(std::vector<std::byte>& to, const std::vector<T>& items) {
  const auto* begin = reinterpret_cast<const std::byte*>(items.data());
  to.insert(to.end(), begin, begin + items.size() * sizeof(T));
}

Head read_head(const SharedSegment& segment, const RankSlot& slot) {
  Head head{};
  head.state = slot.state.load();
  head.pid = slot.pid.load();
  head.step = slot.step.load();
  head.num_operations = slot.num_operations.load(std::memory_order_acquire);
  head.wait_epoch = slot.wait_epoch.load(std::memory_order_acquire);
  head.wait_kind = slot.wait_kind.load(std::memory_order_acquire);
  head.wait_group = head.wait_epoch % 2 == 0 ? 0 : segment.group(slot.wait_group.load()).key.load();
  head.wait_stamp = slot.wait_stamp.load(std::memory_order_acquire);
  head.wait_peer = slot.wait_peer.load(std::memory_order_acquire);
  head.uses_many_threads = slot.uses_many_threads.load();
  return head;
}

std::vector<Entry> read_entries(const SharedSegment& segment, RankSlot& slot, uint64_t end) {
  std::vector<Entry> entries;
  for (uint64_t number = end - std::min(end, kNumEntries); number < end; ++number) {
    Entry entry{};
    uint64_t* next = entry.words;
    visit_words(slot.log[number % kFlightLogLength],
                [&](const auto& word) { *next++ = word.load(std::memory_order_relaxed); });
    entry.group = segment.group(static_cast<uint32_t>(entry.words[0] >> 32)).key.load();
    entries.push_back(entry);
  }
  return entries;
}

std::vector<Stamp> read_stamps(const SharedSegment& segment, int rank,
                               std::span<const uint32_t> groups) {
  std::vector<Stamp> stamps;
  for (const uint32_t index : groups) {
    const GroupEntry& entry = segment.group(index);
    const auto ranks = segment.group_ranks(entry);
    const auto member = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    stamps.push_back(
        {entry.key.load(), segment.member(entry, static_cast<int>(member)).stamp.load()});
  }
  return stamps;
}

std::vector<End> read_ends(const SharedSegment& segment, int rank) {
  std::vector<End> ends;
  for (int other = 0; other < segment.num_ranks(); ++other) {
    if (const ChannelEnds* out = segment.channel_ends(rank, other)) {
      ends.push_back({rank, other, out->head.load(), 1});
    }
    if (const ChannelEnds* in = segment.channel_ends(other, rank)) {
      ends.push_back({other, rank, in->tail.load(), 0});
    }
  }
  return ends;
}

/// Reads a snapshot's parts from the front.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  template <class T>
  std::vector<T> take(uint64_t count) {
    CLEAVE_CHECK(count <= left_.size() / sizeof(T), Code::kFormat, "snapshot with ", count,
                 " parts of ", sizeof(T), " bytes but only ", left_.size(), " bytes left");
    std::vector<T> items(count);
    if (count > 0) std::memcpy(items.data(), left_.data(), count * sizeof(T));
    left_ = left_.subspan(count * sizeof(T));
    return items;
  }
  [[nodiscard]] bool is_empty() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

uint32_t index_of(const SharedSegment& segment, uint64_t key) {
  const auto index = segment.find_group(key);
  CLEAVE_CHECK(index.has_value(), Code::kFormat, "snapshot names group ", key,
               ", which was not announced");
  return *index;
}

void check_head(const SharedSegment& segment, const Head& head) {
  CLEAVE_CHECK(head.state <= RankState::kUnwound && head.wait_kind <= WaitKind::kRecv &&
                   head.num_entries <= std::min(kNumEntries, head.num_operations),
               Code::kFormat, "snapshot with state ", static_cast<uint32_t>(head.state), ", wait ",
               static_cast<uint32_t>(head.wait_kind), " and ", head.num_entries, " operations");
  const bool waits_for_peer = head.wait_epoch % 2 == 1 && head.wait_kind != WaitKind::kGroup;
  CLEAVE_CHECK(!waits_for_peer || (head.wait_peer >= 0 && head.wait_peer < segment.num_ranks()),
               Code::kFormat, "snapshot with a wait for rank ", head.wait_peer);
}

void apply_entries(const SharedSegment& segment, RankSlot& slot, const Head& head,
                   const std::vector<Entry>& entries) {
  const uint64_t first = head.num_operations - entries.size();
  const uint64_t known = slot.num_operations.load();
  // Operations between the last snapshot and this one are unknown.
  for (uint64_t number = std::max(known, first - std::min<uint64_t>(first, kFlightLogLength));
       number < first; ++number) {
    slot.log[number % kFlightLogLength].kind.store(0, std::memory_order_relaxed);
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const uint64_t* next = entries[i].words;
    FlightEntry& entry = slot.log[(first + i) % kFlightLogLength];
    visit_words(entry, [&](auto& word) { word.store(*next++, std::memory_order_relaxed); });
    // The newest entry may have been read while it was being written, so its group may be invalid.
    const auto group = segment.find_group(entries[i].group);
    const uint64_t kind = entries[i].words[0] & 0xffffffffU;
    const bool is_known = group && has_dtype(static_cast<uint8_t>(kind >> 16));
    entry.kind.store(is_known ? kind | uint64_t{*group} << 32 : 0, std::memory_order_relaxed);
  }
  slot.num_operations.store(head.num_operations, std::memory_order_release);
}

void apply_stamps(const SharedSegment& segment, int self, int rank,
                  const std::vector<Stamp>& stamps) {
  for (const Stamp& item : stamps) {
    const GroupEntry& entry = segment.group(index_of(segment, item.group));
    const auto ranks = segment.group_ranks(entry);
    const auto member = std::find(ranks.begin(), ranks.end(), rank);
    CLEAVE_CHECK(member != ranks.end(), Code::kFormat, "snapshot of rank ", rank, " in group ",
                 entry.name, ", which it is not in");
    if (std::find(ranks.begin(), ranks.end(), self) != ranks.end()) continue;
    segment.member(entry, static_cast<int>(member - ranks.begin()))
        .stamp.store(static_cast<uint32_t>(item.stamp), std::memory_order_release);
  }
}

void apply_ends(SharedSegment& segment, int self, int rank, const std::vector<End>& ends) {
  for (const End& end : ends) {
    const int other = end.is_head != 0 ? end.to : end.from;
    CLEAVE_CHECK((end.is_head != 0 ? end.from : end.to) == rank && other >= 0 &&
                     other < segment.num_ranks() && other != rank,
                 Code::kFormat, "the snapshot of rank ", rank, " has messages from rank ", end.from,
                 " to rank ", end.to, ", which are not this job's");
    if (other == self) {
      segment.ring(end.from, end.to);  // creates it if it does not exist
      continue;
    }
    ChannelEnds& ring = segment.make_channel_ends(end.from, end.to);
    (end.is_head != 0 ? ring.head : ring.tail).store(end.value, std::memory_order_release);
  }
}

}  // namespace

std::vector<std::byte> take_snapshot(const SharedSegment& segment, int rank,
                                     std::span<const uint32_t> groups) {
  RankSlot& slot = segment.rank(rank);
  while (true) {
    Head head = read_head(segment, slot);
    const auto entries = read_entries(segment, slot, head.num_operations);
    const auto stamps = read_stamps(segment, rank, groups);
    const auto ends = read_ends(segment, rank);
    if (slot.wait_epoch.load(std::memory_order_acquire) != head.wait_epoch) {
      std::this_thread::yield();
      continue;
    }
    head.num_entries = static_cast<uint32_t>(entries.size());
    head.num_stamps = static_cast<uint32_t>(stamps.size());
    head.num_ends = static_cast<uint32_t>(ends.size());
    std::vector<std::byte> bytes;
    append(bytes, std::vector{head});
    append(bytes, entries);
    append(bytes, stamps);
    append(bytes, ends);
    return bytes;
  }
}

void apply_snapshot(SharedSegment& segment, int self, int rank, std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const Head head = reader.take<Head>(1)[0];
  check_head(segment, head);
  const auto entries = reader.take<Entry>(head.num_entries);
  const auto stamps = reader.take<Stamp>(head.num_stamps);
  const auto ends = reader.take<End>(head.num_ends);
  CLEAVE_CHECK(reader.is_empty(), Code::kFormat, "snapshot of ", bytes.size(),
               " bytes is longer than its parts");
  const uint32_t wait_group = head.wait_epoch % 2 == 0 ? 0 : index_of(segment, head.wait_group);
  RankSlot& slot = segment.rank(rank);
  // Hide the wait while the parts are inconsistent; the epoch is stored last.
  slot.wait_epoch.store(0, std::memory_order_release);
  apply_entries(segment, slot, head, entries);
  apply_stamps(segment, self, rank, stamps);
  apply_ends(segment, self, rank, ends);
  slot.pid.store(head.pid);
  slot.step.store(head.step);
  slot.uses_many_threads.store(head.uses_many_threads);
  slot.wait_kind.store(head.wait_kind, std::memory_order_release);
  slot.wait_group.store(wait_group, std::memory_order_release);
  slot.wait_stamp.store(head.wait_stamp, std::memory_order_release);
  slot.wait_peer.store(head.wait_peer, std::memory_order_release);
  slot.state.store(head.state);
  slot.wait_epoch.store(head.wait_epoch, std::memory_order_release);
}

}  // namespace cleave::inline comm
