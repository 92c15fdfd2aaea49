// Decisions that each rank makes before any communication and before any tensor exists. No torch.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "longspan/account/run_account.h"
#include "longspan/config/training_settings.h"
#include "longspan/cuda/device_choice.h"
#include "longspan/models/model_config.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/rendezvous/rendezvous.h"
#include "longspan/rows/dealing.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Config;

struct RunPlan {
  Rendezvous where;
  ModelConfig model;   // the trained model, with rope_scaling
  ModelSpec attended;  // attended_model()
  ParallelPlan parallel;
  /// With sequence_parallel_size: auto, the plans of rows by number of ranks; otherwise empty.
  std::map<int, ParallelPlan> by_degree;
  /// With by_degree: the most tokens of a row on each of its ranks.
  int64_t tokens_per_rank = 0;
  bool deals_rows = false;             // rows are dealt to ranks by their work
  std::optional<ModelSpec> reference;  // of ref_model; nullopt: no ref_model
  /// `parallel` for the heads of ref_model; nullopt: no ref_model, or equal heads.
  std::optional<ParallelPlan> reference_parallel;
  NetworkRates network;  // measured rates of links, by the key network_rates
  DeviceChoice device;
  int num_threads = 1;       // threads of this process
  int num_cores = 0;         // cores of the machine; 0: unknown
  int ranks_per_domain = 1;  // neighbours on a fast link: fast_domain_size, or those of a machine
  std::string warning;       // may be empty
  Settings settings;         // settings_of_all_ranks()

  /// Returns the plan of the longest rows, for the memory estimate.
  ParallelPlan of_longest_rows() const;
  RanksOfRun ranks() const {
    return {.num_ranks = parallel.world_size, .ranks_per_machine = ranks_per_domain};
  }
  /// Returns the plan of the reference's attention.
  const ParallelPlan& parallel_of_reference() const {
    return reference_parallel ? *reference_parallel : parallel;
  }
  /// Returns the model of ref_model, for the memory estimate. `longest`: of_longest_rows(), which
  /// must outlive the result.
  std::optional<PlannedModel> reference_model(const ParallelPlan& longest) const {
    if (!reference) return std::nullopt;
    return PlannedModel{*reference, by_degree.empty() ? parallel_of_reference() : longest};
  }
  /// Returns the hardware of this rank, as far as it is known: a GPU is known to be without kernels
  /// after load_kernels().
  Hardware hardware() const;
  /// Returns the index of this rank's GPU on its machine; 0 on a CPU.
  int own_gpu() const { return device.cuda() ? where.local_rank % device.num_gpus : 0; }
};

/// Reads the model's config.json and looks for GPUs. `model`: replaces config.json; null: the file
/// is read. Throws UserError.
RunPlan plan_run(const Config& config, const Machine& machine, const Rendezvous& where = {},
                 const ModelConfig* model = nullptr);

/// Returns the run's memory estimate for these row lengths, without making tensors. Throws
/// UserError.
MemoryAccount account_of_run(const Config& config, const RunPlan& plan, const RowLengths& row);

/// For example "CUDA" or "CPU with 4 threads each (no GPU was found)".
std::string device_text(const RunPlan& plan);

}  // namespace longspan
