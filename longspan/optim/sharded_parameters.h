// ZeRO (arXiv 1910.02054): shards parameters, gradients and optimizer states over ranks, and
// offloads them to host memory (arXiv 2101.06840).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/memory/side_stream.h"
#include "longspan/optim/flat_parameters.h"
#include "longspan/optim/last_backward.h"
#include "longspan/optim/optimizer.h"
#include "longspan/optim/state_shard.h"
#include "longspan/parameters/parameter_hooks.h"
#include "longspan/parameters/parameter_source.h"
#include "longspan/spec/held_parameter.h"

namespace longspan {

struct ShardingOptions {
  /// The sharded data. 0: none (offloading only). 1: optimizer states. 2: optimizer states and
  /// gradients. 3: optimizer states, gradients and parameters.
  int stage = 0;
  Group shard;     // the ranks that together hold one copy
  Group replicas;  // the ranks that hold the same share
  /// `experts`: the ranks that distribute the experts of each layer (expert_parallel_size).
  /// expert_shard, expert_replicas: the counterparts of `shard` and `replicas` for this rank's
  /// experts. If `experts` has one rank, that rank has all experts, sharded like other parameters.
  Group experts = {}, expert_shard = {}, expert_replicas = {};
  bool offload_optimizer = false;
  bool offload_params = false;  // stage 3
  at::Device device = at::kCPU;
  /// dtype in which layers' matrices are gathered. Layers cast matrices to this dtype, so the
  /// gather adds no further rounding.
  at::ScalarType compute_dtype = at::kFloat;
  /// Stages 1 and 2: the model's files have the masters' numbers, so that matrices are gathered in
  /// the dtype of their masters.
  bool saves_masters = false;
  /// Larger gradient buffers are reduced in chunks of this size; nullopt: reduction_chunk_bytes().
  std::optional<int64_t> chunk_bytes = {};

  /// True if every rank holds all values of the model between uses.
  bool all_are_here() const { return stage < 3 && experts.size() == 1; }
  /// True if the parameter belongs to an expert and experts are distributed over ranks.
  bool shares_out(const ParameterSpec& parameter) const {
    return parameter.expert.has_value() && experts.size() > 1;
  }
  /// True if this rank has the parameter, whole or a shard of it.
  bool is_here(const ParameterSpec& parameter) const {
    return !shares_out(parameter) || place_of(*parameter.expert, experts.size()) == experts.rank();
  }
};

/// The parameters of one model on one rank, without the experts of other ranks. Every rank must
/// make its object from the same sources (of all experts) and use the object in the same order,
/// including micro-batches and evaluations.
class ShardedParameters : public ParameterHooks {
 public:
  ShardedParameters(const std::vector<ParameterSource>& sources, const ShardingOptions& options);
  ~ShardedParameters() override;

  /// Specs of the whole model, in the order of the sources.
  const std::vector<ParameterSpec>& all_specs() const { return all_specs_; }
  /// The parameters that this rank has, for a Decoder with this object as its hooks. In the order
  /// of the sources.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  /// Returns this rank's shards of the trained parameters, for the optimizer. The shards have
  /// gradients between finish_gradients() and drop_gradients().
  std::vector<ParameterShard> shards() const;

  /// Runs `work` on the trained parameters for which `is_wanted` is true. Gathers whole parameters,
  /// one unit at a time. WholeWork names a shard by its index in shards(). Collective over the
  /// ranks that together hold one copy.
  void over_wholes(const std::function<bool(const ParameterSpec&)>& is_wanted,
                   const WholeWork& work);

  /// Bytes of values that this rank holds between uses.
  using HeldBytes = longspan::HeldBytes;
  HeldBytes held_bytes() const;

  void before(int unit, Use use, int next) override;
  void after(int unit, Use use) override;
  /// Must be called after each backward pass. Collective.
  void end_backward();

  /// May be called before the forward of this rank's last row of a step. The sum of a unit then
  /// starts in the row's backward, once the unit's gradients are complete. start_sums() must follow
  /// the backward. Not collective.
  void begin_last_row();
  /// After the step's last row: starts the sums that have not started. All ranks start them in one
  /// order, also ranks without rows. Collective.
  void start_sums();
  /// At the end of a step: sums the gradients over all ranks, into the shards. Collective.
  void finish_gradients();
  /// Returns the square root of the sum of squares of all gradients, each counted once. Collective.
  double gradient_norm() const;
  /// Multiplies this rank's gradients by the factor.
  void scale_gradients(double factor);
  /// Drops the gradients. Collective if finish_gradients() was not called.
  void drop_gradients();
  /// Propagates the updated shards to the parameters. Collective.
  void publish();

  /// Calls `see` with each wanted parameter of the model as a whole tensor, in the order of the
  /// sources. Gathers one unit at a time, and receives the experts of other ranks; a tensor is
  /// valid until `see` returns. The values are rounded as at use: matrices that are gathered in
  /// compute_dtype are rounded to compute_dtype. `is_wanted` (none: all) must choose the same on
  /// every rank. Collective.
  void for_each_whole(const std::function<void(const NamedTensor&)>& see,
                      const std::function<bool(const ParameterSpec&)>& is_wanted = {});
  bool all_are_here() const { return options_.all_are_here(); }

 private:
  struct Unit;
  Unit* unit(int number);
  void advance_reductions();
  void close(int number);
  void begin_reductions();
  void complete_reductions();

  ShardingOptions options_;
  /// One stream for gathers and one for reductions, so that neither waits for the other.
  SideStream side_, reducing_side_;
  std::vector<ParameterSpec> all_specs_;
  std::vector<at::ScalarType> used_dtypes_;  // of all_specs_
  std::vector<ParameterSpec> specs_;         // of parameters_
  std::vector<NamedTensor> parameters_;
  std::vector<std::unique_ptr<FlatParameters>> flats_;
  std::vector<int> flat_of_parameter_;
  std::vector<Unit> units_;
  std::vector<int> in_backward_;  // units whose backward has begun and not ended
  /// Closed: its reduction begins with the next use of a unit. NCCL runs the collectives of a group
  /// one after the other, so that the gather of the unit after this next one goes first.
  struct Closed {
    FlatParameters* flat;
    bool is_last;  // no more gradients of the step follow
  };
  std::vector<Closed> closed_;
  std::vector<FlatParameters*> reducing_, landing_;
  LastBackward last_;
  /// Trained parameters whose gradients are summed once a step, in the order of their sums. `unit`:
  /// with which they are complete; kAlwaysThere: at the end of the backward.
  struct SummedOnce {
    FlatParameters* flat;
    int unit;
  };
  std::vector<SummedOnce> summed_once_;
  size_t next_sum_ = 0;  // index in summed_once_
};

}  // namespace longspan
