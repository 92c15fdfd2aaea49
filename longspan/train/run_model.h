// The computing parts of a run: the trained model, its attention, reference, loss and optimizer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "longspan/account/run_account.h"
#include "longspan/expert_parallel/expert_parallel.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/models/decoder.h"
#include "longspan/report/console.h"
#include "longspan/report/row_traffic.h"
#include "longspan/saving/saving.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/reference.h"
#include "longspan/train/model_update.h"
#include "longspan/train/run_data.h"
#include "longspan/train/trained_model.h"
#include "longspan/train/workers.h"

namespace longspan {

struct Config;

class RunModel {
 public:
  /// Reads the model. All arguments must outlive this object. Collective. Throws as all_or_none.
  RunModel(const Config& config, const RunPlan& plan, Workers& workers);
  RunModel(const RunModel&) = delete;
  RunModel& operator=(const RunModel&) = delete;

  const ModelConfig& config() const { return plan_.model; }
  const TrainedModel& trained() const { return trained_; }
  const std::vector<NamedTensor>& parameters() const { return decoder_->parameters(); }
  /// Returns the owner of sharded parameters, if all ranks must save the model together; null if
  /// each has all parameters between uses.
  ShardedParameters* divided() const;

  /// Makes the reference model (if the stage has one), the objective and the optimizer. Call once.
  /// Returns false if the host asked the run to stop. Collective. Throws as all_or_none.
  bool prepare_training(const RunData& data, const Host& host, Console& console);
  /// Valid after prepare_training().
  const ObjectiveContext& context() const { return *context_; }
  Objective& objective() { return *objective_; }
  ModelUpdate& update() { return *update_; }

  /// Returns a counter of the bytes that attention and expert parallelism send.
  RowTraffic traffic() const;
  /// Returns the parameters of the run, for the memory estimate.
  RunParameters account() const;
  ModelSaver saver(const RunData& data) const;

 private:
  std::unique_ptr<Reference> make_own_reference();

  const Config& config_;
  const RunPlan& plan_;
  Workers& workers_;
  at::Device device_;
  std::unique_ptr<SequenceParallel> attention_;
  std::optional<ShardingOptions> sharding_;
  std::unique_ptr<ActivationOffload> activations_;  // outlives every graph
  std::unique_ptr<ExpertParallel> experts_;         // the same; null: every rank has all experts
  TrainedModel trained_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Reference> reference_;
  std::optional<ObjectiveContext> context_;
  std::unique_ptr<Objective> objective_;
  std::optional<ModelUpdate> update_;
};

}  // namespace longspan
