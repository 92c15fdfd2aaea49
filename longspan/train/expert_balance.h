// What a training step makes of the loads of a model's experts: the auxiliary loss, and what the
// log says of them. L: layers, E: experts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "longspan/config/optimization_settings.h"
#include "longspan/layers/expert_load.h"
#include "longspan/models/model_config.h"
#include "longspan/report/averages.h"
#include "longspan/stages/objective.h"

namespace longspan {

/// The coefficient of a run's auxiliary loss: moe_aux_loss_coef, or else that of the model's
/// config. nullopt: the run has no such loss. Throws UserError where the key is given for a model
/// whose routers have no such loss.
std::optional<double> auxiliary_loss_coefficient(const OptimizationSettings& config,
                                                 const ModelConfig& model);

/// The loss is over all tokens of the global batch, so that neither accumulation nor the number of
/// processes changes it. Its gradient needs the counts of all of them before the first backward:
/// with one micro-batch a step they are summed over the ranks between forward and backward; with
/// several, all rows go through the model once more before that (look()).
class ExpertBalance {
 public:
  /// Null for a model without experts. All that the context names outlives it. Throws as
  /// auxiliary_loss_coefficient.
  static std::unique_ptr<ExpertBalance> make(const OptimizationSettings& config,
                                             const ObjectiveContext& context,
                                             const ModelConfig& model);
  /// `coefficient`: of the auxiliary loss; nullopt: there is none. `rows_per_step`: those of one
  /// data-parallel group.
  ExpertBalance(const ObjectiveContext& context, const ModelSpec& model,
                std::optional<double> coefficient, int64_t rows_per_step);

  /// Whether look() wants to see the step's rows.
  bool looks_ahead() const;
  void begin();
  /// Counts where a row's tokens go, without gradients. The decoder drops what it will drop.
  void look(const Row& row);
  /// After the last row's. Collective over the world.
  void looked();
  /// Around the forward of a row that is trained.
  void open();
  void close();
  /// Where nothing looks ahead: before the only backward of the step, also on ranks that have none.
  /// Collective over the world.
  void count_step();
  /// This rank's part of the auxiliary loss of the step, fp64, []: sums over ranks are the loss.
  /// Undefined: it has none.
  at::Tensor loss() const;

  /// Adds to the averages of the first rank of the world what the log says. Collective over the
  /// world.
  void add_to(Averages& averages);
  /// Their names, in the order of a log line.
  std::vector<std::string> averages() const;

 private:
  at::Tensor summed(const at::Tensor& counts_LE) const;

  const ObjectiveContext& context_;
  int64_t num_experts_, experts_per_token_;
  std::vector<int64_t> layers_;  // those with experts
  std::optional<double> coefficient_;
  int64_t rows_per_step_;
  ExpertLoad load_, ahead_;
};

}  // namespace longspan
