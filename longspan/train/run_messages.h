// Messages of a run at its start and its end.
#pragma once

#include <string>
#include <vector>

#include "longspan/liveness/run_control.h"
#include "longspan/report/events.h"
#include "longspan/report/memory_report.h"
#include "longspan/report/summary.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/session/run_plan.h"
#include "longspan/session/trained_model.h"
#include "longspan/session/workers.h"
#include "longspan/settings/output_settings.h"
#include "longspan/settings/parallel_settings.h"
#include "longspan/train/run_data.h"
#include "longspan/train/run_results.h"
#include "longspan/train/run_start.h"
#include "longspan/train/step_schedule.h"

namespace longspan {

/// On several machines: measures the links between them, and prints their rates and slow ones.
/// No-op with check_network: false. Collective.
void say_network(const ParallelSettings& config, const RunPlan& plan, const Workers& workers,
                 Events& events);

struct StartFacts {
  SummarySettings settings;
  const std::vector<std::string>& notes;  // of the configuration
  int64_t ddp_timeout;
  const RunPlan& plan;
  const RunData& data;
  const RunStart& start;
  const TrainedModel& trained;
  const StepSchedule& schedule;
  const Progress& progress;
  MemoryReport& memory;
  const std::string& disk;  // estimate of RunLog::open
};

/// Prints the summary, the remarks, the estimates of memory and disk, and the checkpoint that the
/// run resumes from. Starts to measure memory.
void say_start(const StartFacts& facts, Events& events);

/// Compares the machines of the ranks with the plan's groups (plan/rank_layout.h). Collective.
void say_layout(const RunPlan& plan, const Group& world, Events& events);

/// For a run without do_train: the notes, and the remarks on parts of the model that are not read.
void say_start_of_answers(const ModelSettings& config, const std::vector<std::string>& notes,
                          int64_t ddp_timeout, const RunPlan& plan, Events& events);

/// For a run whose control asks it to stop before the first step. Returns how the run ended.
RunEnd say_stopped_before_steps(const OutputSettings& config, RunControl& control, Events& events);

struct EndFacts {
  const OutputSettings& config;
  RunEnd end;
  const Progress& progress;  // of the completed steps
  const RunResults& results;
  const Checkpoints& checkpoints;
};

void say_end(const EndFacts& facts, RunControl& control, Events& events);

}  // namespace longspan
