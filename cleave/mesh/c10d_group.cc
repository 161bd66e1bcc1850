#include "cleave/mesh/c10d_group.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/mesh/scalar_type.h"

namespace cleave::inline mesh {
namespace {

using Widths = std::span<const int64_t>;

int64_t widest(Widths widths) {
  return *std::max_element(widths.begin(), widths.end());
}

int64_t total(Widths widths) {
  return std::accumulate(widths.begin(), widths.end(), int64_t{0});
}

/// Copies between `whole` [rows, sum(widths)] and `blocks` [n, rows, widest]. Padding is unchanged.
void copy_columns(const Tensor& whole, const Tensor& blocks, Widths widths, bool to_blocks) {
  int64_t begin = 0;
  for (size_t r = 0; r < widths.size(); ++r) {
    if (widths[r] == 0) continue;
    const Tensor columns = whole.narrow(1, begin, widths[r]);
    const Tensor block = blocks[static_cast<int64_t>(r)].narrow(1, 0, widths[r]);
    (to_blocks ? block : columns).copy_(to_blocks ? columns : block);
    begin += widths[r];
  }
}

c10d::ReduceOp c10d_op(ReduceOp op) {
  return op == ReduceOp::kMax ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
}

/// Calls `act`; rethrows libtorch's errors as Error(kPeer) after `subject`.
template <class Act>
auto peer_checked(const std::string& subject, const Act& act) {
  try {
    return act();
  } catch (const c10::Error& error) {
    throw Error(Code::kPeer, str(subject, " failed: ", error.what_without_backtrace()));
  }
}

class C10dWork : public DeviceWork {
 public:
  C10dWork(c10::intrusive_ptr<c10d::Work> work, std::string subject, std::vector<Tensor> tensors,
           std::function<void()> finish)
      : work_(std::move(work)),
        subject_(std::move(subject)),
        tensors_(std::move(tensors)),
        finish_(std::move(finish)) {}
  ~C10dWork() override {
    try {
      if (work_) work_->wait();
    } catch (const std::exception&) {
      finish_ = nullptr;  // nobody takes the result
    }
  }
  C10dWork(const C10dWork&) = delete;
  C10dWork& operator=(const C10dWork&) = delete;

