#include "tests/fake_device/backend.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <numeric>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "tests/fake_device/device.h"
#include "tests/fake_device/memory.h"
#include "tests/fake_device/stream.h"

namespace cleave::fake_device {
namespace {

using at::Tensor;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr size_t kHeaderBytes = 4096;
constexpr size_t kSlotBytes = size_t{64} << 20;  // of one rank; unused pages take no memory

/// Memory that ranks of one host share: rank 0 makes it and sets its name as a key of the store.
/// It begins with zeros.
class SharedMemory {
 public:
  SharedMemory(int rank, size_t bytes) : bytes_(bytes) {
    if (rank != 0) return;
    static std::atomic<int> number{0};
    name_ = "/fake_device." + std::to_string(getpid()) + "." + std::to_string(number++);
    map(shm_open(name_.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600));
  }
  /// To be called by rank 0 when it has prepared the memory, and by the others to get it.
  void share(c10d::Store& store, int rank) {
    if (rank == 0) {
      store.set("memory", std::vector<uint8_t>(name_.begin(), name_.end()));
    } else {
      const std::vector<uint8_t> text = store.get("memory");
      name_.assign(text.begin(), text.end());
      map(shm_open(name_.c_str(), O_RDWR, 0600));
    }
  }
  void unlink() const { shm_unlink(name_.c_str()); }
  ~SharedMemory() { munmap(memory_, bytes_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  [[nodiscard]] std::byte* data() const { return memory_; }

 private:
  void map(int file) {
    TORCH_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(bytes_)) == 0,
                "fake device: no shared memory");
    void* at = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    TORCH_CHECK(at != MAP_FAILED, "fake device: shared memory cannot be mapped");
    memory_ = static_cast<std::byte*>(at);
  }

  size_t bytes_;
  std::string name_;
  std::byte* memory_ = nullptr;
};

/// Memory of all members: a barrier, and a slot for each rank.
class SharedSlots {
 public:
  SharedSlots(c10d::Store& store, int rank, int size)
      : rank_(rank),
        size_(size),
        memory_(rank, kHeaderBytes + static_cast<size_t>(size) * kSlotBytes) {
    if (rank == 0) {
      pthread_barrierattr_t shared;
      pthread_barrierattr_init(&shared);
      pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
      pthread_barrier_init(barrier(), &shared, static_cast<unsigned>(size));
    }
    memory_.share(store, rank);
    wait();
    if (rank == 0) memory_.unlink();
  }

  void wait() { pthread_barrier_wait(barrier()); }
  [[nodiscard]] std::byte* slot(int rank) const {
    return memory_.data() + kHeaderBytes + static_cast<size_t>(rank) * kSlotBytes;
  }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

 private:
  [[nodiscard]] pthread_barrier_t* barrier() const {
    return reinterpret_cast<pthread_barrier_t*>(memory_.data());
  }

  int rank_, size_;
  SharedMemory memory_;
};

/// Bytes on their way from rank 0 to rank 1.
class Pipe {
 public:
  Pipe(c10d::Store& store, int rank) : memory_(rank, kHeaderBytes + kSlotBytes) {
    if (rank == 0) sem_init(&ends().messages, /*pshared=*/1, 0);
    memory_.share(store, rank);
    // Rank 1 has the memory when it has taken the first message, which is empty.
    if (rank == 0) {
      write(nullptr, 0);
    } else {
      read(nullptr, 0);
      memory_.unlink();
    }
  }

  void write(const std::byte* data, size_t bytes) {
    TORCH_CHECK(ends().written - ends().read + bytes <= kSlotBytes, "fake device: a full pipe");
    copy(ends().written, bytes, [&](std::byte* place, size_t done, size_t size) {
      std::memcpy(place, data + done, size);
    });
    ends().written += bytes;
    sem_post(&ends().messages);
  }
  void read(std::byte* data, size_t bytes) {
    while (sem_wait(&ends().messages) != 0) {
    }
    copy(ends().read, bytes, [&](const std::byte* place, size_t done, size_t size) {
      std::memcpy(data + done, place, size);
    });
    ends().read += bytes;
  }

