#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/comm/api/async_group.h"
#include "cleave/comm/api/device.h"
#include "cleave/comm/hosts/host_links.h"
#include "cleave/comm/shm/collective_sync.h"
#include "cleave/comm/shm/device_monitor.h"
#include "cleave/comm/shm/mailbox.h"

namespace cleave::inline comm {

/// A group of ranks over a shared segment, or over replicas of one between hosts. Large collectives
/// of a group that spans hosts pass through the memory of each host (comm/hosts).
class ShmGroup : public AsyncGroup {
 public:
  /// What a group is made of.
  struct Parts {
    std::string name;
    std::vector<int> ranks;                    // world ranks, ascending
    uint32_t index;                            // in the shared segment
    std::shared_ptr<Device> device{};          // nullptr if all memory is CPU memory
    std::shared_ptr<DeviceMonitor> monitor{};  // with a device
    // In a job on several hosts: this rank's access to its host's segment; nullptr if it is alone.
    std::shared_ptr<RankEndpoint> host{};
    std::shared_ptr<HostNetwork> network{};  // nullptr: only the job's connections
  };
  ShmGroup(std::shared_ptr<RankEndpoint> endpoint, std::shared_ptr<Mailbox> mailbox,
           const Parts& parts);
  ~ShmGroup() override;

  void barrier(const Call& call) override;
  void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op,
                  const Call& call) override;
  void all_gather(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                  DType dtype, const Call& call) override;
  void reduce_scatter(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                      DType dtype, const Call& call) override;
  void broadcast(void* data, int64_t count, DType dtype, int root, const Call& call) override;
  void all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                  std::span<const int64_t> recv_counts, DType dtype, const Call& call) override;
  void send(const void* data, int64_t count, DType dtype, int to, const Call& call) override;
  void recv(void* data, int64_t count, DType dtype, int from, const Call& call) override;

  std::shared_future<void> start(std::function<void()> call) override;
  void await(const std::shared_future<void>& done) override;
  void await_started() override;
  [[nodiscard]] bool is_on_device(const void* data) const override {
    return device_ != nullptr && device_->holds(data);
  }
  [[nodiscard]] bool can_record() const override {
    return device_ == nullptr || (device_group_ != nullptr && device_group_->can_record());
  }
  void connect_messages() override;
  std::shared_future<void> start_on_device(std::function<void()> call) override;

 private:
  /// Whether the group has one rank. Throws if it has and the job has failed.
  [[nodiscard]] bool is_single() const;
  /// The collective of a group of one rank: a copy, unless in place.
  void copy_single(const void* in, void* out, int64_t bytes) const;
  /// Ends a collective of device memory: waits for its work, or leaves it to start_on_device().
  void finish_on_device(DeviceWorkPtr work);
  /// DeviceWork::wait(). If the job has failed, throws the cause.
  void await_work(DeviceWork& work);
  /// The device group for this memory, connected on first use; nullptr for CPU memory. `in` or
  /// `out` may be nullptr.
  DeviceGroup* device_for(const void* in, const void* out);
  DeviceGroup& device_group();
  /// Whether a message of this memory between this rank and `peer` stays on the device.
  [[nodiscard]] bool stays_on_device(const void* data, int peer) const;
  /// The links between the members' hosts if a collective of about `bytes` is to use them: the
  /// group has links, and pays(layout) is true. The members have then compared the headers of their
  /// calls. Otherwise nullptr. All members get the same answer.
  template <class Pays>
  HostLinks* agree_on_links(int64_t bytes, const Pays& pays);
  void check_member(int member, std::string_view role) const;
  void check_widths(std::span<const int64_t> widths, std::string_view what) const;

  std::shared_ptr<RankEndpoint> endpoint_, host_;
  std::shared_ptr<HostNetwork> network_;
  CollectiveSync sync_;
  bool knows_hosts_ = false;          // of the members
  std::unique_ptr<HostLinks> links_;  // nullptr if the group does not use any
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<DeviceMonitor> monitor_;
  std::unique_ptr<DeviceGroup> device_group_;
  bool knows_messages_ = false;      // connect_messages() was called
  bool has_messages_ = false;        // of the device
  DeviceWorkPtr* queued_ = nullptr;  // inside start_on_device(): takes the work of the call
  DeviceCopyBuffer copied_;          // of messages
  CallThread* thread_ = nullptr;     // owned by the endpoint; made by the first start()
  std::vector<uint64_t> num_sent_, num_received_;  // by member
};

}  // namespace cleave::inline comm
