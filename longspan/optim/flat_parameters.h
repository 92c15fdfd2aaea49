// The parameters of one unit in one flat buffer, sharded over ranks. P: ranks of the shard group,
// S: elements of a share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/memory/side_stream.h"
#include "longspan/optim/optimizer.h"
#include "longspan/optim/state_shard.h"
#include "longspan/parameters/parameter_source.h"

namespace longspan {

/// Storage, gathering and reduction of a flat buffer.
struct FlatOptions {
  Group shard;     // the ranks that together hold one copy
  Group replicas;  // the ranks that hold the same share
  at::Device device = at::kCPU;
  at::ScalarType dtype;        // of the masters: the values that are trained
  at::ScalarType whole_dtype;  // of the values at use
  bool trained = false;
  bool gathered_for_use = false;   // ZeRO-3: the whole buffer exists only during use
  bool scattered_at_once = false;  // ZeRO-2 and 3: reduce-scatter gradients in the backward
  bool masters_on_host = false;    // masters, and gradient sums if trained, live on the host
  /// ZeRO-3 with offloaded masters for the optimizer only: the device keeps a share of the values,
  /// and the whole buffer is gathered from these shares.
  bool share_on_device = false;
  /// Gradients are reduced in chunks of this size; nullopt: reduction_chunk_bytes().
  std::optional<int64_t> chunk_bytes = {};
};

/// The values of some parameters, concatenated in a buffer that is padded to P equal shares. Rank r
/// of the shard group holds share r. Parameters are views of the buffer. gather() and release()
/// allocate and free the buffer's storage; the tensor objects remain valid.
///
/// All ranks of the group must call the collective members in the same order.
class FlatParameters {
 public:
  /// Makes the parameters one at a time. Keeps this rank's share, or the whole buffer if the buffer
  /// is not gathered for each use.
  FlatParameters(const std::vector<const ParameterSource*>& sources, const FlatOptions& options);

  const FlatOptions& options() const { return options_; }
  /// Bytes of values that this rank holds between uses.
  int64_t device_bytes() const;
  int64_t host_bytes() const;
  /// The parameters, in the order of the sources.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  /// This rank's shards of the parameters.
  std::vector<ParameterShard>& shards() { return shards_; }

  /// Gathers the outputs of work.make() for the ranks' shards to whole matrices, and passes them to
  /// work.use(). `is_wanted(index of the source)` selects the parameters, and must give the same
  /// results on all ranks. Collective.
  void over_wholes(const std::function<bool(size_t source)>& is_wanted, const WholeWork& work);

  /// Starts the all-gather of the whole buffer, unless the whole buffer is there or the all-gather
  /// is in progress. Collective.
  void start_gather(const SideStream& side);
  /// Completes the all-gather. Collective.
  void gather(const SideStream& side);
  /// Frees the storage of the whole buffer if it is gathered for use.
  void release();

  /// Makes the parameters' gradients zeroed views of one buffer, in the dtype of the masters. No-op
  /// if the gradients already are such views.
  void open_gradients();
  bool gradients_are_open() const { return flat_gradient_.defined(); }
  /// Takes the gradients from the parameters and starts their reduce-scatter over the shard group.
  /// `is_last`: of the step's last gradients; their sum over the replicas then starts once the
  /// reduce-scatter is complete. Buffers above FlatOptions::chunk_bytes are reduced in chunks, at
  /// most two at a time, unless the group needs no memory for the whole; the side stream waits for
  /// the earlier chunks. Collective.
  void start_reduction(const SideStream& side, bool is_last);
  /// Completes the reduction on the side stream: adds the sum to this rank's share, or starts the
  /// sum's copy to the host. Starts the sum over the replicas of the last gradients. Collective.
  void finish_reduction(const SideStream& side);
  /// Adds the sums that were copied to the host to the host's share; completes the sum over the
  /// replicas. Collective.
  void land(const SideStream& side);

  /// At the end of a step, after land(): sums over the replicas, unless that is done. The shards
  /// then have their gradients. Collective.
  void finish_gradients();
  void drop_gradients();
  /// Propagates changed masters to the whole buffer, if the buffer stays, and to the copies from
  /// which the buffer is gathered. Collective.
  void publish(const SideStream& side);

 private:
  bool whole_stays() const { return !options_.gathered_for_use; }
  /// True if the host also holds the masters in the whole's dtype; each use gathers from this copy.
  bool keeps_cast() const {
    return options_.masters_on_host && options_.gathered_for_use && !options_.share_on_device &&
           options_.dtype != options_.whole_dtype && !options_.device.is_cpu();
  }
  /// Returns the masters in the whole's dtype, on the device of the masters.
  at::Tensor masters_to_send();
  at::Tensor cast_masters() const;
  /// Returns this rank's share in the whole's dtype, on the device.
  at::Tensor share_to_send();
  void fill_whole_from(at::Tensor gathered);
  void collect_gradients();
  void start_replica_sum();
  void receive_first(const SideStream& side);
  /// sum: [<= S], at offset `begin` in the share.
  void receive(at::Tensor sum, int64_t begin, const SideStream& side);
  void add_to_share(const at::Tensor& sum, int64_t begin);
  at::Tensor new_share(at::ScalarType dtype) const;

  FlatOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<int64_t> begins_;  // offsets of the parameters in the buffer
  int64_t share_size_ = 0;       // S
  at::Tensor whole_;             // [P S]; its memory may be absent
  bool whole_is_there_ = false;
  at::Tensor masters_;  // [S]; a view of whole_ if both have the same dtype and device
  bool masters_are_whole_ = false;
  at::Tensor device_share_;  // [S], if share_on_device
  at::Tensor cast_share_;    // [S], if keeps_cast
  std::vector<ParameterShard> shards_;
  std::vector<size_t> source_of_shard_;

  std::optional<Pending> gathering_;
  at::Tensor flat_gradient_;   // [P S]
  at::Tensor reducing_from_;   // [P S], the buffer being reduced
  at::Tensor share_gradient_;  // [S]
  struct Reduction {
    int64_t begin;  // offset in the share
    Pending sum;
  };
  std::deque<Reduction> reductions_;
  bool reduces_last_ = false;   // the step's last gradients
  bool sums_replicas_ = false;  // the sum over the replicas has begun
  std::optional<Pending> replica_sum_;
  struct Landing {
    at::Tensor device_sum, host_sum;
    int64_t begin;
    std::function<void()> wait;
  };
  std::vector<Landing> landing_;
};

}  // namespace longspan
