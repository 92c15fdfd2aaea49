// What each rank of a run decides before it has communicated with another or made a tensor. No
// torch.
#pragma once

#include <string>

#include "longspan/comm/rendezvous.h"
#include "longspan/models/model_config.h"
#include "longspan/plan/device_choice.h"
#include "longspan/plan/parallel_plan.h"
#include "longspan/plan/run_account.h"
#include "longspan/spec/model_spec.h"

namespace longspan {

struct Config;

struct RunPlan {
  Rendezvous where;
  ModelConfig model;   // with rope_scaling, as it is trained
  ModelSpec attended;  // as its attentions see it (train/attended_model.h)
  ParallelPlan parallel;
  DeviceChoice device;
  int num_threads = 1;  // of this process
  int num_cores = 0;    // of its machine; 0: not known
  std::string warning;  // mostly empty

  /// What computes.
  Computer computer() const { return {.cuda = device.cuda(), .num_threads = num_threads}; }
  /// The number of this rank's GPU, of those of its machine. Where it computes on a CPU: 0.
  int own_gpu() const { return device.cuda() ? where.local_rank % device.num_gpus : 0; }
};

/// Reads the model's config.json and looks for GPUs. Throws UserError.
RunPlan plan_run(const Config& config, const Machine& machine, const Rendezvous& where = {});

/// The account of the run with rows of these lengths, by numbers alone. Throws UserError.
MemoryAccount account_of_run(const Config& config, const RunPlan& plan, const RowLengths& row);

/// "CUDA", "CPU with 4 threads each (no GPU was found)".
std::string device_text(const RunPlan& plan);

}  // namespace longspan
