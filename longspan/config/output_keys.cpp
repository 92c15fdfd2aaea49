// Keys: outputs of a run, where and how often.
#include "longspan/config/config.h"
#include "longspan/config/key_tables.h"
#include "longspan/config/logging_services.h"

namespace longspan::key_tables {

KeySection output_keys() {
  using S = OutputSettings;
  using enum OnResume;
  Key report_to = choice(
      "report_to", &S::report_to, kFree,
      {"none", "tensorboard", "wandb", "trackio", "swanlab", "mlflow", "all"},
      "tensorboard: also write event files that TensorBoard reads. all: the same. wandb, "
      "trackio, swanlab, mlflow: also send the numbers to this service, through its Python "
      "package in the environment of the run.",
      {"comet_ml", "neptune", "clearml", "codecarbon", "azure_ml", "dagshub", "dvclive", "flyte"});
  report_to.unsupported_remedy_of = remedy_of_service;
  report_to.list = true;
  Key resume =
      plain("resume_from_checkpoint", &S::resume_from_checkpoint, kFree,
            "The checkpoint to resume from. true: the newest complete one in output_dir; this is "
            "the default unless overwrite_output_dir is set. Workers that torchrun restarts, and a "
            "requeued Slurm job, resume from the newest checkpoint of the run itself.");
  resume.truth = true;
  return {
      "Output",
      {plain("output_dir", &S::output_dir, kFree, "Where everything is written."),
       plain("overwrite_output_dir", &S::overwrite_output_dir, kFree,
             "Train although output_dir holds results already."),
       noted(plain("fallback_output_dir", &S::fallback_output_dir, kFree,
                   "A folder on another disk. If output_dir has no space for the trained model, or "
                   "for the checkpoint of a stopped run, the model or the checkpoint goes into a "
                   "subfolder of this folder, named after output_dir. The run also resumes from a "
                   "checkpoint there. Left out: the run waits for space."),
             kOwn),
       report_to,
       plain("logging_dir", &S::logging_dir, kFree,
             "Where TensorBoard's files go. Left out: the folder runs in output_dir."),
       plain("run_name", &S::run_name, kFree,
             "The run's name in TensorBoard (a folder of its own in logging_dir), and in the "
             "services of report_to."),
       noted(plain("metrics_file", &S::metrics_file, kFree,
                   "A text file for Prometheus' node_exporter (textfile collector), such as "
                   "/var/lib/node_exporter/longspan.prom. Rank 0 replaces the file at each log "
                   "line: the numbers of the line, tokens per second, and each rank's seconds of a "
                   "step and of waits for other ranks."),
             kOwn),
       plain("project", &ServiceSettings::project, kFree, "The project in trackio."),
       plain("trackio_space_id", &ServiceSettings::trackio_space_id, kFree,
             "The Space that trackio sends to. Left out: files on this machine."),
       plain("use_swanlab", &ServiceSettings::use_swanlab, kFree,
             "Adds swanlab to report_to, with the keys swanlab_*."),
       plain("swanlab_project", &ServiceSettings::swanlab_project, kFree,
             "The project in SwanLab."),
       plain("swanlab_workspace", &ServiceSettings::swanlab_workspace, kFree,
             "The workspace in SwanLab."),
       plain("swanlab_run_name", &ServiceSettings::swanlab_run_name, kFree,
             "The run's name in SwanLab. Left out: run_name."),
       choice("swanlab_mode", &ServiceSettings::swanlab_mode, kFree, {"cloud", "local"},
              "Whether SwanLab sends the numbers, or writes files."),
       plain("swanlab_logdir", &ServiceSettings::swanlab_logdir, kFree,
             "Where SwanLab's files go. Left out: its own choice."),
       choice("logging_strategy", &S::logging_strategy, kFree, {"no", "steps", "epoch"},
              "When to log a line of the training."),
       noted(steps("logging_steps", &S::logging_steps, kFree, "Optimizer steps between log lines."),
             "The default there is 500."),
       plain("logging_first_step", &S::logging_first_step, kFree, "Log the first step too."),
       plain("disable_tqdm", &S::disable_tqdm, kFree, "Show no progress bar."),
       choice("save_strategy", &S::save_strategy, kFree, {"no", "steps", "epoch"},
              "When to save checkpoints during training. The trained model is always saved at the"
              " end."),
       steps("save_steps", &S::save_steps, kFree, "Optimizer steps between saves."),
       number("save_total_limit", &S::save_total_limit, kFree, 1,
              "The number of checkpoints to keep; older ones are deleted.", kMostSteps),
       plain("save_only_model", &S::save_only_model, kFree,
             "Save checkpoints of the model only; a run cannot resume from them."),
       noted(
           plain("save_async", &S::save_async, kFree,
                 "Copy each checkpoint to host memory, and write the copy while training goes on. "
                 "A checkpoint gets its name at the end of the first step after its writing. The "
                 "next save, a stop and the end of the run wait for the writing."),
           kOwn),
       resume,
       plain("plot_loss", &S::plot_loss, kFree, "Write training_loss.png.")}};
}

}  // namespace longspan::key_tables
