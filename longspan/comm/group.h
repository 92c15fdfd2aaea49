// A value handle of a process group. comm/ is the only folder that knows c10d.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace longspan {

/// A collective in flight. wait() returns the result; call wait() once. Before wait() returns, the
/// object holds the inputs, and no code may write to the inputs. wait() throws CommunicationError
/// (communication_error.h) where a peer is gone.
class Pending {
 public:
  explicit Pending(std::function<std::vector<at::Tensor>()> finish) : finish_(std::move(finish)) {}
  std::vector<at::Tensor> wait_all() { return finish_(); }
  at::Tensor wait() { return finish_().at(0); }

 private:
  std::function<std::vector<at::Tensor>()> finish_;
};

/// Bytes that this rank sent to OTHER ranks, by collective. `sum` counts a ring all-reduce: 2 (P -
/// 1) / P of the tensor's bytes (as fp32 for a bf16 tensor).
struct Traffic {
  int64_t all_to_all = 0, all_gather = 0, reduce_scatter = 0, shift = 0, sum = 0;
  int64_t features = 0;  // of pictures, sent by all_to_all_features()

  Traffic& operator+=(const Traffic& other);
};

/// The transport of a group's tensors.
enum class Link {
  kGloo,             // tensors on the CPU
  kNccl,             // tensors on CUDA, one process for each GPU
  kNcclByExchange,   // as kNccl, but reduce_scatter() sums in the order of ranks
  kGlooThroughHost,  // CUDA tensors copied to the host and back: processes share a GPU
};

/// Ranks that communicate. Copies share one process group. A default-constructed group is this rank
/// alone: every collective is then the identity (the same tensor) and sends nothing. All ranks of a
/// group start its collectives in the same order. Several collectives may be in flight.
class Group {
 public:
  class Impl;
  Group() = default;
  explicit Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  int rank() const;
  int size() const;

  /// Splits x along dim 0 by send_rows (equal parts where empty) and sends part i to rank i.
  /// Concatenates the received parts along dim 0 in rank order; recv_rows are the sizes of these
  /// parts.
  Pending all_to_all(const at::Tensor& x, std::vector<int64_t> send_rows = {},
                     std::vector<int64_t> recv_rows = {}) const;
  /// As all_to_all(), counted as Traffic::features.
  Pending all_to_all_features(const at::Tensor& x, std::vector<int64_t> send_rows,
                              std::vector<int64_t> recv_rows) const;
  /// All-to-all of contiguous messages of any shape. Sender and receiver match a message by its
  /// slot, a number below num_slots, which is the same on all ranks. wait() writes received
  /// messages into the given tensors. Counted as all_to_all.
  struct Message {
    int peer, slot;
    at::Tensor data;
  };
  Pending exchange(const std::vector<Message>& send, const std::vector<Message>& receive,
                   int num_slots) const;
  /// Concatenates all ranks' x (equal shapes) along dim 0.
  Pending all_gather(const at::Tensor& x) const;
  /// Sums x over ranks. Returns this rank's equal part along dim 0. kNccl: by NCCL's reduce-scatter
  /// in fp32 or higher, whose order of sums depends on the ranks and their machines. Other links:
  /// an all-to-all, and a sum in the order of ranks.
  Pending reduce_scatter(const at::Tensor& x) const;
  /// Whether reduce_scatter() of this dtype takes no memory besides x and the result.
  bool scatters_in_place(at::ScalarType dtype) const;
  /// Sends these tensors to rank + distance, and receives tensors of the same shapes from rank -
  /// distance (both modulo size).
  Pending shift(const std::vector<at::Tensor>& tensors, int distance = 1) const;
  /// Sums x over ranks in place.
  void sum_(at::Tensor x) const;
  Pending sum_async_(at::Tensor x) const;
  /// Copies the root's x to all ranks, in place.
  void broadcast_(at::Tensor x, int root = 0) const;
  void barrier() const;
  /// Returns all ranks' texts in rank order.
  std::vector<std::string> gather_text(const std::string& text) const;

  Traffic traffic() const;

  /// Ends NCCL's threads and communicators. No-op for other links. All ranks of the group call
  /// shut_down() once, after the last collective, and wait for each other in the call.
  void shut_down() const;

  /// Whether both groups are the same process group.
  bool operator==(const Group&) const = default;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace longspan