  void wait() override {
    const at::NoGradGuard no_grad;
    const auto work = std::exchange(work_, {});
    peer_checked(subject_, [&] {
      if (work) work->wait();
    });
    if (finish_) std::exchange(finish_, nullptr)();
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;  // null after wait()
  std::string subject_;
  std::vector<Tensor> tensors_;  // of the call: some are copies, which nobody else keeps
  std::function<void()> finish_;
};

}  // namespace

Tensor C10dGroup::new_tensor(at::IntArrayRef shape, DType dtype) const {
  return at::empty(shape, at::device(device_).dtype(scalar_type(dtype)));
}

Tensor C10dGroup::view(const void* data, at::IntArrayRef shape, DType dtype) const {
  if (c10::multiply_integers(shape) == 0) return new_tensor(shape, dtype);
  // for_blob needs a mutable pointer; memory of inputs is only read.
  return at::for_blob(const_cast<void*>(data), shape)  // NOLINT(*-const-cast)
      .options(at::device(device_).dtype(scalar_type(dtype)))
      .target_device(device_)
      .make_tensor();
}

DeviceWorkPtr C10dGroup::start(std::vector<Tensor> tensors, const std::function<WorkPtr()>& call,
                               std::function<void()> finish) const {
  return std::make_unique<C10dWork>(peer_checked(subject(), call), subject(), std::move(tensors),
                                    std::move(finish));
}

std::string C10dGroup::subject() const {
  return str("axis ", name_, ": ", backend_->getBackendName());
}

DeviceWorkPtr C10dGroup::all_reduce(const void* in, void* out, int64_t count, DType dtype,
                                    ReduceOp op) {
  if (count == 0) return nullptr;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> data{view(out, {count}, dtype)};
  if (in != out) data[0].copy_(view(in, {count}, dtype));
  return start(data, [&] { return backend_->allreduce(data, {.reduceOp = c10d_op(op)}); });
}

DeviceWorkPtr C10dGroup::all_gather(const void* in, void* out, int64_t rows, Widths widths,
                                    DType dtype) {
  const auto n = static_cast<int64_t>(widths.size());
  const int64_t width = widest(widths);
  if (rows * width == 0) return nullptr;
  const at::NoGradGuard no_grad;
  const int64_t held = widths[static_cast<size_t>(backend_->getRank())];
  const Tensor whole = view(out, {rows, total(widths)}, dtype);
  Tensor mine = view(in, {rows, held}, dtype);
  if (held < width || in == out) {
    const Tensor padded = new_tensor({rows, width}, dtype);
    padded.narrow(1, 0, held).copy_(mine);
    mine = padded;
  }
  const bool is_in_place = rows == 1 && total(widths) == n * width;
  const Tensor blocks = is_in_place ? whole : new_tensor({n, rows, width}, dtype);
  Tensor from = mine.view(-1);
  Tensor to = blocks.view(-1);
  const auto call = [&] { return backend_->_allgather_base(to, from); };
  if (is_in_place) return start({from, to}, call);
  return start({from, to}, call, [whole, blocks, all = std::vector(widths.begin(), widths.end())] {
    copy_columns(whole, blocks, all, /*to_blocks=*/false);
  });
}

DeviceWorkPtr C10dGroup::reduce_scatter(const void* in, void* out, int64_t rows, Widths widths,
                                        DType dtype) {
  const auto n = static_cast<int64_t>(widths.size());
  const int64_t width = widest(widths);
  if (rows * width == 0) return nullptr;
  const at::NoGradGuard no_grad;
  const int64_t held = widths[static_cast<size_t>(backend_->getRank())];
  const Tensor whole = view(in, {rows, total(widths)}, dtype);
  Tensor blocks = whole;
  if (rows > 1 || total(widths) < n * width) {
    blocks = new_tensor({n, rows, width}, dtype).zero_();
    copy_columns(whole, blocks, widths, /*to_blocks=*/true);
  }
  const Tensor mine = view(out, {rows, held}, dtype);
  const bool is_in_place = held == width && in != out;
  const Tensor sum = is_in_place ? mine : new_tensor({rows, width}, dtype);
  Tensor from = blocks.view(-1);
  Tensor to = sum.view(-1);
  const auto call = [&] { return backend_->_reduce_scatter_base(to, from); };
  if (is_in_place) return start({from, to}, call);
  return start({from, to}, call, [mine, sum, held] { mine.copy_(sum.narrow(1, 0, held)); });
}

DeviceWorkPtr C10dGroup::broadcast(void* data, int64_t count, DType dtype, int root) {
  if (count == 0) return nullptr;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> tensors{view(data, {count}, dtype)};
  return start(tensors, [&] { return backend_->broadcast(tensors, {.rootRank = root}); });
}

DeviceWorkPtr C10dGroup::all_to_all(const void* in, Widths send_counts, void* out,
                                    Widths recv_counts, DType dtype) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> sent(send_counts.begin(), send_counts.end());
  std::vector<int64_t> received(recv_counts.begin(), recv_counts.end());
  Tensor from = view(in, {total(send_counts)}, dtype);
  Tensor to = view(out, {total(recv_counts)}, dtype);
  if (in == out) from = from.clone();
  return start({from, to}, [&] { return backend_->alltoall_base(to, from, received, sent); });
}

bool C10dGroup::connect_messages(Group& group) {
  const int n = group.size();
  // In one order of directions on all ranks: each connects while both ranks are in this call.
  std::set<std::pair<int, int>> directions;
  for (int r = 0; r < n; ++r) {
    directions.insert({r, (r + 1) % n});
    directions.insert({(r + 1) % n, r});
  }
  for (const auto& direction : directions) {
    const auto [from, to] = direction;
    if (group.rank() != from && group.rank() != to) continue;
    const bool sends = group.rank() == from;
    BackendPtr pair = connect_pair(group, sends ? to : from, sends ? 0 : 1);
    if (!pair) return false;
    {
      const std::lock_guard lock(pairs_mutex_);
      pairs_.emplace(direction, std::move(pair));
    }
    // NCCL prepares a connection in its first message, in which each side waits for the other one.
    const Tensor one = new_tensor({1}, DType::kF32).zero_();
    const WorkPtr first = message(from, to, one);
    peer_checked(subject(), [&] { return first->wait(); });
  }
  return true;
}

C10dGroup::WorkPtr C10dGroup::message(int from, int to, const Tensor& tensor) {
  c10d::Backend& pair = *pairs_.at({from, to});
  return peer_checked(subject(), [&] {
    std::vector<Tensor> tensors{tensor};
    pair.startCoalescing();  // c10d warns of single messages
    from == backend_->getRank() ? pair.send(tensors, 1, 0) : pair.recv(tensors, 0, 0);
    return pair.endCoalescing();
  });
}

void C10dGroup::free_sent() {
  peer_checked(subject(), [&] {
    while (!sent_.empty() && sent_.front().first->isCompleted()) sent_.pop_front();
  });
}

void C10dGroup::send(const void* data, int64_t count, DType dtype, int to) {
  if (count == 0) return;
  const at::NoGradGuard no_grad;
  free_sent();
  const Tensor copy = view(data, {count}, dtype).clone();
  sent_.emplace_back(message(backend_->getRank(), to, copy), copy);
}

DeviceWorkPtr C10dGroup::recv(void* data, int64_t count, DType dtype, int from) {
  if (count == 0) return nullptr;
  const at::NoGradGuard no_grad;
  free_sent();
  const Tensor tensor = view(data, {count}, dtype);
  return start({tensor}, [&] { return message(from, backend_->getRank(), tensor); });
}

void GroupStore::pass(void* data, int64_t count, DType dtype, const std::string& key) {
  const std::string site = "c10d key " + key;
  const Call call{.site = site, .shape = {}};
  if (peer_ < 0) {
    group_.broadcast(data, count, dtype, 0, call);
  } else if (rank_ == 0) {
    group_.send(data, count, dtype, peer_, call);
  } else {
    group_.recv(data, count, dtype, peer_, call);
  }
}

void GroupStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  if (!is_open_) return;
  if (rank_ != 0) CLEAVE_BUG("rank ", rank_, " of a group sets ", key);
  auto size = static_cast<int64_t>(value.size());
  std::vector<uint8_t> bytes = value;
  pass(&size, 1, DType::kI64, key);
  pass(bytes.data(), size, DType::kU8, key);
}

