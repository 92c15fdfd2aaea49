// Outputs of a run: where, and how often. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longspan {

/// Values without a key, which the program around a run sets (`longspan`: from its environment).
struct OutputSurroundings {
  std::string logging_dir;         // used where the key is not set; empty: output_dir/runs
  std::string cluster_job;         // name of the job ("slurm 4711"), which checkpoints store
  bool job_was_requeued = false;   // the job was started before
  bool is_pod = false;             // of Kubernetes, which kills after a period of grace
  std::string python = "python3";  // the interpreter of the environment, for logging services
};

/// Keys of single logging services of report_to.
struct ServiceSettings {
  std::string project = "huggingface", trackio_space_id;  // trackio
  bool use_swanlab = false;                               // adds swanlab to report_to
  std::string swanlab_project = "llamafactory", swanlab_workspace, swanlab_run_name;
  std::string swanlab_mode = "cloud", swanlab_logdir;
};

struct OutputSettings {
  std::string output_dir;
  bool overwrite_output_dir = false;
  std::string fallback_output_dir;  // for the model where output_dir's disk is full
  std::string report_to = "none";   // a list of none | tensorboard | wandb | ... (choices.h)
  std::string logging_dir;          // for TensorBoard's files; empty: see OutputSurroundings
  std::string run_name;
  std::string metrics_file;  // for Prometheus; empty: none
  ServiceSettings services;
  // Below 1, a number of steps is a fraction of all steps (steps_of).
  std::string logging_strategy = "steps";  // no | steps | epoch
  double logging_steps = 10;
  bool logging_first_step = false;
  bool disable_tqdm = false;
  std::string save_strategy = "steps";  // no | steps | epoch
  double save_steps = 500;
  std::optional<int64_t> save_total_limit;
  bool save_only_model = false;
  bool save_async = false;
  std::string resume_from_checkpoint;  // empty: the newest whole checkpoint in output_dir
  bool plot_loss = false;
  OutputSurroundings surroundings;
};

}  // namespace longspan
