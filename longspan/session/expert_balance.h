// Load balance of a model's experts in a training step: the auxiliary loss, and values for the log.
// L: layers, E: experts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/layers/expert_load.h"
#include "longspan/models/model_config.h"
#include "longspan/report/averages.h"
#include "longspan/settings/optimization_settings.h"
#include "longspan/stages/objective.h"

namespace longspan {

/// Returns the coefficient of a run's auxiliary loss: moe_aux_loss_coef, otherwise the coefficient
/// in the model's config. nullopt: no auxiliary loss. Throws UserError if the key is set and the
/// model's routers do not support an auxiliary loss.
std::optional<double> auxiliary_loss_coefficient(const OptimizationSettings& config,
                                                 const ModelConfig& model);

/// The auxiliary loss and the counts of tokens per expert. The loss covers all tokens of the global
/// batch, and therefore does not depend on accumulation or on the number of processes. The gradient
/// of the loss needs the total counts before the first backward. With one micro-batch per step, the
/// counts are summed over the ranks between forward and backward. With several micro-batches, all
/// rows first pass through the model in an additional forward (precompute()).
class ExpertBalance {
 public:
  /// Returns null for a model without experts. All objects in the context must outlive the result.
  /// `rows_vary`: ranks may have different numbers of rows in a step. Throws UserError, as
  /// auxiliary_loss_coefficient() does.
  static std::unique_ptr<ExpertBalance> make(const OptimizationSettings& config,
                                             const ObjectiveContext& context,
                                             const ModelConfig& model, bool rows_vary);
  /// `coefficient`: coefficient of the auxiliary loss; nullopt: no loss. `rows_per_step`: the most
  /// rows of one data-parallel group; nullopt: unknown.
  ExpertBalance(const ObjectiveContext& context, const ModelSpec& model,
                std::optional<double> coefficient, std::optional<int64_t> rows_per_step);

  /// True if precompute() must see the step's rows.
  bool precomputes() const;
  void begin();
  /// Counts the tokens of each expert for a row, without gradients, with the same dropout as in
  /// training.
  void precompute(const Row& row);
  /// Called after the last precompute(). Collective over the world.
  void end_precompute();
  /// open() is called before the forward of a trained row, close() after the forward.
  void open();
  void close();
  /// If precomputes() is false: called before the only backward of the step, also on ranks without
  /// rows. Collective over the world.
  void count_step();
  /// Returns this rank's part of the step's auxiliary loss, fp64 scalar []; the sum over ranks is
  /// the loss. Undefined without the loss.
  at::Tensor loss() const;

  /// Adds the values for the log to the averages of the world's first rank. Collective over the
  /// world.
  void add_to(Averages& averages);
  /// Returns the names of the values that add_to() adds, in the order of a log line.
  std::vector<std::string> averages() const;

 private:
  at::Tensor summed(const at::Tensor& counts_LE) const;

  const ObjectiveContext& context_;
  int64_t num_experts_, experts_per_token_;
  std::vector<int64_t> layers_;  // layers with experts
  std::optional<double> coefficient_;
  std::optional<int64_t> rows_per_step_;
  ExpertLoad load_, ahead_;
};

}  // namespace longspan