std::vector<uint8_t> GroupStore::get(const std::string& key) {
  if (!is_open_) return {};
  if (rank_ == 0) CLEAVE_BUG("rank 0 of a group gets ", key);
  int64_t size = 0;
  pass(&size, 1, DType::kI64, key);
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  pass(bytes.data(), size, DType::kU8, key);
  return bytes;
}

bool GroupStore::check(const std::vector<std::string>& /*keys*/) {
  return false;
}

c10::intrusive_ptr<c10d::Store> GroupStore::clone() {
  CLEAVE_BUG("a c10d backend clones the store of a group");
}

int64_t GroupStore::add(const std::string& key, int64_t /*value*/) {
  CLEAVE_BUG("a c10d backend adds to ", key);
}

bool GroupStore::deleteKey(const std::string& key) {
  CLEAVE_BUG("a c10d backend deletes ", key);
}

int64_t GroupStore::getNumKeys() {
  CLEAVE_BUG("a c10d backend counts the keys of a group's store");
}

void GroupStore::wait(const std::vector<std::string>& keys) {
  CLEAVE_BUG("a c10d backend waits for ", keys.size(), " keys");
}

void GroupStore::wait(const std::vector<std::string>& keys,
                      const std::chrono::milliseconds& /*timeout*/) {
  wait(keys);
}

}  // namespace cleave::inline mesh
