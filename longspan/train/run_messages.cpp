#include "longspan/train/run_messages.h"

#include <fmt/format.h>

#include <map>

#include "longspan/base/names.h"
#include "longspan/checkpoint/adapter_folder.h"
#include "longspan/checkpoint/folder_tensors.h"
#include "longspan/comm/network_links.h"
#include "longspan/cuda/cuda.h"
#include "longspan/files/process_identity.h"
#include "longspan/plan/rank_layout.h"
#include "longspan/report/remarks.h"
#include "longspan/saving/launch.h"
#include "longspan/saving/output_room.h"
#include "longspan/saving/training_state.h"
#include "longspan/settings/choices.h"
#include "longspan/settings/model_settings.h"
#include "longspan/spec/file_tensors.h"

namespace longspan {
namespace {

/// Returns a sentence on how to resume after a stop.
std::string how_to_go_on(const OutputSettings& config) {
  if (config.save_only_model) return "It holds the model alone, as save_only_model asks.";
  if (goes_on_by_itself(config)) return "The same command goes on from there.";
  return fmt::format("The same command with resume_from_checkpoint=true goes on from there{}.",
                     own_job(config).empty() ? "" : "; so does this job, if Slurm requeues it");
}

void say_interrupted(const std::string& where_it_stands, bool trained_all,
                     const RunResults& results, const Checkpoints& checkpoints,
                     RunControl& control) {
  if (!results.model_in().empty()) {
    control.say(
        fmt::format("Interrupted {}; the model is in {}{}.", where_it_stands, results.model_in(),
                    results.record_in().empty() ? ", and its logs and results were given up" : ""));
    return;
  }
  control.say(fmt::format(
      "Interrupted {}; {}. {}", where_it_stands,
      trained_all ? "the trained model was given up" : "the step under way was left",
      checkpoints.last().empty() ? "No model was saved."
                                 : "The last checkpoint is " + checkpoints.last() + "."));
}

/// For the model's files and those of its adapters.
std::map<LeftOut, int64_t> left_out(const ModelSettings& config, const ModelConfig& model) {
  std::map<LeftOut, int64_t> counts = left_out_tensors(config.model_name_or_path, model);
  for (const std::string& folder : split_names(config.adapter_name_or_path)) {
    if (const int64_t count = num_value_head_tensors(folder); count > 0) {
      counts[LeftOut::kValueHead] += count;
    }
  }
  return counts;
}

}  // namespace

void say_network(const ParallelSettings& config, const RunPlan& plan, const Workers& workers,
                 Events& events) {
  if (!config.check_network) return;
  const at::Device device = device_of(plan.device, plan.own_gpu());
  for (const std::string& line :
       check_network(workers.mesh(), workers.where(), plan.ranks_per_domain, device)) {
    events.say(line);
  }
}

void say_start(const StartFacts& facts, Events& events) {
  const auto& [settings, notes, ddp_timeout, plan, data, start, trained, schedule, progress, memory,
               disk] = facts;
  events.say(summary_of({.settings = settings,
                         .model = plan.model,
                         .plan = plan.parallel,
                         .steps = schedule.plan(),
                         .train_examples = *data.train,
                         .eval_examples = *data.eval,
                         .num_parameters = trained.num_parameters(),
                         .num_trained = trained.num_trained(),
                         .num_warmup_steps = schedule.num_warmup_steps(),
                         .device = device_text(plan),
                         .streams = data.fingerprint.starts_with(kStreamedRows),
                         .is_early = data.early != nullptr}));
  for (const std::string& remark :
       remarks_at_start({.notes = notes,
                         .method = settings.method,
                         .adapters = settings.model.adapter_name_or_path,
                         .model = plan.model,
                         .plan_warning = plan.warning,
                         .ddp_timeout = ddp_timeout,
                         .num_rows = data.train->size(),
                         .rows_per_step = start.identity.rows_per_step,
                         .local_world_size = plan.where.local_world_size,
                         .num_cores = plan.num_cores,
                         .cuda = plan.device.cuda(),
                         .left_out = plan.where.rank == 0 ? left_out(settings.model, plan.model)
                                                          : std::map<LeftOut, int64_t>()})) {
    events.say(remark);
  }
  if (const std::string text = warning_of_fallback(settings.output); !text.empty())
    events.say(text);
  events.say(fmt::format("\n{}", memory.begin(plan.where.local_world_size, plan.device.cuda())));
  if (!disk.empty()) events.say(disk);
  if (!start.resumed) return;
  events.say(
      fmt::format("Going on from {}, step {} of {}{}", start.resumed->folder, progress.step,
                  progress.total_steps,
                  progress.step == progress.total_steps ? ": nothing is left to train" : ""));
  for (const std::string& change : start.changes) events.say(change);
}

void say_layout(const RunPlan& plan, const Group& world, Events& events) {
  if (world.size() == 1) return;
  std::vector<RankMachine> machines;
  for (const std::string& text : world.gather_text(own_machine() + "\n" + own_host())) {
    const size_t end = text.find('\n');
    machines.push_back({text.substr(0, end), text.substr(end + 1)});
  }
  const std::string warning = warning_of_layout(plan.parallel, machines, plan.ranks_per_domain);
  if (!warning.empty()) events.say("warning: " + warning);
}

void say_start_of_answers(const ModelSettings& config, const std::vector<std::string>& notes,
                          int64_t ddp_timeout, const RunPlan& plan, Events& events) {
  for (const std::string& note : notes) events.say("note: " + note);
  if (const std::string text = warning_of_timeout(ddp_timeout); !text.empty()) events.say(text);
  if (!plan.warning.empty()) events.say("warning: " + plan.warning);
  if (plan.where.rank != 0) return;
  for (const std::string& remark : remarks_on_left_out(left_out(config, plan.model))) {
    events.say(remark);
  }
}

RunEnd say_stopped_before_steps(const OutputSettings& config, RunControl& control, Events& events) {
  const std::string kept =
      fmt::format("the reference log-probabilities so far are kept in {}.", config.output_dir);
  if (control.requested()) {
    control.say("Interrupted; " + kept);
    return RunEnd::kInterrupted;
  }
  events.say(fmt::format("Stopped before the first step ({}); {}", control.why_stopped(), kept));
  return RunEnd::kStopped;
}

void say_end(const EndFacts& facts, RunControl& control, Events& events) {
  const auto& [config, end, progress, results, checkpoints] = facts;
  const std::string where_it_stands =
      fmt::format("after step {} of {}", progress.step, progress.total_steps);
  switch (end) {
    case RunEnd::kDone:
      events.say(results.record_in() == results.model_in()
                     ? fmt::format("Saved the model and logs in {}", results.model_in())
                     : fmt::format("Saved the model in {}, and its logs and results in {}",
                                   results.model_in(), results.record_in()));
      return;
    case RunEnd::kStopped:
      events.say(fmt::format("Stopped {} ({}); saved {}. {}", where_it_stands,
                             control.why_stopped(), checkpoints.last(), how_to_go_on(config)));
      return;
    case RunEnd::kInterrupted:
      say_interrupted(where_it_stands, progress.step == progress.total_steps, results, checkpoints,
                      control);
      return;
  }
}

}  // namespace longspan
