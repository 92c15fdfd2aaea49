// What computes in a run: the trained model, its attention, its reference and its loss.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "longspan/expert_parallel/expert_parallel.h"
#include "longspan/memory/activation_offload.h"
#include "longspan/models/decoder.h"
#include "longspan/plan/run_account.h"
#include "longspan/report/attention_traffic.h"
#include "longspan/report/console.h"
#include "longspan/report/expert_traffic.h"
#include "longspan/saving/saving.h"
#include "longspan/stages/objective.h"
#include "longspan/stages/reference.h"
#include "longspan/train/run_data.h"
#include "longspan/train/trained_model.h"
#include "longspan/train/workers.h"

namespace longspan {

struct Config;

class RunModel {
 public:
  /// Reads the model. `config`, `plan` and `workers` outlive it. Collective. Throws as all_or_none.
  RunModel(const Config& config, const RunPlan& plan, Workers& workers);
  RunModel(const RunModel&) = delete;
  RunModel& operator=(const RunModel&) = delete;

  const TrainedModel& trained() const { return trained_; }
  Decoder& decoder() { return *decoder_; }
  ShardedParameters* sharded() { return trained_.sharded.get(); }

  /// Makes the reference model, where the stage has one, and the objective. Call it once. False:
  /// the host asked the run to stop. Collective. Throws as all_or_none.
  bool find_objective(const RunData& data, const Host& host, Console& console);
  /// These two are there after find_objective.
  const ObjectiveContext& context() const { return *context_; }
  Objective& objective() { return *objective_; }

  /// A counter of the bytes that attention sends.
  AttentionTraffic traffic() const;
  /// A counter of the bytes that expert parallelism sends.
  ExpertTraffic expert_traffic() const;
  /// The parameters of the run, for the account of memory.
  RunParameters parameters() const;
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
};

}  // namespace longspan
