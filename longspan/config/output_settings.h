// What a run writes, where and how often. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

/// What no key says: the program around a run sets it (`longspan`, from its environment).
struct OutputSurroundings {
  std::string logging_dir;        // where the key is left out; empty: output_dir/runs
  std::string cluster_job;        // its name ("slurm 4711"), by which checkpoints know it
  bool job_was_requeued = false;  // this is not its first start
};

struct OutputSettings {
  std::string output_dir;
  bool overwrite_output_dir = false;
  std::string fallback_output_dir;  // where the model goes when output_dir's disk is full
  std::string report_to = "none";   // none | tensorboard
  std::string logging_dir;          // of TensorBoard's files; empty: see OutputSurroundings
  std::string run_name;
  // Steps: a number below 1 is a share of all steps (steps_of).
  std::string logging_strategy = "steps";  // no | steps | epoch
  double logging_steps = 10;
  bool logging_first_step = false;
  bool disable_tqdm = false;
  std::string save_strategy = "steps";  // no | steps | epoch
  double save_steps = 500;
  std::optional<int64_t> save_total_limit;
  bool save_only_model = false;
  std::string resume_from_checkpoint;  // empty: the newest whole one in output_dir
  bool plot_loss = false;
  OutputSurroundings surroundings;
};

}  // namespace longspan