 private:
  struct Ends {
    sem_t messages;
    std::atomic<uint64_t> written, read;
  };
  [[nodiscard]] Ends& ends() const { return *reinterpret_cast<Ends*>(memory_.data()); }
  /// Calls act(place, bytes done, bytes) for the parts of a ring.
  template <class Act>
  void copy(uint64_t at, size_t bytes, const Act& act) const {
    for (size_t done = 0; done < bytes;) {
      const size_t begin = (at + done) % kSlotBytes;
      const size_t size = std::min(bytes - done, kSlotBytes - begin);
      act(memory_.data() + kHeaderBytes + begin, done, size);
      done += size;
    }
  }

  SharedMemory memory_;
};

class LateWork : public c10d::Work {
 public:
  explicit LateWork(const Event& end) : end_(end) {}
  bool isCompleted() override { return has_ended(end_); }
  void synchronize() override { run_until(end_); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    synchronize();
    return true;
  }

 private:
  Event end_;
};

Memory memory_of(const Tensor& t) {
  return {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
}

class LateBackend : public c10d::Backend {
 public:
  LateBackend(c10d::Store& store, int rank, int size, int device)
      : Backend(rank, size),
        slots_(std::make_shared<SharedSlots>(store, rank, size)),
        device_(device) {}
  [[nodiscard]] const std::string getBackendName() const override {  // NOLINT(readability-const*)
    return "fake";
  }

  WorkPtr allreduce(std::vector<Tensor>& data, const c10d::AllreduceOptions& options) override {
    const bool is_max = options.reduceOp.op_ == c10d::ReduceOp::MAX;
    return start(data[0], data[0], [t = data[0], is_max](SharedSlots& all) {
      kernel_view(t).copy_(reduced(all, t, 0, t.numel(), is_max).view(t.sizes()));
    });
  }
  WorkPtr broadcast(std::vector<Tensor>& data, const c10d::BroadcastOptions& options) override {
    const auto root = static_cast<int>(options.rootRank);
    return start(data[0], data[0], [t = data[0], root](SharedSlots& all) {
      kernel_view(t).copy_(part(all, root, t, 0, t.numel()).view(t.sizes()));
    });
  }
  WorkPtr _allgather_base(Tensor& to, Tensor& from, const c10d::AllgatherOptions&) override {
    TORCH_CHECK(to.numel() == from.numel() * getSize(), "blocks of several sizes");
    return start(from, to, [from, to](SharedSlots& all) {
      for (int r = 0; r < all.size(); ++r) {
        kernel_view(to)
            .narrow(0, r * from.numel(), from.numel())
            .copy_(part(all, r, from, 0, from.numel()));
      }
    });
  }
  WorkPtr _reduce_scatter_base(Tensor& to, Tensor& from,
                               const c10d::ReduceScatterOptions&) override {
    TORCH_CHECK(from.numel() == to.numel() * getSize(), "blocks of several sizes");
    return start(from, to, [to](SharedSlots& all) {
      kernel_view(to).copy_(reduced(all, to, all.rank() * to.numel(), to.numel(), false));
    });
  }
  WorkPtr alltoall_base(Tensor& to, Tensor& from, std::vector<int64_t>& received,
                        std::vector<int64_t>& sent, const c10d::AllToAllOptions&) override {
    // The numbers of elements for each rank precede the elements.
    const Tensor counts = at::tensor(sent, at::kLong);
    return start(counts, from, to, [counts, to, received](SharedSlots& all) {
      int64_t end = 0;
      for (int r = 0; r < all.size(); ++r) {
        const Tensor theirs = part(all, r, counts, 0, counts.numel());
        const int64_t begin = theirs.narrow(0, 0, all.rank()).sum().item<int64_t>();
        const int64_t count = received[static_cast<size_t>(r)];
        kernel_view(to)
            .narrow(0, end, count)
            .copy_(part(all, r, to, begin, count, counts.nbytes()));
        end += count;
      }
    });
  }

 private:
  /// `count` elements like those of `like` in a rank's slot, from element `begin` on.
  static Tensor part(const SharedSlots& all, int rank, const Tensor& like, int64_t begin,
                     int64_t count, size_t skipped_bytes = 0) {
    std::byte* const at =
        all.slot(rank) + skipped_bytes + static_cast<size_t>(begin * like.element_size());
    return at::from_blob(at, {count}, at::dtype(like.scalar_type()));
  }
  static Tensor reduced(const SharedSlots& all, const Tensor& like, int64_t begin, int64_t count,
                        bool is_max) {
    Tensor out = part(all, 0, like, begin, count).clone();
    for (int r = 1; r < all.size(); ++r) {
      const Tensor next = part(all, r, like, begin, count);
      out = is_max ? at::maximum(out, next) : out.add_(next);
    }
    return out;
  }

  WorkPtr start(const Tensor& from, const Tensor& to,
                const std::function<void(SharedSlots&)>& receive) {
    return start(Tensor(), from, to, receive);
  }
  WorkPtr start(const Tensor& counts, const Tensor& from, const Tensor& to,
                std::function<void(SharedSlots&)> receive) {
    const auto exchange = [slots = slots_, counts, from, receive = std::move(receive)] {
      const at::NoGradGuard no_grad;
      const size_t skipped = counts.defined() ? counts.nbytes() : 0;
      TORCH_CHECK(skipped + from.nbytes() <= kSlotBytes, "fake device: too large a collective");
      std::byte* const own = slots->slot(slots->rank());
      if (skipped > 0) std::memcpy(own, counts.const_data_ptr(), skipped);
      std::memcpy(own + skipped, kernel_address(from.const_data_ptr()), from.nbytes());
      slots->wait();
      receive(*slots);
      slots->wait();
    };
    return c10::make_intrusive<LateWork>(
        enqueue(device_, StreamId::kCollectives, {memory_of(from), memory_of(to)}, exchange));
  }

  std::shared_ptr<SharedSlots> slots_;
  int device_;
};

class PairBackend : public c10d::Backend {
 public:
  PairBackend(c10d::Store& store, int rank, int device)
      : Backend(rank, 2), pipe_(std::make_shared<Pipe>(store, rank)), device_(device) {}
  [[nodiscard]] const std::string getBackendName() const override {  // NOLINT(readability-const*)
    return "fake";
  }

  void startCoalescing() override {}
  WorkPtr endCoalescing() override { return c10::make_intrusive<LateWork>(event_); }
  WorkPtr send(std::vector<Tensor>& tensors, int /*to*/, int /*tag*/) override {
    const Memory memory = memory_of(tensors[0]);
    pipe_->write(static_cast<const std::byte*>(kernel_address(memory.data())), memory.size());
    event_ = last_event(device_, StreamId::kDefault);
    return {};
  }
  WorkPtr recv(std::vector<Tensor>& tensors, int /*from*/, int /*tag*/) override {
    const Memory memory = memory_of(tensors[0]);
    event_ = enqueue(device_, StreamId::kCollectives, {memory}, [pipe = pipe_, memory] {
      pipe->read(static_cast<std::byte*>(kernel_address(memory.data())), memory.size());
    });
    return {};
  }

 private:
  std::shared_ptr<Pipe> pipe_;
  int device_;
  Event event_;  // of the last message
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_backend(c10d::Store& store, int rank, int size, int device) {
  return c10::make_intrusive<LateBackend>(store, rank, size, device);
}

c10::intrusive_ptr<c10d::Backend> make_pair(c10d::Store& store, int rank, int device) {
  return c10::make_intrusive<PairBackend>(store, rank, device);
}

}  // namespace cleave::fake_device
