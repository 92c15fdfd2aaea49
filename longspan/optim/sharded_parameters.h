// ZeRO (arXiv 1910.02054): parameters, gradients and optimizer states that ranks divide among them,
// and offloading of them to host memory (arXiv 2101.06840).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "longspan/comm/group.h"
#include "longspan/memory/side_stream.h"
#include "longspan/optim/flat_parameters.h"
#include "longspan/optim/optimizer.h"
#include "longspan/optim/state_piece.h"
#include "longspan/parameters/parameter_hooks.h"
#include "longspan/parameters/parameter_source.h"
#include "longspan/spec/held_parameter.h"

namespace longspan {

struct ShardingOptions {
  /// 0: nothing is divided (offloading alone). 1: optimizer states. 2: gradients too. 3: parameters
  /// too.
  int stage = 0;
  Group shard;     // the ranks that divide one copy among them
  Group replicas;  // the ranks that hold the same share
  /// The ranks that share out the experts of each layer (expert_parallel_size), and `shard` and
  /// `replicas` of the experts that are here. One rank: it has all experts, divided as the rest is.
  Group experts = {}, expert_shard = {}, expert_replicas = {};
  bool offload_optimizer = false;
  bool offload_params = false;  // stage 3
  at::Device device = at::kCPU;
  /// The dtype in which the blocks' matrices are gathered. They are cast to it at every use anyway,
  /// so that this rounds nothing more.
  at::ScalarType compute_dtype = at::kFloat;
  /// Gradient buffers above this are summed a part at a time.
  int64_t chunk_bytes = int64_t{64} << 20;

  /// Does every rank hold all values of the model between uses?
  bool all_are_here() const { return stage < 3 && experts.size() == 1; }
  /// Do ranks share out the parameter's expert?
  bool shares_out(const ParameterSpec& parameter) const {
    return parameter.expert.has_value() && experts.size() > 1;
  }
  /// Has this rank the parameter, whole or a share of it?
  bool is_here(const ParameterSpec& parameter) const {
    return !shares_out(parameter) || place_of(*parameter.expert, experts.size()) == experts.rank();
  }
};

/// The parameters of one model on one rank, without experts that others have. Every rank makes it
/// from the same sources, those of all experts, and uses it in the same order, the micro-batches
/// and evaluations included.
class ShardedParameters : public ParameterHooks {
 public:
  ShardedParameters(const std::vector<ParameterSource>& sources, const ShardingOptions& options);
  ~ShardedParameters() override;

  /// Of the whole model, in the order of the sources.
  const std::vector<ParameterSpec>& all_specs() const { return all_specs_; }
  /// Those that are here, for a Decoder (with this as its hooks), in the order of the sources.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  /// This rank's pieces of the trained parameters, for the optimizer. They have gradients between
  /// finish_gradients() and drop_gradients().
  std::vector<ParameterPiece> pieces() const;

  /// Whole matrices for an optimizer that wants them: of the trained parameters for which
  /// `is_wanted` is true, a unit at a time. Piece numbers are those of pieces(). Collective over
  /// the ranks that divide one copy among them.
  void over_wholes(const std::function<bool(const ParameterSpec&)>& is_wanted,
                   const WholeWork& work);

  /// Bytes of values that this rank holds between uses.
  using HeldBytes = longspan::HeldBytes;
  HeldBytes held_bytes() const;

  void before(int unit, Use use, int next) override;
  void after(int unit, Use use) override;
  /// After each backward pass. Collective.
  void end_backward();

  /// At the end of a step: sums the gradients over all ranks, into the pieces. Collective.
  void finish_gradients();
  /// sqrt of the sum of squares of all gradients, each counted once. Collective.
  double gradient_norm() const;
  /// Multiplies this rank's gradients by the factor.
  void scale_gradients(double factor);
  /// Collective where finish_gradients() was not called.
  void drop_gradients();
  /// Puts the new values of the pieces into use. Collective.
  void publish();

  /// Calls `see` with each wanted parameter of the model as a whole tensor, in the order of the
  /// sources, and gathers one unit at a time; a tensor is valid until `see` returns. Experts that
  /// others have are sent here. Values are those in use:
  /// matrices that are gathered in compute_dtype are rounded to it. `is_wanted` (none: all are
  /// wanted) must choose the same on every rank. Collective.
  void for_each_whole(const std::function<void(const NamedTensor&)>& see,
                      const std::function<bool(const ParameterSpec&)>& is_wanted = {});
  bool all_are_here() const { return options_.all_are_here(); }

 private:
  struct Unit;
  Unit* unit(int number);
  void advance_reductions();
  void close(Unit& unit);

  ShardingOptions options_;
  /// Of gathers, and of reductions: neither waits for the other.
  SideStream side_, reducing_side_;
  std::vector<ParameterSpec> all_specs_;
  std::vector<at::ScalarType> used_dtypes_;  // of all_specs_
  std::vector<ParameterSpec> specs_;         // of parameters_
  std::vector<NamedTensor> parameters_;
  std::vector<std::unique_ptr<FlatParameters>> flats_;
  std::vector<int> flat_of_parameter_;
  std::vector<Unit> units_;
  std::vector<int> in_backward_;  // units whose backward has begun and not ended
  std::vector<FlatParameters*> reducing_, landing_;
};

}  // namespace longspan
