// What a run says to people at its start and at its end.
#pragma once

#include <string>

#include "longspan/config/config.h"
#include "longspan/liveness/host.h"
#include "longspan/report/console.h"
#include "longspan/report/memory_report.h"
#include "longspan/saving/checkpoints.h"
#include "longspan/train/run_data.h"
#include "longspan/train/run_plan.h"
#include "longspan/train/run_start.h"
#include "longspan/train/trained_model.h"
#include "longspan/train/trainer.h"

namespace longspan {

struct StartFacts {
  const Config& config;
  const RunPlan& plan;
  const RunData& data;
  const RunStart& start;
  const TrainedModel& trained;
  const Trainer& trainer;
  MemoryReport& memory;
  const std::string& disk;  // RunLog::open's account
};

/// The summary, remarks, the accounts of memory and disk, and what the run goes on from. Starts to
/// measure memory.
void say_start(const StartFacts& facts, Console& console);

/// Returns how the run ended.
RunEnd say_stopped_before_steps(const Config& config, Host& host, Console& console);

void say_end(const Config& config, RunEnd end, const Trainer& trainer,
             const Checkpoints& checkpoints, Host& host, Console& console);

}  // namespace longspan
