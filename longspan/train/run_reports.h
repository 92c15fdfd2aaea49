// What a run counts, and whom it tells.
#pragma once

#include "longspan/memory/peak_meter.h"
#include "longspan/report/attention_traffic.h"
#include "longspan/report/console.h"
#include "longspan/report/expert_traffic.h"
#include "longspan/report/memory_report.h"
#include "longspan/train/run_log.h"
#include "longspan/train/run_memory.h"
#include "longspan/train/run_model.h"

namespace longspan {

/// Rank 0 alone writes the log and says something.
struct RunReports {
  /// `model` has its objective. `meter` as in run_training. Both outlive the reports.
  RunReports(const Config& config, const RunMemory& memory, const RunModel& model, PeakMeter* meter,
             Console& console);
  RunReports(const RunReports&) = delete;
  RunReports& operator=(const RunReports&) = delete;

  AttentionTraffic traffic;
  ExpertTraffic expert_traffic;
  MemoryReport memory;
  RunLog log;
  Console& console;
};

}  // namespace longspan
